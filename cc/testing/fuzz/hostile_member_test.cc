// Sanitizers: address, thread

// One member writes hostile data. The others must find the right error.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "cc/comm/health/peers.h"
#include "cc/pool/layout/channel_layout.h"
#include "cc/testing/world/stepped_rank.h"
#include "cc/testing/world/world.h"

namespace jax_cxl::comm {
namespace {

// Three ranks without threads: the test itself makes them step. Rank 0 leads,
// so it announces the calls.
class HostileMemberTest : public testing::Test {
 protected:
  HostileMemberTest() {
    pool::PoolSpec spec;
    spec.paths = {"hostile." + std::to_string(getpid())};
    spec.bytes = 16 << 20;
    pool_ = OrDie(pool::Pool::Create(spec, 3));
    pool_->Unlink();
    for (int rank : {0, 1, 2}) Register(pool_.get(), rank, 0, rank);
    peers_ = OrDie(Peers::Start(pool_.get(), {0, 1, 2}, 1e9));
    for (int rank : {0, 1, 2})
      ranks_.emplace_back(pool_.get(), peers_.get(), options_, rank);
  }

  // Starts a call of `count` numbers. A call of 8 numbers fits into a
  // submission, and a call of 100,000 does not.
  void StartCall(int rank, uint64_t identity, uint64_t count) {
    auto call = std::make_unique<Call>();
    call->identity = identity;
    call->request.op = plan::Op::kAllReduce;
    call->request.num_ranks = 3;
    call->request.rank = rank;
    call->request.count = count;
    call->request.element_bytes = sizeof(int32_t);
    call->dtype = DType::kInt32;
    call->name = "psum";
    buffers_.emplace_back(2 * count, 1);
    call->input = reinterpret_cast<const std::byte*>(buffers_.back().data());
    call->output = reinterpret_cast<std::byte*>(buffers_.back().data() + count);
    ranks_[rank].StartCall({0, 1, 2}, std::move(call));
  }

  pool::ControlBlock* BlockOf(int rank) {
    const auto& entry = pool_->rank_page(rank)->channels[0];
    return reinterpret_cast<pool::ControlBlock*>(pool_->base() +
                                                 entry.place.control);
  }

  // Returns the submission of call `identity`. Submissions lie after the
  // control block.
  pool::Submission* SubmissionOf(int rank, uint64_t identity) {
    auto* word = reinterpret_cast<uint64_t*>(BlockOf(rank) + 1);
    while (word[0] >> 48 != pool_->epoch() || word[1] != identity) ++word;
    return reinterpret_cast<pool::Submission*>(word);
  }

  std::string ErrorOf(int rank) {
    const auto& finished = ranks_[rank].finished();
    return finished.empty() ? "nothing" : finished.back().status.message();
  }

  void Step(std::vector<int> ranks) {
    for (int i = 0; i < 4; ++i)
      for (int rank : ranks) ranks_[rank].Step();
  }

  Options options_;
  std::unique_ptr<pool::Pool> pool_;
  std::unique_ptr<Peers> peers_;
  std::deque<SteppedRank> ranks_;
  std::deque<std::vector<int32_t>> buffers_;
};

constexpr uint64_t kIdentity = 0x1234567890abcdef, kOther = 0x7777777777777777;

TEST_F(HostileMemberTest, SubmissionWithoutItsData) {
  for (int rank : {0, 1, 2}) StartCall(rank, 1, 8);
  Step({0, 1, 2});
  ASSERT_EQ(ErrorOf(0), "");
  StartCall(1, kIdentity, 8);
  Step({1});
  SubmissionOf(1, kIdentity)->payload_bytes = 0;
  StartCall(0, kIdentity, 8);
  Step({0});  // reads rank 1's submission and keeps it
  StartCall(2, kIdentity, 8);
  Step({2, 0});
  EXPECT_NE(ErrorOf(0).find("rank 1 is corrupt (a submission without its data"),
            std::string::npos)
      << ErrorOf(0);
}

TEST_F(HostileMemberTest, SubmissionLargerThanItsPlace) {
  for (int rank : {0, 1, 2}) StartCall(rank, kIdentity, 8);
  Step({1});
  Step({0, 1, 2});
  StartCall(1, kOther, 8);
  Step({1});
  SubmissionOf(1, kOther)->payload_bytes = 1 << 20;
  StartCall(0, kOther, 8);
  Step({0});
  EXPECT_NE(ErrorOf(0).find("larger than its place"), std::string::npos)
      << ErrorOf(0);
}

// The leader's announcement is changed to name an eager call, which has no plan
// for slots. If a rank executed this call in slots, it would write past the end
// of small slots.
TEST_F(HostileMemberTest, AnnouncementOfACallThatTakesNoSlot) {
  StartCall(0, 1, 100'000);
  StartCall(1, 1, 100'000);
  StartCall(2, 1, 100'000);
  StartCall(2, kIdentity, 8);
  Step({1, 2});  // submit
  Step({0});     // announces
  auto& announcement = BlockOf(0)->announcements[0];
  ASSERT_EQ(announcement.identity, 1u);
  announcement.identity = kIdentity;
  Step({2});
  EXPECT_NE(ErrorOf(2).find("takes no slot"), std::string::npos) << ErrorOf(2);
}

TEST_F(HostileMemberTest, SubmissionsAreReadInTurn) {
  for (int rank : {0, 1, 2}) StartCall(rank, 1, 8);
  Step({0, 1, 2});
  StartCall(1, kIdentity, 8);
  Step({1});
  ++SubmissionOf(1, kIdentity)->ready;
  StartCall(0, kIdentity, 8);
  Step({0});
  EXPECT_NE(ErrorOf(0).find("out of turn"), std::string::npos) << ErrorOf(0);
}

}  // namespace
}  // namespace jax_cxl::comm
