#ifndef JAX_CXL_ENGINE_SIM_PAPER_H_
#define JAX_CXL_ENGINE_SIM_PAPER_H_

#include <cstdint>

#include "cc/base/status.h"
#include "cc/engine/sim/machine.h"
#include "cc/engine/sim/task_graph.h"
#include "cc/plan/plan.h"

// The three variants that the CCCL paper (arXiv 2602.22457) compares, rebuilt
// from what is known of them, for the model alone. Each rank publishes whole
// blocks and each reader copies them, then reduces; there is no ring: every
// call has the whole pool.
namespace jax_cxl::sim {

enum class Variant : uint8_t {
  // All data on one card, because offsets are handed out one after the other;
  // nobody retrieves before everybody has published.
  kNaive,
  // Blocks round-robin over all cards, else the same.
  kAggregate,
  // Rooted operations: blocks round-robin over all cards. Others: each rank's
  // blocks rotate inside its own cards. Peers are visited from the successor
  // on. Blocks are cut into chunks with a doorbell each, and are retrieved
  // while later ones are published.
  kAll,
};

// How the readers of a broadcast keep off one card, if at all: not known.
enum class ReaderOrder : uint8_t {
  kSame,       // all follow the root
  kRotated,    // each begins with another chunk
  kStaggered,  // each begins a chunk after the one before
};

struct PaperOptions {
  Variant variant = Variant::kAll;
  int chunks = 4;                          // a block; kAll only
  ReaderOrder order = ReaderOrder::kSame;  // kAll, broadcast only
};

// kUnimplemented for operations that the paper does not have.
Result<TaskGraph> PaperTasks(const plan::Request& request,
                             const Machine& machine, const Costs& costs,
                             const PaperOptions& options);

}  // namespace jax_cxl::sim

#endif  // JAX_CXL_ENGINE_SIM_PAPER_H_
