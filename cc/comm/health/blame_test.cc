#include "cc/comm/health/blame.h"

#include <gtest/gtest.h>

#include <string>

#include "cc/base/ticks.h"
#include "cc/comm/record/recorder.h"
#include "cc/testing/world/world.h"

namespace jax_cxl::comm {
namespace {

constexpr uint64_t kGroup = 5;

class BlameTest : public testing::Test {
 protected:
  BlameTest() : world_(3, {}) {}

  Call Submit(int rank, uint64_t identity, const std::string& name) {
    Call call;
    call.identity = identity;
    call.request.op = plan::Op::kAllReduce;
    call.request.count = 3;
    call.dtype = DType::kFloat32;
    call.name = name;
    call.submitted = Ticks();
    recorder(rank).Submit(&call, kGroup);
    return call;
  }
  Recorder& recorder(int rank) { return *world_.endpoint(rank).recorder(); }

  // Whom rank 2 blames, which waits for rank 1 to go on with a call.
  Culprit Find(const Call& call) {
    return FindCulprit(world_.pool(2), world_.peers(2), {{0, 1, 2}, 2}, call,
                       /*started=*/true, /*rank=*/1);
  }

  World world_;
};

TEST_F(BlameTest, FollowsTheCallThatARankWaitsIn) {
  const Call mine = Submit(2, 7, "psum");
  // Waits for its turn: ranks agreed on the other order.
  Submit(1, 6, "pmax");
  const Call same = Submit(1, 7, "psum");
  recorder(1).Start(same.number, Ticks());
  recorder(1).Wait(same.number, 0);
  const Culprit culprit = Find(mine);
  EXPECT_EQ(culprit.rank, 0);
  EXPECT_EQ(culprit.why,
            "which is in no collective: it had not called any collective");
}

TEST_F(BlameTest, NamesTheOldestCallOfARankThatHasLeftTheCallBehind) {
  const Call mine = Submit(2, 7, "psum");
  const Call same = Submit(1, 7, "psum");
  recorder(1).Finish(same.number, OkStatus(), Ticks());
  Submit(1, 8, "pmax");
  Submit(1, 9, "pmin");
  const Culprit culprit = Find(mine);
  EXPECT_EQ(culprit.rank, 1);
  EXPECT_EQ(culprit.why,
            "which is in its call 2, pmax: all_reduce sum of 3 float32");
}

}  // namespace
}  // namespace jax_cxl::comm
