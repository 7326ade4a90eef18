#include "cc/plan/planners/planner.h"

namespace jax_cxl::plan {
namespace {

// The root reduces everything. This takes one exchange, in which the root reads
// (n - 1) B.
Plan RootReads(Planner planner) {
  const Chunks chunks = planner.Cut(planner.block());
  for (uint64_t t = 0; t < chunks.count; ++t) {
    const uint64_t at = chunks.Begin(t), size = chunks.Size(t);
    if (planner.is_root()) {
      planner.Reduce(0, planner.ranks(), t, 0, at, at, size);
    } else {
      planner.Put(t, at, 0, size);
      planner.Publish(t);
    }
  }
  return std::move(planner).Finish(chunks.count);
}

// Each chunk has a segment for each rank except the root. That rank, the owner
// of the segment, reduces it into its slot. Every rank reads B, the root too.
// If the root were an owner, it would read almost 2 B. This takes two
// exchanges.
Plan OwnersReduce(Planner planner) {
  const int n = planner.ranks(), rank = planner.rank();
  const int root = planner.request().root, owners = n - 1;
  const Chunks chunks = planner.Cut(
      planner.block(),
      {.parts = owners, .ways = owners, .least = TwoExchanges::kLeast});
  auto owner = [&](int s) { return s < root ? s : s + 1; };
  const int mine = planner.is_root() ? -1 : (rank < root ? rank : rank - 1);

  // With four slots, owners put the inputs of the next chunk before they reduce
  // this chunk, so that no rank waits for them.
  const TwoExchanges rounds(planner.geometry(), n);

  auto put_inputs = [&](uint64_t c) {
    const uint64_t t = rounds.Inputs(c);
    for (int s = 0; s < owners; ++s) {
      if (s == mine) continue;
      planner.Put(t, chunks.Begin(c, s), s * chunks.stride, chunks.Size(c, s));
    }
    planner.Publish(t);
  };
  auto put_results = [&](uint64_t c) {
    planner.ReduceToSlot(0, n, rounds.Inputs(c), mine * chunks.stride,
                         chunks.Begin(c, mine), rounds.Results(c), 0,
                         chunks.Size(c, mine));
    planner.Publish(rounds.Results(c));
  };
  auto get_results = [&](uint64_t c) {
    for (int i = 0; i < owners; ++i) {
      const int s = (root + i) % owners;  // the root's successor first
      planner.Get(owner(s), rounds.Results(c), 0, chunks.Begin(c, s),
                  chunks.Size(c, s));
    }
  };

  put_inputs(0);
  for (uint64_t c = 0; c < chunks.count; ++c) {
    const bool more = c + 1 < chunks.count;
    if (more && (rounds.ahead() || planner.is_root())) put_inputs(c + 1);
    planner.is_root() ? get_results(c) : put_results(c);
    if (more && !rounds.ahead() && !planner.is_root()) put_inputs(c + 1);
  }
  return std::move(planner).Finish(rounds.Results(chunks.count - 1) + 1);
}

}  // namespace

// The choice is the same as in all-reduce.
Plan PlanReduce(Planner planner) {
  const bool root_reads = planner.ranks() == 2 ||
                          planner.block() <= planner.geometry().all_read_bytes;
  return root_reads ? RootReads(std::move(planner))
                    : OwnersReduce(std::move(planner));
}

}  // namespace jax_cxl::plan
