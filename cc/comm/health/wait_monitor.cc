#include "cc/comm/health/wait_monitor.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>
#include <sstream>
#include <string>
#include <utility>

#include "cc/comm/record/recorded_calls.h"
#include "cc/pool/layout/geometry.h"

namespace jax_cxl::comm {
namespace {

// After a program has failed on another rank, this rank waits this long before
// it gives up. If the program has failed on this rank too, this rank notices
// that in the meantime, and the failure of the other rank does not count.
constexpr double kOwnFailureS = 1;

// A device that has made no progress for this long has used everything that it
// has received, so it must be waiting for its peers.
constexpr double kCertainAfterS = 0.2;

double Rounded(double seconds) { return std::round(10 * seconds) / 10; }

std::string Silent(double seconds) {
  std::ostringstream text;
  text << "which has given no sign of life for " << Rounded(seconds)
       << " s: it is stopped, or its host hangs";
  return text.str();
}

}  // namespace

std::string LacksMemory(uint64_t needed_pool_bytes) {
  return "memory of the pool, which is too small for all groups of ranks that "
         "this rank uses at the same time: a pool of " +
         pool::FormatBytes(needed_pool_bytes) +
         " is large enough (?size= in its URI, which applies to each path)";
}

WaitMonitor::WaitMonitor(const pool::Pool* pool, const Peers* peers,
                         const WaitTimes& times, const Group& group)
    : pool_(pool), peers_(peers), times_(times), group_(group) {}

std::optional<WaitMonitor::BlockingRank> WaitMonitor::FindMissing(
    const Call& call, uint64_t key) const {
  std::optional<BlockingRank> missing;
  for (int32_t rank : group_.members) {
    const pool::Recorder& recorder = *pool_->recorder(rank);
    if (FindCall(recorder, pool_->doorbells(), call.identity, key)) continue;
    const double silence = peers_->Silence(rank);
    if (silence > 0) return BlockingRank{rank, Silent(silence)};
    if (!missing)
      missing = {rank, "which has not started it: " +
                           DescribeLastCall(recorder, pool_->doorbells())};
  }
  return missing;
}

WaitMonitor::BlockingRank WaitMonitor::FindBlockingRank(
    const Wait& wait) const {
  uint64_t identity = wait.call->identity;
  uint64_t key = KeyOf(*pool_, group_.rank(), *wait.call);
  if (!wait.started && wait.call->number != 0)
    if (auto missing = FindMissing(*wait.call, key)) return *missing;
  int rank = group_.members[wait.members[0]];
  std::set<int> seen = {group_.rank()};
  // At each rank, follow the call in which the previous rank waits for this
  // rank. This call may not be the rank's oldest call, which may only be
  // waiting for its turn: ranks do not always execute calls in the order in
  // which they submit them.
  for (;;) {
    seen.insert(rank);
    const double silence = peers_->Silence(rank);
    if (silence > 0) return {rank, Silent(silence)};
    const pool::Recorder& recorder = *pool_->recorder(rank);
    const auto stuck = Unfinished(recorder, pool_->doorbells(), identity, key);
    if (!stuck)
      return {rank, "which is in no collective: " +
                        DescribeLastCall(recorder, pool_->doorbells())};
    const int next = stuck->waiting_for;
    if (next < 0 || next >= pool_->world_size() || seen.contains(next))
      return {rank, "which is in its call number " +
                        std::to_string(stuck->number) + ", " + stuck->what};
    rank = next;
    identity = stuck->identity;
    key = stuck->group;
  }
}

WaitMonitor::BlockingRank WaitMonitor::DescribeWait(const Wait& wait,
                                                    double waited) const {
  std::ostringstream text;
  text << peers_->Name(group_.rank()) << " has waited " << Rounded(waited)
       << " s in " << DescribeText(*wait.call) << " for ";
  if (wait.needed_pool_bytes > 0) {
    text << LacksMemory(wait.needed_pool_bytes);
    return {-1, text.str()};
  }
  for (size_t i = 0; i < wait.members.size(); ++i)
    text << (i > 0 ? ", " : "")
         << peers_->Name(group_.members[wait.members[i]]);
  text << (wait.started ? " to continue with it" : " to start it");
  if (wait.members.empty()) return {-1, text.str()};
  const BlockingRank blocking = FindBlockingRank(wait);
  text << ". The cause is " << peers_->Name(blocking.rank) << ", "
       << blocking.text;
  return {blocking.rank, text.str()};
}

Status WaitMonitor::CheckProgram(int rank, Clock::time_point now) {
  Status failed = peers_->FailedMoreThan(rank, group_.rank());
  if (failed.ok()) return failed;
  // Here the program may end only once the StallDetector ends its calls.
  if (peers_->ProgramFails(group_.rank())) return OkStatus();
  if (!failed_since_) failed_since_ = now;
  return Seconds(now - *failed_since_) < kOwnFailureS ? OkStatus() : failed;
}

Status WaitMonitor::CheckMember(const Wait& wait, int member,
                                Clock::time_point now) {
  const int rank = group_.members[member];
  const int self = group_.rank();
  Status left = peers_->Left(rank);
  // A peer that failed published its error before it left, but possibly after
  // this rank looked for errors of the members. So look again.
  if (!left.ok())
    for (int32_t any : group_.members) CXL_RETURN_IF_ERROR(peers_->GaveUp(any));
  if (left.code() == Code::kMismatch)
    return Error(left.code(), left.message(), ", but ", peers_->Name(self),
                 " waits for it in ", DescribeText(*wait.call), ". ",
                 kSamePrograms)
        .With("rank_0", self)
        .With("call_0", DescribeText(*wait.call))
        .With(left.details());
  Status lost = left.ok() ? peers_->Alive(rank) : left;
  if (lost.ok() && !wait.started) lost = CheckProgram(rank, now);
  if (lost.ok()) return lost;
  return Error(lost.code(), lost.message(), "; ", peers_->Name(self),
               " was waiting for it in ", DescribeText(*wait.call))
      .With(lost.details())
      .With("last", LastOf(*pool_, rank))
      .With("call", DescribeText(*wait.call));
}

Status WaitMonitor::CheckTime(const Wait& wait, double waited,
                              Clock::time_point now) {
  // If this rank made no check between the time of the warning and the timeout,
  // it has not warned yet. Then it only warns now, and gives up in a later
  // check.
  const bool warned =
      last_warning_ > last_progress_ || times_.warn_after_s >= times_.timeout_s;
  if (waited > times_.timeout_s && warned) {
    const BlockingRank late = DescribeWait(wait, waited);
    // The blocking rank may have given up since the check above, and is then no
    // longer in a call. In that case return the error with which it gave up,
    // because this error names the rank for which it waited.
    if (late.rank >= 0) CXL_RETURN_IF_ERROR(peers_->GaveUp(late.rank));
    const Code code = wait.needed_pool_bytes > 0 ? Code::kResourceExhausted
                                                 : Code::kDeadlineExceeded;
    return Error(code, late.text,
                 "; gave up after JAX_CXL_TIMEOUT = ", times_.timeout_s, " s")
        .With(late.rank < 0 ? Details() : peers_->Identity(late.rank))
        .With("last", late.rank < 0 ? "" : LastOf(*pool_, late.rank))
        .With("call", DescribeText(*wait.call))
        .With("waited_s", waited);
  }
  if (waited > times_.warn_after_s &&
      Seconds(now - last_warning_) > times_.warn_after_s) {
    last_warning_ = now;
    std::fprintf(stderr,
                 "jax_cxl: warning: %s. python -m jax_cxl status shows which "
                 "ranks wait for which\n",
                 DescribeWait(wait, waited).text.c_str());
  }
  return OkStatus();
}

Status WaitMonitor::Check(const Wait& wait, Clock::time_point now) {
  CXL_RETURN_IF_ERROR(pool_->CheckIntact());
  for (int32_t rank : group_.members) CXL_RETURN_IF_ERROR(peers_->GaveUp(rank));
  if (!wait.begun) return OkStatus();
  // Only time without progress counts, because a large transfer through a small
  // pool may take long. The time begins with the first check. Most calls finish
  // without any check, and never read the clock.
  if (wait.call->number != number_ || wait.progress != progress_) {
    number_ = wait.call->number;
    progress_ = wait.progress;
    last_progress_ = now;
    failed_since_.reset();
  }
  const double waited = Seconds(now - last_progress_);
  if (waited >= wait.certain_after_s)
    for (int member : wait.members)
      CXL_RETURN_IF_ERROR(CheckMember(wait, member, now));
  return CheckTime(wait, waited, now);
}

Status WaitMonitor::Check(const DeviceWait& wait, Clock::time_point now) {
  const bool all_started = wait.missing.empty();
  // A call may wait for any member at work, because some blocks of a kernel do
  // not report which member they wait for. The member that the device does name
  // comes first, because the search for the blocking rank begins there.
  std::vector<int> members = all_started ? wait.at_work : wait.missing;
  std::ranges::stable_partition(
      members, [&](int member) { return member == wait.waiting_for; });
  return Check(Wait{wait.call, std::move(members), all_started, wait.progress,
                    wait.begun, kCertainAfterS},
               now);
}

Status WaitMonitor::Mismatch(const Call& call, int member) const {
  const int self = group_.rank(), rank = group_.members[member];
  std::string theirs = LastOf(*pool_, rank);
  if (const auto found = FindCall(*pool_->recorder(rank), pool_->doorbells(),
                                  call.identity, KeyOf(*pool_, self, call)))
    theirs = found->what + (found->site.empty() ? "" : " at " + found->site);
  return Disagreement(group_, {group_.self, DescribeText(call)},
                      {member, theirs});
}

Status WaitMonitor::Timeout(const Call& call, int member) const {
  const int rank = group_.members[member];
  return Error(
             Code::kDeadlineExceeded, peers_->Name(group_.rank()),
             " has waited too long in ", DescribeText(call), " for ",
             peers_->Name(rank),
             "; the waiting device gave up, 1.5 times JAX_CXL_TIMEOUT and 5 s "
             "after the wait began. Look at what the other rank does, or "
             "raise JAX_CXL_TIMEOUT")
      .With(peers_->Identity(rank))
      .With("last", LastOf(*pool_, rank))
      .With("call", DescribeText(call));
}

}  // namespace jax_cxl::comm
