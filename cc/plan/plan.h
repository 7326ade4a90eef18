#ifndef JAX_CXL_PLAN_PLAN_H_
#define JAX_CXL_PLAN_PLAN_H_

#include <cstdint>
#include <vector>

#include "cc/plan/operations.h"

// A plan is a collective as data: the list of steps of one rank in one call. A
// pure function makes it from the request (planners/make_plan.h). This layer
// uses neither the pool nor threads nor JAX.
//
// Every rank owns a ring of `num_slots` slots in the pool. A call advances all
// rings of a group by the same number of *rounds*, even if a rank publishes
// nothing in some of them. Round `round` uses slot `round % num_slots`. Ranks
// synchronize only by two counters of each rank, which grow:
//
//   published(r) > t   rank r has filled its slot of round t; peers may read it
//   released(r)  > t   rank r will not read any slot of round t or earlier
//
// Both counters may skip rounds. For example, a rank that reads nothing
// releases all rounds of a call at its start. A rank may write its slot of
// round t once released(p) > t - num_slots for every peer p. Rounds in a plan
// count from 0. An executor adds the number of rounds of the group's earlier
// calls.
namespace jax_cxl::plan {

// The rows of a take_rows or a ragged_all_to_all. The blocks of all ranks form
// one table of rows, and each rank takes some of them. Which rows a rank takes
// is known only at run time.
struct Rows {
  uint64_t table = 0;  // number of rows of each rank's block
  uint64_t taken = 0;  // number of rows of each rank's output
  // ragged_all_to_all: number of slices that each rank sends to each other rank
  // and to itself (slices.h).
  uint64_t slices = 0;
  // ragged_all_to_all: number of exchanges in a batch, which share one call
  // (slices.h). `table`, `taken` and `slices` are multiples of it.
  uint64_t elements = 1;
  // ragged_all_to_all: size in bytes of a rank's table of slices, if the call
  // also exchanges the tables; 0 if the ranks have gathered the tables before
  // the call. The steps of a plan treat the table as a continuation of the
  // input: it follows the block. Likewise, the tables of all ranks follow the
  // blocks of all ranks in the output.
  uint64_t slice_bytes = 0;
};

// One collective call as one rank sees it. B is one block, which has `count`
// elements. With n ranks, the buffers hold:
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
//   permute           B        B         zeros for a rank without a source
//   scan, exscan      B        B         reduced over ranks <= r, < r (exscan
//                                        leaves rank 0's output untouched);
//                                        with `reverse` >= r, > r
//   take_rows         B        rows      taken from the table of all blocks
//                                        (see Rows)
//   ragged_all_to_all B        rows      likewise; rows that nobody sends stay
//                                        untouched
//
// An output that is "not defined" is left untouched.
struct Request {
  Op op = Op::kBarrier;
  int num_ranks = 1;
  int rank = 0;
  uint64_t count = 0;
  uint32_t element_bytes = 1;
  int root = 0;
  // permute: sources[r] is the rank whose block rank r receives, or -1 if r
  // receives none.
  std::vector<int32_t> sources;
  bool reverse = false;  // scan, exscan
  Rows rows;             // take_rows, ragged_all_to_all
};

// The memory that a planner plans for. All ranks of a group must use the same
// values.
struct Geometry {
  uint64_t slot_bytes = uint64_t{1} << 20;  // a multiple of kSlotAlignment
  int num_slots = 4;                        // at least 2
  // Applies to all-reduce and reduce. For blocks of up to this many bytes, a
  // rank that needs the result reads the inputs of all peers and reduces them
  // itself. For larger blocks, each rank reduces a part and passes on the
  // result.
  uint64_t all_read_bytes = uint64_t{16} << 10;
  // The slots of a ring lie on this many pool devices in turn. If there are
  // several, the readers of one ring visit its rounds in different orders, so
  // that they use different devices at the same time.
  int num_devices = 1;
  // The number of parts into which a round of a rank is divided. Each part lies
  // on the device after that of the previous part (see Stripes in
  // gpu_geometry.h). If the number is 1, a round of a rank lies on one device.
  int device_parts = 1;
  // The smallest size of a chunk. A block is cut into at least kPipelineChunks
  // chunks, and at least as many as the ring has slots, so that ranks retrieve
  // some chunks while they publish others. But a short block is cut into fewer
  // chunks, if they would be smaller than this size. If the size is 0, every
  // block is cut into as few chunks as possible.
  uint64_t min_chunk_bytes = 0;
  // Parts of a slot that different peers read start at multiples of this value,
  // which itself is a multiple of kSlotAlignment. Engines that divide slots
  // among workers (such as thread blocks) choose it so that every part starts
  // with the same worker.
  uint64_t part_alignment = 128;
};

inline constexpr uint64_t kPipelineChunks = 8;

// Parts of a slot that different peers read start at multiples of this value.
// So no cache line belongs to two parts, and none is flushed or fetched for
// both.
inline constexpr uint64_t kSlotAlignment = 128;

enum class StepKind : uint8_t {
  kCopy,       // input[from, bytes) -> output[to]
  kZero,       // 0 -> output[to, bytes)
  kPut,        // input[from, bytes) -> my slot of `round` at `to`
  kPutOutput,  // output[from, bytes) -> my slot of `round` at `to`
  kPublish,    // published = round + 1
  kGet,        // slot of `peer` (never mine), `round`, at `from` -> output[to];
               // with bytes = 0: copies nothing, only waits for the round
  kReduce,  // ranks [first, last): input[input_from] for mine, slots of `round`
            // at `from` for the others -> output[to], in rank order
  kReduceToSlot,  // the same sources -> my slot of `to_round` at `to`
  kRelease,       // released = round + 1
};

// The fields of a step determine what it waits for, so no plan can forget a
// wait. kPut, kPutOutput and kReduceToSlot wait until their slot is free: every
// peer has released round - num_slots, even peers that do not read it. kGet
// waits until `peer` has published `round`. kReduce* waits until all sources
// except this rank have published `round`. Only kGet may have bytes = 0. If a
// step reads a slot, `from` is a multiple of kSlotAlignment.
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
  uint64_t rounds = 0;  // at least 1; the same on all ranks
  std::vector<Step> steps;
};

uint64_t InputBytes(const Request& request);
uint64_t OutputBytes(const Request& request);

}  // namespace jax_cxl::plan

#endif  // JAX_CXL_PLAN_PLAN_H_
