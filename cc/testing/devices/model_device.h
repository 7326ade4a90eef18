#ifndef JAX_CXL_TESTING_DEVICES_MODEL_DEVICE_H_
#define JAX_CXL_TESTING_DEVICES_MODEL_DEVICE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "cc/base/dtype.h"
#include "cc/engine/gpu_plan/channel_words.h"
#include "cc/engine/gpu_plan/gpu_plan.h"
#include "cc/testing/devices/device_copies.h"

namespace jax_cxl::comm {

// A call for a modeled device: cuda::DeviceCall without pointers to device
// memory.
struct ModelCall {
  const cuda::GpuPlan* gpu_plan = nullptr;
  std::vector<cuda::MemberView> members;
  int self = 0;
  uint32_t num_words = 1;         // blocks, or pipelines of the copy engines
  bool words_take_turns = false;  // copy engines
  bool awaits_end = false;        // a kernel call after a copy-engine call
  uint32_t num_slots = 0;
  cuda::Stripes stripes;
  uint64_t base_round = 0;
  uint64_t series_begin = 0;  // copy engines: as cuda::CopyEnginePlan's
  uint64_t call = 0;
  uint64_t hash = 0;
  uint64_t epoch = 0;
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  DType dtype = DType::kUint8;
  ReduceOp reduce_op = ReduceOp::kSum;
};

// Does what kernels (cc/engine/cuda/slot_call.cuh) and copy engines
// (copy_engine.cu) do in calls, step by step, with the same control words. Both
// directions run at the same time, in a random order. In a series of the copy
// engines, one direction may be in the next call while the other one is not.
class ModelDevice {
 public:
  ModelDevice(const pool::DeviceCopies& copies, uint64_t seed)
      : copies_(copies), random_(seed) {}

  // Executes a series of calls of the copy engines, or one call of a kernel.
  // Returns the problem, or "" if there is none. Gives up when `stop` becomes
  // true.
  std::string Execute(std::span<const ModelCall> series,
                      const std::atomic<bool>& stop);

 private:
  void Begin(const ModelCall& call) const;
  bool AdvanceSending(std::span<const ModelCall> series);
  bool AdvanceReceiving(std::span<const ModelCall> series);
  bool MaySend(const cuda::DeviceStep& step) const;
  void Send(const cuda::DeviceStep& step);
  bool MayReceive(const cuda::DeviceStep& step);
  void Receive(const cuda::DeviceStep& step);
  void Reduce(const cuda::DeviceStep& step);

  bool SlotIsFree(uint64_t round) const;
  bool HasPublished(int member, uint64_t round);
  void Release(uint64_t round);

  // Calls use(address in the slot, offset within the step, bytes) for each
  // piece of the step's data that lies in one slot without a gap.
  template <typename Use>
  void ForSlot(int member, uint64_t round, uint64_t offset, uint64_t bytes,
               const Use& use) const;

  void RingAll(uint64_t rounds, bool published);
  void Ring(uint64_t* word, uint64_t rounds) const {
    __atomic_store_n(word, call_->epoch << pool::kValueBits | rounds,
                     __ATOMIC_RELEASE);
  }
  uint64_t Read(const uint64_t* word) const {
    const uint64_t value = __atomic_load_n(word, __ATOMIC_ACQUIRE);
    return value >> pool::kValueBits == call_->epoch ? value & pool::kValueMask
                                                     : 0;
  }
  uint32_t WordOf(uint64_t round) const {
    return (call_->base_round + round) % call_->num_slots % call_->num_words;
  }

  const pool::DeviceCopies copies_;
  std::mt19937_64 random_;
  const ModelCall* call_ = nullptr;  // of the current step
  // For each direction: how many calls of the series it has completed, and how
  // many steps of the next call.
  size_t sent_calls_ = 0;
  size_t received_calls_ = 0;
  uint32_t sent_ = 0;
  uint32_t received_ = 0;
  std::string wrong_;
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_TESTING_DEVICES_MODEL_DEVICE_H_
