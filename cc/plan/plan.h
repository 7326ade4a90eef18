#ifndef JAX_CXL_PLAN_PLAN_H_
#define JAX_CXL_PLAN_PLAN_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

// A collective as data: for one rank, the steps of one call, made by a pure
// function of the request (planners/make_plan.h). Nothing here touches the
// pool, a thread or JAX.
//
// Every rank owns a ring of `num_slots` slots in the pool. A call advances all
// rings of a group by the same number of *rounds*, whether or not a rank has
// something to say in each of them; slot `round % num_slots` carries a round.
// Two monotone counters per rank carry the whole synchronisation:
//
//   published(r) > t   rank r's slot of round t is filled, peers may read it
//   released(r)  > t   rank r will read no slot of round t, nor of any before
//
// (both may skip rounds; a rank that reads nothing releases a whole call at its
// start) so a slot may be written for round t once released(p) > t - num_slots
// for every peer p. Rounds in a plan count from 0; an executor adds the number
// of rounds that the group has been through before.
namespace jax_cxl::plan {

// The values stand in call descriptors in the pool: append, never renumber.
enum class Op : uint8_t {
  kBarrier = 0,
  kAllGather = 1,
  kAllReduce = 2,
  kReduceScatter = 3,
  kAllToAll = 4,
  kBroadcast = 5,
  kReduce = 6,
  kGather = 7,
  kScatter = 8,
  kPermute = 9,
  kScan = 10,
  kExscan = 11,
  kRaggedAllToAll = 12,
};
inline constexpr int kNumOps = 13;

std::string_view OpName(Op op);

// Whether one rank, the root, has a part of its own.
bool HasRoot(Op op);

// Whether the elements of several ranks become one.
bool Reduces(Op op);

// What all ranks send in a ragged_all_to_all, in rows of one block.
struct Ragged {
  uint64_t input_rows = 0;   // equal on all ranks
  uint64_t output_rows = 0;  // equal on all ranks
  uint64_t slices = 0;       // that each rank sends to each rank
  // One table a rank. A table has four columns, one after another, of
  // num_ranks * slices entries, `slices` for each peer: input_offsets,
  // send_sizes, output_offsets (in the receiver's output), recv_sizes.
  std::vector<int64_t> tables;
};

// One collective call as one rank sees it. `count` is the number of elements
// of one block B; with n ranks the buffers hold
//
//   op                input    output
//   barrier           0        0         (count is 0)
//   all_gather        B        n B       block r from rank r
//   all_reduce        B        B
//   reduce_scatter    n B      B         block r reduced to rank r
//   all_to_all        n B      n B       block j of rank i -> block i of rank j
//   broadcast         B        B         only the root's input is read
//   reduce            B        B         only the root's output is defined
//   gather            B        n B       only the root's output is defined
//   scatter           n B      B         only the root's input is read
//   permute           B        B         zeros where no pair names the rank
//   scan, exscan      B        B         reduced over ranks <= r, < r (exscan
//                                        leaves rank 0's output untouched);
//                                        with `reverse` >= r, > r
//   ragged_all_to_all rows     rows      of one block each: see Ragged; rows
//                                        that nobody sends stay untouched
//
// An output that is "not defined" is left untouched.
struct Request {
  Op op = Op::kBarrier;
  int num_ranks = 1;
  int rank = 0;
  uint64_t count = 0;
  uint32_t element_bytes = 1;
  int root = 0;
  // permute: sources[r] is the rank whose block rank r receives, -1 for none.
  std::vector<int32_t> sources;
  bool reverse = false;  // scan, exscan
  Ragged ragged;         // ragged_all_to_all
};

// What a planner has to work with, equal on all ranks of a group.
struct Geometry {
  uint64_t slot_bytes = uint64_t{1} << 20;  // a multiple of kSlotAlignment
  int num_slots = 4;                        // at least 2
  // Up to this many bytes all-reduce lets every rank (reduce: the root) read
  // every peer at once. Above, each rank reduces a part and hands it on.
  uint64_t all_read_bytes = uint64_t{16} << 10;
  // Pool devices that the slots of a ring lie on in turn. Several readers of
  // one ring then visit its rounds in different orders.
  int num_devices = 1;
  // Parts of a round, each on the device after that of the part before (see
  // Stripes in gpu_geometry.h). 1: a round of a rank lies on one device.
  int device_parts = 1;
  // Blocks of fewer than kPipelineChunks slotfuls, or than a ring has slots,
  // are cut into as many chunks, so that some are retrieved while others are
  // published, but into none that fills less of a slot than this. 0 makes as
  // few chunks as possible.
  uint64_t min_chunk_bytes = 0;
  // Parts of a slot that different peers read start on multiples of this, a
  // multiple of kSlotAlignment. Engines that stripe slots over workers need
  // every part to start with the same worker. The pieces of a
  // ragged_all_to_all, which nobody reduces, start on kSlotAlignment.
  uint64_t part_alignment = 128;
};

inline constexpr uint64_t kPipelineChunks = 8;

// Parts of a slot that different peers read start on this boundary, so that no
// cache line is flushed or fetched for two of them.
inline constexpr uint64_t kSlotAlignment = 128;

enum class StepKind : uint8_t {
  kCopy,       // input[from, bytes) -> output[to]
  kZero,       // 0 -> output[to, bytes)
  kPut,        // input[from, bytes) -> my slot of `round` at `to`
  kPutOutput,  // output[from, bytes) -> my slot of `round` at `to`
  kPublish,    // published = round + 1
  kGet,        // slot of `peer` (never mine), `round`, at `from` -> output[to];
               // with bytes = 0 nothing but its wait
  kReduce,  // ranks [first, last): input[input_from] for mine, slots of `round`
            // at `from` for the others -> output[to], in rank order
  kReduceToSlot,  // the same -> my slot of `to_round` at `to`
  kRelease,       // released = round + 1
};

std::string_view StepKindName(StepKind kind);

// What each kind waits for follows from its fields, so that no plan can forget
// it: kPut, kPutOutput and kReduceToSlot wait until the slot that they write is
// free (every peer released round - num_slots, whoever reads it), kGet until
// `peer` published `round`, kReduce* until every other source did. Only kGet
// may have bytes = 0. Offsets in slots that are read are multiples of
// kSlotAlignment.
struct Step {
  StepKind kind = StepKind::kCopy;
  int32_t peer = -1;  // kGet
  int32_t first = 0;  // kReduce*: sources are ranks [first, last)
  int32_t last = 0;
  uint64_t round = 0;
  uint64_t to_round = 0;    // kReduceToSlot
  uint64_t from = 0;        // bytes, in the input (kCopy, kPut), in the output
                            // (kPutOutput) or in a slot
  uint64_t input_from = 0;  // kReduce*: bytes, where my own part starts in the
                            // input; unused unless first <= my rank < last
  uint64_t to = 0;          // bytes, in the output or in my slot
  uint64_t bytes = 0;
};

struct Plan {
  uint64_t rounds = 0;  // at least 1, equal on all ranks of the group
  std::vector<Step> steps;
};

uint64_t InputBytes(const Request& request);
uint64_t OutputBytes(const Request& request);

// One line a step, for messages and tests.
std::string DebugString(const Step& step);
std::string DebugString(const Plan& plan);

}  // namespace jax_cxl::plan

#endif  // JAX_CXL_PLAN_PLAN_H_
