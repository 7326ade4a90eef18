// Helpers for tests that search through a model.
#ifndef CC_TESTING_MODELS_SEARCH_TESTING_H_
#define CC_TESTING_MODELS_SEARCH_TESTING_H_

#include <gtest/gtest.h>

#include <iostream>
#include <string>

#include "cc/testing/models/protocol_model_search.h"

namespace jax_cxl::comm::model {

// Fails if any order of the model's steps goes wrong, and prints that order.
template <typename Model>
void ExpectRightInEveryOrder(const Model& model) {
  const Outcome outcome = Explore(model);
  std::cout << outcome.states << " states, " << outcome.transitions << " steps"
            << std::endl;
  std::string trace;
  for (const std::string& line : outcome.trace) trace += line + "\n";
  EXPECT_EQ(outcome.wrong, "") << trace;
  EXPECT_GT(outcome.states, 1000u);
}

// Fails if no order of the model's steps goes wrong. The model has a fault, so
// some order must go wrong.
template <typename Model>
void ExpectFaultIsFound(const Model& model) {
  const Outcome outcome = Explore(model);
  EXPECT_NE(outcome.wrong, "") << "nothing shows that it is missing";
  std::cout << outcome.wrong << " after " << outcome.trace.size() << " steps"
            << std::endl;
}

}  // namespace jax_cxl::comm::model

#endif  // CC_TESTING_MODELS_SEARCH_TESTING_H_
