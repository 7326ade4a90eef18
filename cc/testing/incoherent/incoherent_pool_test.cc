// Sanitizers: address, thread

// Tests the incoherent pool itself: it must be as incoherent as
// incoherent_cache.h promises, and not more.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cc/testing/incoherent/handover.h"
#include "cc/testing/incoherent/incoherent_cache.h"
#include "cc/testing/incoherent/region.h"
#include "cc/testing/pool/pool_specs.h"

namespace jax_cxl::pool {
namespace {

// Two hosts with one pool of two ranks.
class Hosts {
 public:
  explicit Hosts(uint64_t seed, const std::string& leave_out = "") {
    PoolSpec spec = ShmSpec(UniqueName("incoherent"));
    spec.make_interposer = IncoherentHosts(seed, leave_out);
    auto created = Pool::Create(spec, 2);
    EXPECT_TRUE(created.ok()) << created.status().message();
    auto attached = Pool::Attach(spec, 2, (*created)->token());
    EXPECT_TRUE(attached.ok()) << attached.status().message();
    a = *std::move(created);
    b = *std::move(attached);
  }

  std::unique_ptr<Pool> a, b;
};

uint64_t* WordAt(Pool& pool, uint64_t offset) {
  return reinterpret_cast<uint64_t*>(pool.base() + offset);
}

// Sanitizers make a hand-over up to 20 times slower. They look for races and
// wrong accesses, for which a few seeds are enough.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr uint64_t kSeeds = 3;
constexpr uint64_t kLeftOutSeeds = 1;
#else
constexpr uint64_t kSeeds = 20;
constexpr uint64_t kLeftOutSeeds = 3;
#endif

TEST(IncoherentPoolTest, HandsOverWithEverySeed) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    Hosts hosts(seed);
    EXPECT_EQ(HandOver(hosts.a.get(), hosts.b.get()).Run(50), "")
        << "seed " << seed;
  }
}

TEST(IncoherentPoolTest, FlushModeOnOneHost) {
  Hosts hosts(1);
  EXPECT_EQ(hosts.a->coherence().mode(), CoherenceMode::kFlush);
  EXPECT_NE(hosts.a->base(), hosts.b->base());
  EXPECT_EQ(hosts.a->epoch(), hosts.b->epoch());
}

// The parameter is an operation that the cache leaves out. HandOver must notice
// that a promise of Coherence is broken.
class LeftOutTest : public testing::TestWithParam<const char*> {};

TEST_P(LeftOutTest, HandOverNotices) {
  for (uint64_t seed = 1; seed <= kLeftOutSeeds; ++seed) {
    Hosts hosts(seed, GetParam());
    EXPECT_NE(HandOver(hosts.a.get(), hosts.b.get()).Run(500), "")
        << "seed " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Moves, LeftOutTest,
    testing::Values("slot.write_back", "slot.store_fence", "slot.invalidate",
                    "slot.fence_before", "slot.fence_after",
                    "published.write_back", "published.store_fence",
                    "published.invalidate", "published.fence_after",
                    "published.wait", "directory.write_back",
                    "directory.invalidate", "abort.write_back",
                    "abort.invalidate", "heartbeat.write_back",
                    "heartbeat.invalidate"),
    [](const auto& info) {
      std::string name = info.param;
      name[name.find('.')] = '_';
      return name;
    });

TEST(OmissionTest, NamesRoundTrip) {
  for (int region = 0; region < kNumRegions; ++region) {
    const Omission omission{Omission::Operation::kFenceBefore,
                            static_cast<Region>(region)};
    const auto parsed = ParseOmission(OmissionName(omission));
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ(*parsed, omission);
  }
  EXPECT_FALSE(ParseOmission("")->has_value());
}

TEST(OmissionTest, UnknownNameIsAnError) {
  PoolSpec spec = ShmSpec(UniqueName("incoherent"));
  spec.make_interposer = IncoherentHosts(/*seed=*/0, "slot.flush");
  EXPECT_EQ(CreateCode(spec, "slot.write_back"), Code::kInvalidArgument);
}

TEST(RegionTest, EveryNameIsItsOwn) {
  std::set<std::string_view> names;
  for (int region = 0; region < kNumRegions; ++region)
    names.insert(RegionName(static_cast<Region>(region)));
  EXPECT_EQ(names.size(), static_cast<size_t>(kNumRegions));
}

class ShadowTest : public testing::Test {
 protected:
  static constexpr uint64_t kBytes = 4 * kMiB;
  const uint64_t kMine = ArenaOf({{0, kBytes}}, 0, /*rank=*/0, 2).offset;

  std::unique_ptr<Shadow> NewShadow(int rank) {
    auto shadow = Shadow::Create(memory_.data(), kBytes, {{0, kBytes}}, 2);
    EXPECT_TRUE(shadow.ok());
    (*shadow)->Seal();
    // The host that writes a rank's RankInfo owns the rank's memory.
    auto& info = reinterpret_cast<RankPage*>((*shadow)->base() + kPageBytes +
                                             rank * kRankPageBytes)
                     ->info;
    info.process.pid = 1 + rank;
    (*shadow)->WriteBack(
        reinterpret_cast<std::byte*>(&info) - (*shadow)->base(), sizeof(info));
    return *std::move(shadow);
  }
  static uint64_t& Word(Shadow& shadow, uint64_t offset) {
    return *reinterpret_cast<uint64_t*>(shadow.base() + offset);
  }
  uint64_t Shared(uint64_t offset) const {
    uint64_t word;
    std::memcpy(&word, memory_.data() + offset, sizeof(word));
    return word;
  }

  std::vector<std::byte> memory_ = std::vector<std::byte>(kBytes);
};

TEST_F(ShadowTest, StoresStayUntilWrittenBack) {
  auto shadow = NewShadow(0);
  Word(*shadow, kMine) = 1;
  Word(*shadow, kMine + 64) = 2;
  EXPECT_EQ(Shared(kMine), 0u);
  shadow->WriteBack(kMine + 8,
                    1);  // the whole line of the word, and no other line
  EXPECT_EQ(Shared(kMine), 1u);
  EXPECT_EQ(Shared(kMine + 64), 0u);
}

TEST_F(ShadowTest, LinesStayAsLoadedUntilDropped) {
  auto writer = NewShadow(0), reader = NewShadow(1);
  Word(*writer, kMine) = 1;
  writer->WriteBack(kMine, 8);
  EXPECT_EQ(Word(*reader, kMine), 0u);
  reader->Drop(kMine, 8);
  EXPECT_EQ(Word(*reader, kMine), 1u);
}

TEST_F(ShadowTest, RefreshLeavesDirtyLines) {
  auto shadow = NewShadow(0);
  Word(*shadow, kMine) = 1;
  shadow->Refresh(kMine, 8);
  EXPECT_EQ(Word(*shadow, kMine), 1u);
  EXPECT_EQ(Shared(kMine), 0u);
}

TEST_F(ShadowTest, StartsWithWhatWasThere) {
  memory_[kMine] = std::byte{7};
  memory_[kBytes - 1] = std::byte{8};
  auto shadow = NewShadow(0);
  EXPECT_EQ(std::memcmp(shadow->base(), memory_.data(), kBytes), 0);
}

using ShadowDeathTest = ShadowTest;

TEST_F(ShadowDeathTest, TwoWritersOfOneLine) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  auto b = NewShadow(0);
  memory_[kMine + 8] = std::byte{2};  // a store of another host
  Word(*b, kMine) = 1;
  EXPECT_DEATH(b->WriteBack(kMine, 8), "written by two hosts");
}

TEST_F(ShadowDeathTest, StoreToAnotherRanksMemory) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  auto shadow = NewShadow(1);
  Word(*shadow, kMine) = 1;
  EXPECT_DEATH(shadow->WriteBack(kMine, 8), "rank 0's, .* does not belong to");
}

TEST_F(ShadowDeathTest, DirtySlotDropped) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  auto shadow = NewShadow(0);
  auto* page = reinterpret_cast<RankPage*>(shadow->base() + kPageBytes);
  page->channels[0].place.slots[0] = kMine;
  page->channels[0].place.slot_bytes = 4096;
  page->channels[0].place.num_slots = 1;
  page->channels[0].version = 1;
  Word(*shadow, kMine) = 1;
  EXPECT_DEATH(shadow->Drop(kMine, 8), "slot.*before it was written back");
}

TEST(IncoherentPoolTest, UnpublishedStoresAreNotSeenAtOnce) {
  Hosts hosts(3);
  const uint64_t at = hosts.a->arena(0, 0).offset;
  hosts.a->rank_page(0)->info.process.pid = 1;
  hosts.a->coherence().PublishPayload(&hosts.a->rank_page(0)->info,
                                      sizeof(RankInfo));
  int unseen = 0;
  for (uint64_t i = 0; i < 100; ++i) {
    *WordAt(*hosts.a, at + 64 * i) = 1;
    hosts.b->coherence().AcquirePayload(hosts.b->base() + at + 64 * i, 8);
    unseen += *WordAt(*hosts.b, at + 64 * i) == 0;
  }
  EXPECT_GT(unseen, 50);
  // But sooner or later the adversary writes back and refreshes every line.
  for (uint64_t i = 0; i < 100; ++i) {
    const uint64_t* word = WordAt(*hosts.b, at + 64 * i);
    while (hosts.b->coherence().LoadFlag(word) == 0)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace
}  // namespace jax_cxl::pool
