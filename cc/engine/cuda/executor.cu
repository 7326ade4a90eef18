#include <string>

#include "cc/engine/cuda/block.cuh"
#include "cc/engine/cuda/executor.h"
#include "cc/engine/cuda/reduce.cuh"
#include "cc/engine/cuda/stripes.cuh"

namespace jax_cxl::cuda {
namespace {

constexpr int kCopyUnroll = 8;

// Moves this lane's vectors of a range; several loads in flight a thread.
template <typename Load, typename Store>
__device__ __forceinline__ void MoveVectors(const LaneContext& lane,
                                            const StripeVectors& vectors,
                                            uint64_t bytes, const Load& load,
                                            const Store& store) {
  for (uint32_t base = lane.thread(); base < vectors.size();
       base += lane.threads() * kCopyUnroll) {
    uint4 values[kCopyUnroll];
    uint64_t offsets[kCopyUnroll];
#pragma unroll
    for (int k = 0; k < kCopyUnroll; ++k) {
      const uint32_t i = base + k * lane.threads();
      offsets[k] = i < vectors.size() ? vectors.Offset(i) : bytes;
      if (offsets[k] < bytes) values[k] = load(offsets[k], bytes - offsets[k]);
    }
#pragma unroll
    for (int k = 0; k < kCopyUnroll; ++k)
      if (offsets[k] < bytes) store(offsets[k], values[k], bytes - offsets[k]);
  }
}

__device__ StripeVectors VectorsOf(const DeviceCall& call, uint64_t at,
                                   uint64_t bytes) {
  return StripeVectors(at, bytes, call.unit_bytes, blockIdx.x, gridDim.x);
}

__device__ uint32_t SlotOf(const DeviceCall& call, uint64_t round) {
  return static_cast<uint32_t>((call.base_round + round) % call.num_slots);
}

// False when the call cannot go on.
__device__ bool RunSending(const DeviceCall& call, LaneContext& lane) {
  const MemberView& mine = call.members[call.self];
  for (uint32_t at = 0; at < call.num_sending; ++at) {
    const DeviceStep& step = call.sending[at];
    switch (step.kind) {
      case DeviceStepKind::kCopy: {
        const std::byte* from = call.input + step.from;
        std::byte* to = call.output + step.to;
        MoveVectors(
            lane, VectorsOf(call, 0, step.bytes), step.bytes,
            [&](uint64_t i, uint64_t valid) {
              return LoadLocal(from + i, valid);
            },
            [&](uint64_t i, uint4 v, uint64_t valid) {
              StoreLocal(to + i, v, valid);
            });
        break;
      }
      case DeviceStepKind::kZero: {
        std::byte* to = call.output + step.to;
        MoveVectors(
            lane, VectorsOf(call, 0, step.bytes), step.bytes,
            [&](uint64_t, uint64_t) { return make_uint4(0, 0, 0, 0); },
            [&](uint64_t i, uint4 v, uint64_t valid) {
              StoreLocal(to + i, v, valid);
            });
        break;
      }
      case DeviceStepKind::kPut: {
        const StripeVectors vectors = VectorsOf(call, step.to, step.bytes);
        if (vectors.size() == 0) break;
        if (!lane.AwaitSlot(at, call.base_round + step.round)) return false;
        const std::byte* from = call.input + step.from;
        std::byte* to = mine.slots[SlotOf(call, step.round)] + step.to;
        MoveVectors(
            lane, vectors, step.bytes,
            [&](uint64_t i, uint64_t valid) {
              return LoadLocal(from + i, valid);
            },
            [&](uint64_t i, uint4 v, uint64_t) { StoreSlot(to + i, v); });
        break;
      }
      case DeviceStepKind::kPublish:
        if (step.after > 0 && !lane.AwaitReceived(at, step.after)) return false;
        lane.Ring(&mine.send[blockIdx.x].published,
                  call.base_round + step.round + 1);
        break;
      default:
        break;
    }
  }
  return true;
}

__device__ bool RunGet(const DeviceCall& call, LaneContext& lane, uint32_t at,
                       const DeviceStep& step) {
  const uint64_t rounds = call.base_round + step.round + 1;
  const int peer = step.first;
  if (step.bytes == 0)  // nothing but its wait: once for the whole rank
    return blockIdx.x != 0 || lane.AwaitPublished(at, peer, peer + 1, rounds);
  const StripeVectors vectors = VectorsOf(call, step.from, step.bytes);
  if (vectors.size() == 0) return true;
  if (!lane.AwaitPublished(at, peer, peer + 1, rounds)) return false;
  const std::byte* from =
      call.members[peer].slots[SlotOf(call, step.round)] + step.from;
  std::byte* to = call.output + step.to;
  MoveVectors(
      lane, vectors, step.bytes,
      [&](uint64_t i, uint64_t) { return LoadSlot(from + i); },
      [&](uint64_t i, uint4 v, uint64_t valid) {
        StoreLocal(to + i, v, valid);
      });
  return true;
}

__device__ bool RunReduce(const DeviceCall& call, LaneContext& lane,
                          uint32_t at, const DeviceStep& step) {
  const StripeVectors vectors = VectorsOf(call, step.from, step.bytes);
  if (vectors.size() == 0) return true;
  const bool to_slot = step.kind != DeviceStepKind::kReduce;
  if (to_slot && !lane.AwaitSlot(at, call.base_round + step.to_round))
    return false;
  if (!lane.AwaitPublished(at, step.first, step.last,
                           call.base_round + step.round + 1))
    return false;
  ReduceTask task{&call,   &step,   vectors,       SlotOf(call, step.round),
                  nullptr, nullptr, lane.thread(), lane.threads()};
  if (step.kind != DeviceStepKind::kReduceToSlot)
    task.to = call.output + step.to;
  if (to_slot)
    task.to_slot = call.members[call.self].slots[SlotOf(call, step.to_round)] +
                   step.to_slot;
  Reduce(task);
  return true;
}

// False when the call cannot go on.
__device__ bool RunReceiving(const DeviceCall& call, LaneContext& lane,
                             BlockState& state) {
  for (uint32_t at = 0; at < call.num_receiving; ++at) {
    const DeviceStep& step = call.receiving[at];
    switch (step.kind) {
      case DeviceStepKind::kGet:
        if (!RunGet(call, lane, at, step)) return false;
        break;
      case DeviceStepKind::kReduce:
        if (!RunReduce(call, lane, at, step)) return false;
        break;
      case DeviceStepKind::kReduceToSlot:
      case DeviceStepKind::kReduceToBoth:
        if (!RunReduce(call, lane, at, step)) return false;
        // The sending lane publishes what all threads of this one have written.
        lane.Barrier();
        if (lane.thread() == 0) {
          __threadfence();
          state.received = at + 1;
        }
        break;
      case DeviceStepKind::kRelease:
        lane.Ring(&call.members[call.self].released[blockIdx.x].word,
                  call.base_round + step.round + 1);
        break;
      default:
        break;
    }
  }
  return true;
}

__global__ void __launch_bounds__(kMaxThreads, 1)
    Execute(const __grid_constant__ DeviceCall call, uint32_t sending_threads) {
  __shared__ BlockState state;
  state.Reset();
  if (threadIdx.x == 0) {
    // This thread rings the doorbells of the sending lane, behind a fence.
    StoreWord(
        &call.members[call.self].send[blockIdx.x].calls[call.call % kCallWords],
        CallWord(call.call, call.hash));
    if (blockIdx.x == 0) {
      call.scratch->started_ns = NowNs();
      StoreWord(&call.status->started, call.call + 1);
    }
  }
  __syncthreads();

  bool done;
  if (threadIdx.x < sending_threads) {
    LaneContext lane(call, state, kSending, blockIdx.x, threadIdx.x,
                     sending_threads);
    done = RunSending(call, lane);
  } else {
    LaneContext lane(call, state, kReceiving, blockIdx.x,
                     threadIdx.x - sending_threads,
                     blockDim.x - sending_threads);
    done = RunReceiving(call, lane, state);
  }
  if (__syncthreads_or(!done)) {
    if (threadIdx.x == 0) Stop(call.status);
    return;
  }
  if (threadIdx.x != 0) return;
  __threadfence();
  DeviceScratch& scratch = *call.scratch;
  if (atomicAdd(&scratch.blocks_done, 1) == gridDim.x - 1) {
    __threadfence();
    scratch.blocks_done = 0;
    const volatile uint64_t& started = scratch.started_ns;
    scratch.busy_ns += NowNs() - started;
    StoreWord(&call.status->busy_ns, scratch.busy_ns);
    StoreWord(&call.status->finished, call.call + 1);
  }
}

__global__ void Wait(const uint64_t* flag, uint64_t value,
                     const DeviceStatus* status) {
  const volatile DeviceStatus* said = status;
  while (LoadWord(flag) < value) {
    if (said->abort != 0) __trap();
    __nanosleep(200);
  }
  FenceSystem();
}

}  // namespace

cudaError_t Launch(const DeviceCall& call, const Shape& shape,
                   cudaStream_t stream) {
  Execute<<<shape.blocks, shape.sending_threads + shape.receiving_threads, 0,
            stream>>>(call, shape.sending_threads);
  return cudaGetLastError();
}

cudaError_t Preload() {
  cudaFuncAttributes attributes;
  if (cudaError_t error = cudaFuncGetAttributes(&attributes, Execute);
      error != cudaSuccess)
    return error;
  return cudaFuncGetAttributes(&attributes, Wait);
}

cudaError_t LaunchWait(const uint64_t* flag, uint64_t value,
                       const DeviceStatus* status, cudaStream_t stream) {
  Wait<<<1, 1, 0, stream>>>(flag, value, status);
  return cudaGetLastError();
}

Status CudaStatus(cudaError_t error, std::string_view what) {
  if (error == cudaSuccess) return OkStatus();
  return Error(Code::kInternal, what, ": ", cudaGetErrorString(error));
}

}  // namespace jax_cxl::cuda
