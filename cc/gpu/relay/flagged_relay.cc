#include "cc/gpu/relay/flagged_relay.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <iterator>

#include "cc/comm/call/backoff.h"
#include "cc/engine/gpu_plan/flagged_ring.h"

namespace jax_cxl::comm {
namespace {

namespace flagged = cuda::flagged;

// The bytes of a ring's words, which come before its data.
constexpr size_t kWordBytes =
    offsetof(cuda::FlaggedControl, calls) + sizeof(cuda::FlaggedControl::calls);

// Returns true if both flags of a vector are `flag` or a later value. They are
// later if this device has already written the data of a later round. It may do
// so as soon as the peers have read the slot.
bool HasFlags(const std::byte* vector, uint32_t flag) {
  for (int word = 0; word < 2; ++word) {
    const uint64_t value = __atomic_load_n(
        reinterpret_cast<const uint64_t*>(vector) + word, __ATOMIC_ACQUIRE);
    if (static_cast<uint32_t>(value >> 32) < flag) return false;
  }
  return true;
}

}  // namespace

void FlaggedRings::DropPeers() const {
  for (int member = 0; member < num_members(); ++member)
    if (member != self_)
      doorbells_.coherence().AcquirePayload(
          rings_[member],
          offsetof(cuda::FlaggedControl, vectors) + vectors_bytes_);
}

bool FlaggedRings::BeginAnew(uint64_t round,
                             const std::function<bool()>& go_on) const {
  // Waits until all peers have released the first `rounds` rounds. Returns
  // false if `go_on` returns false.
  const auto await = [&](uint64_t rounds) {
    Backoff backoff;
    for (int member = 0; member < num_members(); ++member) {
      while (member != self_ &&
             doorbells_.Read(&rings_[member]->released) < rounds) {
        if (!go_on()) return false;
        backoff.Pause();
      }
    }
    return true;
  };
  if (!await(round)) return false;
  cuda::FlaggedControl& mine = ring(self_);
  std::byte* vectors = mine.vectors[0];
  std::memset(vectors, 0, vectors_bytes_);
  doorbells_.coherence().PublishPayload(vectors, vectors_bytes_);
  doorbells_.Ring(&mine.released, round + 1);
  if (!await(round + 1)) return false;
  DropPeers();
  return true;
}

void FlaggedRelay::Begin(const RelayPlan& plan, uint64_t round) {
  round_ = round;
  to_write_back_.clear();
  if (write_back_)
    for (const RelayPlan::Step& publication : plan.publications)
      AddLines(publication, rings_.self(), &to_write_back_);
  written_ = to_write_back_;
  to_drop_.clear();
  not_begun_.clear();
  for (int member = 0; member < rings_.num_members(); ++member) {
    if (member == rings_.self()) continue;
    to_drop_.push_back({&rings_.ring(member), kWordBytes});
    for (const RelayPlan::Step& arrival : plan.arrivals[member]) {
      not_begun_.push_back({member, {}});
      AddLines(arrival, member, &not_begun_.back().lines);
    }
  }
}

bool FlaggedRelay::Advance() {
  const pool::Coherence& coherence = rings_.doorbells().coherence();
  const cuda::FlaggedControl& mine = rings_.ring(rings_.self());
  // Read the word through this host's cache: for a word of the host's own
  // device, the cache is never out of date.
  const bool read = rings_.doorbells().Value(__atomic_load_n(
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

// Drops the lines that the device polls. For a member that has not begun the
// call, drops only the lines with the member's words, so waiting for a late
// member costs little.
void FlaggedRelay::Drop() {
  rings_.doorbells().coherence().AcquireParts(to_drop_);
  std::erase_if(not_begun_, [this](const Polled& polled) {
    const uint64_t word = __atomic_load_n(
        &rings_.ring(polled.member).calls[flagged::SlotOf(round_)],
        __ATOMIC_ACQUIRE);
    if ((word & ~cuda::kValueMask) != cuda::CallWord(round_ + 1, 0))
      return false;
    std::ranges::copy(polled.lines, std::back_inserter(to_drop_));
    return true;
  });
}

// Adds to `lines` the memory in which the data of the step lie in the member's
// ring. Merges adjacent parts.
void FlaggedRelay::AddLines(const RelayPlan::Step& step, int member,
                            std::vector<pool::Part>* lines) const {
  const std::byte* slot = rings_.ring(member).vectors[flagged::SlotOf(round_)];
  const auto add = [&](uint64_t begin, uint64_t bytes) {
    pool::Part* last = lines->empty() ? nullptr : &lines->back();
    if (last != nullptr &&
        static_cast<const std::byte*>(last->begin) + last->bytes ==
            slot + begin)
      last->bytes += bytes;
    else
      lines->push_back({slot + begin, bytes});
  };
  for (const SlotRange& range : step.ranges) {
    const uint64_t last = flagged::NumUnits(range.offset + range.bytes);
    for (uint64_t unit = range.offset / flagged::kUnitBytes; unit < last;) {
      const uint64_t end =
          std::min(last, (unit / flagged::kGroup + 1) * flagged::kGroup);
      const uint64_t bytes = (end - unit) * flagged::kVectorBytes;
      add(flagged::LowVector(unit), bytes);
      add(flagged::HighVector(unit), bytes);
      unit = end;
    }
  }
}

// Returns true once this host sees all vectors that its device writes. Does not
// check a vector again after it has arrived.
bool FlaggedRelay::WrittenHasArrived() {
  for (; !written_.empty(); written_.pop_back()) {
    pool::Part& part = written_.back();
    for (; part.bytes > 0; part.bytes -= flagged::kVectorBytes) {
      const auto* vector = static_cast<const std::byte*>(part.begin);
      if (!HasFlags(vector, flagged::FlagOf(round_))) return false;
      part.begin = vector + flagged::kVectorBytes;
    }
  }
  return true;
}

}  // namespace jax_cxl::comm
