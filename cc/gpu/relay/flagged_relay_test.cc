#include "cc/gpu/relay/flagged_relay.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "cc/engine/gpu_plan/flagged_ring.h"
#include "cc/pool/coherence/cache.h"

namespace jax_cxl::comm {
namespace {

namespace flagged = cuda::flagged;

// Records the ranges that are written back and dropped.
class RecordingCache : public pool::Cache {
 public:
  using Ranges = std::vector<std::pair<const void*, size_t>>;

  void WriteBack(const void* begin, size_t bytes) override {
    written_back.emplace_back(begin, bytes);
  }
  void Invalidate(const void* begin, size_t bytes) override {
    dropped.emplace_back(begin, bytes);
  }

  Ranges written_back;
  Ranges dropped;
};

// In the call of these tests, member 0 of two members puts two ranges of units,
// and reads one range of units from member 1.
class FlaggedRelayTest : public testing::Test {
 protected:
  static constexpr uint64_t kRound = 5, kEpoch = 3;
  static constexpr size_t kWords = 40;  // bytes of a ring's words

  FlaggedRelayTest() : rings_(std::make_unique<cuda::FlaggedControl[]>(2)) {
    plan_.rounds = 1;
    // A unit has 16 bytes, and a group has 32 units. The first range has 20
    // bytes in units 1 and 2. The second range has all units of group 2.
    plan_.publications = {{0, {{0, 16, 20}, {0, 64 * 16, 32 * 16}}}};
    plan_.arrivals = {{}, {{0, {{0, 0, 16}}}}};
    plan_.releases = {{0, {}}};
  }

  FlaggedRelay Begin(bool write_back) {
    const pool::Doorbells doorbells(
        pool::Coherence(pool::CoherenceMode::kFlush, &cache_), kEpoch);
    FlaggedRelay relay(write_back,
                       FlaggedRings(doorbells, {&rings_[0], &rings_[1]}, 0));
    relay.Begin(plan_, kRound);
    return relay;
  }

  std::byte* Slot(int member) {
    return rings_[member].vectors[flagged::SlotOf(kRound)];
  }

  // The device writes a unit.
  void Put(uint64_t unit, uint64_t round = kRound) {
    for (const uint64_t vector :
         {flagged::LowVector(unit), flagged::HighVector(unit)}) {
      auto* words = reinterpret_cast<uint64_t*>(Slot(0) + vector);
      words[0] = words[1] = uint64_t{flagged::FlagOf(round)} << 32 | 7;
    }
  }
  void PutAll() {
    for (uint64_t unit : {1, 2}) Put(unit);
    for (uint64_t unit = 64; unit < 96; ++unit) Put(unit);
  }

  // The peer's word now shows that the peer has begun the call.
  void PeerBegins() {
    rings_[1].calls[flagged::SlotOf(kRound)] = cuda::CallWord(kRound + 1, 99);
  }

  // The device has read everything.
  void Release() {
    rings_[0].released = kEpoch << pool::kValueBits | (kRound + 1);
  }

  RecordingCache cache_;
  RelayPlan plan_;
  std::unique_ptr<cuda::FlaggedControl[]> rings_;
};

TEST_F(FlaggedRelayTest, WritesBackExactlyTheDataOnceAllFlagsAreThere) {
  FlaggedRelay relay = Begin(true);
  PutAll();
  Put(80, kRound - cuda::kFlaggedSlots);  // still the earlier data
  EXPECT_FALSE(relay.Advance());
  const RecordingCache::Ranges words = {{&rings_[0], kWords}};
  EXPECT_EQ(cache_.written_back, words);

  Put(80);
  cache_.written_back.clear();
  EXPECT_FALSE(relay.Advance());
  const RecordingCache::Ranges all = {
      {&rings_[0], kWords},
      {Slot(0) + flagged::LowVector(1), 32},
      {Slot(0) + flagged::HighVector(1), 32},
      {Slot(0) + flagged::LowVector(64), 1024},
  };
  EXPECT_EQ(cache_.written_back, all);

  Release();
  cache_.written_back.clear();
  EXPECT_TRUE(relay.Advance());
  EXPECT_EQ(cache_.written_back, words);
}

TEST_F(FlaggedRelayTest, DropsWhatTheDevicePollsUntilItHasRead) {
  FlaggedRelay relay = Begin(true);
  PutAll();
  EXPECT_FALSE(relay.Advance());
  EXPECT_FALSE(relay.Advance());
  const RecordingCache::Ranges words = {{&rings_[1], kWords},
                                        {&rings_[1], kWords}};
  EXPECT_EQ(cache_.dropped, words);

  PeerBegins();
  EXPECT_FALSE(relay.Advance());  // sees it
  const RecordingCache::Ranges polled = {
      {&rings_[1], kWords},
      {Slot(1) + flagged::LowVector(0), 16},
      {Slot(1) + flagged::HighVector(0), 16},
  };
  for (int turn = 0; turn < 3; ++turn) {
    cache_.dropped.clear();
    EXPECT_FALSE(relay.Advance());
    EXPECT_EQ(cache_.dropped, polled);
  }
  Release();
  cache_.dropped.clear();
  EXPECT_TRUE(relay.Advance());
  EXPECT_TRUE(cache_.dropped.empty());
}

TEST_F(FlaggedRelayTest, DoesNotEndBeforeTheDataAreWrittenBack) {
  FlaggedRelay relay = Begin(true);
  Release();
  EXPECT_FALSE(relay.Advance());
  PutAll();
  EXPECT_TRUE(relay.Advance());
}

TEST_F(FlaggedRelayTest, LaterFlagsCountAsArrived) {
  FlaggedRelay relay = Begin(true);
  PutAll();
  Put(64, kRound + cuda::kFlaggedSlots);
  Release();
  EXPECT_TRUE(relay.Advance());
}

TEST_F(FlaggedRelayTest, WritesOfDevicesThatReachTheMemoryStayAlone) {
  FlaggedRelay relay = Begin(false);
  EXPECT_FALSE(relay.Advance());
  Release();
  EXPECT_TRUE(relay.Advance());
  for (const auto& [begin, bytes] : cache_.written_back) {
    EXPECT_EQ(begin, &rings_[0]);
    EXPECT_EQ(bytes, kWords);
  }
}

}  // namespace
}  // namespace jax_cxl::comm
