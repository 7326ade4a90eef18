// Sanitizers: address, thread

// Tests data that hosts exchange through memory that outlives their jobs.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <memory>
#include <thread>

#include "cc/pool/pool.h"
#include "cc/store/memory/persistent_memory.h"
#include "cc/testing/incoherent/incoherent_cache.h"
#include "cc/testing/pool/memory_bytes.h"
#include "cc/testing/pool/pool_specs.h"
#include "cc/testing/pool/scratch.h"

namespace jax_cxl::pool {
namespace {

// Imitates two hosts whose caches are not coherent.
class PersistentMemoryHostsTest : public testing::TestWithParam<uint64_t> {
 protected:
  static constexpr uint64_t kPayload = 3 * 4096 + 64;
  static constexpr uint64_t kWord = kMiB - 64;

  PersistentMemoryHostsTest() {
    PoolSpec spec = FileSpec({dir_ / "a", dir_ / "b"}, kMiB);
    const MakeInterposer make = IncoherentHosts(GetParam(), "");
    spec.make_interposer =
        [this, make](
            const MappedMemory& memory) -> Result<std::unique_ptr<Interposer>> {
      CXL_ASSIGN_OR_RETURN(std::unique_ptr<Interposer> host, make(memory));
      caches_[opened_++] = static_cast<IncoherentCache*>(host.get());
      return host;
    };
    for (auto& host : hosts_) host = Open(spec);
  }

  // Waits until the word of a device has `value`. Gives up after many attempts.
  // Returns the last value.
  static uint64_t Await(const PersistentMemory& host, int device,
                        uint64_t value) {
    for (int i = 0; i < 1'000'000; ++i) {
      if (*host.LoadWord(device, kWord) == value) return value;
      std::this_thread::yield();
    }
    return *host.LoadWord(device, kWord);
  }

  TempDirectory dir_;
  std::array<IncoherentCache*, 2> caches_ = {};
  int opened_ = 0;
  std::array<std::unique_ptr<PersistentMemory>, 2> hosts_;
};

// All rounds use the same bytes, so that the reader's cache holds old data.
TEST_P(PersistentMemoryHostsTest, WhatIsPublishedBeforeAWordIsReadAfterIt) {
  ASSERT_NE(hosts_[0]->base(), hosts_[1]->base());
  for (uint64_t round = 1; round <= 30; ++round) {
    for (int device : {0, 1}) {
      const PersistentMemory& writer = *hosts_[(round + device) % 2];
      const PersistentMemory& reader = *hosts_[(round + device + 1) % 2];
      const Bytes data = Filled(kPayload, static_cast<int>(7 * round + device));
      ASSERT_TRUE(writer.Write(device, 64, data).ok());
      ASSERT_TRUE(writer.StoreWord(device, kWord, round).ok());
      ASSERT_EQ(*reader.LoadWord(device, kWord), round)
          << "a word comes at once";
      ASSERT_EQ(ReadBack(reader, device, 64, kPayload), data)
          << "round " << round << ", device " << device;
    }
  }
}

TEST_P(PersistentMemoryHostsTest, HostsThatRunAtTheSameTime) {
  constexpr uint64_t kRounds = 50;
  std::thread writer([&] {
    for (uint64_t round = 1; round <= kRounds; ++round) {
      // Wait until the other host has read the bytes of the previous round.
      if (Await(*hosts_[0], 1, round - 1) != round - 1) return;
      if (!hosts_[0]
               ->Write(0, 64, Filled(kPayload, static_cast<int>(round)))
               .ok() ||
          !hosts_[0]->StoreWord(0, kWord, round).ok())
        return;
    }
  });
  uint64_t wrong = 0;
  for (uint64_t round = 1; round <= kRounds && wrong == 0; ++round) {
    if (Await(*hosts_[1], 0, round) != round ||
        ReadBack(*hosts_[1], 0, 64, kPayload) !=
            Filled(kPayload, static_cast<int>(round)))
      wrong = round;
    EXPECT_TRUE(hosts_[1]->StoreWord(1, kWord, round).ok());
  }
  writer.join();
  EXPECT_EQ(wrong, 0u) << "the first round that was read wrong";
}

TEST_P(PersistentMemoryHostsTest, WritesOfDevicesArePublished) {
  for (uint64_t round = 1; round <= 30; ++round) {
    const Bytes data = Filled(kPayload, static_cast<int>(round));
    caches_[0]->DeviceWrite(hosts_[0]->At(0, 64, kPayload), data.data(),
                            kPayload);
    ASSERT_TRUE(hosts_[0]->PublishDeviceWrites(0, 64, kPayload).ok());
    ASSERT_TRUE(hosts_[0]->StoreWord(0, kWord, round).ok());
    ASSERT_EQ(*hosts_[1]->LoadWord(0, kWord), round);
    ASSERT_EQ(ReadBack(*hosts_[1], 0, 64, kPayload), data) << "round " << round;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, PersistentMemoryHostsTest,
                         testing::Range<uint64_t>(1, 6));

}  // namespace
}  // namespace jax_cxl::pool
