#ifndef JAX_CXL_TESTING_CUDA_DEVICE_CALLS_H_
#define JAX_CXL_TESTING_CUDA_DEVICE_CALLS_H_

#include <gtest/gtest.h>

#include <cstdint>

#include "cc/base/dtype.h"
#include "cc/comm/call/call.h"
#include "cc/plan/plan.h"
#include "cc/testing/cuda/device_world.h"

namespace jax_cxl::comm {

class DeviceEndpointTest : public testing::Test {
 protected:
  void SetUp() override {
    if (CountDevices() == 0) GTEST_SKIP() << "no GPU";
  }
};

// Returns the call by which `rank` sums `count` elements with one other rank.
// The caller sets the buffers of the call.
inline Call Sum(int rank, uint64_t count) {
  Call call;
  call.name = "psum";
  call.request.op = plan::Op::kAllReduce;
  call.request.num_ranks = 2;
  call.request.rank = rank;
  call.request.count = count;
  call.request.element_bytes = 4;
  call.dtype = DType::kInt32;
  return call;
}

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_TESTING_CUDA_DEVICE_CALLS_H_
