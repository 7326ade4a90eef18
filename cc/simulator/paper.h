#ifndef JAX_CXL_SIMULATOR_PAPER_H_
#define JAX_CXL_SIMULATOR_PAPER_H_

#include <cstdint>

#include "cc/base/status.h"
#include "cc/plan/plan.h"
#include "cc/simulator/machine.h"
#include "cc/simulator/task_graph.h"

// The three variants that the CCCL paper (arXiv 2602.22457) compares, rebuilt
// from the published description, for the model only. Each rank publishes whole
// blocks. Each reader copies them and then reduces. There is no ring: every
// call has the whole pool.
namespace jax_cxl::sim {

enum class Variant : uint8_t {
  // All data are on the first card, because the pool's offsets are allocated
  // one after another. No rank retrieves before all ranks have published.
  kNaive,
  // Like kNaive, but blocks are distributed round-robin over all cards.
  kAggregate,
  // In rooted operations, blocks are distributed round-robin over all cards. In
  // other operations, each rank has cards of its own, and its blocks rotate
  // over them. A rank reads from its peers in order, starting with its
  // successor. Blocks are cut into chunks, and each chunk has a doorbell. So
  // ranks retrieve chunks while later chunks are published.
  kAll,
};

// The order in which the readers of a broadcast read its chunks. Readers of the
// same chunk share the rate of one card. The paper does not specify the order.
enum class ReaderOrder : uint8_t {
  kSame,       // all follow the root
  kRotated,    // each starts with another chunk
  kStaggered,  // each starts one chunk after the previous reader
};

struct PaperOptions {
  Variant variant = Variant::kAll;
  int chunks = 4;                          // per block; kAll only
  ReaderOrder order = ReaderOrder::kSame;  // kAll, broadcast only
};

// Returns the tasks of all ranks for a call by a variant of the paper. Fails
// with kUnimplemented for operations that the paper does not have.
Result<TaskGraph> PaperTasks(const plan::Request& request,
                             const Machine& machine, const Costs& costs,
                             const PaperOptions& options);

}  // namespace jax_cxl::sim

#endif  // JAX_CXL_SIMULATOR_PAPER_H_
