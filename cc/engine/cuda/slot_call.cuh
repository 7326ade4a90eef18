#ifndef JAX_CXL_ENGINE_CUDA_SLOT_CALL_CUH_
#define JAX_CXL_ENGINE_CUDA_SLOT_CALL_CUH_

#include <cstdint>

#include "cc/engine/cuda/block.cuh"
#include "cc/engine/cuda/counted.cuh"
#include "cc/engine/cuda/device_call.h"
#include "cc/engine/cuda/device_memory.cuh"
#include "cc/engine/cuda/multiply.cuh"
#include "cc/engine/cuda/progress.cuh"
#include "cc/engine/cuda/reduce.cuh"
#include "cc/engine/cuda/row_moves.cuh"
#include "cc/engine/cuda/stripes.cuh"
#include "cc/engine/cuda/vector_loop.cuh"

// A call through the slots, as the warps of a block execute it.
namespace jax_cxl::cuda {

// What a kernel executes. Each kernel has only the code that it needs.
enum class CallKind {
  kCollective,
  kRows,      // an operation that moves rows
  kTransfer,  // only copies
  kPremultiplied,
};

// Moves this warp's share of `vectors`, which are the block's vectors in a step
// of `bytes` bytes. `load` loads a vector, and `store` stores it.
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

__device__ inline StripeVectors VectorsOf(const DeviceCall& call, uint64_t at,
                                          uint64_t bytes) {
  return StripeVectors(at, bytes, call.unit_bytes, blockIdx.x, gridDim.x);
}

__device__ inline uint32_t SlotOf(const DeviceCall& call, uint64_t round) {
  return static_cast<uint32_t>(plan::SlotOfBlock(
      call.base_round + round, blockIdx.x, call.slot_step, call.num_slots));
}

// The members whose publication a receiving step waits for.
struct Sources {
  int first, last;
};

// Returns the members for whose publications this block waits in a step. The
// range is empty if the block has no part in the step.
__device__ inline Sources SourcesOf(const DeviceCall& call,
                                    const DeviceStep& step) {
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

// Marks each sending step as ready, once its slot is free. The bytes of a round
// also wait until the doorbell of an earlier round has rung. Otherwise the
// fence of that doorbell would wait for these bytes too, and peers would wait
// for the fence.
__device__ inline bool AwaitSendingSteps(const DeviceCall& call,
                                         ControlWarp& warp) {
  // The number of steps up to and including each of the last two publications.
  // The latest publication comes first.
  uint32_t published[2] = {0, 0};
  const uint32_t& awaited = published[call.rounds_ahead[blockIdx.x % 2] - 1];
  for (uint32_t at = 0; at < call.num_sending; ++at) {
    const DeviceStep& step = call.sending[at];
    if (step.kind == DeviceStepKind::kPut &&
        VectorsOf(call, step.to, step.bytes).size() > 0 &&
        !(warp.AwaitRung(awaited) &&
          warp.AwaitSlot(call.base_round + step.round)))
      return false;
    // Doorbells for results of receiving steps do not count, because they ring
    // only after these steps.
    if (step.kind == DeviceStepKind::kPublish && step.after == 0) {
      published[1] = published[0];
      published[0] = at + 1;
    }
    warp.MarkReady(at + 1);
  }
  if (published[0] > 0) warp.NoteReleased();
  return true;
}

__device__ inline bool AwaitReceivingSteps(const DeviceCall& call,
                                           const Shape& shape,
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
      // In a call in place, this step overwrites bytes of the input. Wait until
      // they have been put.
      if (step.after > 0 &&
          !warp.AwaitDone(0, shape.sending_warps(), step.after))
        return false;
    }
    warp.MarkReady(at + 1);
  }
  return true;
}

__device__ inline bool RingPublished(const DeviceCall& call, const Shape& shape,
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

__device__ inline bool RingReleased(const DeviceCall& call, const Shape& shape,
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

// --- data warps: RunSteps returns false when the call cannot continue ---

template <CallKind kind>
__device__ void Send(const DeviceCall& call, DataWarp& warp,
                     const DeviceStep& step) {
  const std::byte* from = call.input + step.from;
  const auto load = [&](uint64_t i, uint64_t valid) {
    return LoadLocal(from + i, valid);
  };
  constexpr bool premultiplied = kind == CallKind::kPremultiplied;
  // The product is computed when a vector is stored, after the loads of several
  // vectors have started.
  const auto product = [&](uint4 v) {
    if constexpr (premultiplied) return Multiply(call, v);
    return v;
  };
  if (step.kind == DeviceStepKind::kPut) {
    std::byte* to =
        call.members[call.self].slots[SlotOf(call, step.round)] + step.to;
    MoveVectors(
        warp, VectorsOf(call, step.to, step.bytes), step.bytes, load,
        [&](uint64_t i, uint4 v, uint64_t) { StoreSlot(to + i, product(v)); });
    return;
  }
  std::byte* to = call.output + step.to;
  const auto store = [&](uint64_t i, uint4 v, uint64_t valid) {
    StoreLocal(to + i, v, valid);
  };
  const StripeVectors vectors = VectorsOf(call, 0, step.bytes);
  // If input and output are the same memory, there is nothing to copy, but
  // there may be products to store.
  if (step.kind == DeviceStepKind::kCopy && (premultiplied || from != to))
    MoveVectors(warp, vectors, step.bytes, load,
                [&](uint64_t i, uint4 v, uint64_t valid) {
                  store(i, product(v), valid);
                });
  if (step.kind == DeviceStepKind::kZero)
    MoveVectors(
        warp, vectors, step.bytes,
        [](uint64_t, uint64_t) { return make_uint4(0, 0, 0, 0); }, store);
}

template <CallKind kind>
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
  if constexpr (kind != CallKind::kTransfer) {
    ReduceTask task{&call,   &step,   vectors,       SlotOf(call, step.round),
                    nullptr, nullptr, warp.thread(), warp.threads()};
    if (step.kind != DeviceStepKind::kReduceToSlot)
      task.to = call.output + step.to;
    if (step.kind != DeviceStepKind::kReduce)
      task.to_slot =
          call.members[call.self].slots[SlotOf(call, step.to_round)] +
          step.to_slot;
    Reduce<kind == CallKind::kPremultiplied>(task);
    warp.Rotate(vectors.size());
  }
}

// --- moves of rows: each function returns the number of vectors that this
// thread has moved ---

__device__ inline uint32_t SendRows(const DeviceCall& call,
                                    const DeviceRows& rows, DataWarp& warp,
                                    const DeviceStep& step) {
  if (step.kind != DeviceStepKind::kPut) return 0;  // own rows have been copied
  const std::byte* from = call.input + step.from;
  return PutRows(
      rows, warp, VectorsOf(call, step.to, step.bytes), step.from, step.bytes,
      [&](uint64_t i, uint64_t valid) { return LoadLocal(from + i, valid); },
      call.members[call.self].slots[SlotOf(call, step.round)] + step.to);
}

__device__ inline uint32_t ReceiveRows(const DeviceCall& call,
                                       const DeviceRows& rows, DataWarp& warp,
                                       const DeviceStep& step) {
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
template <bool sending, CallKind kind>
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
      if constexpr (sending && kind == CallKind::kRows)
        moved += SendRows(call, rows, warp, step);
      else if constexpr (sending)
        Send<kind>(call, warp, step);
      else if constexpr (kind == CallKind::kRows)
        moved += ReceiveRows(call, rows, warp, step);
      else
        Receive<kind>(call, warp, step);
    }
    warp.Done(at);
  }
  if constexpr (kind == CallKind::kRows) {
    RowBytes& bytes = call.scratch->row_bytes;
    AddMoved(sending ? &bytes.published : &bytes.retrieved, moved);
  }
  return true;
}

// A block has four control warps, then the sending data warps, then the
// receiving data warps.
constexpr uint32_t kControlWarps = 4;

template <CallKind kind>
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
    return RunSteps<true, kind>(call, rows,
                                DataWarp(state, kSending, slot, slot, sending));
  return RunSteps<false, kind>(call, rows,
                               DataWarp(state, kReceiving, slot, slot - sending,
                                        shape.data_warps() - sending));
}

// Executes a call. If `counted` is true, the call is numbered on the device
// (LaunchCounted in executor.h). Then call TakePosition first.
template <CallKind kind, bool counted>
__device__ void Run(const DeviceCall& call, const Shape& shape,
                    const DeviceRows& rows, BlockState& state) {
  const KernelProgress progress(call);  // thread 0 uses it
  if (threadIdx.x == 0) {
    // Peers see this word before they see any doorbell of the block, because a
    // doorbell rings after a fence.
    StoreWord(
        &call.members[call.self].send[blockIdx.x].calls[call.call % kCallWords],
        CallWord(call.call, call.hash));
  }
  __syncthreads();
  if (counted && blockIdx.x == 0 && threadIdx.x / 32 == kControlWarps - 1)
    WriteJournal(call);
  if (__syncthreads_or(!RunWarp<kind>(call, shape, rows, state))) {
    if (threadIdx.x == 0) counted ? AwaitAbort(call) : Stop(call.status);
    return;
  }
  if (threadIdx.x == 0 && progress.Finish(kind == CallKind::kRows)) {
    if (counted) PassPosition(call, /*flagged=*/false);
    StoreWord(call.members[call.self].ended,
              call.epoch << kValueBits | (call.base_round + call.rounds));
  }
}

inline uint32_t ThreadsOf(const Shape& shape) {
  return (kControlWarps + shape.data_warps()) * 32;
}

}  // namespace jax_cxl::cuda

#endif  // JAX_CXL_ENGINE_CUDA_SLOT_CALL_CUH_
