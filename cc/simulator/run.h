#ifndef JAX_CXL_SIMULATOR_RUN_H_
#define JAX_CXL_SIMULATOR_RUN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cc/base/status.h"
#include "cc/plan/plan.h"
#include "cc/simulator/bounds.h"
#include "cc/simulator/lower.h"
#include "cc/simulator/machine.h"

namespace jax_cxl::sim {

struct Report {
  double seconds = 0;
  std::string busiest;   // the resource with the highest utilization
  double busy = 0;       // its utilization
  bool sampled = false;  // true if not all rounds were run
};

// Runs plans on the model. If a call has more than about 3 x `sample_rounds`
// rounds, only 2 x `sample_rounds` of them run. Once the ring is full, every
// round takes the same time, so the second half of these rounds gives the time
// of the remaining rounds. With `sample_rounds` 0, all rounds run. A sampled
// result is not exact, because ranks may later drift apart. In run_test.cc it
// is within 5% of the exact result, or within 12% for a reduce.
Result<Report> RunPlans(const plan::Request& request,
                        const plan::Geometry& geometry, const Machine& machine,
                        const Costs& costs, const LowerOptions& options,
                        uint64_t sample_rounds);

// The bytes that plans move, counted from their steps. plan::Verify returns the
// same numbers with a proof, but the proof takes too long for 1,024 ranks.
struct Counted {
  plan::PoolBytes
      most_by_rank;  // the largest of any rank, for writes and reads separately
  plan::PoolBytes most_by_card;
  plan::PoolBytes all;
};

Result<Counted> CountBytes(plan::Request request,
                           const plan::Geometry& geometry,
                           const plan::Stripes& stripes, int cards);

}  // namespace jax_cxl::sim

#endif  // JAX_CXL_SIMULATOR_RUN_H_
