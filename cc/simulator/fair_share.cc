#include "cc/simulator/fair_share.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace jax_cxl::sim {

FairShare::FairShare(std::vector<double> capacities)
    : capacities_(std::move(capacities)),
      left_(capacities_.size()),
      demand_(capacities_.size()) {}

void FairShare::Rates(const std::vector<const std::vector<Use>*>& flows,
                      std::vector<double>& rates) {
  constexpr double kUnfixed = -1;
  // A resource counts as exhausted if at most this fraction of its capacity is
  // left. The limit is not 0, because rounding rarely leaves exactly 0.
  constexpr double kExhausted = 1e-9;
  rates.assign(flows.size(), kUnfixed);
  touched_.clear();
  for (const auto* uses : flows) {
    for (const Use& use : *uses) {
      if (demand_[use.resource] == 0) {
        touched_.push_back(use.resource);
        left_[use.resource] = capacities_[use.resource];
      }
      demand_[use.resource] += use.share;
    }
  }
  double level = 0;
  for (size_t unfixed = flows.size(); unfixed > 0;) {
    double rise = std::numeric_limits<double>::infinity();
    for (int r : touched_) {
      if (demand_[r] > kExhausted) rise = std::min(rise, left_[r] / demand_[r]);
    }
    level += rise;
    for (int r : touched_) left_[r] -= rise * demand_[r];
    for (size_t i = 0; i < flows.size(); ++i) {
      if (rates[i] != kUnfixed) continue;
      const std::vector<Use>& uses = *flows[i];
      const bool stops = std::any_of(uses.begin(), uses.end(), [&](Use use) {
        return left_[use.resource] <= kExhausted * capacities_[use.resource];
      });
      if (!stops) continue;
      rates[i] = level;
      --unfixed;
      for (const Use& use : uses) demand_[use.resource] -= use.share;
    }
  }
  for (int r : touched_) demand_[r] = 0;
}

}  // namespace jax_cxl::sim
