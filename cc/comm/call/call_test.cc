// Sanitizers: address, undefined

#include "cc/comm/call/call.h"

#include <gtest/gtest.h>

#include <functional>
#include <vector>

namespace jax_cxl::comm {
namespace {

using plan::Op;

Call Ragged() {
  Call call;
  call.name = "call";
  call.request.op = Op::kRaggedAllToAll;
  call.request.num_ranks = 2;
  call.request.count = 64;
  call.request.rows = {8, 8, 4, 1};
  call.dtype = DType::kFloat32;
  return call;
}

// Members compare descriptors. So if ranks disagree about any of these
// attributes, their call ends with an error.
TEST(CallTest, EveryAttributeIsInTheDescriptor) {
  const std::vector<std::function<void(Call*)>> changes = {
      [](Call* call) { call->request.op = Op::kTakeRows; },
      [](Call* call) { call->request.op = Op::kAllReduce; },
      [](Call* call) { call->dtype = DType::kInt32; },
      [](Call* call) { ++call->request.count; },
      [](Call* call) { call->request.count += uint64_t{1} << 40; },
      [](Call* call) { call->request.root = 1; },
      [](Call* call) { call->request.reverse = true; },
      [](Call* call) { call->request.sources = {1, 0}; },
      [](Call* call) { call->request.sources = {0, 1}; },
      [](Call* call) { call->request.rows.table = 16; },
      [](Call* call) { call->request.rows.taken = 16; },
      [](Call* call) { call->request.rows.slices = 8; },
      [](Call* call) { call->request.rows.elements = 2; },
      [](Call* call) { call->request.rows.elements += uint64_t{1} << 32; },
      [](Call* call) { call->in_levels = true; },
  };
  std::vector<pool::CallDescriptor> seen = {Describe(Ragged())};
  for (const auto& change : changes) {
    Call call = Ragged();
    change(&call);
    for (const pool::CallDescriptor& other : seen)
      EXPECT_NE(Describe(call), other) << seen.size();
    seen.push_back(Describe(call));
  }
  Call sum = Ragged(), product = Ragged();
  sum.request.op = product.request.op = Op::kAllReduce;
  product.reduce_op = ReduceOp::kProd;
  EXPECT_NE(Describe(sum), Describe(product));
}

TEST(CallTest, TextNamesTheAttributes) {
  Call call = Ragged();
  call.request.op = Op::kAllReduce;
  call.in_levels = true;
  EXPECT_EQ(DescribeText(call),
            "call: all_reduce sum of 64 float32, in levels");
  call.request.op = Op::kScan;
  call.in_levels = false;
  call.request.reverse = true;
  EXPECT_EQ(DescribeText(call), "call: scan sum of 64 float32, reverse");
}

}  // namespace
}  // namespace jax_cxl::comm
