#include "cc/comm/order/channel.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "cc/base/ticks.h"
#include "cc/testing/world/world.h"

namespace jax_cxl::comm {
namespace {

using plan::Op;

constexpr uint64_t kEager = 4;      // elements that fit into a submission
constexpr uint64_t kLong = 20'000;  // elements that take several rounds

Options SmallSlots() {
  Options options;
  options.slot_bytes = 4096;
  options.warn_after_s = 1;
  options.timeout_s = 1;
  return options;
}

// The channels of two ranks. The test calls Progress itself.
class ChannelTest : public testing::Test {
 protected:
  ChannelTest() : world_(2, SmallSlots()) {
    for (int rank : {0, 1}) {
      Endpoint& endpoint = world_.endpoint(rank);
      channels_.push_back(std::make_unique<Channel>(
          &world_.pool(rank), &world_.peers(rank), endpoint.recorder(),
          SmallSlots(), Group{{0, 1}, rank}));
    }
  }

  void Open(int rank) {
    const Status status = channels_[rank]->Open(
        OrDie(channels_[rank]->Allocate(world_.endpoint(rank).arena())));
    ASSERT_TRUE(status.ok()) << status.message();
  }

  std::unique_ptr<Call> MakeCall(int rank, uint64_t identity, Op op,
                                 uint64_t count,
                                 const std::vector<int32_t>& input,
                                 std::vector<int32_t>& output) {
    auto call = std::make_unique<Call>();
    call->identity = identity;
    call->request.op = op;
    call->request.num_ranks = 2;
    call->request.rank = rank;
    call->request.count = count;
    call->request.element_bytes = sizeof(int32_t);
    call->dtype = DType::kInt32;
    call->input = reinterpret_cast<const std::byte*>(input.data());
    call->output = reinterpret_cast<std::byte*>(output.data());
    call->name = plan::OpName(op);
    call->submitted = Ticks();
    return call;
  }
  Status Add(int rank, std::unique_ptr<Call>& call) {
    world_.endpoint(rank).recorder()->Record(call.get(),
                                             channels_[rank]->key());
    return channels_[rank]->AddCall(call);
  }
  void AddSum(int rank, uint64_t identity, const std::vector<int32_t>& input,
              std::vector<int32_t>& output) {
    auto call =
        MakeCall(rank, identity, Op::kAllReduce, input.size(), input, output);
    const Status status = Add(rank, call);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(call, nullptr);
  }

  bool Progress(int rank) {
    const Result<bool> moved = channels_[rank]->Progress(&finished_[rank]);
    EXPECT_TRUE(moved.ok()) << moved.status().message();
    return moved.ok() && *moved;
  }
  // Calls Progress on both channels until neither has a call left.
  void Finish() {
    for (int poll = 0; poll < 100'000; ++poll) {
      Progress(0);
      Progress(1);
      if (channels_[0]->idle() && channels_[1]->idle()) return;
    }
    FAIL() << "the calls do not finish";
  }
  // Returns the identities of the calls that the rank has finished.
  std::vector<uint64_t> Finished(int rank) {
    std::vector<uint64_t> identities;
    for (const comm::Finished& finished : finished_[rank]) {
      EXPECT_TRUE(finished.status.ok()) << finished.status.message();
      identities.push_back(finished.call->identity);
    }
    return identities;
  }

  World world_;
  std::vector<std::unique_ptr<Channel>> channels_;
  std::vector<comm::Finished> finished_[2];
};

TEST_F(ChannelTest, CallsWaitUntilTheOtherMemberOpensTheChannel) {
  const std::vector<int32_t> input = {1, 2, 3, 4};
  std::vector<int32_t> outputs[2] = {{0, 0, 0, 0}, {0, 0, 0, 0}};
  Open(0);
  EXPECT_TRUE(channels_[0]->idle());
  EXPECT_EQ(channels_[0]->unmatched(), nullptr);
  AddSum(0, 1, input, outputs[0]);
  AddSum(0, 2, input, outputs[0]);
  EXPECT_FALSE(channels_[0]->idle());
  EXPECT_FALSE(Progress(0));
  ASSERT_NE(channels_[0]->unmatched(), nullptr);
  EXPECT_EQ(channels_[0]->unmatched()->identity, 1u);
  EXPECT_TRUE(finished_[0].empty());
  Open(1);
  AddSum(1, 1, input, outputs[1]);
  AddSum(1, 2, input, outputs[1]);
  Finish();
  for (int rank : {0, 1}) {
    EXPECT_EQ(Finished(rank), (std::vector<uint64_t>{1, 2}));
    EXPECT_EQ(outputs[rank], (std::vector<int32_t>{2, 4, 6, 8}));
  }
}

// The two ranks start eager and long calls in opposite orders.
TEST_F(ChannelTest, CallsMatchInWhateverOrderTheyStart) {
  constexpr int kCalls = 6;
  std::vector<std::vector<int32_t>> inputs, outputs[2];
  for (int k = 0; k < kCalls; ++k) {
    inputs.emplace_back(k % 2 == 0 ? kEager : kLong);
    std::iota(inputs[k].begin(), inputs[k].end(), 100 * k);
    for (auto& output : outputs) output.emplace_back(inputs[k].size());
  }
  for (int rank : {0, 1}) {
    Open(rank);
    for (int i = 0; i < kCalls; ++i) {
      const int k = rank == 0 ? i : kCalls - 1 - i;
      AddSum(rank, 50 + k, inputs[k], outputs[rank][k]);
    }
  }
  Finish();
  std::vector<uint64_t> ordered[2];
  for (int rank : {0, 1}) {
    EXPECT_EQ(finished_[rank].size(), kCalls);
    // Long calls use the slots, in the same order on all ranks.
    for (uint64_t identity : Finished(rank))
      if (identity % 2 == 1) ordered[rank].push_back(identity);
    for (int k = 0; k < kCalls; ++k)
      for (size_t i = 0; i < inputs[k].size(); ++i)
        ASSERT_EQ(outputs[rank][k][i], 2 * inputs[k][i]) << k;
  }
  EXPECT_EQ(ordered[0].size(), kCalls / 2u);
  EXPECT_EQ(ordered[0], ordered[1]);
}

// The call has more rounds than a ring has slots, so the rank that is ahead
// waits.
TEST_F(ChannelTest, ACallThatExecutesIsNotUnmatched) {
  std::vector<int32_t> input(kLong, 3), outputs[2] = {input, input};
  for (int rank : {0, 1}) {
    Open(rank);
    AddSum(rank, 1, input, outputs[rank]);
  }
  bool seen = false;
  for (int poll = 0; poll < 1000 && !seen; ++poll) {
    Progress(0);
    if (finished_[0].empty()) Progress(1);
    seen = !channels_[0]->idle() && channels_[0]->unmatched() == nullptr;
  }
  EXPECT_TRUE(seen);
  Finish();
  EXPECT_EQ(outputs[0], std::vector<int32_t>(kLong, 6));
  // Each rank reduces half of the elements itself, and reads the results for
  // the other half.
  EXPECT_GT(channels_[0]->traffic().bytes_published, 0u);
  EXPECT_GT(channels_[0]->traffic().bytes_retrieved, 0u);
}

TEST_F(ChannelTest, ARaggedAllToAllBringsItsSlices) {
  // Rank r sends r + 1 rows to rank 0 and one row to rank 1.
  const std::vector<int32_t> inputs[2] = {{10, 11, 12}, {20, 21, 22}};
  std::vector<int32_t> outputs[2] = {{-1, -1, -1}, {-1, -1, -1}};
  const std::vector<int64_t> tables[2] = {
      // input_offsets, send_sizes, output_offsets, recv_sizes
      {0, 1, 1, 1, 0, 0, 1, 2},
      {0, 2, 2, 1, 1, 1, 1, 1}};
  for (int rank : {0, 1}) {
    Open(rank);
    auto call =
        MakeCall(rank, 9, Op::kRaggedAllToAll, 3, inputs[rank], outputs[rank]);
    call->request.rows = {.table = 3, .taken = 3, .slices = 1};
    call->row_operands.slices = tables[rank].data();
    call->row_operands.slice_entry_bytes = sizeof(int64_t);
    SetRows(call.get());
    const Status status = Add(rank, call);
    ASSERT_TRUE(status.ok()) << status.message();
  }
  Finish();
  EXPECT_EQ(Finished(0), std::vector<uint64_t>{9});
  EXPECT_EQ(outputs[0], (std::vector<int32_t>{10, 20, 21}));
  EXPECT_EQ(outputs[1], (std::vector<int32_t>{11, 22, -1}));
}

TEST_F(ChannelTest, ACallThatCannotBeExecutedStaysWithTheCaller) {
  Open(0);
  std::vector<int32_t> buffer(4);
  auto call = MakeCall(0, 1, Op::kBroadcast, 4, buffer, buffer);
  call->request.root = 2;
  EXPECT_EQ(Add(0, call).code(), Code::kInvalidArgument);
  EXPECT_NE(call, nullptr);
  EXPECT_TRUE(channels_[0]->idle());
}

TEST_F(ChannelTest, FailFinishesAllCalls) {
  const std::vector<int32_t> input(kLong, 1);
  std::vector<int32_t> output(kLong);
  Open(0);
  // Fail must work before and after the other member has opened the channel.
  for (const bool connected : {false, true}) {
    if (connected) {
      Open(1);
      AddSum(0, 3, input, output);
      for (int poll = 0; poll < 100; ++poll) Progress(0);
    }
    AddSum(0, 4, input, output);
    finished_[0].clear();
    channels_[0]->Fail(Error(Code::kPeerLost, "gone"), &finished_[0]);
    ASSERT_EQ(finished_[0].size(), connected ? 2u : 1u);
    for (const comm::Finished& finished : finished_[0]) {
      EXPECT_EQ(finished.status.code(), Code::kPeerLost);
      EXPECT_NE(finished.call, nullptr);
    }
    EXPECT_TRUE(channels_[0]->idle());
  }
}

TEST_F(ChannelTest, AMemberThatDoesNotComeIsNamed) {
  const std::vector<int32_t> input(kEager, 1);
  std::vector<int32_t> output(kEager);
  Open(0);
  const Clock::time_point now = Clock::now();
  // The rank has no call, so it waits for no other rank.
  EXPECT_TRUE(channels_[0]->CheckPeers(now).ok());
  AddSum(0, 1, input, output);
  Progress(0);
  EXPECT_TRUE(channels_[0]->CheckPeers(now).ok());
  testing::internal::CaptureStderr();
  const Status status = channels_[0]->CheckPeers(now + std::chrono::seconds(2));
  testing::internal::GetCapturedStderr();
  EXPECT_EQ(status.code(), Code::kDeadlineExceeded);
  EXPECT_NE(status.message().find("for " + world_.peers(0).Name(1)),
            std::string::npos)
      << status.message();
}

}  // namespace
}  // namespace jax_cxl::comm
