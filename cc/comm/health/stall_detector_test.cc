// Sanitizers: address, thread

#include "cc/comm/health/stall_detector.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cc/testing/world/world.h"

namespace jax_cxl::comm {
namespace {

using std::chrono::milliseconds;

// The design promises that a stall is found within a second. Tests allow more,
// for busy machines.
constexpr auto kSoon = milliseconds(5000);

// A rank's calls and their outcomes.
class Rank {
 public:
  Rank(World* world, int rank) : world_(world), rank_(rank) {}

  // Starts a sum whose identity is `identity`. Ranks that use another identity
  // are in another call.
  void Start(uint64_t identity, const std::vector<int32_t>& members,
             uint32_t launch = 1) {
    auto call = std::make_unique<Call>();
    call->identity = identity;
    call->request.op = plan::Op::kAllReduce;
    call->request.num_ranks = static_cast<int>(members.size());
    for (size_t i = 0; i < members.size(); ++i)
      if (members[i] == rank_) call->request.rank = static_cast<int>(i);
    call->request.count = 1;
    call->request.element_bytes = 4;
    call->dtype = DType::kInt32;
    call->input = reinterpret_cast<const std::byte*>(&value_);
    call->output = reinterpret_cast<std::byte*>(&sum_);
    call->name = "call" + std::to_string(identity);
    call->site = "test.py:" + std::to_string(identity);
    call->program = std::make_shared<const std::string>("jit_step");
    call->program_hash = 5;
    call->launch_number = launch;
    call->launch = identity + 1;
    call->execution = identity;
    done_.push_back(std::make_unique<Countdown>(1));
    done_.back()->StartCall(world_->endpoint(rank_), members, std::move(call));
  }

  // Returns the first error of all calls.
  Status Wait() {
    Status first;
    for (auto& done : done_) {
      Status status = done->Wait();
      if (first.ok()) first = status;
    }
    return first;
  }

 private:
  World* world_;
  int rank_;
  int32_t value_ = 1, sum_ = 0;
  std::vector<std::unique_ptr<Countdown>> done_;
};

class StallDetectorTest : public testing::Test {
 protected:
  void Make(int size, double timeout_s) {
    Options options;
    options.timeout_s = timeout_s;
    world_ = std::make_unique<World>(size, options);
    for (int rank = 0; rank < size; ++rank)
      ranks_.emplace_back(world_.get(), rank);
    start_ = Clock::now();
  }

  void ExpectMismatchOnAll(std::initializer_list<const char*> words) {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      const Status status = ranks_[rank].Wait();
      EXPECT_EQ(status.code(), Code::kMismatch) << status.message();
      for (const char* word : words)
        EXPECT_NE(status.message().find(word), std::string::npos)
            << word << " on rank " << rank << ": " << status.message();
    }
    EXPECT_LT(Clock::now() - start_, kSoon);
  }

  static void ExpectLeftOut(const Status& status) {
    EXPECT_EQ(status.code(), Code::kMismatch);
    EXPECT_NE(status.message().find("other ranks have left out call"),
              std::string::npos)
        << status.message();
  }

  std::unique_ptr<World> world_;
  std::vector<Rank> ranks_;
  Clock::time_point start_;
};

TEST_F(StallDetectorTest, DifferentCallsOfAllRanks) {
  Make(3, 300);
  for (int r : {0, 1, 2}) ranks_[r].Start(7 + r, {0, 1, 2});
  ExpectMismatchOnAll({"call7", "call8", "call9", "test.py:7", "test.py:8",
                       "in launch 8 of jit_step, execution 7"});
}

TEST_F(StallDetectorTest, OneRankOfSeveral) {
  Make(3, 300);
  for (int r : {0, 1, 2}) ranks_[r].Start(r == 1 ? 8 : 7, {0, 1, 2});
  ExpectMismatchOnAll({"call7", "call8"});
}

TEST_F(StallDetectorTest, DifferentGroups) {
  Make(3, 300);
  ranks_[0].Start(7, {0, 1});
  ranks_[1].Start(7, {1, 2});
  ranks_[2].Start(7, {0, 1, 2});
  ExpectMismatchOnAll({"among ranks 0 1", "among ranks 1 2"});
}

TEST_F(StallDetectorTest, DetailsNameBothSides) {
  Make(2, 300);
  for (int r : {0, 1}) ranks_[r].Start(7 + r, {0, 1});
  for (int r : {0, 1}) {
    Status status = ranks_[r].Wait();
    std::map<std::string, std::string> details(status.details().begin(),
                                               status.details().end());
    for (const char* side : {"_0", "_1"}) {
      const std::string rank = details[std::string("rank") + side];
      EXPECT_NE(details[std::string("call") + side].find(
                    rank == "0" ? "call7: all_reduce" : "call8: all_reduce"),
                std::string::npos);
    }
    EXPECT_NE(details["rank_0"], details["rank_1"]);
  }
}

// Rank 2 is late. The other ranks are in different calls, and rank 2 may still
// start both calls.
TEST_F(StallDetectorTest, NotWhileARankMayComeYet) {
  Make(3, 300);
  ranks_[0].Start(7, {0, 1, 2});
  ranks_[1].Start(8, {0, 1, 2});
  std::this_thread::sleep_for(milliseconds(1500));
  for (int r : {0, 1, 2}) {
    if (r != 0) ranks_[r].Start(7, {0, 1, 2});
    if (r != 1) ranks_[r].Start(8, {0, 1, 2});
  }
  for (int r : {0, 1, 2}) {
    const Status status = ranks_[r].Wait();
    EXPECT_TRUE(status.ok()) << status.message();
  }
}

// While the program computes, it may still start the missing calls.
TEST_F(StallDetectorTest, NotWhileTheProgramComputes) {
  Make(2, 300);
  std::atomic<bool> stop = false;
  std::thread program([&stop] {
    while (!stop) {
    }
  });
  for (int r : {0, 1}) ranks_[r].Start(7 + r, {0, 1});
  std::this_thread::sleep_for(milliseconds(1500));
  for (int r : {0, 1}) ranks_[r].Start(8 - r, {0, 1});
  for (int r : {0, 1}) {
    const Status status = ranks_[r].Wait();
    EXPECT_TRUE(status.ok()) << status.message();
  }
  stop = true;
  program.join();
}

// The two ranks start the calls in opposite orders, each slightly late.
TEST_F(StallDetectorTest, NotWhileCallsComeAndGo) {
  Make(2, 300);
  for (uint64_t round = 0; round < 12; ++round) {
    for (int r : {0, 1}) ranks_[r].Start(2 * round + r, {0, 1});
    std::this_thread::sleep_for(milliseconds(60));
    for (int r : {0, 1}) ranks_[r].Start(2 * round + 1 - r, {0, 1});
  }
  for (int r : {0, 1}) {
    const Status status = ranks_[r].Wait();
    EXPECT_TRUE(status.ok()) << status.message();
  }
}

// Launch 1 has failed on all ranks. Ranks 0 and 1 had started different calls
// of it, and rank 2 is in launch 2.
TEST_F(StallDetectorTest, CallsOfAFailedLaunchEnd) {
  Make(3, 300);
  for (int r : {0, 1}) world_->peers(r).NoteFailedCallbacks(r, 1);
  ranks_[0].Start(7, {0, 1, 2}, 1);
  ranks_[0].Start(70, {0, 1}, 1);
  ranks_[1].Start(8, {0, 1, 2}, 1);
  Rank next[] = {{world_.get(), 0}, {world_.get(), 1}, {world_.get(), 2}};
  next[2].Start(9, {0, 1, 2}, 2);
  // The calls of one rank may end only once the other rank is in launch 2.
  const auto go_on = [&](int r) {
    ExpectLeftOut(ranks_[r].Wait());
    world_->peers(r).NoteFailedCallbacks(r, 0);
    next[r].Start(9, {0, 1, 2}, 2);
  };
  std::thread other(go_on, 1);
  go_on(0);
  other.join();
  for (Rank& rank : next) {
    const Status status = rank.Wait();
    EXPECT_TRUE(status.ok()) << status.message();
  }
  // The other ranks start a call that rank 0 has ended.
  for (int r : {1, 2}) {
    next[r].Start(7, {0, 1, 2}, 1);
    next[r].Start(10, {0, 1, 2}, 3);
  }
  next[0].Start(10, {0, 1, 2}, 3);
  const Status status = next[0].Wait();
  EXPECT_EQ(status.code(), Code::kMismatch);
  EXPECT_NE(status.message().find("starts a call of a launch that has failed"),
            std::string::npos)
      << status.message();
  for (int r : {1, 2}) (void)next[r].Wait();
}

// A failed launch does not hide a mismatch of later ones.
TEST_F(StallDetectorTest, MismatchAfterAFailedLaunch) {
  Make(2, 300);
  world_->peers(0).NoteFailedCallbacks(0, 1);
  ranks_[0].Start(7, {0, 1}, 1);
  ranks_[1].Start(8, {0, 1}, 1);
  ExpectLeftOut(ranks_[0].Wait());
  world_->peers(0).NoteFailedCallbacks(0, 0);
  ranks_[0].Start(9, {0, 1}, 2);
  const Status status = ranks_[1].Wait();
  EXPECT_FALSE(ranks_[0].Wait().ok());
  EXPECT_EQ(status.code(), Code::kMismatch);
  EXPECT_NE(status.message().find("the ranks wait for each other"),
            std::string::npos)
      << status.message();
}

TEST_F(StallDetectorTest, RankThatLeftNormally) {
  Make(3, 300);
  world_->endpoint(1).Leave("");
  for (int r : {0, 2}) ranks_[r].Start(7, {0, 1, 2});
  for (int r : {0, 2}) {
    const Status status = ranks_[r].Wait();
    EXPECT_EQ(status.code(), Code::kMismatch);
    EXPECT_NE(status.message().find("ended normally, after 0 collectives"),
              std::string::npos)
        << status.message();
  }
  EXPECT_LT(Clock::now() - start_, kSoon);
}

TEST_F(StallDetectorTest, RankThatLeftWithAnError) {
  Make(2, 300);
  world_->endpoint(1).Leave("ValueError: on purpose");
  ranks_[0].Start(7, {0, 1});
  const Status status = ranks_[0].Wait();
  EXPECT_EQ(status.code(), Code::kPeerLost);
  EXPECT_NE(status.message().find("ended with ValueError: on purpose"),
            std::string::npos)
      << status.message();
}

// A rank that has left is missing only in calls that need it.
TEST_F(StallDetectorTest, OthersGoOnWithoutARankThatLeft) {
  Make(3, 300);
  for (int r : {0, 1, 2}) ranks_[r].Start(7, {0, 1, 2});
  for (int r : {0, 1, 2}) EXPECT_TRUE(ranks_[r].Wait().ok());
  world_->endpoint(1).Leave("");
  for (int r : {0, 2}) ranks_[r].Start(8, {0, 2});
  for (int r : {0, 2}) EXPECT_TRUE(ranks_[r].Wait().ok());
}

}  // namespace
}  // namespace jax_cxl::comm
