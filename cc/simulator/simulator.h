#ifndef JAX_CXL_SIMULATOR_SIMULATOR_H_
#define JAX_CXL_SIMULATOR_SIMULATOR_H_

#include <vector>

#include "cc/base/status.h"
#include "cc/simulator/machine.h"
#include "cc/simulator/task_graph.h"

namespace jax_cxl::sim {

struct Outcome {
  double seconds = 0;         // until the last rank's last task is done
  std::vector<double> moved;  // bytes, by resource

  // The resource with the highest utilization, and its utilization.
  int busiest = -1;
  double busy = 0;
};

// Runs a graph on a machine, event by event. Flows share links and cards
// max-min fairly. The result is deterministic. Fails with kInternal if the
// graph deadlocks.
Result<Outcome> Simulate(const Resources& resources, const TaskGraph& graph);

}  // namespace jax_cxl::sim

#endif  // JAX_CXL_SIMULATOR_SIMULATOR_H_
