#include "cc/plan/planners/planner.h"

namespace jax_cxl::plan {
namespace {

// Every rank puts its whole block and reduces all blocks. This takes one
// exchange, in which each rank reads (n - 1) B (B is the size of a block, n the
// number of ranks).
uint64_t AllRead(Planner& planner) {
  const Chunks chunks = planner.Cut(planner.block());
  auto publish = [&](uint64_t t) { planner.PublishChunk(chunks, t); };
  auto retrieve = [&](uint64_t t) {
    const uint64_t at = chunks.Begin(t);
    planner.Reduce(0, planner.ranks(), t, 0, at, at, chunks.Size(t));
  };
  return Pipeline(chunks.count, publish, retrieve);
}

// Each chunk has a segment for each rank. One round carries the inputs of a
// chunk ("inputs"), of which every rank reduces its own segment. A later round
// carries the reduced segments ("results"), which every rank gets ("share"). In
// these two exchanges, a rank reads 2 (n - 1) / n B and writes B.
//
// With four slots or more, the order is inputs 0, inputs 1, results 0, inputs
// 2, results 1, share 0, inputs 3, results 2, share 1, ... In this order, a
// rank reduces the next chunk while the results of a chunk travel. With fewer
// slots, the order is inputs 0, results 0, inputs 1, share 0, results 1, ...
// Here too, there is another step between the publication of data and the step
// that waits for them. Two slots suffice for this order.
//
// If each round lies on all devices and the devices limit the speed, even and
// odd ranks take turns: in each turn, half of the ranks put the inputs of two
// chunks. Without turns, all ranks would put at the same time, and none would
// put during the rest of a chunk. The devices would then serve 2n copies part
// of the time (n puts and n reads), and n copies the rest of the time (only
// reads). With turns, they serve 3n / 2 copies all the time, which delivers
// more to the n readers. A rank still publishes its inputs in the order of the
// chunks, even those that it has put early.
uint64_t ReduceAndShare(Planner& planner) {
  const int n = planner.ranks(), rank = planner.rank();
  const Chunks chunks = planner.Cut(
      planner.block(), {.parts = n,
                        .ways = n,
                        .least = TwoExchanges::kLeast,
                        .pipeline = TwoExchanges::Pipeline(planner)});
  const TwoExchanges rounds(planner.geometry(), n);
  const bool turns = planner.striped() && n >= planner.geometry().num_devices &&
                     planner.geometry().num_slots >= 8 &&
                     chunks.count >= kPipelineChunks;

  auto put_inputs = [&](uint64_t c) {
    if (c >= chunks.count) return;
    for (int s = 0; s < n; ++s)
      if (s != rank)
        planner.Put(rounds.Inputs(c), chunks.Begin(c, s), s * chunks.stride,
                    chunks.Size(c, s));
  };
  auto publish_inputs = [&](uint64_t c) {
    if (c >= chunks.count) return;
    turns ? planner.PublishNothing(rounds.Inputs(c))
          : planner.Publish(rounds.Inputs(c));
  };
  // The reduced segment goes to the output, and then from there to the slot
  // while it is still in the cache. So no byte is reduced twice, and none is
  // read back from the pool.
  auto put_results = [&](uint64_t c) {
    if (c >= chunks.count) return;
    const uint64_t at = chunks.Begin(c, rank), size = chunks.Size(c, rank);
    planner.Reduce(0, n, rounds.Inputs(c), rank * chunks.stride, at, at, size);
    planner.PutOutput(rounds.Results(c), at, 0, size);
    planner.Publish(rounds.Results(c));
  };
  auto share = [&](uint64_t c) {
    for (const int s : planner.Peers())
      planner.Get(s, rounds.Results(c), 0, chunks.Begin(c, s),
                  chunks.Size(c, s));
  };

  const uint64_t ahead = rounds.ahead() ? 2 : 1;
  for (uint64_t c = 0; c < ahead; ++c) {
    put_inputs(c);
    publish_inputs(c);
  }
  put_results(0);
  for (uint64_t c = 0; c < chunks.count; ++c) {
    const uint64_t next = c + ahead;
    const bool mine = turns && (c + rank) % 2 == 0;
    // If ranks take turns and this is not the rank's turn, it put these inputs
    // one chunk ago, in its own turn. Only chunk 0 has no earlier chunk.
    if (!turns || mine || c == 0) put_inputs(next);
    publish_inputs(next);
    if (mine) put_inputs(next + 1);  // published after the earlier results
    if (rounds.ahead()) put_results(c + 1);
    share(c);
    if (!rounds.ahead()) put_results(c + 1);
  }
  return rounds.Results(chunks.count - 1) + 1;
}

}  // namespace

uint64_t PlanAllReduce(Planner& planner) {
  return planner.all_read() ? AllRead(planner) : ReduceAndShare(planner);
}

}  // namespace jax_cxl::plan
