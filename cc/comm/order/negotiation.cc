#include "cc/comm/order/negotiation.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "cc/engine/cpu/one_round.h"

namespace jax_cxl::comm {
namespace {

using pool::kCallRing;

// Limits on the number of calls that only some members have submitted, and on
// that number times the number of members. They bound how much memory and
// search time other members can cost this rank.
constexpr uint64_t kMaxMatches = uint64_t{1} << 14;
constexpr uint64_t kMaxMatchEntries = uint64_t{1} << 18;

}  // namespace

Negotiation::Negotiation(const std::vector<MemberBlock>& blocks,
                         const Group& group, uint64_t payload_bytes,
                         cpu::Traffic* traffic)
    : blocks_(blocks),
      group_(group),
      payload_bytes_(payload_bytes),
      traffic_(traffic),
      submissions_(blocks, group, payload_bytes) {}

void Negotiation::Submit(StartedCall started) {
  Match* match = Find(started.call->identity);
  if (match == nullptr) match = Add(started.call->identity);
  match->mine = std::move(started);
  unsent_.push_back(match);
  ++pending_;
}

Result<bool> Negotiation::ExchangeSubmissions(std::vector<Finished>* finished) {
  CXL_ASSIGN_OR_RETURN(const bool sent, SendSubmissions(finished));
  CXL_ASSIGN_OR_RETURN(const bool read, ReadSubmissions(finished));
  return sent || read;
}

Result<bool> Negotiation::SendSubmissions(std::vector<Finished>* finished) {
  bool moved = false;
  while (!unsent_.empty()) {
    CXL_ASSIGN_OR_RETURN(const bool can, submissions_.CanWrite());
    if (!can) break;
    moved = true;
    Match* match = unsent_.front();
    unsent_.pop_front();
    const Call& call = *match->mine.call;
    const CallPlan& call_plan = *match->mine.call_plan;
    if (call_plan.eager)
      cpu::PutPayload(call_plan.plan, call.input, submissions_.payload(),
                      traffic_, call.rows.get());
    const uint32_t name =
        submissions_.Write(call.identity, call, call_plan.descriptor,
                           call_plan.eager ? call_plan.payload_bytes : 0);
    CXL_RETURN_IF_ERROR(
        AddMember(match, group_.self, call_plan.descriptor, name));
    if (match->num_submitted == size())
      CXL_RETURN_IF_ERROR(OnComplete(match, finished));
  }
  return moved;
}

Result<bool> Negotiation::ReadSubmissions(std::vector<Finished>* finished) {
  bool moved = false;
  for (int member = 0; member < size(); ++member) {
    if (member == group_.self) continue;
    for (;;) {
      Submissions::Entry entry;
      CXL_ASSIGN_OR_RETURN(const bool here, submissions_.Peek(member, &entry));
      if (!here) break;
      moved = true;
      Match* match = Find(entry.identity);
      if (match == nullptr) {
        CXL_RETURN_IF_ERROR(CheckMemory(member));
        match = Add(entry.identity);
      }
      CXL_RETURN_IF_ERROR(
          AddMember(match, member, entry.descriptor, entry.name));
      if (match->num_submitted == size()) {
        match->payloads[member] = entry.payload;
        CXL_RETURN_IF_ERROR(OnComplete(match, finished));
      } else {
        KeepPayload(match, member, entry);
      }
      submissions_.Pop(member);
    }
  }
  return moved;
}

Negotiation::Match* Negotiation::Find(uint64_t identity) const {
  // A linear search is fast enough: few calls are under way at a time, and most
  // end in the order in which they started.
  for (const auto& match : matches_)
    if (match->identity == identity) return match.get();
  return nullptr;
}

Negotiation::Match* Negotiation::Add(uint64_t identity) {
  std::unique_ptr<Match> match;
  if (spare_.empty()) {
    match = std::make_unique<Match>();
  } else {
    match = std::move(spare_.back());
    spare_.pop_back();
  }
  match->identity = identity;
  match->lacks_payload = false;
  match->ended = false;
  match->num_submitted = 0;
  match->submitted.assign(size(), false);
  match->payloads.assign(size(), nullptr);
  matches_.push_back(std::move(match));
  return matches_.back().get();
}

Status Negotiation::CheckMemory(int member) const {
  if (matches_.size() <= kMaxMatches &&
      matches_.size() * size() <= kMaxMatchEntries)
    return OkStatus();
  return Error(Code::kResourceExhausted, "rank ", group_.members[member],
               " is ", matches_.size(),
               " calls ahead of others, more than a rank can track; wait for "
               "results in the program more often (jax.block_until_ready)");
}

Status Negotiation::AddMember(Match* match, int member,
                              const pool::CallDescriptor& descriptor,
                              uint32_t name) {
  if (match->submitted[member])
    return Error(Code::kInternal, "rank ", group_.members[member],
                 " submitted the same call twice (",
                 submissions_.Describe(member, descriptor, name),
                 "); please report this to jax_cxl");
  if (match->num_submitted == 0) {
    match->first = member;
    match->descriptor = descriptor;
    match->name = name;
  } else if (descriptor != match->descriptor) {
    return Disagreement(
        group_,
        {match->first,
         submissions_.Describe(match->first, match->descriptor, match->name)},
        {member, submissions_.Describe(member, descriptor, name)});
  }
  match->submitted[member] = true;
  ++match->num_submitted;
  return OkStatus();
}

void Negotiation::KeepPayload(Match* match, int member,
                              const Submissions::Entry& entry) {
  if (entry.payload_bytes == 0) {
    match->lacks_payload = true;
    return;
  }
  match->kept.resize(size() * payload_bytes_);
  std::byte* kept = &match->kept[member * payload_bytes_];
  std::memcpy(kept, entry.payload, entry.payload_bytes);
  match->payloads[member] = kept;
}

Status Negotiation::OnComplete(Match* match, std::vector<Finished>* finished) {
  if (match->ended)
    return Error(Code::kMismatch,
                 "a rank starts a call of a launch that has failed on rank ",
                 group_.rank(), ", after the others have ended this launch. ",
                 kSamePrograms);
  if (!match->mine.call_plan->eager) {
    if (leads()) complete_.push_back(match);
    return OkStatus();
  }
  const Call& call = *match->mine.call;
  if (match->lacks_payload) {
    const int missing = cpu::MissingPayload(match->mine.call_plan->plan,
                                            group_.self, match->payloads);
    if (missing >= 0)
      return submissions_.Corrupt(missing, "a submission without its data");
  }
  CXL_RETURN_IF_ERROR(cpu::RetrievePayloads(
      match->mine.call_plan->plan, call.dtype, call.reduce_op, group_.self,
      match->payloads, call.input, call.output, &sources_, traffic_,
      call.rows.get()));
  finished->push_back({Take(match).call, OkStatus()});
  return OkStatus();
}

Result<StartedCall> Negotiation::Next(uint64_t released_calls) {
  return leads() ? Announce(released_calls) : Follow();
}

Result<StartedCall> Negotiation::Announce(uint64_t released_calls) {
  // The ring has kCallRing entries. The entry of an earlier announcement may be
  // overwritten once every follower has passed the announced call.
  if (complete_.empty() || announcements_ >= kCallRing + released_calls)
    return StartedCall();
  Match* match = complete_.front();
  complete_.pop_front();
  pool::Announcement& entry =
      blocks_[0].control->announcements[announcements_ % kCallRing];
  entry.identity = match->identity;
  blocks_[0].doorbells.RingLine(&entry.ready, ++announcements_);
  return Take(match);
}

Result<StartedCall> Negotiation::Follow() {
  const MemberBlock& leader = blocks_[0];
  const pool::Announcement& slot =
      leader.control->announcements[announcements_ % kCallRing];
  const uint64_t ready = leader.doorbells.Read(&slot.ready);
  if (ready < announcements_ + 1) return StartedCall();
  if (ready > announcements_ + 1) {
    if (leader.Moved()) return StartedCall();
    return submissions_.Corrupt(0, "an announcement out of turn");
  }
  const uint64_t identity =
      leader.doorbells.coherence().AcquireCopy(slot.identity);
  Match* match = Find(identity);
  // OnComplete fails once all submissions of the call have arrived here.
  if (match != nullptr && match->ended) return StartedCall();
  if (match == nullptr || match->mine.call == nullptr ||
      !match->submitted[group_.self])
    return submissions_.Corrupt(
        0, "it announces a call that this rank did not submit");
  // An eager call has no plan for slots.
  if (match->mine.call_plan->eager)
    return submissions_.Corrupt(0, "it announces a call that takes no slot");
  // Some submissions of the call may not have arrived here yet, though the
  // leader has all of them. Then the call has to wait.
  if (match->num_submitted < size()) return StartedCall();
  ++announcements_;
  return Take(match);
}

StartedCall Negotiation::Take(Match* match) {
  --pending_;
  StartedCall started = std::move(match->mine);
  const auto found = std::ranges::find(
      matches_, match, [](const auto& one) { return one.get(); });
  if (spare_.size() < kCallRing) spare_.push_back(std::move(*found));
  matches_.erase(found);
  return started;
}

Negotiation::Match* Negotiation::OldestPending() const {
  for (const auto& match : matches_)
    if (match->mine.call != nullptr) return match.get();
  return nullptr;
}

const Call* Negotiation::oldest() const {
  const Match* match = OldestPending();
  return match == nullptr ? nullptr : match->mine.call.get();
}

std::vector<int> Negotiation::WaitingFor() const {
  const Match* match = OldestPending();
  if (match == nullptr) return {};
  std::vector<int> missing;
  for (int member = 0; member < size(); ++member)
    if (!match->submitted[member] && member != group_.self)
      missing.push_back(member);
  // The missing members may wait for submissions that this rank cannot send,
  // because its ring is full. So this rank also waits for the members that keep
  // the ring full.
  if (!unsent_.empty()) {
    for (int member : submissions_.RingHolders())
      if (match->submitted[member]) missing.push_back(member);
  }
  if (!missing.empty()) return missing;
  // The match is complete, but the call is not announced yet. Either this rank
  // waits for the leader, or the leader waits for members to finish earlier
  // calls.
  if (!leads()) return {0};
  for (int member = 1; member < size(); ++member) missing.push_back(member);
  return missing;
}

void Negotiation::EndLaunch(uint64_t program, uint32_t launch,
                            const Status& status,
                            std::vector<Finished>* finished) {
  for (auto& match : matches_) {
    if (match->mine.call == nullptr || match->num_submitted == size() ||
        !IsOf(*match->mine.call, program, launch))
      continue;
    finished->push_back({std::move(match->mine.call), status});
    match->ended = true;
    std::erase(unsent_, match.get());
    --pending_;
  }
}

void Negotiation::Fail(const Status& status, std::vector<Finished>* finished) {
  for (auto& match : matches_)
    if (match->mine.call != nullptr)
      finished->push_back({std::move(match->mine.call), status});
  matches_.clear();
  unsent_.clear();
  complete_.clear();
  pending_ = 0;
}

}  // namespace jax_cxl::comm
