#include "cc/testing/devices/flagged_device.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "cc/comm/call/backoff.h"
#include "cc/engine/gpu_plan/flagged_ring.h"
#include "cc/engine/kernels/kernels.h"

namespace jax_cxl::comm {

using cuda::DeviceStep;
using cuda::DeviceStepKind;
namespace flagged = cuda::flagged;

namespace {

constexpr int kWordsOfUnit = 4;

}  // namespace

std::string FlaggedDevice::Execute(const ModelCall& call,
                                   const std::atomic<bool>& stop) {
  call_ = &call;
  const uint64_t round = call.base_round;
  const uint64_t calls = flagged::SlotOf(round);
  const uint64_t expected = cuda::CallWord(round + 1, call.hash);
  cuda::FlaggedControl& mine = *call.members[call.self].flagged;
  if (released_ + cuda::kFlaggedSlots <= round &&
      !AwaitPeers(
          [&](int member) {
            return ReleasedBy(member) + cuda::kFlaggedSlots > round;
          },
          stop))
    return "stopped";
  copies_.StoreWord(&mine.calls[calls], expected);
  for (const DeviceStep& step : call.gpu_plan->sending) {
    if (step.kind == DeviceStepKind::kPut)
      Put(step);
    else if (step.kind == DeviceStepKind::kCopy)
      std::memcpy(call.output + step.to, call.input + step.from, step.bytes);
    else if (step.kind == DeviceStepKind::kZero)
      std::memset(call.output + step.to, 0, step.bytes);
  }
  uint64_t sources = 0;  // one bit per member
  for (const DeviceStep& step : call.gpu_plan->receiving) {
    if (!Receive(step, stop)) return "stopped";
    for (int member = step.first; member < step.last; ++member)
      sources |= uint64_t{1} << member;
  }
  uint64_t least = UINT64_MAX;
  for (int member = 0; member < static_cast<int>(call.members.size()); ++member)
    if (member != call.self) least = std::min(least, ReleasedBy(member));
  released_ = std::max(released_, least);
  if (!AwaitPeers(
          [&](int member) {
            return (sources >> member & 1) == 0 ||
                   copies_.LoadWord(
                       &call.members[member].flagged->calls[calls]) == expected;
          },
          stop))
    return "stopped";
  // This store must not overtake the loads of data. In the kernel, a barrier
  // between them ensures this.
  copies_.StoreWord<__ATOMIC_RELEASE>(
      &mine.released, call.epoch << pool::kValueBits | (round + 1));
  return "";
}

bool FlaggedDevice::AwaitPeers(const std::function<bool(int)>& ready,
                               const std::atomic<bool>& stop) {
  Backoff backoff;
  for (int member = 0; member < static_cast<int>(call_->members.size());
       ++member) {
    while (member != call_->self && !ready(member)) {
      if (stop) return false;
      backoff.Pause();
    }
  }
  return true;
}

void FlaggedDevice::Put(const DeviceStep& step) {
  const uint64_t flag = flagged::FlagOf(call_->base_round);
  std::vector<uint64_t> units(flagged::NumUnits(step.bytes));
  std::iota(units.begin(), units.end(), 0);
  std::ranges::shuffle(units, random_);
  for (const uint64_t unit : units) {
    uint32_t data[kWordsOfUnit] = {};
    const uint64_t at = unit * flagged::kUnitBytes;
    std::memcpy(data, call_->input + step.from + at,
                std::min(flagged::kUnitBytes, step.bytes - at));
    for (int word = 0; word < kWordsOfUnit; ++word) {
      copies_.StoreWord(
          Word(call_->self, step.to / flagged::kUnitBytes + unit, word),
          flag << 32 | data[word]);
    }
  }
}

// Reads `to.size()` bytes of a member's slot, from byte `at` on. Returns false
// if `stop` has become true.
bool FlaggedDevice::Get(int member, uint64_t at, std::span<std::byte> to,
                        const std::atomic<bool>& stop) {
  const uint32_t flag = flagged::FlagOf(call_->base_round);
  Backoff backoff;
  for (uint64_t done = 0; done < to.size(); done += flagged::kUnitBytes) {
    uint32_t data[kWordsOfUnit];
    for (int word = 0; word < kWordsOfUnit;) {
      const uint64_t value = copies_.LoadWord(
          Word(member, (at + done) / flagged::kUnitBytes, word));
      if (static_cast<uint32_t>(value >> 32) == flag) {
        data[word++] = static_cast<uint32_t>(value);
      } else {
        if (stop) return false;
        backoff.Pause();
      }
    }
    std::memcpy(to.data() + done, data,
                std::min(flagged::kUnitBytes, to.size() - done));
  }
  return true;
}

bool FlaggedDevice::Receive(const DeviceStep& step,
                            const std::atomic<bool>& stop) {
  if (step.kind == DeviceStepKind::kGet)
    return Get(step.first, step.from, {call_->output + step.to, step.bytes},
               stop);
  if (step.kind != DeviceStepKind::kReduce) return true;
  std::vector<std::vector<std::byte>> operands;
  std::vector<const std::byte*> sources;
  for (int member = step.first; member < step.last; ++member) {
    std::vector<std::byte>& to = operands.emplace_back(step.bytes);
    if (member == call_->self)
      std::memcpy(to.data(), call_->input + step.input_from, step.bytes);
    else if (!Get(member, step.from, to, stop))
      return false;
  }
  for (const auto& operand : operands) sources.push_back(operand.data());
  cpu::Reduce(call_->dtype, call_->reduce_op, sources, call_->output + step.to,
              step.bytes / DTypeBytes(call_->dtype));
  return true;
}

uint64_t FlaggedDevice::ReleasedBy(int member) const {
  const uint64_t word =
      copies_.LoadWord(&call_->members[member].flagged->released);
  return word >> pool::kValueBits == call_->epoch ? word & pool::kValueMask : 0;
}

// Returns the address of a word of a unit in a member's slot.
uint64_t* FlaggedDevice::Word(int member, uint64_t unit, int word) const {
  std::byte* slot = call_->members[member]
                        .flagged->vectors[flagged::SlotOf(call_->base_round)];
  const uint64_t vector =
      word < 2 ? flagged::LowVector(unit) : flagged::HighVector(unit);
  return reinterpret_cast<uint64_t*>(slot + vector) + word % 2;
}

}  // namespace jax_cxl::comm
