#include "cc/comm/order/journal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "cc/base/ticks.h"
#include "cc/testing/world/status_text.h"
#include "cc/testing/world/world.h"

namespace jax_cxl::comm {
namespace {

constexpr uint64_t kKey = 5;

// Ranks 2, 0 and 1 of a job are members 0, 1 and 2 of a group.
class JournalTest : public testing::Test {
 protected:
  JournalTest() : world_(3, {}), controls_(3) {
    std::vector<cuda::DeviceControl*> controls;
    for (auto& control : controls_) {
      control = std::make_unique<cuda::DeviceControl>();
      controls.push_back(control.get());
    }
    for (int member = 0; member < 3; ++member)
      journals_.push_back(std::make_unique<Journal>(
          &world_.pool(kRanks[member]), Group{{2, 0, 1}, member}, controls));
  }

  static Call Psum(uint64_t count) {
    Call call;
    call.name = "psum";
    call.site = "train.py:" + std::to_string(count);
    call.request.op = plan::Op::kAllReduce;
    call.request.num_ranks = 3;
    call.request.count = count;
    call.dtype = DType::kFloat32;
    return call;
  }
  void Write(int member, Call call) {
    call.submitted = Ticks();
    world_.endpoint(kRanks[member]).recorder()->Record(&call, kKey);
    journals_[member]->Write(call, Describe(call));
    ++written_[member];
  }
  Status Compare(int member) {
    return journals_[member]->Compare(written_[member]);
  }

  static constexpr int kRanks[] = {2, 0, 1};
  World world_;
  std::vector<std::unique_ptr<cuda::DeviceControl>> controls_;
  std::vector<std::unique_ptr<Journal>> journals_;
  uint64_t written_[3] = {};
};

TEST_F(JournalTest, ComparesCallsThatAllHaveEnqueued) {
  for (int member : {0, 1}) Write(member, Psum(3));
  EXPECT_TRUE(Compare(0).ok());
  EXPECT_EQ(journals_[0]->compared_by_all(), 0u);
  EXPECT_EQ(journals_[0]->Missing(0), std::vector<int>{2});
  EXPECT_EQ(journals_[2]->Missing(0), std::vector<int>{});
  EXPECT_EQ(journals_[2]->Missing(1), (std::vector<int>{0, 1}));
  Write(2, Psum(3));
  EXPECT_TRUE(Compare(0).ok());
  EXPECT_EQ(journals_[0]->compared_by_all(), 1u);
  EXPECT_EQ(journals_[0]->Missing(0), std::vector<int>{});
}

// All members report the same error about a disagreement, with both source
// lines.
TEST_F(JournalTest, ADisagreementHasBothCallsAndTheirLines) {
  for (int member : {0, 1, 2}) Write(member, Psum(3));
  for (int member : {0, 1, 2}) Write(member, Psum(member == 0 ? 4 : 6));
  const Status status = Compare(1);
  EXPECT_EQ(status.code(), Code::kMismatch);
  EXPECT_EQ(Detail(status, "rank_0"), "2");
  EXPECT_EQ(Detail(status, "call_0"),
            "psum: all_reduce sum of 4 float32 at train.py:4");
  EXPECT_EQ(Detail(status, "rank_1"), "0");
  EXPECT_EQ(Detail(status, "call_1"),
            "psum: all_reduce sum of 6 float32 at train.py:6");
  const Status other = Compare(0);
  EXPECT_EQ(other.message(), status.message());
  EXPECT_EQ(other.details(), status.details());
}

TEST_F(JournalTest, EveryFieldOfTheDescriptorCounts) {
  std::vector<Call> others(7, Psum(3));
  others[0].request.op = plan::Op::kAllGather;
  others[1].reduce_op = ReduceOp::kMax;
  others[2].dtype = DType::kInt32;
  others[3].request.count = 4;
  others[4].request.root = 1;
  others[5].request.reverse = true;
  others[6].request.sources = {1, 0, -1};
  for (const Call& other : others) {
    for (int member : {0, 1}) Write(member, Psum(3));
    Write(2, other);
    EXPECT_EQ(Compare(2).code(), Code::kMismatch) << DescribeText(other);
    EXPECT_EQ(Detail(Compare(2), "call_1"), DescribeText(other));
    // Go on as if the members had agreed.
    controls_[2]->journal[written_[2] - 1].descriptor = Describe(Psum(3));
    EXPECT_TRUE(Compare(2).ok());
  }
}

// A host may be far ahead of its device, and of other hosts.
TEST_F(JournalTest, JournalsGoRoundAndMembersMayBeFarAhead) {
  for (uint64_t i = 0; i < 3 * cuda::kJournal; ++i) {
    for (int member : {0, 1}) Write(member, Psum(i));
    EXPECT_TRUE(Compare(0).ok());
  }
  EXPECT_EQ(journals_[2]->Missing(0), std::vector<int>{});
  EXPECT_EQ(journals_[0]->Missing(0), std::vector<int>{2});
  for (uint64_t i = 0; i < 3 * cuda::kJournal; ++i) {
    Write(2, Psum(i));
    ASSERT_TRUE(Compare(2).ok());
    ASSERT_TRUE(Compare(0).ok());
  }
  EXPECT_EQ(journals_[0]->compared_by_all(), 3 * cuda::kJournal);
  for (int member : {0, 1}) Write(member, Psum(1));
  Write(2, Psum(2));
  EXPECT_EQ(Compare(0).code(), Code::kMismatch);
}

}  // namespace
}  // namespace jax_cxl::comm
