#include "cc/plan/planners/planner.h"

namespace jax_cxl::plan {
namespace {

// The root reads and reduces the blocks of all ranks. This takes one exchange,
// in which the root reads (n - 1) B (B is the size of a block, n the number of
// ranks).
uint64_t RootReads(Planner& planner) {
  const Chunks chunks = planner.Cut(planner.block());
  for (uint64_t t = 0; t < chunks.count; ++t) {
    const uint64_t at = chunks.Begin(t);
    if (planner.is_root())
      planner.Reduce(0, planner.ranks(), t, 0, at, at, chunks.Size(t));
    else
      planner.PublishChunk(chunks, t);
  }
  return chunks.count;
}

// Each chunk has a segment for each rank except the root, and that rank owns
// the segment. The owner reads the segment's inputs from all peers, and reduces
// them into a slot of its own ring. The root then gets the results. This takes
// two exchanges, in which every rank, including the root, reads B. If the root
// owned a segment too, it would read almost 2 B.
uint64_t OwnersReduce(Planner& planner) {
  const int root = planner.request().root, owners = planner.ranks() - 1;
  const Chunks chunks = planner.Cut(
      planner.block(),
      {.parts = owners, .ways = owners, .least = TwoExchanges::kLeast});
  auto segment = [&](int owner) { return owner < root ? owner : owner - 1; };
  const int mine = planner.is_root() ? -1 : segment(planner.rank());

  // With four slots or more, owners put the inputs of the next chunk before
  // they reduce this chunk, so that no rank waits for those inputs.
  const TwoExchanges rounds(planner.geometry(), planner.ranks());

  auto put_inputs = [&](uint64_t c) {
    const uint64_t t = rounds.Inputs(c);
    for (int s = 0; s < owners; ++s)
      if (s != mine)
        planner.Put(t, chunks.Begin(c, s), s * chunks.stride,
                    chunks.Size(c, s));
    planner.Publish(t);
  };
  auto put_results = [&](uint64_t c) {
    planner.ReduceToSlot(rounds.Inputs(c), mine * chunks.stride,
                         chunks.Begin(c, mine), rounds.Results(c), 0,
                         chunks.Size(c, mine));
    planner.Publish(rounds.Results(c));
  };
  auto get_results = [&](uint64_t c) {
    for (const int peer : planner.Peers()) {
      const int s = segment(peer);
      planner.Get(peer, rounds.Results(c), 0, chunks.Begin(c, s),
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
  return rounds.Results(chunks.count - 1) + 1;
}

}  // namespace

uint64_t PlanReduce(Planner& planner) {
  return planner.all_read() ? RootReads(planner) : OwnersReduce(planner);
}

}  // namespace jax_cxl::plan
