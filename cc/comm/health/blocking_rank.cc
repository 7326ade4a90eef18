#include "cc/comm/health/blocking_rank.h"

#include <cmath>
#include <optional>
#include <set>
#include <sstream>

#include "cc/comm/record/recorded_calls.h"
#include "cc/pool/coherence/doorbell.h"

namespace jax_cxl::comm {
namespace {

std::string Silent(double seconds) {
  std::ostringstream text;
  text << "which has given no sign of life for "
       << std::round(10 * seconds) / 10
       << " s: it is stopped, or its host hangs";
  return text.str();
}

// Returns the key of the call's channel.
uint64_t KeyOf(const pool::Pool& pool, const Group& group, const Call& call) {
  return pool.recorder(group.members[group.self])
      ->calls[call.number % pool::kRecordedCalls]
      .group;
}

// Returns a member that has not started the call, preferably a silent member.
std::optional<BlockingRank> Missing(const pool::Pool& pool, const Peers& peers,
                                    const Group& group, const Call& call) {
  const pool::Doorbells doorbells(pool.coherence(), pool.epoch());
  const uint64_t key = KeyOf(pool, group, call);
  std::optional<BlockingRank> missing;
  for (int32_t rank : group.members) {
    const pool::Recorder& recorder = *pool.recorder(rank);
    if (FindCall(recorder, doorbells, call.identity, key)) continue;
    const double silence = peers.Silence(rank);
    if (silence > 0) return BlockingRank{rank, Silent(silence)};
    if (!missing)
      missing = {rank, "which has not started it: " +
                           DescribeLastCall(recorder, doorbells)};
  }
  return missing;
}

}  // namespace

BlockingRank FindBlockingRank(const pool::Pool& pool, const Peers& peers,
                              const Group& group, const Call& call,
                              bool started, int rank) {
  if (!started && call.number != 0)
    if (auto missing = Missing(pool, peers, group, call)) return *missing;
  const pool::Doorbells doorbells(pool.coherence(), pool.epoch());
  std::set<int> seen = {group.members[group.self]};
  // Follow the call in which another rank waits. The oldest call of a rank may
  // only be waiting for its turn, because ranks execute calls in another order
  // than they submit them.
  uint64_t identity = call.identity, key = KeyOf(pool, group, call);
  for (;;) {
    seen.insert(rank);
    const double silence = peers.Silence(rank);
    if (silence > 0) return {rank, Silent(silence)};
    const auto stuck =
        Unfinished(*pool.recorder(rank), doorbells, identity, key);
    if (!stuck)
      return {rank, "which is in no collective: " +
                        DescribeLastCall(*pool.recorder(rank), doorbells)};
    const int next = stuck->waiting_for;
    if (next < 0 || next >= pool.world_size() || seen.contains(next))
      return {rank, "which is in its call " + std::to_string(stuck->number) +
                        ", " + stuck->what};
    rank = next;
    identity = stuck->identity;
    key = stuck->group;
  }
}

}  // namespace jax_cxl::comm
