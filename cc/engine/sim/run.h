#ifndef JAX_CXL_ENGINE_SIM_RUN_H_
#define JAX_CXL_ENGINE_SIM_RUN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cc/base/status.h"
#include "cc/engine/sim/lower.h"
#include "cc/engine/sim/machine.h"
#include "cc/engine/sim/paper.h"
#include "cc/plan/bounds.h"
#include "cc/plan/plan.h"

namespace jax_cxl::sim {

struct Report {
  double seconds = 0;
  std::string busiest;  // the resource with the least time to spare
  double busy = 0;      // the part of the time that it was busy
  uint64_t events = 0;
  bool sampled = false;  // not all rounds were run
};

// Calls of more than about `sample_rounds` rounds are not run to their end:
// once the ring is full every round takes as long as the one before, so the
// time of the rest is that of the second half of 2 x `sample_rounds` rounds. 0
// runs everything. Ranks may drift into another pattern later: with batched
// gets the result is within 5% of the exact one (run_test.cc).
Result<Report> RunPlans(const plan::Request& request,
                        const plan::Geometry& geometry, const Machine& machine,
                        const Costs& costs, const LowerOptions& options,
                        uint64_t sample_rounds);

Result<Report> RunPaper(const plan::Request& request, const Machine& machine,
                        const Costs& costs, const PaperOptions& options);

// What plans move, counted from their steps: plan::Verify's traffic without the
// proof, which does not reach 1,024 ranks.
struct Counted {
  plan::PoolBytes most_by_rank;  // of any rank, written and read apart
  plan::PoolBytes most_by_card;
  plan::PoolBytes all;
};

Result<Counted> CountBytes(plan::Request request,
                           const plan::Geometry& geometry,
                           const plan::Stripes& stripes, int cards);

}  // namespace jax_cxl::sim

#endif  // JAX_CXL_ENGINE_SIM_RUN_H_
