#include "cc/comm/health/patience.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <sstream>

#include "cc/comm/health/blame.h"
#include "cc/comm/record/recorder.h"

namespace jax_cxl::comm {
namespace {

double Seconds(Clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace

Patience::Patience(const pool::Pool* pool, const Peers* peers,
                   const Options& options, const Group& group)
    : pool_(pool), peers_(peers), options_(options), group_(group) {}

Patience::Lateness Patience::Late(const Wait& wait, double waited) const {
  std::ostringstream text;
  text << peers_->Name(group_.members[group_.self]) << " has waited "
       << std::round(10 * waited) / 10 << " s in " << DescribeText(*wait.call)
       << " for ";
  for (size_t i = 0; i < wait.members.size(); ++i)
    text << (i > 0 ? ", " : "")
         << peers_->Name(group_.members[wait.members[i]]);
  text << (wait.inside ? " to go on with it" : " to start it");
  if (wait.members.empty()) return {text.str(), {}, -1};
  const Culprit culprit =
      FindCulprit(*pool_, *peers_, group_, *wait.call, wait.inside,
                  group_.members[wait.members[0]]);
  text << ". It comes down to " << peers_->Name(culprit.rank) << ", "
       << culprit.why;
  return {text.str(), peers_->Identity(culprit.rank), culprit.rank};
}

Status Patience::Check(const Wait& wait, Clock::time_point now) {
  CXL_RETURN_IF_ERROR(pool_->CheckIntact());
  for (int32_t rank : group_.members) CXL_RETURN_IF_ERROR(peers_->GaveUp(rank));
  for (int member : wait.members) {
    const int rank = group_.members[member];
    const int self = group_.members[group_.self];
    Status left = peers_->Left(rank);
    // Whoever failed said why before it left, but maybe not before we looked.
    if (!left.ok())
      for (int32_t any : group_.members)
        CXL_RETURN_IF_ERROR(peers_->GaveUp(any));
    if (left.code() == Code::kMismatch)
      return Error(left.code(), left.message(), ", but ", peers_->Name(self),
                   " waits for it in ", DescribeText(*wait.call), ". ",
                   kSamePrograms)
          .With("rank_0", self)
          .With("call_0", DescribeText(*wait.call))
          .With(left.details());
    Status alive = left.ok() ? peers_->Alive(rank) : left;
    if (!alive.ok())
      return Error(alive.code(), alive.message(), "; ", peers_->Name(self),
                   " was waiting for it in ", DescribeText(*wait.call))
          .With(alive.details())
          .With("last", Recorder::LastOf(*pool_, rank))
          .With("call", DescribeText(*wait.call));
  }
  // A long transfer through a small pool takes its time: what counts is how
  // long nothing has moved. Nor does a clock need to be read at the beginning:
  // most calls end before anybody looks.
  if (wait.call->number != number_ || wait.moved != stand_) {
    number_ = wait.call->number;
    stand_ = wait.moved;
    moved_ = now;
  }
  const double waited = Seconds(now - moved_);
  // Whoever was kept from looking for so long warns before it gives up.
  const bool warned =
      last_warning_ > moved_ || options_.warn_after_s >= options_.timeout_s;
  if (waited > options_.timeout_s && warned) {
    const Lateness late = Late(wait, waited);
    // Whoever gave up while we looked is in no call now, but said who it was.
    if (late.rank >= 0) CXL_RETURN_IF_ERROR(peers_->GaveUp(late.rank));
    return Error(Code::kDeadlineExceeded, late.text,
                 "; gave up after JAX_CXL_TIMEOUT = ", options_.timeout_s, " s")
        .With(late.culprit)
        .With("last", late.rank < 0 ? std::string()
                                    : Recorder::LastOf(*pool_, late.rank))
        .With("call", DescribeText(*wait.call))
        .With("waited_s", waited);
  }
  if (waited > options_.warn_after_s &&
      Seconds(now - last_warning_) > options_.warn_after_s) {
    last_warning_ = now;
    std::fprintf(stderr, "jax_cxl: warning: %s\n",
                 Late(wait, waited).text.c_str());
  }
  return OkStatus();
}

}  // namespace jax_cxl::comm
