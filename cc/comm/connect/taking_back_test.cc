// Sanitizers: address, thread

#include "cc/comm/connect/taking_back.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "cc/comm/connect/directory.h"
#include "cc/testing/world/world.h"

namespace jax_cxl::comm {
namespace {

constexpr int kMembers = 3;
constexpr uint64_t kGroupKey = 77;

bool NobodyEnded(int) { return false; }

// The members of a group, each with memory of its own.
class Members {
 public:
  explicit Members(World* world) : world_(world) {
    for (int rank = 0; rank < kMembers; ++rank) Enter(rank);
    for (int rank = 0; rank < kMembers; ++rank) Connect(rank);
  }

  TakingBack& operator[](int member) { return *members_[member]; }

  // The rank has taken its memory back, and now gives it to a new group.
  void Leave(int rank) {
    CloseChannel(&world_->pool(rank), doorbells(rank), rank, entries_[rank]);
    FreeChannel(world_->pool(rank), world_->endpoint(rank).arena(), rank,
                places_[rank], sizeof(cuda::DeviceControl));
  }
  void Enter(int rank) {
    plan::Geometry geometry;
    geometry.slot_bytes = 4096;
    geometry.num_slots = 2;
    places_[rank] = OrDie(AllocateChannel(
        world_->pool(rank), world_->endpoint(rank).arena(), {{0, 1, 2}, rank},
        kGroupKey, geometry, sizeof(cuda::DeviceControl)));
    entries_[rank] = OrDie(EnterChannel(&world_->pool(rank), doorbells(rank),
                                        {{0, 1, 2}, rank}, places_[rank]));
  }
  void Connect(int self) {
    std::vector<TakingBack::Member> members;
    for (int rank = 0; rank < kMembers; ++rank) {
      std::optional<FoundChannel> found;
      // Without coherence, the first reads may see an old cache line.
      while (!found)
        found = OrDie(FindChannel(world_->pool(self), doorbells(self), rank,
                                  places_[self], sizeof(cuda::DeviceControl),
                                  "a peer"));
      auto* control = reinterpret_cast<cuda::DeviceControl*>(found->control);
      members.push_back({.words = &control->host,
                         .entry = rank == self ? nullptr : found->entry,
                         .version = found->version});
    }
    members_[self] =
        std::make_unique<TakingBack>(doorbells(self), std::move(members), self);
  }

 private:
  pool::Doorbells doorbells(int rank) {
    return {world_->pool(rank).coherence(), world_->pool(rank).epoch()};
  }

  World* world_;
  std::array<pool::ChannelPlace, kMembers> places_;
  std::array<int, kMembers> entries_;
  std::array<std::unique_ptr<TakingBack>, kMembers> members_;
};

// Polls several times: without coherence, the first reads may see an old word.
template <typename Function>
bool Soon(const Function& function) {
  for (int poll = 0; poll < 100; ++poll)
    if (function()) return true;
  return false;
}

TEST(TakingBackTest, OnlyAfterAllHaveFinishedAllCalls) {
  World world(kMembers, {});
  Members members(&world);
  EXPECT_FALSE(members[0].TryTake(0, NobodyEnded));
  for (int rank = 0; rank < kMembers; ++rank) {
    EXPECT_TRUE(members[rank].Announce(1));
    EXPECT_FALSE(members[0].TryTake(1, NobodyEnded));
    if (rank > 0) members[rank].TellFinished(1);
  }
  EXPECT_TRUE(Soon([&] { return members[0].TryTake(1, NobodyEnded); }));
  members.Leave(0);
  for (int rank = 1; rank < kMembers; ++rank) {
    EXPECT_TRUE(Soon([&] { return members[rank].taken(); }));
    EXPECT_FALSE(members[rank].Announce(2));
    // Once one member has taken its memory, the others can take theirs without
    // checking anything.
    EXPECT_TRUE(members[rank].TryTake(1, NobodyEnded));
  }
}

TEST(TakingBackTest, NotOnceAMemberHasAnnouncedACall) {
  World world(kMembers, {});
  Members members(&world);
  for (int rank = 0; rank < kMembers; ++rank) members[rank].TellFinished(5);
  EXPECT_TRUE(members[1].Announce(6));
  EXPECT_FALSE(Soon([&] { return members[0].TryTake(5, NobodyEnded); }));
  EXPECT_FALSE(members[1].taken());
  EXPECT_TRUE(members[1].Announce(7));  // Nobody is taking its memory.
  // A process that has ended no longer uses the memory.
  EXPECT_TRUE(Soon([&] {
    return members[0].TryTake(5, [](int member) { return member == 1; });
  }));
}

// TryTake checks all members twice. Between the two checks of member 1, this
// member announces a call.
TEST(TakingBackTest, ACallIsAnnouncedDuringTheFirstLook) {
  World world(kMembers, {});
  Members members(&world);
  for (int rank = 0; rank < kMembers; ++rank) members[rank].TellFinished(1);
  bool announced = false;
  EXPECT_FALSE(members[0].TryTake(1, [&](int member) {
    if (member == 2 && !std::exchange(announced, true)) {
      EXPECT_TRUE(members[1].Announce(2));
    }
    return false;
  }));
  EXPECT_TRUE(announced);
  EXPECT_TRUE(members[2].Announce(2));  // Nobody is taking its memory.
}

// Member 1 announces a call after the second of TryTake's two checks of member
// 1. Announce then has to wait for the result of TryTake.
TEST(TakingBackTest, ACallIsAnnouncedAfterTheSecondLook) {
  World world(kMembers, {});
  Members members(&world);
  for (int rank = 0; rank < kMembers; ++rank) members[rank].TellFinished(1);
  std::atomic<int> looks = 0;
  std::atomic<bool> returned = false;
  std::thread announcing;
  EXPECT_TRUE(members[0].TryTake(1, [&](int member) {
    if (member == 2 && ++looks == 2) {
      announcing = std::thread([&] {
        EXPECT_FALSE(members[1].Announce(2));
        returned = true;
      });
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return false;
  }));
  EXPECT_EQ(looks, 2);
  EXPECT_FALSE(returned);
  members.Leave(0);
  announcing.join();
}

// Three hosts make calls and take their memory at the same time. A call ends
// when all members have begun it.
TEST(TakingBackTest, HostsNeverDisagree) {
  constexpr int kGroups = 60;
  World world(kMembers, {});
  Members members(&world);
  std::array<std::atomic<uint64_t>, kMembers> begun = {};
  std::atomic<int> takers = 0, made = 0;
  std::barrier together(kMembers);
  auto run = [&](int self) {
    std::mt19937 random(self);
    for (int group = 0; group < kGroups; ++group) {
      for (uint64_t calls = 0;;) {
        if (random() % 4 == 0 && members[self].TryTake(calls, NobodyEnded)) {
          // No member has begun a later call.
          for (const auto& other : begun) EXPECT_LE(other, calls);
          ++takers;
          members.Leave(self);
          break;
        }
        // Pause sometimes, so that at times all members are between two
        // calls.
        if (random() % 4 == 0)
          std::this_thread::sleep_for(
              std::chrono::microseconds(random() % 300));
        if (random() % 2 == 0) continue;
        if (!members[self].Announce(calls + 1)) {
          EXPECT_EQ(begun[self], calls);
          members.Leave(self);
          break;
        }
        begun[self] = ++calls;
        for (const auto& other : begun)
          while (other < calls) std::this_thread::yield();
        ++made;
        members[self].TellFinished(calls);
      }
      together.arrive_and_wait();
      begun[self] = 0;
      members.Enter(self);
      together.arrive_and_wait();
      members.Connect(self);
      together.arrive_and_wait();
    }
  };
  std::deque<std::thread> threads;
  for (int rank = 0; rank < kMembers; ++rank) threads.emplace_back(run, rank);
  for (std::thread& thread : threads) thread.join();
  EXPECT_GE(takers, kGroups);
  EXPECT_GT(made, 3 * kGroups);
}

}  // namespace
}  // namespace jax_cxl::comm
