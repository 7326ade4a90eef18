#ifndef JAX_CXL_PLAN_PLANNERS_PLANNER_H_
#define JAX_CXL_PLAN_PLANNERS_PLANNER_H_

#include <algorithm>
#include <cstdint>
#include <ranges>
#include <vector>

#include "cc/plan/plan.h"

// The code that the planners share. Only this folder uses it.
namespace jax_cxl::plan {

inline uint64_t CeilDiv(uint64_t a, uint64_t b) { return a / b + (a % b != 0); }
inline uint64_t RoundUp(uint64_t a, uint64_t b) { return CeilDiv(a, b) * b; }

// How `total` bytes are cut. There are `count` chunks, one for each round. Each
// chunk consists of `ways` consecutive segments of `bytes` bytes. In the last
// chunk, the last segments may be shorter or empty.
struct Chunks {
  uint64_t total = 0;
  int ways = 1;
  uint64_t bytes = 0;
  uint64_t count = 0;   // number of chunks; 0 if total is 0
  uint64_t stride = 0;  // `bytes` rounded up to part_alignment

  uint64_t Begin(uint64_t c, int s = 0) const { return (c * ways + s) * bytes; }
  uint64_t Size(uint64_t c, int s = 0) const {
    const uint64_t begin = std::min(Begin(c, s), total);
    return std::min(bytes, total - begin);
  }
};

// An order in which a rank goes through the rounds of a call. A window consists
// of `window` consecutive rounds. The rank goes through one window after
// another. In each window, it starts at the round with index `start`, and wraps
// around at the end of the window.
struct Turns {
  uint64_t window = 1;
  uint64_t start = 0;  // below `window`
};

// What Planner::Cut has to consider besides making as few chunks as possible.
struct Cutting {
  int parts = 1;  // segments that fit in a slot side by side
  int ways = 1;   // segments of a chunk
  // A chunk must fill at least this many bytes of a slot, or min_chunk_bytes if
  // that is more.
  uint64_t least = 0;
  // The least number of chunks, if a block is long enough for that many chunks
  // of min_chunk_bytes.
  uint64_t pipeline = kPipelineChunks;
  // `readers` ranks read the same bytes. If these are cut into several chunks,
  // consecutive chunks lie on up to `devices` different devices.
  uint64_t readers = 1;
  uint64_t devices = 1;
};

// Makes the list of steps of one rank from the calls of a planner function. It
// omits steps without bytes, and merges two puts if the second continues the
// first. It adds the releases by itself, so planner functions do not state
// them.
//
// Not thread-safe.
class Planner {
 public:
  Planner(const Request& request, const Geometry& geometry);

  const Request& request() const { return request_; }
  const Geometry& geometry() const { return geometry_; }
  int ranks() const { return request_.num_ranks; }
  int rank() const { return request_.rank; }
  bool is_root() const { return rank() == request_.root; }
  uint64_t block() const { return block_; }  // bytes of one block
  // Returns true if each round is spread over all devices. The devices then
  // have equal loads, whatever the ranks do.
  bool striped() const {
    return geometry_.num_devices > 1 && geometry_.device_parts > 1;
  }

  // Returns true if a rank that needs a reduced result should read the inputs
  // of all peers. If the ranks share the reduction instead, that saves (n - 1)
  // (n - 2) / n B of reading, but costs a second exchange. With two ranks it
  // saves nothing, and for short blocks it is not worth the exchange.
  bool all_read() const {
    return ranks() == 2 || block_ <= geometry_.all_read_bytes;
  }
  // This rank's place among the root's peers: 0 for the root's successor.
  int reader() const {
    return (rank() - request_.root + ranks() - 1) % ranks();
  }

  // The i-th peer that this rank reads, 1 <= i < ranks. Each rank starts with
  // its successor, so that the ranks do not all read one pool device at once.
  int Peer(int i) const { return (rank() + i) % ranks(); }
  auto Peers() const {
    return std::views::iota(1, ranks()) |
           std::views::transform([this](int i) { return Peer(i); });
  }

  // Chooses an order of rounds that loads the devices evenly. If the number of
  // devices does not divide the number of ranks, the ranks' slots of one round
  // lie on some devices more often than on others. Over a window of several
  // rounds, all devices hold the same number of slots. If ranks start at
  // different rounds of the window, they use all devices equally at any time.
  // Windows have only one round if longer windows gain nothing, or if the call
  // is too short for them.
  Turns TakeTurns(uint64_t rounds) const;

  // Cuts `total` bytes into as few chunks as possible. `cutting.parts` segments
  // must fit into a slot, each at a multiple of part_alignment. Chunks have
  // about equal sizes, because a short last chunk would leave the pipeline half
  // empty. Segments hold whole elements, and their sizes are multiples of
  // kSlotAlignment if a slot has room for that.
  //
  // If geometry().min_chunk_bytes is not 0, and the chunks do not get smaller
  // than that, there are at least `cutting.pipeline` chunks, and at least as
  // many as a ring has slots. A call with at most as many chunks as slots never
  // waits for a free slot.
  Chunks Cut(uint64_t total, const Cutting& cutting = {}) const;

  void Copy(uint64_t from, uint64_t to, uint64_t bytes) {
    Add(StepKind::kCopy, 0, from, to, bytes);
  }
  void Zero(uint64_t to, uint64_t bytes) {
    Add(StepKind::kZero, 0, 0, to, bytes);
  }
  void Put(uint64_t round, uint64_t from, uint64_t to, uint64_t bytes);
  void PutOutput(uint64_t round, uint64_t from, uint64_t to, uint64_t bytes) {
    Add(StepKind::kPutOutput, round, from, to, bytes);
  }
  void Publish(uint64_t round);  // only if the round has a put
  void PublishNothing(uint64_t round) {
    steps_.push_back({.kind = StepKind::kPublish, .round = round});
  }
  void PublishChunk(const Chunks& chunks, uint64_t t) {
    Put(t, chunks.Begin(t), 0, chunks.Size(t));
    Publish(t);
  }
  void Get(int peer, uint64_t round, uint64_t from, uint64_t to,
           uint64_t bytes) {
    Add(StepKind::kGet, round, from, to, bytes, peer);
  }
  void Await(int peer, uint64_t round) {  // a get of 0 bytes only waits
    steps_.push_back({.kind = StepKind::kGet, .peer = peer, .round = round});
  }
  void Reduce(int first, int last, uint64_t round, uint64_t from,
              uint64_t input_from, uint64_t to, uint64_t bytes);
  // Reduces the data of all ranks to this rank's slot of `to_round`.
  void ReduceToSlot(uint64_t round, uint64_t from, uint64_t input_from,
                    uint64_t to_round, uint64_t to, uint64_t bytes);

  // Returns the plan, which has `rounds` rounds. It has the release of a round
  // right after the last step that reads a slot of that round or of an earlier
  // one. A rank that reads nothing releases the whole call before its first
  // step, so it never delays a peer.
  Plan Finish(uint64_t rounds) const;

 private:
  void Add(StepKind kind, uint64_t round, uint64_t from, uint64_t to,
           uint64_t bytes, int peer = -1) {
    if (bytes == 0) return;
    steps_.push_back({.kind = kind,
                      .peer = peer,
                      .round = round,
                      .from = from,
                      .to = to,
                      .bytes = bytes});
  }

  const Request& request_;
  const Geometry& geometry_;
  const uint64_t block_;
  std::vector<Step> steps_;
};

// Calls publish(t) and retrieve(t) for each round t, and publishes round t + 1
// before it retrieves round t. So peers find the data of a round when they need
// them. Two slots suffice for this order. With two slots, a rank can write
// round t + 1 only after every peer has released round t - 1, and every rank
// releases round t - 1 before it publishes round t + 1. Returns `rounds`.
template <typename PublishRound, typename RetrieveRound>
uint64_t Pipeline(uint64_t rounds, const PublishRound& publish,
                  const RetrieveRound& retrieve) {
  if (rounds > 0) publish(uint64_t{0});
  for (uint64_t t = 0; t < rounds; ++t) {
    if (t + 1 < rounds) publish(t + 1);
    retrieve(t);
  }
  return rounds;
}

// The rounds of an operation with two exchanges for each chunk. The first
// exchange carries inputs, and the second carries the results that are made
// from them. With at least four slots, a rank publishes the inputs of a chunk
// before the results of the previous chunk. With fewer slots, that order would
// fail: the results of a chunk would need the slot that still holds its inputs.
//
// Usually a chunk takes two rounds. But if the first slots of the ranks' rings
// are an even number of devices apart, all inputs would then lie on every other
// device. In this case a chunk takes five rounds, three of them empty, so that
// the rounds of inputs visit all devices.
class TwoExchanges {
 public:
  // The smallest useful chunk. Smaller chunks lose more time by the latencies
  // of two exchanges than they save by overlap.
  static constexpr uint64_t kLeast = uint64_t{48} << 10;

  TwoExchanges(const Geometry& geometry, int ranks)
      : ahead_(geometry.num_slots >= 4), rounds_(2) {
    // With five rounds per chunk, a rank publishes the results of a chunk six
    // rounds after its inputs, so a ring needs more than six slots.
    if (geometry.num_slots > 6 && geometry.device_parts == 1 &&
        geometry.num_devices % (2 * ranks) == 0) {
      rounds_ = 5;
    }
  }

  // Returns the number of chunks into which a block should be cut. If every
  // round lies on all devices, this number can be larger than kPipelineChunks.
  // More chunks shorten two phases in which nothing overlaps: the start of a
  // call, when the first inputs travel alone, and its end, when the last
  // results do.
  static uint64_t Pipeline(const Planner& planner) {
    if (!planner.striped()) return kPipelineChunks;
    return std::clamp<uint64_t>(planner.block() / (2 * kLeast), kPipelineChunks,
                                36);
  }

  bool ahead() const { return ahead_; }
  uint64_t Inputs(uint64_t c) const {
    if (!ahead_) return 2 * c;
    return c == 0 ? 0 : rounds_ * (c - 1) + 1;
  }
  uint64_t Results(uint64_t c) const {
    return ahead_ ? rounds_ * c + 2 : 2 * c + 1;
  }

 private:
  bool ahead_;
  uint64_t rounds_;  // per chunk
};

// Declares a planner function for each operation. Each has its own file. It
// adds the steps of a call to a Planner, and returns the number of rounds. The
// request must be valid. All functions except PlanBarrier need at least two
// ranks and a count above 0.
#define ROW(constant, name, planner, ...) uint64_t planner(Planner&);
JAX_CXL_OPERATIONS(ROW)
#undef ROW

}  // namespace jax_cxl::plan

#endif  // JAX_CXL_PLAN_PLANNERS_PLANNER_H_
