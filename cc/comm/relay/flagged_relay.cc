#include "cc/comm/relay/flagged_relay.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>

#include "cc/engine/gpu_plan/flagged_ring.h"

namespace jax_cxl::comm {
namespace {

namespace flagged = cuda::flagged;

// The words of a ring: all that lies before the data.
constexpr size_t kWordBytes =
    offsetof(cuda::FlaggedControl, calls) + sizeof(cuda::FlaggedControl::calls);

// Returns true if both flags of a vector are `flag` or a later value. They can
// be later because a peer that already has the data may have released the slot,
// so that this device has written newer data.
bool HasFlags(const std::byte* vector, uint32_t flag) {
  for (int word = 0; word < 2; ++word) {
    const uint64_t value = __atomic_load_n(
        reinterpret_cast<const uint64_t*>(vector) + word, __ATOMIC_ACQUIRE);
    if (static_cast<uint32_t>(value >> 32) < flag) return false;
  }
  return true;
}

}  // namespace

FlaggedRelay::FlaggedRelay(const pool::Doorbells& doorbells, bool write_back,
                           FlaggedRings rings, int self)
    : doorbells_(doorbells),
      write_back_(write_back),
      rings_(std::move(rings)),
      self_(self) {}

void FlaggedRelay::Begin(const RelayPlan& plan, uint64_t round) {
  round_ = round;
  const auto units = [](const std::vector<SlotRange>& ranges) {
    std::vector<Units> all;
    for (const SlotRange& range : ranges)
      all.push_back({range.offset / flagged::kUnitBytes,
                     flagged::NumUnits(range.offset + range.bytes)});
    return all;
  };
  written_.clear();
  if (write_back_)
    for (const RelayPlan::Publication& publication : plan.publications)
      std::ranges::copy(units(publication.written),
                        std::back_inserter(written_));
  to_write_back_ = Lines(written_, self_);
  to_drop_.clear();
  not_begun_.clear();
  for (int member = 0; member < rings_.num_members(); ++member) {
    if (member == self_) continue;
    to_drop_.push_back({&rings_.ring(member), kWordBytes});
    for (const RelayPlan::Arrival& arrival : plan.arrivals[member])
      not_begun_.push_back({member, Lines(units(arrival.read), member)});
  }
}

bool FlaggedRelay::Advance() {
  const pool::Coherence& coherence = doorbells_.coherence();
  const cuda::FlaggedControl& mine = rings_.ring(self_);
  // Read this host's cache, where the device's word is never old.
  const bool read = doorbells_.Value(__atomic_load_n(
                        &mine.released, __ATOMIC_ACQUIRE)) > round_;
  const pool::Part words = {&mine, kWordBytes};
  coherence.PublishDeviceParts({&words, 1});
  if (!to_write_back_.empty() && WrittenHasArrived()) {
    coherence.PublishDeviceParts(to_write_back_);
    to_write_back_.clear();
  }
  if (!read) Drop();
  return read && to_write_back_.empty();
}

// Waiting for a late member costs little, because only the lines with that
// member's words are dropped.
void FlaggedRelay::Drop() {
  doorbells_.coherence().AcquireParts(to_drop_);
  std::erase_if(not_begun_, [this](const Polled& polled) {
    if (!HasBegun(polled.member)) return false;
    std::ranges::copy(polled.lines, std::back_inserter(to_drop_));
    return true;
  });
}

bool FlaggedRelay::HasBegun(int member) const {
  const uint64_t word = __atomic_load_n(
      &rings_.ring(member).calls[flagged::SlotOf(round_)], __ATOMIC_ACQUIRE);
  return (word & ~cuda::kValueMask) == cuda::CallWord(round_ + 1, 0);
}

// Returns the memory of the units, in adjacent parts where possible.
std::vector<pool::Part> FlaggedRelay::Lines(const std::vector<Units>& units,
                                            int member) const {
  const std::byte* slot = rings_.ring(member).vectors[flagged::SlotOf(round_)];
  std::vector<pool::Part> lines;
  const auto add = [&](uint64_t begin, uint64_t bytes) {
    if (!lines.empty()) {
      pool::Part& last = lines.back();
      const auto* end = static_cast<const std::byte*>(last.begin) + last.bytes;
      if (end == slot + begin) {
        last.bytes += bytes;
        return;
      }
    }
    lines.push_back({slot + begin, bytes});
  };
  for (const Units& range : units) {
    for (uint64_t first = range.first; first < range.last;) {
      const uint64_t end =
          std::min(range.last, (first / flagged::kGroup + 1) * flagged::kGroup);
      const uint64_t bytes = (end - first) * flagged::kVectorBytes;
      add(flagged::LowVector(first), bytes);
      add(flagged::HighVector(first), bytes);
      first = end;
    }
  }
  return lines;
}

bool FlaggedRelay::HasArrived(uint64_t unit) const {
  const std::byte* slot = rings_.ring(self_).vectors[flagged::SlotOf(round_)];
  const uint32_t flag = flagged::FlagOf(round_);
  return HasFlags(slot + flagged::LowVector(unit), flag) &&
         HasFlags(slot + flagged::HighVector(unit), flag);
}

// Looks at each unit until it has arrived, and not again.
bool FlaggedRelay::WrittenHasArrived() {
  while (!written_.empty()) {
    Units& units = written_.back();
    for (; units.first < units.last; ++units.first)
      if (!HasArrived(units.first)) return false;
    written_.pop_back();
  }
  return true;
}

}  // namespace jax_cxl::comm
