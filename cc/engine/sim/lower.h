#ifndef JAX_CXL_ENGINE_SIM_LOWER_H_
#define JAX_CXL_ENGINE_SIM_LOWER_H_

#include "cc/base/status.h"
#include "cc/engine/sim/machine.h"
#include "cc/engine/sim/program.h"
#include "cc/plan/plan.h"

namespace jax_cxl::sim {

struct LowerOptions {
  // What the CUDA engine could do and does not. Messages up to this many bytes
  // carry their flags in their own lines: a put needs no doorbell of its own,
  // and lines grow by the flag.
  uint64_t inline_bytes = 0;
  double inline_expansion = 1;
  // The gets of a round are one flow from all peers over all their cards, as
  // are those of one peer's rounds that were waited for together; without, one
  // copy follows another.
  bool batch_gets = false;
};

// The plans of all ranks, as a GPU executes them: puts and publishes go out in
// order, gets, reductions and releases come in in order, each direction by
// itself, and a put of reduced bytes waits for the reduction. Slot s of rank r
// lies on card (r * cards / ranks + s) % cards.
Result<Program> Lower(plan::Request request, const plan::Geometry& geometry,
                      const Machine& machine, const Costs& costs,
                      const LowerOptions& options);

}  // namespace jax_cxl::sim

#endif  // JAX_CXL_ENGINE_SIM_LOWER_H_
