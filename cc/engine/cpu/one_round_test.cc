#include "cc/engine/cpu/one_round.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cc/testing/reference/plans.h"
#include "cc/testing/verify/verify.h"

namespace jax_cxl::cpu {
namespace {

using plan::Op;

constexpr plan::Geometry kOneSlotful = {
    .slot_bytes = 4096, .num_slots = 2, .all_read_bytes = 1 << 20};

std::vector<plan::Plan> Plans(const plan::Request& request,
                              const plan::Geometry& geometry) {
  Result<std::vector<plan::Plan>> plans = plan::MakePlans(request, geometry);
  EXPECT_TRUE(plans.ok()) << plans.status().message();
  return *std::move(plans);
}

int32_t Value(int rank, uint64_t i) {
  return static_cast<int32_t>(1000 * (rank + 1) + i);
}

// Returns element i of the output of `rank`.
int32_t Expected(const plan::Request& request, int rank, uint64_t i) {
  const uint64_t count = request.count, mine = rank * count + i;
  int32_t sum = 0;
  for (int r = 0; r < request.num_ranks; ++r)
    sum += Value(r, request.op == Op::kReduceScatter ? mine : i);
  switch (request.op) {
    case Op::kAllGather:
      return Value(static_cast<int>(i / count), i % count);
    case Op::kAllToAll:
      return Value(static_cast<int>(i / count), rank * count + i % count);
    case Op::kBroadcast:
      return Value(request.root, i);
    default:
      return sum;
  }
}

TEST(OneRoundTest, PayloadsGiveWhatRingsWould) {
  for (Op op : {Op::kAllGather, Op::kAllReduce, Op::kReduceScatter,
                Op::kAllToAll, Op::kBroadcast})
    for (int ranks : {2, 3, 5})
      for (uint64_t count : {1, 31, 64}) {
        SCOPED_TRACE(testing::Message() << plan::OpName(op) << ", " << ranks
                                        << " ranks, " << count);
        const plan::Request request = plan::MakeRequest(op, ranks, count);
        const auto plans = Plans(request, kOneSlotful);
        const size_t in = plan::InputBytes(request) / sizeof(int32_t);
        const size_t out = plan::OutputBytes(request) / sizeof(int32_t);
        std::vector<std::vector<int32_t>> inputs(ranks);
        std::vector<std::vector<std::byte>> payloads(ranks);
        std::vector<const std::byte*> shown(ranks);
        Traffic traffic;
        for (int rank = 0; rank < ranks; ++rank) {
          ASSERT_TRUE(IsOneRound(plans[rank]));
          for (size_t i = 0; i < in; ++i)
            inputs[rank].push_back(Value(rank, i));
          payloads[rank].resize(PayloadBytes(plans[rank]));
          PutPayload(plans[rank],
                     reinterpret_cast<const std::byte*>(inputs[rank].data()),
                     payloads[rank].data(), &traffic);
          if (!payloads[rank].empty()) shown[rank] = payloads[rank].data();
        }
        for (int rank = 0; rank < ranks; ++rank) {
          EXPECT_EQ(MissingPayload(plans[rank], rank, shown), -1);
          std::vector<int32_t> output(out, -1);
          std::vector<const std::byte*> sources;
          const Status status = RetrievePayloads(
              plans[rank], DType::kInt32, ReduceOp::kSum, rank, shown,
              reinterpret_cast<const std::byte*>(inputs[rank].data()),
              reinterpret_cast<std::byte*>(output.data()), &sources, &traffic);
          ASSERT_TRUE(status.ok()) << status.message();
          for (size_t i = 0; i < out; ++i)
            ASSERT_EQ(output[i], Expected(request, rank, i)) << rank;
        }
        EXPECT_GT(traffic.bytes_published, 0u);
        EXPECT_GT(traffic.bytes_retrieved, 0u);
      }
}

TEST(OneRoundTest, MissingPayloadsAreFound) {
  const auto plans =
      Plans(plan::MakeRequest(Op::kAllReduce, 3, 4), kOneSlotful);
  const std::byte there[16] = {};
  EXPECT_EQ(MissingPayload(plans[1], 1, {nullptr, nullptr, nullptr}), 0);
  EXPECT_EQ(MissingPayload(plans[1], 1, {there, nullptr, nullptr}), 2);
  EXPECT_EQ(MissingPayload(plans[1], 1, {there, nullptr, there}), -1);
  // The root of a broadcast reads no payload, and the other ranks read only the
  // root's.
  const auto roots =
      Plans(plan::MakeRequest(Op::kBroadcast, 3, 4), kOneSlotful);
  EXPECT_EQ(MissingPayload(roots[0], 0, {nullptr, nullptr, nullptr}), -1);
  EXPECT_EQ(MissingPayload(roots[2], 2, {nullptr, there, there}), 0);
}

TEST(OneRoundTest, OtherPlansAreNone) {
  const auto long_one =
      Plans(plan::MakeRequest(Op::kAllGather, 2, 4096), kOneSlotful);
  EXPECT_FALSE(IsOneRound(long_one[0]));
  // This plan has a second round, because ranks pass on reduced data.
  plan::Geometry shares = kOneSlotful;
  shares.all_read_bytes = 0;
  const auto two = Plans(plan::MakeRequest(Op::kAllReduce, 3, 64), shares);
  EXPECT_FALSE(IsOneRound(two[0]));
}

}  // namespace
}  // namespace jax_cxl::cpu
