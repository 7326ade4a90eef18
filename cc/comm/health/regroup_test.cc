// Sanitizers: address, thread

#include "cc/comm/health/regroup.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "cc/pool/pool.h"
#include "cc/testing/pool/chosen_pool.h"
#include "cc/testing/world/world.h"

namespace jax_cxl::comm {
namespace {

TEST(RegroupTest, RanksJoinAttempts) {
  World world(3, {});
  JoinAttempt(&world.pool(1), 1, 2);
  for (uint64_t attempt : {1, 2}) {
    EXPECT_TRUE(JoinedAttempt(world.pool(0), 1, attempt));
    EXPECT_FALSE(JoinedAttempt(world.pool(0), 2, attempt));
  }
  EXPECT_FALSE(JoinedAttempt(world.pool(0), 1, 3));
}

// Rank 1 decides, and a rank of another host reads the decision.
TEST(RegroupTest, ADecisionIsReadAsItWasMade) {
  constexpr int kRanks = 70;
  pool::PoolSpec spec;
  spec.paths = {"regroup-test.decision." + std::to_string(getpid())};
  spec.bytes = 128 << 20;
  pool::ApplyChoice(&spec);
  const auto decider = OrDie(pool::Pool::Create(spec, kRanks));
  const auto reader = OrDie(pool::Pool::Attach(spec, kRanks, decider->token()));
  decider->Unlink();
  Register(decider.get(), 1, 0, 1);
  EXPECT_FALSE(DecidedAttempt(*reader, 1, 1));
  for (uint64_t attempt : {1, 2}) {
    const Decision decision = {{1, 3, 64, 69}, std::to_string(attempt)};
    EXPECT_TRUE(DecideAttempt(decider.get(), 1, attempt, decision).ok());
    // Looks several times: without coherence, a dropped cache line may have
    // been fetched again before the decision arrived
    // (cc/testing/incoherent/incoherent_cache.h).
    auto read = DecidedAttempt(*reader, 1, attempt);
    for (int look = 0; look < 3 && !read; ++look)
      read = DecidedAttempt(*reader, 1, attempt);
    ASSERT_TRUE(read);
    EXPECT_EQ(read->members, decision.members);
    EXPECT_EQ(read->place, decision.place);
    EXPECT_FALSE(DecidedAttempt(*reader, 0, attempt));
    EXPECT_FALSE(DecidedAttempt(*reader, 1, attempt + 1));
  }
  EXPECT_FALSE(DecidedAttempt(*reader, 1, 1));
}

TEST(RegroupTest, APlaceThatDoesNotFitIsAnError) {
  World world(2, {});
  const Decision decision = {{0, 1}, std::string(2000, 'x')};
  EXPECT_EQ(DecideAttempt(&world.pool(0), 0, 1, decision).code(),
            Code::kResourceExhausted);
  EXPECT_FALSE(DecidedAttempt(world.pool(1), 0, 1));
}

TEST(RegroupTest, GarbageIsReadWithoutHarm) {
  World world(2, {}, 64 << 20, 1, pool::CoherenceMode::kCoherent, {});
  pool::RankRegroup& entry = world.pool().rank_page(0)->regroup;
  std::memset(&entry, 0xff, sizeof(entry));
  pool::Doorbells(world.pool().coherence(), world.pool().epoch())
      .Ring(&entry.decided, 1);
  auto read = DecidedAttempt(world.pool(), 0, 1);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->members, (std::vector<int>{0, 1}));
  EXPECT_EQ(read->place, std::string(sizeof(entry.place), '?'));
}

TEST(RegroupTest, AbsentRanksCountAsLost) {
  pool::PoolSpec spec;
  spec.paths = {"regroup-test." + std::to_string(getpid())};
  spec.bytes = 64 << 20;
  auto pool = OrDie(pool::Pool::Create(spec, 3));
  for (int rank : {0, 2}) Register(pool.get(), rank, 0, rank);
  EXPECT_TRUE(Registered(*pool, 2));
  EXPECT_FALSE(Registered(*pool, 1));
  EXPECT_EQ(Peers::Start(pool.get(), {0, 2}, 5).status().code(),
            Code::kDataLoss);
  auto peers = OrDie(Peers::Start(pool.get(), {0, 2}, 5, {1}));
  EXPECT_TRUE(peers->Alive(2).ok());
  EXPECT_EQ(peers->Alive(1).code(), Code::kPeerLost);
}

}  // namespace
}  // namespace jax_cxl::comm
