#ifndef JAX_CXL_TESTING_WORLD_THREE_RANKS_H_
#define JAX_CXL_TESTING_WORLD_THREE_RANKS_H_

#include <gtest/gtest.h>

#include "cc/base/ticks.h"
#include "cc/comm/call/call.h"
#include "cc/testing/world/world.h"

namespace jax_cxl::comm {

// A world of three ranks. `call_` is a psum in which rank 0 waits. Tests count
// times from `start_`.
class ThreeRanksTest : public testing::Test {
 protected:
  ThreeRanksTest()
      : world_(3, {}, 64 << 20, 1, pool::CoherenceMode::kCoherent, {}) {
    call_.identity = 1;
    call_.request.op = plan::Op::kAllReduce;
    call_.request.num_ranks = 3;
    call_.request.count = 3;
    call_.dtype = DType::kFloat32;
    call_.name = "psum";
  }

  static Options Times() {
    Options options;
    options.warn_after_s = 2;
    options.timeout_s = 5;
    return options;
  }

  Peers& peers() { return world_.peers(0); }
  // Writes into the flight recorder of `rank` that it has started `call`.
  void Record(int rank, Call* call) {
    call->submitted = Ticks();
    world_.endpoint(rank).recorder()->Record(call, HashGroup({0, 1, 2}));
  }

  World world_;
  Call call_;
  const Clock::time_point start_ = Clock::now();
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_TESTING_WORLD_THREE_RANKS_H_
