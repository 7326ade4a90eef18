#include <algorithm>
#include <string>

#include "cc/engine/cuda/block.cuh"
#include "cc/engine/cuda/counted.cuh"
#include "cc/engine/cuda/executor.h"
#include "cc/engine/cuda/progress.cuh"
#include "cc/engine/cuda/reduce.cuh"
#include "cc/engine/cuda/row_moves.cuh"
#include "cc/engine/cuda/stripes.cuh"
#include "cc/engine/cuda/vector_loop.cuh"

namespace jax_cxl::cuda {
namespace {

// Moves this warp's vectors of a range.
template <typename Load, typename Store>
__device__ __forceinline__ void MoveVectors(DataWarp& warp,
                                            const StripeVectors& vectors,
                                            uint64_t bytes, const Load& load,
                                            const Store& store) {
  ForEachVector<MovingVector>(
      warp, vectors, bytes,
      [&](MovingVector& v) {
        if (v.offset < bytes) v.value = load(v.offset, bytes - v.offset);
      },
      [&](MovingVector& v) {
        if (v.offset < bytes) store(v.offset, v.value, bytes - v.offset);
      });
}

__device__ StripeVectors VectorsOf(const DeviceCall& call, uint64_t at,
                                   uint64_t bytes) {
  return StripeVectors(at, bytes, call.unit_bytes, blockIdx.x, gridDim.x);
}

__device__ uint32_t SlotOf(const DeviceCall& call, uint64_t round) {
  return static_cast<uint32_t>(plan::SlotOfBlock(
      call.base_round + round, blockIdx.x, call.slot_step, call.num_slots));
}

// The members whose publication a receiving step waits for.
struct Sources {
  int first, last;
};

// The range is empty if this block has no part in the step.
__device__ Sources SourcesOf(const DeviceCall& call, const DeviceStep& step) {
  switch (step.kind) {
    case DeviceStepKind::kGet:
      if (step.bytes == 0)  // only a wait: one block waits for the rank
        return {step.first, blockIdx.x == 0 ? step.last : step.first};
      break;
    case DeviceStepKind::kReduce:
    case DeviceStepKind::kReduceToSlot:
    case DeviceStepKind::kReduceToBoth:
      break;
    default:
      return {0, 0};
  }
  if (VectorsOf(call, step.from, step.bytes).size() == 0) return {0, 0};
  return {step.first, step.last};
}

// --- control warps: these return false when the call cannot continue ---

// The bytes of a round wait until the doorbell of an earlier round has rung.
// Otherwise the fence of that doorbell would wait for these bytes too, and
// peers would wait for the fence.
__device__ bool AwaitSendingSteps(const DeviceCall& call, ControlWarp& warp) {
  // Steps up to the last two publications, the latest first.
  uint32_t published[2] = {0, 0};
  const uint32_t& awaited = published[call.rounds_ahead - 1];
  for (uint32_t at = 0; at < call.num_sending; ++at) {
    const DeviceStep& step = call.sending[at];
    if (step.kind == DeviceStepKind::kPut &&
        VectorsOf(call, step.to, step.bytes).size() > 0 &&
        !(warp.AwaitRung(awaited) &&
          warp.AwaitSlot(call.base_round + step.round)))
      return false;
    // Doorbells of results do not count, because they wait for the receiving
    // steps.
    if (step.kind == DeviceStepKind::kPublish && step.after == 0) {
      published[1] = published[0];
      published[0] = at + 1;
    }
    warp.MarkReady(at + 1);
  }
  return true;
}

__device__ bool AwaitReceivingSteps(const DeviceCall& call, const Shape& shape,
                                    ControlWarp& warp) {
  for (uint32_t at = 0; at < call.num_receiving; ++at) {
    const DeviceStep& step = call.receiving[at];
    const Sources sources = SourcesOf(call, step);
    if (sources.first < sources.last) {
      const bool to_slot = step.kind == DeviceStepKind::kReduceToSlot ||
                           step.kind == DeviceStepKind::kReduceToBoth;
      if (to_slot && !warp.AwaitSlot(call.base_round + step.to_round))
        return false;
      if (!warp.AwaitPublished(sources.first, sources.last,
                               call.base_round + step.round + 1))
        return false;
      // In place: wait for the puts of the bytes that the step overwrites.
      if (step.after > 0 &&
          !warp.AwaitDone(0, shape.sending_warps(), step.after))
        return false;
    }
    warp.MarkReady(at + 1);
  }
  return true;
}

__device__ bool RingPublished(const DeviceCall& call, const Shape& shape,
                              ControlWarp& warp) {
  const uint32_t sending = shape.sending_warps();
  for (uint32_t at = 0; at < call.num_sending; ++at) {
    const DeviceStep& step = call.sending[at];
    if (step.kind != DeviceStepKind::kPublish) continue;
    if (!warp.AwaitDone(0, sending, at)) return false;
    // Wait for results that the receiving steps put into the slot.
    if (step.after > 0 &&
        !warp.AwaitDone(sending, shape.data_warps(), step.after))
      return false;
    warp.Ring(&call.members[call.self].send[blockIdx.x].published,
              call.base_round + step.round + 1);
    warp.MarkRung(at + 1);
  }
  return true;
}

__device__ bool RingReleased(const DeviceCall& call, const Shape& shape,
                             ControlWarp& warp) {
  for (uint32_t at = 0; at < call.num_receiving; ++at) {
    const DeviceStep& step = call.receiving[at];
    if (step.kind != DeviceStepKind::kRelease) continue;
    if (!warp.AwaitDone(shape.sending_warps(), shape.data_warps(), at))
      return false;
    warp.Ring(&call.members[call.self].released[blockIdx.x].word,
              call.base_round + step.round + 1);
  }
  return true;
}

// --- data warps: these return false in the same case ---

__device__ void Send(const DeviceCall& call, DataWarp& warp,
                     const DeviceStep& step) {
  const std::byte* from = call.input + step.from;
  const auto load = [&](uint64_t i, uint64_t valid) {
    return LoadLocal(from + i, valid);
  };
  if (step.kind == DeviceStepKind::kPut) {
    std::byte* to =
        call.members[call.self].slots[SlotOf(call, step.round)] + step.to;
    MoveVectors(warp, VectorsOf(call, step.to, step.bytes), step.bytes, load,
                [&](uint64_t i, uint4 v, uint64_t) { StoreSlot(to + i, v); });
    return;
  }
  std::byte* to = call.output + step.to;
  const auto store = [&](uint64_t i, uint4 v, uint64_t valid) {
    StoreLocal(to + i, v, valid);
  };
  const StripeVectors vectors = VectorsOf(call, 0, step.bytes);
  if (step.kind == DeviceStepKind::kCopy && from != to)  // not in place
    MoveVectors(warp, vectors, step.bytes, load, store);
  if (step.kind == DeviceStepKind::kZero)
    MoveVectors(
        warp, vectors, step.bytes,
        [](uint64_t, uint64_t) { return make_uint4(0, 0, 0, 0); }, store);
}

__device__ void Receive(const DeviceCall& call, DataWarp& warp,
                        const DeviceStep& step) {
  const StripeVectors vectors = VectorsOf(call, step.from, step.bytes);
  if (step.kind == DeviceStepKind::kGet) {
    const std::byte* from =
        call.members[step.first].slots[SlotOf(call, step.round)] + step.from;
    std::byte* to = call.output + step.to;
    MoveVectors(
        warp, vectors, step.bytes,
        [&](uint64_t i, uint64_t) { return LoadSlot(from + i); },
        [&](uint64_t i, uint4 v, uint64_t valid) {
          StoreLocal(to + i, v, valid);
        });
    return;
  }
  ReduceTask task{&call,   &step,   vectors,       SlotOf(call, step.round),
                  nullptr, nullptr, warp.thread(), warp.threads()};
  if (step.kind != DeviceStepKind::kReduceToSlot)
    task.to = call.output + step.to;
  if (step.kind != DeviceStepKind::kReduce)
    task.to_slot = call.members[call.self].slots[SlotOf(call, step.to_round)] +
                   step.to_slot;
  Reduce(task);
  warp.Rotate(vectors.size());
}

// --- moves of rows: each function returns the number of vectors that this
// thread has moved ---

__device__ uint32_t SendRows(const DeviceCall& call, const DeviceRows& rows,
                             DataWarp& warp, const DeviceStep& step) {
  if (step.kind != DeviceStepKind::kPut) return 0;  // own rows have been copied
  const std::byte* from = call.input + step.from;
  return PutRows(
      rows, warp, VectorsOf(call, step.to, step.bytes), step.from, step.bytes,
      [&](uint64_t i, uint64_t valid) { return LoadLocal(from + i, valid); },
      call.members[call.self].slots[SlotOf(call, step.round)] + step.to);
}

__device__ uint32_t ReceiveRows(const DeviceCall& call, const DeviceRows& rows,
                                DataWarp& warp, const DeviceStep& step) {
  if (step.kind != DeviceStepKind::kGet) return 0;
  const std::byte* slot =
      call.members[step.first].slots[SlotOf(call, step.round)] + step.from;
  const uint64_t block = rows.row_bytes * rows.table_rows;
  return MoveTaken(
      rows, warp, VectorsOf(call, step.from, step.bytes), step.first,
      step.to - step.first * block, step.bytes,
      [&](uint64_t i, uint64_t) { return LoadSlot(slot + i); }, call.output);
}

// Runs the steps of a call for data warps: the sending or the receiving steps.
template <bool sending, bool moves_rows>
__device__ bool RunSteps(const DeviceCall& call, const DeviceRows& rows,
                         DataWarp warp) {
  // A control warp does the steps that only ring.
  constexpr DeviceStepKind kRings =
      sending ? DeviceStepKind::kPublish : DeviceStepKind::kRelease;
  const uint32_t count = sending ? call.num_sending : call.num_receiving;
  uint32_t moved = 0;  // vectors of rows
  for (uint32_t at = 0; at < count; ++at) {
    const DeviceStep& step = sending ? call.sending[at] : call.receiving[at];
    if (step.kind != kRings) {
      if (!warp.AwaitReady(at)) return false;
      if constexpr (sending && moves_rows)
        moved += SendRows(call, rows, warp, step);
      else if constexpr (sending)
        Send(call, warp, step);
      else if constexpr (moves_rows)
        moved += ReceiveRows(call, rows, warp, step);
      else
        Receive(call, warp, step);
    }
    warp.Done(at);
  }
  if constexpr (moves_rows) {
    RowBytes& bytes = call.scratch->row_bytes;
    AddMoved(sending ? &bytes.published : &bytes.retrieved, moved);
  }
  return true;
}

// A block has four control warps, then the sending data warps, then the
// receiving data warps.
constexpr uint32_t kControlWarps = 4;

template <bool moves_rows>
__device__ bool RunWarp(const DeviceCall& call, const Shape& shape,
                        const DeviceRows& rows, BlockState& state) {
  const uint32_t warp = threadIdx.x / 32;
  if (warp < kControlWarps) {
    ControlWarp control(call, state, warp < 2 ? kSending : kReceiving,
                        blockIdx.x);
    switch (warp) {
      case 0:
        return AwaitSendingSteps(call, control);
      case 1:
        return RingPublished(call, shape, control);
      case 2:
        return AwaitReceivingSteps(call, shape, control);
      default:
        return RingReleased(call, shape, control);
    }
  }
  const uint32_t slot = warp - kControlWarps;
  const uint32_t sending = shape.sending_warps();
  if (slot < sending)
    return RunSteps<true, moves_rows>(
        call, rows, DataWarp(state, kSending, slot, slot, sending));
  return RunSteps<false, moves_rows>(
      call, rows,
      DataWarp(state, kReceiving, slot, slot - sending,
               shape.data_warps() - sending));
}

template <bool moves_rows>
__global__ void __launch_bounds__(kMaxThreads + kControlWarps * 32, 1)
    Execute(const __grid_constant__ DeviceCall call,
            const __grid_constant__ Shape shape,
            const __grid_constant__ DeviceRows rows) {
  __shared__ BlockState state;
  state.Reset();
  const KernelProgress progress(call);  // thread 0 uses it
  if (threadIdx.x == 0) {
    // Stored before a doorbell of this block rings, which comes after a fence.
    StoreWord(
        &call.members[call.self].send[blockIdx.x].calls[call.call % kCallWords],
        CallWord(call.call, call.hash));
  }
  __syncthreads();
  if (__syncthreads_or(!RunWarp<moves_rows>(call, shape, rows, state))) {
    if (threadIdx.x == 0) Stop(call.status);
    return;
  }
  if (threadIdx.x == 0 && progress.Finish())
    StoreWord(call.members[call.self].ended,
              call.epoch << kValueBits | (call.base_round + call.rounds));
}

// The calls travel with the launch. Those of a launch with few calls cost less.
template <size_t most>
struct CountedCalls {
  DeviceCall calls[most];
};
static_assert(sizeof(CountedCalls<kMostCountedCalls>) + sizeof(Shape) <= 4096);

// Block (x, y) is block x of call y.
template <size_t most>
__global__ void __launch_bounds__(kMaxThreads + kControlWarps * 32, 1)
    ExecuteCounted(const __grid_constant__ CountedCalls<most> given,
                   const __grid_constant__ Shape shape) {
  __shared__ BlockState state;
  __shared__ DeviceCall call;
  state.Reset();
  TakePosition(given.calls[most == 1 ? 0 : blockIdx.y], /*flagged=*/false,
               &call);
  const KernelProgress progress(call);
  if (threadIdx.x == 0) {
    StoreWord(
        &call.members[call.self].send[blockIdx.x].calls[call.call % kCallWords],
        CallWord(call.call, call.hash));
  }
  __syncthreads();
  if (blockIdx.x == 0 && threadIdx.x / 32 == kControlWarps - 1)
    WriteJournal(call);
  if (__syncthreads_or(!RunWarp<false>(call, shape, {}, state))) {
    if (threadIdx.x == 0) AwaitAbort(call.status);
    return;
  }
  if (threadIdx.x == 0 && progress.Finish()) {
    PassPosition(call, /*flagged=*/false);
    StoreWord(call.members[call.self].ended,
              call.epoch << kValueBits | (call.base_round + call.rounds));
  }
}

template <size_t most>
cudaError_t LaunchMost(std::span<const DeviceCall> calls, const Shape& shape,
                       cudaStream_t stream) {
  CountedCalls<most> given;
  std::ranges::copy(calls, given.calls);
  const dim3 blocks(shape.blocks, static_cast<uint32_t>(calls.size()));
  ExecuteCounted<most>
      <<<blocks, (kControlWarps + shape.data_warps()) * 32, 0, stream>>>(given,
                                                                         shape);
  return cudaGetLastError();
}

__global__ void WaitForEnd(const __grid_constant__ DeviceCall call) {
  __shared__ BlockState state;
  state.Reset();
  __syncthreads();
  ControlWarp warp(call, state, kSending, 0);
  if (!warp.AwaitEnd() && threadIdx.x == 0) Stop(call.status);
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
  Execute<false>
      <<<shape.blocks, (kControlWarps + shape.data_warps()) * 32, 0, stream>>>(
          call, shape, {});
  return cudaGetLastError();
}

cudaError_t LaunchRows(const DeviceCall& call, const Shape& shape,
                       const DeviceRows& rows, cudaStream_t stream) {
  Execute<true>
      <<<shape.blocks, (kControlWarps + shape.data_warps()) * 32, 0, stream>>>(
          call, shape, rows);
  return cudaGetLastError();
}

cudaError_t LaunchCounted(std::span<const DeviceCall> calls, const Shape& shape,
                          cudaStream_t stream) {
  return calls.size() == 1
             ? LaunchMost<1>(calls, shape, stream)
             : LaunchMost<kMostCountedCalls>(calls, shape, stream);
}

cudaError_t Preload() {
  cudaFuncAttributes attributes;
  if (cudaError_t error = cudaFuncGetAttributes(&attributes, ExecuteCounted<1>);
      error != cudaSuccess)
    return error;
  if (cudaError_t error =
          cudaFuncGetAttributes(&attributes, ExecuteCounted<kMostCountedCalls>);
      error != cudaSuccess)
    return error;
  if (cudaError_t error = cudaFuncGetAttributes(&attributes, Execute<false>);
      error != cudaSuccess)
    return error;
  if (cudaError_t error = cudaFuncGetAttributes(&attributes, Execute<true>);
      error != cudaSuccess)
    return error;
  if (cudaError_t error = PreloadRows(); error != cudaSuccess) return error;
  if (cudaError_t error = cudaFuncGetAttributes(&attributes, WaitForEnd);
      error != cudaSuccess)
    return error;
  return cudaFuncGetAttributes(&attributes, Wait);
}

cudaError_t LaunchWaitForEnd(const DeviceCall& call, cudaStream_t stream) {
  WaitForEnd<<<1, 32, 0, stream>>>(call);
  return cudaGetLastError();
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
