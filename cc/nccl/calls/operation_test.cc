// Sanitizers: address

#include "cc/nccl/calls/operation.h"

#include <gtest/gtest.h>

#include <limits>

#include "cc/nccl/interface/abi.h"

namespace jax_cxl::nccl {
namespace {

constexpr int kRanks = 4, kRank = 1;
float buffer[64];
const Reductions kNone;

Operation AllReduceOf(int type, int reduction) {
  return {Verb::kAllReduce, buffer, buffer, 3, type, reduction, 0, nullptr};
}

TEST(OperationTest, NumbersOfNccl) {
  const DType types[] = {
      DType::kInt8,     DType::kUint8,        DType::kInt32,
      DType::kUint32,   DType::kInt64,        DType::kUint64,
      DType::kFloat16,  DType::kFloat32,      DType::kFloat64,
      DType::kBfloat16, DType::kFloat8E4M3Fn, DType::kFloat8E5M2};
  for (int type = 0; type < kNumNcclTypes; ++type) {
    const auto made =
        MakeCollective(AllReduceOf(type, kMin), kRank, kRanks, kNone);
    ASSERT_TRUE(made.ok()) << made.status().message();
    EXPECT_EQ(made->call.dtype, types[type]);
    EXPECT_EQ(made->call.request.element_bytes, DTypeBytes(types[type]));
  }
  const ReduceOp ops[] = {ReduceOp::kSum, ReduceOp::kProd, ReduceOp::kMax,
                          ReduceOp::kMin, ReduceOp::kSum};
  for (int op = 0; op < kNumOps; ++op) {
    const auto made = MakeCollective(AllReduceOf(7, op), kRank, kRanks, kNone);
    ASSERT_TRUE(made.ok()) << made.status().message();
    EXPECT_EQ(made->call.reduce_op, ops[op]);
    EXPECT_EQ(made->divisor, op == kAvg ? kRanks : 0);
  }
}

TEST(OperationTest, OtherRootAndCount) {
  const auto made =
      MakeCollective({Verb::kScatter, nullptr, buffer, 5, 7, 0, 3, nullptr},
                     kRank, kRanks, kNone);
  ASSERT_TRUE(made.ok()) << made.status().message();
  EXPECT_EQ(made->call.request.op, plan::Op::kScatter);
  EXPECT_EQ(made->call.request.root, 3);
  EXPECT_EQ(made->call.request.count, 5);
  EXPECT_EQ(made->call.request.rank, kRank);
}

TEST(OperationTest, Refuses) {
  const auto code = [](const Operation& operation) {
    return MakeCollective(operation, kRank, kRanks, kNone).status().code();
  };
  EXPECT_EQ(code(AllReduceOf(12, kSum)), Code::kInvalidArgument);
  EXPECT_EQ(code(AllReduceOf(-1, kSum)), Code::kInvalidArgument);
  EXPECT_EQ(code(AllReduceOf(7, 5)), Code::kInvalidArgument);
  EXPECT_EQ(code(AllReduceOf(7, -1)), Code::kInvalidArgument);
  EXPECT_EQ(code(AllReduceOf(7, kNoOp)), Code::kInvalidArgument);
  Operation wrong = AllReduceOf(7, kSum);
  wrong.input = nullptr;
  EXPECT_EQ(code(wrong), Code::kInvalidArgument);
  wrong.count = 0;
  EXPECT_EQ(code(wrong), Code::kOk);
  wrong = {Verb::kBroadcast, buffer, buffer, 1, 7, 0, kRanks, nullptr};
  EXPECT_EQ(code(wrong), Code::kInvalidArgument);
  wrong.root = -1;
  EXPECT_EQ(code(wrong), Code::kInvalidArgument);
  wrong.root = 0;
  wrong.count = std::numeric_limits<size_t>::max() / 2;
  EXPECT_EQ(code(wrong), Code::kInvalidArgument);
}

TEST(OperationTest, BuffersOfTheRootAlone) {
  const auto ok = [](Verb verb, const void* input, void* output, int rank) {
    return MakeCollective({verb, input, output, 1, 7, 0, 0, nullptr}, rank,
                          kRanks, kNone)
        .ok();
  };
  EXPECT_TRUE(ok(Verb::kReduce, buffer, nullptr, 1));
  EXPECT_FALSE(ok(Verb::kReduce, buffer, nullptr, 0));
  EXPECT_TRUE(ok(Verb::kBroadcast, nullptr, buffer, 1));
  EXPECT_FALSE(ok(Verb::kBroadcast, nullptr, buffer, 0));
  EXPECT_TRUE(ok(Verb::kGather, buffer, nullptr, 1));
  EXPECT_FALSE(ok(Verb::kGather, buffer, nullptr, 0));
}

TEST(OperationTest, BothSidesOfATransferAgree) {
  const auto sent = MakeTransfer(
      {Verb::kSend, buffer, nullptr, 3, 8, 0, 2, nullptr}, 1, kRanks);
  const auto received = MakeTransfer(
      {Verb::kRecv, nullptr, buffer, 3, 8, 0, 1, nullptr}, 2, kRanks);
  ASSERT_TRUE(sent.ok() && received.ok());
  EXPECT_EQ(sent->source, 1);
  EXPECT_EQ(sent->destination, 2);
  EXPECT_EQ(received->source, 1);
  EXPECT_EQ(received->destination, 2);
  EXPECT_EQ(sent->bytes, 24);
  EXPECT_EQ(comm::Describe(CallOf(*sent, 1)),
            comm::Describe(CallOf(*received, 2)));
}

}  // namespace
}  // namespace jax_cxl::nccl
