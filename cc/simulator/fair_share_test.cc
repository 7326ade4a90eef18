// Sanitizers: none. It computes with values, and compares the results.

#include "cc/simulator/fair_share.h"

#include <gtest/gtest.h>

#include <vector>

namespace jax_cxl::sim {
namespace {

std::vector<double> Rates(const std::vector<double>& capacities,
                          const std::vector<std::vector<Use>>& flows) {
  std::vector<const std::vector<Use>*> pointers;
  for (const auto& flow : flows) pointers.push_back(&flow);
  std::vector<double> rates;
  FairShare(capacities).Rates(pointers, rates);
  return rates;
}

TEST(FairShareTest, OneFlowGetsItsNarrowestResource) {
  EXPECT_EQ(Rates({10, 4}, {{{0, 1}, {1, 1}}}), std::vector<double>{4});
}

TEST(FairShareTest, FlowsShareEvenlyAndTheRestTakesWhatIsLeft) {
  // Two flows share resource 1, whose capacity is 6. The third flow gets what
  // these two leave of resource 0, whose capacity is 10.
  const auto rates =
      Rates({10, 6}, {{{0, 1}, {1, 1}}, {{0, 1}, {1, 1}}, {{0, 1}}});
  EXPECT_DOUBLE_EQ(rates[0], 3);
  EXPECT_DOUBLE_EQ(rates[1], 3);
  EXPECT_DOUBLE_EQ(rates[2], 4);
}

TEST(FairShareTest, AFlowOverTwoCardsTakesHalfOfEach) {
  const auto rates = Rates({100, 5, 5}, {{{0, 1}, {1, .5}, {2, .5}}});
  EXPECT_DOUBLE_EQ(rates[0], 10);
}

TEST(FairShareTest, NoFlows) { EXPECT_TRUE(Rates({1}, {}).empty()); }

}  // namespace
}  // namespace jax_cxl::sim
