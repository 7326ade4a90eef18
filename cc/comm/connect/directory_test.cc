#include "cc/comm/connect/directory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cc/testing/world/world.h"

namespace jax_cxl::comm {
namespace {

constexpr int kRanks = 3;
constexpr int kDevices = 4;
constexpr uint64_t kControlBytes = 5000;
constexpr uint64_t kKey = 77;

class DirectoryTest : public testing::Test {
 protected:
  DirectoryTest() {
    pool::PoolSpec spec;
    spec.paths = {"directory-test." + std::to_string(getpid())};
    spec.bytes = 64 << 20;
    spec.devices_per_path = kDevices;
    pool_ = OrDie(pool::Pool::Create(spec, kRanks));
    arena_ = std::make_unique<Arena>(*pool_, /*rank=*/1);
    geometry_.slot_bytes = 64 << 10;
    geometry_.num_slots = 6;
  }

  pool::Doorbells doorbells() const {
    return pool::Doorbells(pool_->coherence(), pool_->epoch());
  }
  // Allocates rank 1's part of a channel of all ranks.
  Result<pool::ChannelPlace> Allocate() {
    return AllocateChannel(*pool_, arena_.get(), {{0, 1, 2}, 1}, kKey,
                           geometry_, kControlBytes);
  }
  // Returns the pool device of an offset in rank 1's arenas.
  int DeviceOf(uint64_t offset) const {
    for (int device = 0; device < kDevices; ++device) {
      const auto range = pool_->arena(device, 1);
      if (offset >= range.offset && offset < range.offset + range.bytes)
        return device;
    }
    return -1;
  }
  Result<int> Enter(const pool::ChannelPlace& place) {
    return EnterChannel(pool_.get(), doorbells(), {{0, 1, 2}, 1}, place);
  }
  // Looks for rank 1's part of the channel of `mine`.
  Result<std::optional<FoundChannel>> Find(const pool::ChannelPlace& mine) {
    return FindChannel(*pool_, doorbells(), 1, mine, kControlBytes, "rank 1");
  }
  // Returns the code with which a part is found whose place is `place`.
  Code Locate(const pool::ChannelPlace& place, const pool::ChannelPlace& mine) {
    const int entry = OrDie(Enter(place));
    const Code code = Find(mine).status().code();
    CloseChannel(pool_.get(), doorbells(), 1, entry);
    return code;
  }

  std::unique_ptr<pool::Pool> pool_;
  std::unique_ptr<Arena> arena_;
  plan::Geometry geometry_;
};

// Groups of different ranks may call at the same time. So the first device of
// each group is shifted by the rank of its first member.
TEST_F(DirectoryTest, GroupsBeginOnTheDeviceOfTheirFirstMember) {
  auto first_device = [&](std::vector<int> members, int self) {
    return DeviceOf(
        OrDie(AllocateChannel(*pool_, arena_.get(), {std::move(members), self},
                              kKey, geometry_, kControlBytes))
            .slots[0]);
  };
  EXPECT_EQ(first_device({0, 1}, 1), kDevices / 2);
  EXPECT_EQ(first_device({1, 2}, 0), 1);
  EXPECT_EQ(first_device({2, 1}, 1), 2 + kDevices / 2 - kDevices);
}

TEST_F(DirectoryTest, TheSlotsOfARingLieOnOneDeviceAfterTheOther) {
  const pool::ChannelPlace place = OrDie(Allocate());
  EXPECT_EQ(place.group, kKey);
  EXPECT_EQ(place.num_slots, geometry_.num_slots);
  EXPECT_EQ(place.slot_bytes, geometry_.slot_bytes);
  const int first = DeviceOf(place.slots[0]);
  ASSERT_GE(first, 0);
  EXPECT_EQ(DeviceOf(place.control), first);
  for (int slot = 0; slot < geometry_.num_slots; ++slot) {
    EXPECT_EQ(DeviceOf(place.slots[slot]), (first + slot) % kDevices);
    for (int other = 0; other < slot; ++other) {
      const uint64_t a = place.slots[slot], b = place.slots[other];
      EXPECT_GE(a > b ? a - b : b - a, geometry_.slot_bytes);
    }
  }
}

TEST_F(DirectoryTest, MembersBeginOnDifferentDevices) {
  std::vector<bool> taken(kDevices);
  for (int member = 0; member < kRanks; ++member) {
    const pool::ChannelPlace place =
        OrDie(AllocateChannel(*pool_, arena_.get(), {{0, 1, 2}, member}, kKey,
                              geometry_, kControlBytes));
    const int device = DeviceOf(place.slots[0]);
    ASSERT_GE(device, 0);
    EXPECT_FALSE(taken[device]) << "member " << member;
    taken[device] = true;
  }
}

TEST_F(DirectoryTest, TheControlBlockIsClearedAndNothingElse) {
  for (int device = 0; device < kDevices; ++device) {
    const auto range = pool_->arena(device, 1);
    std::memset(pool_->At(range.offset, range.bytes), 0xee, range.bytes);
  }
  const pool::ChannelPlace place = OrDie(Allocate());
  const std::byte* control = pool_->At(place.control, kControlBytes);
  for (uint64_t i = 0; i < kControlBytes; ++i)
    ASSERT_EQ(control[i], std::byte{0}) << i;
  EXPECT_EQ(*pool_->At(place.slots[0], 1), std::byte{0xee});
}

TEST_F(DirectoryTest, AnArenaThatIsFullIsAnError) {
  Result<pool::ChannelPlace> place = Allocate();
  for (int i = 0; i < 100 && place.ok(); ++i) place = Allocate();
  EXPECT_EQ(place.status().code(), Code::kResourceExhausted);
}

TEST_F(DirectoryTest, EntriesAreFoundByTheirKey) {
  pool::ChannelPlace place = OrDie(Allocate());
  EXPECT_FALSE(OrDie(Find(place)));
  EXPECT_EQ(OrDie(Enter(place)), 0);
  pool::ChannelPlace other = place;
  other.group = kKey + 1;
  std::swap(other.slots[0], other.slots[1]);
  EXPECT_EQ(OrDie(Enter(other)), 1);
  const auto first = OrDie(Find(place));
  ASSERT_TRUE(first);
  EXPECT_EQ(first->slots[0], pool_->At(place.slots[0], 1));
  const auto second = OrDie(Find(other));
  ASSERT_TRUE(second);
  EXPECT_EQ(second->slots[0], pool_->At(place.slots[1], 1));
  other.group = kKey + 2;
  EXPECT_FALSE(OrDie(Find(other)));
  // Every rank has its own directory.
  EXPECT_FALSE(OrDie(
      FindChannel(*pool_, doorbells(), 2, place, kControlBytes, "rank 2")));
  // Entries of another job in the same memory do not count.
  EXPECT_FALSE(OrDie(FindChannel(
      *pool_, pool::Doorbells(pool_->coherence(), pool_->epoch() + 1), 1, place,
      kControlBytes, "rank 1")));
}

TEST_F(DirectoryTest, TheRecorderHasTheMembersOfTheGroup) {
  const pool::ChannelPlace place = OrDie(Allocate());
  const int entry = OrDie(
      EnterChannel(pool_.get(), doorbells(), {{0, 64, 1, 1023}, 2}, place));
  const pool::GroupMembers& group = pool_->recorder(1)->groups[entry];
  EXPECT_EQ(group.bits[0], 3u);
  EXPECT_EQ(group.bits[1], 1u);
  EXPECT_EQ(group.bits[15], uint64_t{1} << 63);
}

TEST_F(DirectoryTest, ADirectoryThatIsFullIsAnError) {
  pool::ChannelPlace place = OrDie(Allocate());
  for (int i = 0; i < pool::kMaxChannels; ++i) {
    place.group = i;
    EXPECT_EQ(OrDie(Enter(place)), i);
  }
  const auto none = Enter(place);
  EXPECT_EQ(none.status().code(), Code::kResourceExhausted);
  EXPECT_NE(none.status().message().find(std::to_string(pool::kMaxChannels)),
            std::string::npos)
      << none.status().message();
  EXPECT_TRUE(OrDie(Find(place)));
}

TEST_F(DirectoryTest, AClosedEntryIsNotFoundAndServesAnotherChannel) {
  pool::ChannelPlace place = OrDie(Allocate());
  const pool::ChannelPlace old = place;
  const int entry = OrDie(Enter(place));
  const auto first = OrDie(Find(place));
  ASSERT_TRUE(first);
  EXPECT_EQ(doorbells().Read(first->entry), first->version);
  CloseChannel(pool_.get(), doorbells(), 1, entry);
  EXPECT_NE(doorbells().Read(first->entry), first->version);
  EXPECT_FALSE(OrDie(Find(old)));
  place.group = kKey + 1;
  EXPECT_EQ(OrDie(Enter(place)), entry);
  EXPECT_FALSE(OrDie(Find(old)));
  const auto second = OrDie(Find(place));
  ASSERT_TRUE(second);
  EXPECT_GT(second->version, first->version);
}

// An allocation that fails takes nothing, however often it is repeated. So once
// everything is freed, just as many allocations succeed again.
TEST_F(DirectoryTest, WhatIsFreedIsAllocatedAgain) {
  std::vector<pool::ChannelPlace> places;
  for (;;) {
    const Result<pool::ChannelPlace> place = Allocate();
    if (!place.ok()) break;
    places.push_back(*place);
  }
  ASSERT_GT(places.size(), 2u);
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(Allocate().ok());
  for (const pool::ChannelPlace& place : places)
    FreeChannel(*pool_, arena_.get(), 1, place, kControlBytes);
  for (size_t i = 0; i < places.size(); ++i) EXPECT_TRUE(Allocate().ok()) << i;
  EXPECT_FALSE(Allocate().ok());
}

TEST_F(DirectoryTest, APlaceIsCheckedBeforeItIsUsed) {
  const pool::ChannelPlace mine = OrDie(Allocate());
  const int entry = OrDie(Enter(mine));
  const auto found = OrDie(Find(mine));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->control, pool_->At(mine.control, kControlBytes));
  for (int slot = 0; slot < mine.num_slots; ++slot)
    EXPECT_EQ(found->slots[slot], pool_->At(mine.slots[slot], mine.slot_bytes));
  CloseChannel(pool_.get(), doorbells(), 1, entry);

  pool::ChannelPlace other = mine;
  ++other.num_slots;
  EXPECT_EQ(Locate(other, mine), Code::kMismatch);
  other = mine;
  other.slot_bytes *= 2;
  EXPECT_EQ(Locate(other, mine), Code::kMismatch);
  other = mine;
  ++other.payload_bytes;
  EXPECT_EQ(Locate(other, mine), Code::kMismatch);

  // Words count up from `first`, in 48 bits. FindChannel accepts values below
  // half of that range, which leaves room to count.
  other = mine;
  other.first = uint64_t{1} << 47;
  EXPECT_EQ(Locate(other, mine), Code::kDataLoss);

  // Invalid offsets: beyond the pool, across its end, in its header, and not
  // aligned.
  const uint64_t end = pool_->total_bytes();
  for (uint64_t offset :
       {end + pool::kInterferenceBytes, end - pool::kInterferenceBytes,
        uint64_t{0}, mine.control + 8, ~uint64_t{0} - 127}) {
    other = mine;
    other.control = offset;
    EXPECT_EQ(Locate(other, mine), Code::kDataLoss) << offset;
    other = mine;
    other.slots[mine.num_slots - 1] = offset;
    EXPECT_EQ(Locate(other, mine), Code::kDataLoss) << offset;
  }
}

}  // namespace
}  // namespace jax_cxl::comm
