#include "cc/comm/order/submissions.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace jax_cxl::comm {
namespace {

constexpr uint64_t kPayloadBytes = 256;

// The members of a group with ranks 10, 11, ..., in plain memory.
class SubmittingMembers {
 public:
  explicit SubmittingMembers(int size) {
    const uint64_t bytes = pool::ControlBytes(size, kPayloadBytes);
    Group group;
    for (int member = 0; member < size; ++member) {
      group.members.push_back(10 + member);
      memory_.emplace_back(bytes / sizeof(Line));
      blocks_.push_back({.control = reinterpret_cast<pool::ControlBlock*>(
                             memory_.back().data()),
                         .doorbells = doorbells_});
    }
    for (int member = 0; member < size; ++member) {
      group.self = member;
      members_.push_back(
          std::make_unique<Submissions>(blocks_, group, kPayloadBytes));
    }
  }

  Submissions& operator[](int member) { return *members_[member]; }
  pool::Submission* At(int member, uint64_t index) {
    return pool::SubmissionAt(blocks_[member].control, kPayloadBytes, index);
  }
  void Ring(uint64_t* word, uint64_t value) { doorbells_.Ring(word, value); }
  pool::Doorbell* ReadBy(int member) {
    return pool::SubmissionsRead(blocks_[member].control, kPayloadBytes);
  }

  // From now on, the member's block no longer belongs to this group.
  void MoveAway(int member) {
    entry_ = doorbells_.Word(2);
    blocks_[member].entry = &entry_;
    blocks_[member].version = 1;
    next_ = members_[member]->most() + pool::kCallRing + 1;
    next_written_ = 0;
  }
  // Writes to the block as the member does in its next group.
  void WriteInNextGroup(int member) {
    const pool::Doorbells doorbells = doorbells_.From(next_);
    const uint64_t index = next_written_++;
    Ring(&ReadBy(member)[1 - member].word, next_ + next_written_);
    doorbells.RingLine(&At(member, index)->ready, next_written_);
  }

  // Submits a barrier with a payload of `bytes` equal bytes.
  uint32_t Write(int member, uint64_t identity, uint32_t bytes = 0,
                 const std::string& name = "barrier") {
    Call call;
    call.name = name;
    call.site = "train.py:3";
    std::memset(members_[member]->payload(), static_cast<int>(identity), bytes);
    return members_[member]->Write(identity, call, Describe(call), bytes);
  }

 private:
  struct alignas(pool::kInterferenceBytes) Line {
    std::byte bytes[pool::kInterferenceBytes];
  };

  const pool::Doorbells doorbells_{
      pool::Coherence(pool::CoherenceMode::kCoherent), /*epoch=*/3};
  std::vector<std::vector<Line>> memory_;
  std::vector<MemberBlock> blocks_;
  uint64_t entry_ = 0;
  uint64_t next_ = 0, next_written_ = 0;
  std::vector<std::unique_ptr<Submissions>> members_;
};

bool Peek(Submissions& reader, int member, Submissions::Entry* entry) {
  Result<bool> here = reader.Peek(member, entry);
  EXPECT_TRUE(here.ok()) << here.status().message();
  return here.ok() && *here;
}

TEST(SubmissionsTest, ArriveInOrderWithWhatTheyCarry) {
  SubmittingMembers members(3);
  Submissions::Entry entry;
  EXPECT_FALSE(Peek(members[1], 0, &entry));
  // Some payloads fit into the doorbell's cache line, some do not.
  const std::vector<uint32_t> sizes = {0, 8, 17, kPayloadBytes};
  for (size_t i = 0; i < sizes.size(); ++i) members.Write(0, 100 + i, sizes[i]);
  for (int reader : {1, 2}) {
    for (size_t i = 0; i < sizes.size(); ++i) {
      ASSERT_TRUE(Peek(members[reader], 0, &entry));
      EXPECT_EQ(entry.identity, 100 + i);
      ASSERT_EQ(entry.payload_bytes, sizes[i]);
      for (uint32_t b = 0; b < sizes[i]; ++b)
        ASSERT_EQ(entry.payload[b], static_cast<std::byte>(100 + i));
      members[reader].Pop(0);
    }
    EXPECT_FALSE(Peek(members[reader], 0, &entry));
    EXPECT_FALSE(Peek(members[reader], 3 - reader, &entry));
  }
}

TEST(SubmissionsTest, FullRingWaitsForItsLastReader) {
  SubmittingMembers members(3);
  auto can_write = [&] { return *members[0].CanWrite(); };
  auto read = [&](int reader, uint64_t count) {
    for (Submissions::Entry entry; count > 0; --count) {
      ASSERT_TRUE(Peek(members[reader], 0, &entry));
      members[reader].Pop(0);
    }
  };
  for (uint64_t i = 0; i < pool::kCallRing; ++i) {
    ASSERT_TRUE(can_write());
    members.Write(0, i);
  }
  EXPECT_FALSE(can_write());
  EXPECT_EQ(members[0].RingHolders(), (std::vector<int>{1, 2}));
  read(1, pool::kCallRing);
  EXPECT_FALSE(can_write());
  EXPECT_EQ(members[0].RingHolders(), std::vector<int>{2});
  // A reader publishes how far it has read only once in kCallRing / 4
  // submissions.
  read(2, 1);
  EXPECT_FALSE(can_write());
  read(2, pool::kCallRing / 4 - 1);
  EXPECT_TRUE(can_write());
  EXPECT_TRUE(members[0].RingHolders().empty());
}

TEST(SubmissionsTest, NamesAreToldOnce) {
  SubmittingMembers members(2);
  Submissions::Entry entry;
  EXPECT_EQ(members.Write(0, 1, 0, "psum"), 1);
  EXPECT_EQ(members.Write(0, 2, 0, "pmax"), 2);
  EXPECT_EQ(members.Write(0, 3, 0, "psum"), 1);
  ASSERT_TRUE(Peek(members[1], 0, &entry));
  EXPECT_EQ(members[1].Describe(0, entry.descriptor, entry.name),
            "psum: barrier of 0 uint8 at train.py:3");
  // Once the space for names is full, new names get the number 0.
  for (uint32_t name = 3; name <= pool::kCallNames; ++name)
    EXPECT_EQ(members.Write(1, name, 0, std::to_string(name)), name - 2);
  EXPECT_EQ(members.Write(1, 1000, 0, "one"), pool::kCallNames - 1);
  EXPECT_EQ(members.Write(1, 1001, 0, "two"), pool::kCallNames);
  EXPECT_EQ(members.Write(1, 1002, 0, "three"), 0);
  EXPECT_EQ(members[0].Describe(1, entry.descriptor, 0),
            "a call: barrier of 0 uint8");
}

// Member 0 gives its block to another group. There it writes more submissions
// than a ring holds.
TEST(SubmissionsTest, TheWordsOfAnotherGroupAreNotTakenForOwn) {
  SubmittingMembers members(2);
  Submissions::Entry entry;
  for (uint64_t i = 0; i < pool::kCallRing; ++i) {
    members.Write(0, i);
    members.Write(1, i);
    for (int reader : {0, 1}) {
      ASSERT_TRUE(Peek(members[reader], 1 - reader, &entry));
      members[reader].Pop(1 - reader);
    }
  }
  members.MoveAway(0);
  for (uint64_t i = 0; i < 3 * pool::kCallRing; ++i) {
    members.WriteInNextGroup(0);
    EXPECT_FALSE(Peek(members[1], 0, &entry)) << i;
    EXPECT_FALSE(*members[1].CanWrite());
  }
}

TEST(SubmissionsTest, NonsenseIsAnErrorThatNamesItsWriter) {
  auto expect_corrupt = [](const Result<bool>& result) {
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.status().code(), Code::kDataLoss);
    EXPECT_NE(result.status().message().find("rank 10"), std::string::npos)
        << result.status().message();
  };
  Submissions::Entry entry;
  {
    SubmittingMembers members(2);
    members.Write(0, 1);
    members.Ring(&members.At(0, 0)->ready, 2 + pool::kCallRing);
    expect_corrupt(members[1].Peek(0, &entry));
  }
  {
    SubmittingMembers members(2);
    members.Write(0, 1);
    members.At(0, 0)->payload_bytes = kPayloadBytes + 1;
    expect_corrupt(members[1].Peek(0, &entry));
  }
  {
    SubmittingMembers members(2);
    for (uint64_t i = 0; i < pool::kCallRing; ++i) members.Write(1, i);
    members.Ring(&members.ReadBy(0)[1].word, pool::kCallRing + 1);
    expect_corrupt(members[1].CanWrite());
  }
}

}  // namespace
}  // namespace jax_cxl::comm
