#ifndef JAX_CXL_ENGINE_SIM_FAIR_SHARE_H_
#define JAX_CXL_ENGINE_SIM_FAIR_SHARE_H_

#include <vector>

namespace jax_cxl::sim {

// What a flow takes of a resource for each byte it moves.
struct Use {
  int resource = 0;
  double share = 1;
};

// Max-min fair rates: all flows rise together until a resource is exhausted,
// which fixes the flows through it; the others go on rising.
class FairShare {
 public:
  explicit FairShare(std::vector<double> capacities);

  // rates[i] is the rate of a flow with uses *flows[i]; each uses something.
  void Rates(const std::vector<const std::vector<Use>*>& flows,
             std::vector<double>& rates);

 private:
  const std::vector<double> capacities_;
  // Scratch, by resource: what is left and what unfixed flows ask for.
  std::vector<double> left_, demand_;
  std::vector<int> touched_;
};

}  // namespace jax_cxl::sim

#endif  // JAX_CXL_ENGINE_SIM_FAIR_SHARE_H_
