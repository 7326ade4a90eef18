#include "cc/comm/health/device_waits.h"

#include <algorithm>
#include <string>
#include <utility>

#include "cc/comm/record/recorded_calls.h"

namespace jax_cxl::comm {
namespace {

// A device that has made no progress for this long has used everything that it
// has received, so it must be waiting for its peers.
constexpr double kCertainAfterS = 0.2;

}  // namespace

DeviceWaits::DeviceWaits(const pool::Pool* pool, const Peers* peers,
                         const WaitTimes& times, const Group& group)
    : pool_(pool),
      peers_(peers),
      group_(group),
      monitor_(pool, peers, times, group) {}

int DeviceWaits::WaitingFor(const DeviceWait& wait) {
  if (!wait.begun) return -1;
  return wait.missing.empty() ? wait.waiting_for : wait.missing.front();
}

Status DeviceWaits::Check(const DeviceWait& wait, Clock::time_point now) {
  const bool all_started = wait.missing.empty();
  // A call may wait for any member at work, because some blocks of a kernel do
  // not report which member they wait for. The member that the device does name
  // comes first, because the search for the blocking rank begins there.
  std::vector<int> members = all_started ? wait.at_work : wait.missing;
  std::ranges::stable_partition(
      members, [&](int member) { return member == wait.waiting_for; });
  return monitor_.Check({wait.call, std::move(members), all_started,
                         wait.progress, wait.begun, kCertainAfterS},
                        now);
}

Status DeviceWaits::Mismatch(const Call& call, int member) const {
  const int self = group_.rank(), rank = group_.members[member];
  std::string theirs = LastOf(*pool_, rank);
  if (const auto found = FindCall(*pool_->recorder(rank), pool_->doorbells(),
                                  call.identity, KeyOf(*pool_, self, call)))
    theirs = found->what + (found->site.empty() ? "" : " at " + found->site);
  return Disagreement(group_, {group_.self, DescribeText(call)},
                      {member, theirs});
}

Status DeviceWaits::Timeout(const Call& call, int member) const {
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
