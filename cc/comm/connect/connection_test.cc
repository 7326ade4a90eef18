#include "cc/comm/connect/connection.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "cc/testing/world/world.h"

namespace jax_cxl::comm {
namespace {

class ConnectionTest : public testing::Test {
 protected:
  explicit ConnectionTest(int ranks = 3) : world_(ranks, {}) {}

  std::unique_ptr<Connection> Make(int rank,
                                   const std::vector<int32_t>& members,
                                   const Options& options = {}) {
    Group group{members, -1};
    for (size_t i = 0; i < members.size(); ++i)
      if (members[i] == rank) group.self = static_cast<int>(i);
    return std::make_unique<Connection>(&world_.pool(rank), &world_.peers(rank),
                                        options, group);
  }
  void Open(Connection& connection, int rank) {
    connection.Take(OrDie(connection.Allocate(world_.endpoint(rank).arena())));
    const Status status = connection.Publish();
    ASSERT_TRUE(status.ok()) << status.message();
  }
  // Polls several times: without coherence, a dropped cache line may have been
  // fetched again before its owner wrote it
  // (cc/testing/incoherent/incoherent_cache.h).
  static Result<bool> Connect(Connection& connection) {
    Result<bool> connected = connection.Connect();
    for (int poll = 0; poll < 100 && connected.ok() && !*connected; ++poll)
      connected = connection.Connect();
    return connected;
  }
  static bool IsConnected(Connection& connection) {
    const Result<bool> connected = Connect(connection);
    EXPECT_TRUE(connected.ok()) << connected.status().message();
    return connected.ok() && *connected;
  }

  World world_;
};

TEST_F(ConnectionTest, WaitsForAllMembers) {
  const std::vector<int32_t> all = {0, 1, 2};
  std::vector<std::unique_ptr<Connection>> members;
  for (int rank : all) members.push_back(Make(rank, all));
  Open(*members[1], 1);
  EXPECT_FALSE(IsConnected(*members[1]));
  EXPECT_EQ(members[1]->Missing().front(), 0);
  Open(*members[0], 0);
  EXPECT_FALSE(IsConnected(*members[1]));
  EXPECT_EQ(members[1]->Missing(), std::vector<int>{2});
  EXPECT_EQ(members[1]->rings(), nullptr);
  Open(*members[2], 2);
  for (auto& member : members) {
    EXPECT_TRUE(IsConnected(*member));
    EXPECT_TRUE(member->Missing().empty());
    EXPECT_EQ(member->blocks().size(), all.size());
    EXPECT_EQ(member->key(), members[0]->key());
  }
}

TEST_F(ConnectionTest, MembersSeeEachOthersRings) {
  // The members are not in the order of their ranks. The functions of the rings
  // take the index of a member in the group, not its rank.
  const std::vector<int32_t> group = {2, 0};
  auto first = Make(2, group), second = Make(0, group);
  Open(*first, 2);
  Open(*second, 0);
  ASSERT_TRUE(IsConnected(*first));
  ASSERT_TRUE(IsConnected(*second));
  EXPECT_EQ(second->rings()->BehindPublishing(/*member=*/0, 1), 0);
  first->rings()->Publish(1);
  int behind = 0;
  for (int poll = 0; poll < 100 && behind >= 0; ++poll)
    behind = second->rings()->BehindPublishing(0, 1);
  EXPECT_EQ(behind, -1);
  EXPECT_EQ(first->rings()->BehindPublishing(1, 1), 1);

  // Both connections map the same slot, so `second` reads what `first` writes.
  std::byte* written = first->rings()->Slot(/*member=*/0, /*round=*/3);
  const std::byte* read = second->rings()->Slot(0, 3);
  *written = std::byte{42};
  first->doorbells().coherence().PublishPayload(written, 1);
  std::byte seen{0};
  for (int poll = 0; poll < 100 && seen != std::byte{42}; ++poll) {
    second->doorbells().coherence().AcquirePayload(read, 1);
    seen = *read;
  }
  EXPECT_EQ(seen, std::byte{42});
}

TEST_F(ConnectionTest, GroupsOfTheSameRanksInAnotherOrderAreOthers) {
  auto one = Make(0, {0, 1}), other = Make(1, {1, 0});
  Open(*one, 0);
  Open(*other, 1);
  EXPECT_NE(one->key(), other->key());
  EXPECT_FALSE(IsConnected(*one));
  EXPECT_FALSE(IsConnected(*other));
}

TEST_F(ConnectionTest, OtherSlotsAreAnErrorThatNamesTheSetting) {
  Options options;
  options.num_slots = 7;
  auto one = Make(0, {0, 1}), other = Make(1, {0, 1}, options);
  Open(*one, 0);
  Open(*other, 1);
  const Result<bool> connected = Connect(*one);
  ASSERT_EQ(connected.status().code(), Code::kMismatch);
  const std::string& message = connected.status().message();
  EXPECT_NE(message.find("rank 1 "), std::string::npos) << message;
  EXPECT_NE(message.find("uses 7 slots"), std::string::npos) << message;
  EXPECT_NE(message.find("JAX_CXL_NUM_SLOTS"), std::string::npos) << message;
}

TEST_F(ConnectionTest, SettingsDecideTheSlots) {
  Options options;
  options.num_slots = 5;
  options.slot_bytes = 8192;
  const auto connection = Make(0, {0, 1}, options);
  EXPECT_EQ(connection->geometry().num_slots, 5);
  EXPECT_EQ(connection->geometry().slot_bytes, 8192u);
  // If the options do not set the geometry, it follows from the pool, so it is
  // the same on all ranks.
  EXPECT_EQ(Make(0, {0, 1})->geometry().slot_bytes,
            Make(1, {0, 1})->geometry().slot_bytes);
}

}  // namespace
}  // namespace jax_cxl::comm
