#include "cc/testing/devices/model_device.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <thread>

#include "cc/engine/kernels/kernels.h"
#include "cc/plan/gpu_geometry.h"

namespace jax_cxl::comm {

using cuda::DeviceStep;
using cuda::DeviceStepKind;
using cuda::MemberView;

std::string ModelDevice::Execute(std::span<const ModelCall> series,
                                 const std::atomic<bool>& stop) {
  sent_calls_ = received_calls_ = 0;
  sent_ = received_ = 0;
  wrong_.clear();
  const ModelCall& first = series.front();
  const MemberView& mine = first.members[first.self];
  call_ = &first;
  if (first.awaits_end) {
    for (const MemberView& member : first.members)
      while (&member != &mine && Read(member.ended) < first.base_round)
        if (stop) return "stopped";
  }
  Begin(first);
  for (size_t ended = 0; ended < series.size();) {
    if (stop) return "stopped";
    bool moved = random_() % 2 == 0 && AdvanceSending(series);
    moved |= AdvanceReceiving(series);
    if (!wrong_.empty()) return wrong_;
    for (; ended < std::min(sent_calls_, received_calls_); ++ended) {
      call_ = &series[ended];
      Ring(mine.ended, call_->base_round + call_->gpu_plan->rounds);
    }
    if (!moved) std::this_thread::yield();
  }
  return "";
}

void ModelDevice::Begin(const ModelCall& call) const {
  for (uint32_t index = 0; index < call.num_words; ++index)
    __atomic_store_n(&call.members[call.self]
                          .send[index]
                          .calls[call.call % cuda::kCallWords],
                     cuda::CallWord(call.call, call.hash), __ATOMIC_RELEASE);
}

// AdvanceSending and AdvanceReceiving do at most one step. They return false if
// no step is possible.
bool ModelDevice::AdvanceSending(std::span<const ModelCall> series) {
  if (sent_calls_ == series.size()) return false;
  call_ = &series[sent_calls_];
  const auto& sending = call_->gpu_plan->sending;
  if (sent_ == sending.size()) {
    sent_ = 0;
    if (++sent_calls_ < series.size()) Begin(series[sent_calls_]);
    return true;
  }
  if (!MaySend(sending[sent_])) return false;
  Send(sending[sent_++]);
  return true;
}

bool ModelDevice::AdvanceReceiving(std::span<const ModelCall> series) {
  if (received_calls_ == series.size()) return false;
  call_ = &series[received_calls_];
  const auto& receiving = call_->gpu_plan->receiving;
  if (received_ == receiving.size()) {
    received_ = 0;
    ++received_calls_;
    return true;
  }
  if (!MayReceive(receiving[received_])) return false;
  Receive(receiving[received_++]);
  return true;
}

bool ModelDevice::MaySend(const DeviceStep& step) const {
  if (step.kind == DeviceStepKind::kPut) return SlotIsFree(step.round);
  return sent_calls_ < received_calls_ ||
         (sent_calls_ == received_calls_ ? received_ : 0) >= step.after;
}

void ModelDevice::Send(const DeviceStep& step) {
  switch (step.kind) {
    case DeviceStepKind::kCopy:
      std::memcpy(call_->output + step.to, call_->input + step.from,
                  step.bytes);
      break;
    case DeviceStepKind::kZero:
      std::memset(call_->output + step.to, 0, step.bytes);
      break;
    case DeviceStepKind::kPut:
      ForSlot(call_->self, step.round, step.to, step.bytes,
              [&](std::byte* slot, uint64_t at, uint64_t bytes) {
                copies_.Write(slot, call_->input + step.from + at, bytes);
              });
      break;
    case DeviceStepKind::kPublish: {
      const uint64_t rounds = call_->base_round + step.round + 1;
      if (call_->words_take_turns)
        Ring(&call_->members[call_->self].send[WordOf(step.round)].published,
             rounds);
      else
        RingAll(rounds, /*published=*/true);
      break;
    }
    default:
      break;
  }
}

bool ModelDevice::MayReceive(const DeviceStep& step) {
  if (step.kind == DeviceStepKind::kRelease) return true;
  if ((step.kind == DeviceStepKind::kReduceToSlot ||
       step.kind == DeviceStepKind::kReduceToBoth) &&
      !SlotIsFree(step.to_round))
    return false;
  for (int member = step.first; member < step.last; ++member)
    if (member != call_->self && !HasPublished(member, step.round))
      return false;
  return true;
}

void ModelDevice::Receive(const DeviceStep& step) {
  switch (step.kind) {
    case DeviceStepKind::kGet:
      ForSlot(step.first, step.round, step.from, step.bytes,
              [&](std::byte* slot, uint64_t at, uint64_t bytes) {
                copies_.Read(call_->output + step.to + at, slot, bytes);
              });
      break;
    case DeviceStepKind::kReduce:
    case DeviceStepKind::kReduceToSlot:
    case DeviceStepKind::kReduceToBoth:
      Reduce(step);
      break;
    case DeviceStepKind::kRelease:
      Release(step.round);
      break;
    default:
      break;
  }
}

void ModelDevice::Reduce(const DeviceStep& step) {
  std::vector<std::vector<std::byte>> operands;
  std::vector<const std::byte*> sources;
  for (int member = step.first; member < step.last; ++member) {
    operands.emplace_back(step.bytes);
    std::byte* to = operands.back().data();
    if (member == call_->self)
      std::memcpy(to, call_->input + step.input_from, step.bytes);
    else
      ForSlot(member, step.round, step.from, step.bytes,
              [&](std::byte* slot, uint64_t at, uint64_t bytes) {
                copies_.Read(to + at, slot, bytes);
              });
    sources.push_back(to);
  }
  std::vector<std::byte> result(step.bytes);
  cpu::Reduce(call_->dtype, call_->reduce_op, sources, result.data(),
              step.bytes / DTypeBytes(call_->dtype));
  if (step.kind != DeviceStepKind::kReduceToSlot)
    std::memcpy(call_->output + step.to, result.data(), step.bytes);
  if (step.kind != DeviceStepKind::kReduce)
    ForSlot(call_->self, step.to_round, step.to_slot, step.bytes,
            [&](std::byte* slot, uint64_t at, uint64_t bytes) {
              copies_.Write(slot, result.data() + at, bytes);
            });
}

// Models ControlWarp::AwaitSlot and its counterpart in CopyEngine.
bool ModelDevice::SlotIsFree(uint64_t round) const {
  const uint64_t all = call_->base_round + round + 1;
  const bool in_series = all > call_->series_begin + call_->num_slots;
  for (const MemberView& member : call_->members) {
    if (&member == &call_->members[call_->self]) continue;
    if (call_->words_take_turns) {
      const uint64_t seen = in_series
                                ? Read(&member.released[WordOf(round)].word)
                                : Read(member.ended);
      if (seen < (in_series ? all - call_->num_slots : call_->series_begin))
        return false;
      continue;
    }
    if (all <= call_->num_slots) continue;
    for (uint32_t index = 0; index < call_->num_words; ++index)
      if (Read(&member.released[index].word) < all - call_->num_slots)
        return false;
  }
  return true;
}

bool ModelDevice::HasPublished(int member, uint64_t round) {
  const uint64_t rounds = call_->base_round + round + 1;
  for (uint32_t index = 0; index < call_->num_words; ++index) {
    if (call_->words_take_turns && index != WordOf(round)) continue;
    const cuda::SendLine& line = call_->members[member].send[index];
    if (Read(&line.published) < rounds) return false;
    const uint64_t word = __atomic_load_n(
        &line.calls[call_->call % cuda::kCallWords], __ATOMIC_ACQUIRE);
    if (word != cuda::CallWord(call_->call, call_->hash)) {
      wrong_ = "member " + std::to_string(member) + " is in another call";
      return false;
    }
  }
  return true;
}

void ModelDevice::Release(uint64_t round) {
  if (!call_->words_take_turns)
    return RingAll(call_->base_round + round + 1, /*published=*/false);
  for (uint32_t index = 0; index < call_->num_words; ++index)
    for (uint64_t back = 0; back < call_->num_slots && back <= round; ++back)
      if (WordOf(round - back) == index) {
        Ring(&call_->members[call_->self].released[index].word,
             call_->base_round + round - back + 1);
        break;
      }
}

// Rings the doorbells of all blocks. The order is random, as in a kernel.
void ModelDevice::RingAll(uint64_t rounds, bool published) {
  const MemberView& mine = call_->members[call_->self];
  std::vector<uint32_t> indices(call_->num_words);
  std::iota(indices.begin(), indices.end(), 0);
  std::ranges::shuffle(indices, random_);
  for (uint32_t index : indices) {
    if (random_() % 8 == 0) std::this_thread::yield();
    Ring(published ? &mine.send[index].published : &mine.released[index].word,
         rounds);
  }
}

template <typename Use>
void ModelDevice::ForSlot(int member, uint64_t round, uint64_t offset,
                          uint64_t bytes, const Use& use) const {
  const MemberView& view = call_->members[member];
  const uint64_t all = call_->base_round + round;
  if (call_->words_take_turns || call_->stripes.slot_step == 0)
    return use(view.slots[all % call_->num_slots] + offset, 0, bytes);
  const cuda::Stripes& stripes = call_->stripes;
  for (uint64_t done = 0; done < bytes;) {
    const uint64_t at = offset + done;
    const uint64_t block = at / stripes.unit_bytes % stripes.num_blocks;
    const uint64_t piece =
        std::min(bytes - done, stripes.unit_bytes - at % stripes.unit_bytes);
    use(view.slots[plan::SlotOfBlock(all, block, stripes.slot_step,
                                     call_->num_slots)] +
            at,
        done, piece);
    done += piece;
  }
}

}  // namespace jax_cxl::comm
