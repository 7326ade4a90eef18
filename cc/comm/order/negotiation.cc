#include "cc/comm/order/negotiation.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "cc/engine/cpu/one_round.h"

namespace jax_cxl::comm {
namespace {

using pool::kCallRing;

// Calls that some members have submitted and others have not, and the same
// times members: bounds on what the others can make a member remember and
// search.
constexpr uint64_t kMaxRolls = uint64_t{1} << 14;
constexpr uint64_t kMaxRollEntries = uint64_t{1} << 18;

}  // namespace

Negotiation::Negotiation(const pool::Doorbells& doorbells,
                         const std::vector<pool::ControlBlock*>& blocks,
                         const Group& group, uint64_t payload_bytes)
    : doorbells_(doorbells),
      blocks_(blocks),
      group_(group),
      payload_bytes_(payload_bytes),
      submissions_(doorbells, blocks, group, payload_bytes) {}

void Negotiation::Submit(StartedCall started) {
  Roll* roll = Find(started.call->identity);
  if (roll == nullptr) roll = Add(started.call->identity);
  roll->mine = std::move(started);
  unsent_.push_back(roll);
  ++pending_;
}

Result<bool> Negotiation::Exchange(std::vector<Finished>* finished,
                                   cpu::Traffic* traffic) {
  CXL_ASSIGN_OR_RETURN(const bool sent, SendSubmissions(finished, traffic));
  CXL_ASSIGN_OR_RETURN(const bool read, ReadSubmissions(finished, traffic));
  return sent || read;
}

Result<bool> Negotiation::SendSubmissions(std::vector<Finished>* finished,
                                          cpu::Traffic* traffic) {
  bool moved = false;
  while (!unsent_.empty()) {
    CXL_ASSIGN_OR_RETURN(const bool can, submissions_.CanWrite());
    if (!can) break;
    moved = true;
    Roll* roll = unsent_.front();
    unsent_.pop_front();
    const Call& call = *roll->mine.call;
    const Recipe& recipe = *roll->mine.recipe;
    if (recipe.eager)
      cpu::PutPayload(recipe.plan, call.input, submissions_.payload(), traffic);
    const uint32_t name =
        submissions_.Write(call.identity, call, recipe.descriptor,
                           recipe.eager ? recipe.payload_bytes : 0);
    CXL_RETURN_IF_ERROR(Enroll(roll, group_.self, recipe.descriptor, name));
    if (roll->present == size())
      CXL_RETURN_IF_ERROR(WhenFull(roll, finished, traffic));
  }
  return moved;
}

Result<bool> Negotiation::ReadSubmissions(std::vector<Finished>* finished,
                                          cpu::Traffic* traffic) {
  bool moved = false;
  for (int member = 0; member < size(); ++member) {
    if (member == group_.self) continue;
    for (;;) {
      Submissions::Entry entry;
      CXL_ASSIGN_OR_RETURN(const bool here, submissions_.Peek(member, &entry));
      if (!here) break;
      moved = true;
      Roll* roll = Find(entry.identity);
      if (roll == nullptr) {
        CXL_RETURN_IF_ERROR(CheckMemory(member));
        roll = Add(entry.identity);
      }
      CXL_RETURN_IF_ERROR(Enroll(roll, member, entry.descriptor, entry.name));
      if (roll->present == size()) {
        roll->payloads[member] = entry.payload;
        CXL_RETURN_IF_ERROR(WhenFull(roll, finished, traffic));
      } else {
        Keep(roll, member, entry);
      }
      submissions_.Pop(member);
    }
  }
  return moved;
}

Negotiation::Roll* Negotiation::Find(uint64_t identity) const {
  // Few calls are under way at a time, and most end in the order in which they
  // started.
  for (const auto& roll : rolls_)
    if (roll->identity == identity) return roll.get();
  return nullptr;
}

Negotiation::Roll* Negotiation::Add(uint64_t identity) {
  std::unique_ptr<Roll> roll;
  if (spare_.empty()) {
    roll = std::make_unique<Roll>();
  } else {
    roll = std::move(spare_.back());
    spare_.pop_back();
  }
  roll->identity = identity;
  roll->taken = false;
  roll->silent = false;
  roll->present = 0;
  roll->here.assign(size(), false);
  roll->payloads.assign(size(), nullptr);
  rolls_.push_back(std::move(roll));
  return rolls_.back().get();
}

void Negotiation::Remove(Roll* roll) {
  auto found = std::find_if(rolls_.begin(), rolls_.end(),
                            [&](const auto& r) { return r.get() == roll; });
  if (spare_.size() < kCallRing) spare_.push_back(std::move(*found));
  rolls_.erase(found);
}

Status Negotiation::CheckMemory(int member) const {
  if (rolls_.size() <= kMaxRolls && rolls_.size() * size() <= kMaxRollEntries)
    return OkStatus();
  return Error(Code::kResourceExhausted, "rank ", group_.members[member],
               " is ", rolls_.size(),
               " calls ahead of others, more than a rank keeps in mind; let "
               "the program wait for some of them");
}

Status Negotiation::Enroll(Roll* roll, int member,
                           const pool::CallDescriptor& descriptor,
                           uint32_t name) {
  if (roll->here[member])
    return Error(Code::kInternal, "rank ", group_.members[member],
                 " submitted the same call twice (",
                 submissions_.Describe(member, descriptor, name), ")");
  if (roll->present == 0) {
    roll->first = member;
    roll->descriptor = descriptor;
    roll->name = name;
  } else if (descriptor != roll->descriptor) {
    return Disagreement(*roll, member, descriptor, name);
  }
  roll->here[member] = true;
  ++roll->present;
  return OkStatus();
}

Status Negotiation::Disagreement(const Roll& roll, int member,
                                 const pool::CallDescriptor& descriptor,
                                 uint32_t name) const {
  int one = group_.members[roll.first], other = group_.members[member];
  std::string one_calls =
      submissions_.Describe(roll.first, roll.descriptor, roll.name);
  std::string other_calls = submissions_.Describe(member, descriptor, name);
  if (member < roll.first) {
    std::swap(one, other);
    std::swap(one_calls, other_calls);
  }
  return Error(Code::kMismatch, "the ranks disagree about a collective: rank ",
               one, " calls ", one_calls, "; rank ", other, " calls ",
               other_calls, ". ", kSamePrograms, " (call ", std::hex,
               roll.identity, ")")
      .With("rank_0", one)
      .With("call_0", one_calls)
      .With("rank_1", other)
      .With("call_1", other_calls);
}

void Negotiation::Keep(Roll* roll, int member,
                       const Submissions::Entry& entry) {
  if (entry.payload_bytes == 0) {
    roll->silent = true;
    return;
  }
  roll->kept.resize(size() * payload_bytes_);
  std::byte* kept = &roll->kept[member * payload_bytes_];
  std::memcpy(kept, entry.payload, entry.payload_bytes);
  roll->payloads[member] = kept;
}

Status Negotiation::WhenFull(Roll* roll, std::vector<Finished>* finished,
                             cpu::Traffic* traffic) {
  if (!roll->taken && !roll->mine.recipe->eager) {
    if (leads()) full_.push_back(roll);
    return OkStatus();
  }
  if (!roll->taken) {
    const Call& call = *roll->mine.call;
    if (roll->silent) {
      const int missing = cpu::MissingPayload(roll->mine.recipe->plan,
                                              group_.self, roll->payloads);
      if (missing >= 0)
        return submissions_.Corrupt(missing, "a submission without its data");
    }
    cpu::RetrievePayloads(roll->mine.recipe->plan, call.dtype, call.reduce_op,
                          group_.self, roll->payloads, call.input, call.output,
                          &sources_, traffic);
    finished->push_back({Take(roll).call, OkStatus()});
  }
  Remove(roll);
  return OkStatus();
}

Result<StartedCall> Negotiation::Next(uint64_t released_calls) {
  return leads() ? Announce(released_calls) : Follow();
}

Result<StartedCall> Negotiation::Announce(uint64_t released_calls) {
  // The ring is bounded: an announcement may be overwritten once every
  // follower is past the call that it announced.
  if (full_.empty() || announcements_ >= kCallRing + released_calls)
    return StartedCall();
  Roll* roll = full_.front();
  full_.pop_front();
  pool::Announcement& entry =
      blocks_[0]->announcements[announcements_ % kCallRing];
  entry.identity = roll->identity;
  doorbells_.RingLine(&entry.ready, ++announcements_);
  StartedCall started = Take(roll);
  Remove(roll);
  return started;
}

Result<StartedCall> Negotiation::Follow() {
  const pool::Announcement& slot =
      blocks_[0]->announcements[announcements_ % kCallRing];
  const uint64_t ready = doorbells_.Read(&slot.ready);
  if (ready < announcements_ + 1) return StartedCall();
  if (ready > announcements_ + 1)
    return submissions_.Corrupt(0, "an announcement out of turn");
  const uint64_t identity = doorbells_.coherence().AcquireCopy(slot.identity);
  ++announcements_;
  Roll* roll = Find(identity);
  if (roll == nullptr || roll->mine.call == nullptr || !roll->here[group_.self])
    return submissions_.Corrupt(
        0, "it announces a call that this rank did not submit");
  // Its plan is not made for slots.
  if (roll->mine.recipe->eager)
    return submissions_.Corrupt(0, "it announces a call that takes no slot");
  StartedCall started = Take(roll);
  // Some submissions may be yet to come here, though the leader has them all.
  if (roll->present == size()) Remove(roll);
  return started;
}

StartedCall Negotiation::Take(Roll* roll) {
  --pending_;
  roll->taken = true;
  return std::move(roll->mine);
}

Negotiation::Roll* Negotiation::OldestPending() const {
  for (const auto& roll : rolls_)
    if (roll->mine.call != nullptr) return roll.get();
  return nullptr;
}

const Call* Negotiation::oldest() const {
  const Roll* roll = OldestPending();
  return roll == nullptr ? nullptr : roll->mine.call.get();
}

std::vector<int> Negotiation::WaitingFor() const {
  const Roll* roll = OldestPending();
  if (roll == nullptr) return {};
  std::vector<int> missing;
  for (int member = 0; member < size(); ++member)
    if (!roll->here[member] && member != group_.self) missing.push_back(member);
  // What those are yet to send may wait for what I am yet to send.
  if (!unsent_.empty()) {
    for (int member : submissions_.RingHolders())
      if (roll->here[member]) missing.push_back(member);
  }
  if (!missing.empty()) return missing;
  // Full, and not announced: for want of the leader, or of those who are to
  // leave earlier calls behind.
  if (!leads()) return {0};
  for (int member = 1; member < size(); ++member) missing.push_back(member);
  return missing;
}

std::vector<std::unique_ptr<Call>> Negotiation::TakePending() {
  std::vector<std::unique_ptr<Call>> calls;
  for (auto& roll : rolls_)
    if (roll->mine.call != nullptr) calls.push_back(std::move(roll->mine.call));
  rolls_.clear();
  unsent_.clear();
  full_.clear();
  pending_ = 0;
  return calls;
}

}  // namespace jax_cxl::comm
