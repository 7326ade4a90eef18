#include "cc/comm/health/wait_monitor.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <sstream>

#include "cc/comm/health/blocking_rank.h"
#include "cc/comm/record/recorder.h"
#include "cc/pool/layout/geometry.h"

namespace jax_cxl::comm {
namespace {

// A program may have failed on this rank too, which then notices it soon.
constexpr double kOwnFailureS = 1;

double Seconds(Clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
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

WaitMonitor::LateWait WaitMonitor::DescribeWait(const Wait& wait,
                                                double waited) const {
  std::ostringstream text;
  text << peers_->Name(group_.members[group_.self]) << " has waited "
       << std::round(10 * waited) / 10 << " s in " << DescribeText(*wait.call)
       << " for ";
  if (wait.needed_pool_bytes > 0) {
    text << LacksMemory(wait.needed_pool_bytes);
    return {text.str(), {}, -1};
  }
  for (size_t i = 0; i < wait.members.size(); ++i)
    text << (i > 0 ? ", " : "")
         << peers_->Name(group_.members[wait.members[i]]);
  text << (wait.started ? " to continue with it" : " to start it");
  if (wait.members.empty()) return {text.str(), {}, -1};
  const BlockingRank blocking =
      FindBlockingRank(*pool_, *peers_, group_, *wait.call, wait.started,
                       group_.members[wait.members[0]]);
  text << ". The cause is " << peers_->Name(blocking.rank) << ", "
       << blocking.why;
  return {text.str(), peers_->Identity(blocking.rank), blocking.rank};
}

Status WaitMonitor::CheckProgram(const Wait& wait, int member,
                                 Clock::time_point now) {
  if (wait.started) return OkStatus();
  const int self = group_.members[group_.self];
  Status failed = peers_->FailedMoreThan(group_.members[member], self);
  if (failed.ok()) return OkStatus();
  if (!failed_since_) failed_since_ = now;
  if (Seconds(now - *failed_since_) < kOwnFailureS) return OkStatus();
  return Error(failed.code(), failed.message(), "; ", peers_->Name(self),
               " was waiting for it in ", DescribeText(*wait.call))
      .With(failed.details())
      .With("call", DescribeText(*wait.call));
}

Status WaitMonitor::CheckMember(const Wait& wait, int member,
                                Clock::time_point now) {
  const int rank = group_.members[member];
  const int self = group_.members[group_.self];
  Status left = peers_->Left(rank);
  // A peer that failed published its error before it left, but possibly after
  // this rank checked all members. So check again.
  if (!left.ok())
    for (int32_t any : group_.members) CXL_RETURN_IF_ERROR(peers_->GaveUp(any));
  if (left.code() == Code::kMismatch)
    return Error(left.code(), left.message(), ", but ", peers_->Name(self),
                 " waits for it in ", DescribeText(*wait.call), ". ",
                 kSamePrograms)
        .With("rank_0", self)
        .With("call_0", DescribeText(*wait.call))
        .With(left.details());
  Status alive = left.ok() ? peers_->Alive(rank) : left;
  if (alive.ok()) return CheckProgram(wait, member, now);
  return Error(alive.code(), alive.message(), "; ", peers_->Name(self),
               " was waiting for it in ", DescribeText(*wait.call))
      .With(alive.details())
      .With("last", Recorder::LastOf(*pool_, rank))
      .With("call", DescribeText(*wait.call));
}

Status WaitMonitor::CheckTime(const Wait& wait, double waited,
                              Clock::time_point now) {
  // A rank that could not check until the timeout warns first.
  const bool warned =
      last_warning_ > last_progress_ || times_.warn_after_s >= times_.timeout_s;
  if (waited > times_.timeout_s && warned) {
    const LateWait late = DescribeWait(wait, waited);
    // The blocking rank may have given up meanwhile, and is then no longer in a
    // call. Its own error names the rank that blocks it.
    if (late.rank >= 0) CXL_RETURN_IF_ERROR(peers_->GaveUp(late.rank));
    const Code code = wait.needed_pool_bytes > 0 ? Code::kResourceExhausted
                                                 : Code::kDeadlineExceeded;
    return Error(code, late.text,
                 "; gave up after JAX_CXL_TIMEOUT = ", times_.timeout_s, " s")
        .With(late.details)
        .With("last", late.rank < 0 ? std::string()
                                    : Recorder::LastOf(*pool_, late.rank))
        .With("call", DescribeText(*wait.call))
        .With("waited_s", waited);
  }
  if (waited > times_.warn_after_s &&
      Seconds(now - last_warning_) > times_.warn_after_s) {
    last_warning_ = now;
    std::fprintf(stderr, "jax_cxl: warning: %s\n",
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

}  // namespace jax_cxl::comm
