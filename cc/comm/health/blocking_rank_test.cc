#include "cc/comm/health/blocking_rank.h"

#include <gtest/gtest.h>

#include <string>

#include "cc/base/ticks.h"
#include "cc/comm/record/recorder.h"
#include "cc/testing/world/world.h"

namespace jax_cxl::comm {
namespace {

constexpr uint64_t kGroup = 5;

class BlockingRankTest : public testing::Test {
 protected:
  // Without coherence, records come with the next heartbeat.
  BlockingRankTest()
      : world_(3, {}, 64 << 20, 1, pool::CoherenceMode::kCoherent, {}) {}

  Call RecordCall(int rank, uint64_t identity, const std::string& name) {
    Call call;
    call.identity = identity;
    call.request.op = plan::Op::kAllReduce;
    call.request.count = 3;
    call.dtype = DType::kFloat32;
    call.name = name;
    call.submitted = Ticks();
    recorder(rank).Record(&call, kGroup);
    return call;
  }
  Recorder& recorder(int rank) { return *world_.endpoint(rank).recorder(); }

  // Returns the rank that blocks rank 2, which waits for rank 1 in `call`.
  BlockingRank Find(const Call& call) {
    return FindBlockingRank(world_.pool(2), world_.peers(2), {{0, 1, 2}, 2},
                            call,
                            /*started=*/true, /*rank=*/1);
  }

  World world_;
};

TEST_F(BlockingRankTest, FollowsTheCallThatARankWaitsIn) {
  const Call mine = RecordCall(2, 7, "psum");
  // This call waits for its turn: the ranks have agreed on the other order.
  RecordCall(1, 6, "pmax");
  const Call same = RecordCall(1, 7, "psum");
  recorder(1).Start(same.number, Ticks());
  recorder(1).Wait(same.number, 0);
  const BlockingRank blocking = Find(mine);
  EXPECT_EQ(blocking.rank, 0);
  EXPECT_EQ(blocking.why,
            "which is in no collective: it had not called any collective");
}

TEST_F(BlockingRankTest, NamesTheOldestCallOfARankThatHasLeftTheCallBehind) {
  const Call mine = RecordCall(2, 7, "psum");
  const Call same = RecordCall(1, 7, "psum");
  recorder(1).Finish(same.number, OkStatus(), Ticks());
  RecordCall(1, 8, "pmax");
  RecordCall(1, 9, "pmin");
  const BlockingRank blocking = Find(mine);
  EXPECT_EQ(blocking.rank, 1);
  EXPECT_EQ(blocking.why,
            "which is in its call 2, pmax: all_reduce sum of 3 float32");
}

}  // namespace
}  // namespace jax_cxl::comm
