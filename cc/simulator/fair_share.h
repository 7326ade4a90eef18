#ifndef JAX_CXL_SIMULATOR_FAIR_SHARE_H_
#define JAX_CXL_SIMULATOR_FAIR_SHARE_H_

#include <vector>

namespace jax_cxl::sim {

// How much of a resource a flow uses for each byte that it moves.
struct Use {
  int resource = 0;
  double share = 1;
};

// Computes max-min fair rates. The rates of all flows grow together from 0
// until a resource is exhausted. The flows that use this resource then keep
// their rates, and the rates of the other flows continue to grow.
//
// Not thread-safe.
class FairShare {
 public:
  explicit FairShare(std::vector<double> capacities);

  // Sets rates[i] to the rate of flow i. *flows[i] lists the uses of this flow,
  // and must not be empty.
  void Rates(const std::vector<const std::vector<Use>*>& flows,
             std::vector<double>& rates);

 private:
  const std::vector<double> capacities_;
  // Scratch space, by resource: the free capacity, and the demand of the flows
  // that have no rate yet.
  std::vector<double> left_, demand_;
  std::vector<int> touched_;
};

}  // namespace jax_cxl::sim

#endif  // JAX_CXL_SIMULATOR_FAIR_SHARE_H_
