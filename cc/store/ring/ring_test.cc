// Sanitizers: address, thread

// Values in a ring: where they lie, and what happens when they are overwritten.
#include "cc/store/ring/ring.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "cc/store/memory/registry.h"
#include "cc/testing/pool/memory_bytes.h"
#include "cc/testing/pool/pool_specs.h"
#include "cc/testing/pool/scratch.h"

namespace jax_cxl::tier {
namespace {

constexpr uint64_t kMiB = Layout::kBlockBytes;
constexpr uint64_t kOffset = 4096;

using Values = std::vector<std::byte>;

Values Filled(uint64_t bytes, int seed) {
  Values value(bytes);
  for (uint64_t i = 0; i < bytes; ++i)
    value[i] = static_cast<std::byte>(i * 31 + i / 256 + seed * 7);
  return value;
}

class MemoryRingTest : public testing::Test {
 protected:
  void SetUp() override {
    memory_ = pool::Open(pool::FileSpec({dir_ / "a", dir_ / "b", dir_ / "c"},
                                        2 * kMiB + 2 * kOffset));
    ASSERT_NE(memory_, nullptr);
    ring_ = std::make_unique<MemoryRing>(5, 2, *memory_, kOffset, 2);
  }

  // Calls Write or Read of the memory for each piece of a value.
  template <typename Bytes, typename Method>
  void Move(const Handle& handle, Bytes& value, Method method) {
    const auto move = [&](int device, uint64_t offset, uint64_t begin,
                          uint64_t size) {
      return (*memory_.*method)(device, kOffset + offset,
                                {value.data() + begin, size});
    };
    EXPECT_TRUE(ring_->ForEachPiece(handle.position, value.size(), move).ok());
  }
  Handle Put(const Values& value) {
    const Result<Handle> handle = ring_->Take(value.size());
    EXPECT_TRUE(handle.ok()) << handle.status().message();
    Move(*handle, value, &pool::PersistentMemory::Write);
    return *handle;
  }
  void Read(const Handle& handle, Values& value) {
    Move(handle, value, &pool::PersistentMemory::Read);
  }
  Values Get(const Handle& handle, uint64_t bytes) {
    Values value(bytes);
    EXPECT_TRUE(ring_->Check(handle).ok());
    Read(handle, value);
    return value;
  }

  pool::TempDirectory dir_;
  std::unique_ptr<pool::PersistentMemory> memory_;
  std::unique_ptr<MemoryRing> ring_;
};

TEST_F(MemoryRingTest, KeepsValuesOfAllSizesAtAllPlaces) {
  // The values are so large that the ring starts again at its first byte many
  // times.
  for (int n = 0; n < 20; ++n) {
    const Values first = Filled(n * n * 1000 + n, n);
    const Values second = Filled(kMiB + n, n + 1);
    const Handle one = Put(first);
    const Handle two = Put(second);
    EXPECT_EQ(two.position % Ring::kAlignment, 0u);
    EXPECT_EQ(Get(two, second.size()), second) << n;
    EXPECT_EQ(Get(one, first.size()), first) << n;
  }
}

TEST_F(MemoryRingTest, SpreadsAValueOverAllDevices) {
  std::map<int, uint64_t> bytes;
  Put(Values(kMiB / 2));  // The next value begins in the middle of a block.
  const Handle handle = Put(Values(3 * kMiB));
  ASSERT_TRUE(ring_
                  ->ForEachPiece(handle.position, 3 * kMiB,
                                 [&](int device, uint64_t offset,
                                     uint64_t /*begin*/, uint64_t size) {
                                   EXPECT_LE(offset + size, 2 * kMiB);
                                   bytes[device] += size;
                                   return OkStatus();
                                 })
                  .ok());
  EXPECT_EQ(bytes, (std::map<int, uint64_t>{{0, kMiB}, {1, kMiB}, {2, kMiB}}));
}

TEST_F(MemoryRingTest, StaysInItsPart) {
  for (int n = 0; n < 20; ++n) Put(Values(kMiB - 128 * n, std::byte{0xff}));
  for (int device = 0; device < 3; ++device) {
    EXPECT_EQ(pool::ReadBack(*memory_, device, 0, kOffset), Values(kOffset));
    EXPECT_EQ(pool::ReadBack(*memory_, device, kOffset + 2 * kMiB, kOffset),
              Values(kOffset));
  }
}

TEST_F(MemoryRingTest, ReportsAValueThatWasOverwritten) {
  const Handle old = Put(Values(1));
  Put(Values(6 * kMiB - 128));
  EXPECT_TRUE(ring_->Check(old).ok());
  Put(Values(1));
  pool::ExpectRefused(ring_->Check(old), Code::kResourceExhausted,
                      "residuals of at least 6291584 bytes");
  pool::ExpectRefused(ring_->Take(6 * kMiB + 1).status(),
                      Code::kResourceExhausted, "6291457");
}

TEST_F(MemoryRingTest, RefusesHandlesOfOthers) {
  Handle handle = Put(Values(1));
  handle.device = 1;
  pool::ExpectRefused(ring_->Check(handle), Code::kInternal, "of device 1");
  handle = {0, 4, 2};
  pool::ExpectRefused(ring_->Check(handle), Code::kInternal, "ring 4");
}

TEST_F(MemoryRingTest, ThreadsDoNotDisturbEachOther) {
  std::vector<std::thread> threads;
  std::atomic<int> overwritten = 0;
  for (int thread = 0; thread < 4; ++thread)
    threads.emplace_back([&, thread] {
      for (int n = 0; n < 200; ++n) {
        const Values value = Filled(5000 + n, 1000 * thread + n);
        const Handle handle = Put(value);
        Values found(value.size());
        Read(handle, found);
        if (!ring_->Check(handle).ok())
          ++overwritten;
        else
          EXPECT_EQ(found, value);
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(overwritten, 0);  // 4 values at a time fit.
  EXPECT_EQ(ring_->head() % Ring::kAlignment, 0u);
}

TEST(RegistryTest, WaitsForUsers) {
  pool::TempDirectory dir;
  const auto memory = pool::Open(pool::FileSpec({dir / "a"}, 4 * kMiB));
  ASSERT_NE(memory, nullptr);
  const auto ring = std::make_shared<MemoryRing>(1, 0, *memory, 0, 1);
  auto& registry = pool::Registry<MemoryRing>::Get();
  registry.Add({1, 0}, ring);
  EXPECT_EQ(registry.Find({1, 0}), ring);
  EXPECT_EQ(registry.Find({1, 1}), nullptr);
  std::shared_lock use(ring->in_use);
  std::atomic<bool> removed = false;
  std::thread remover([&] {
    registry.Remove({1, 0}, ring);
    removed = true;
  });
  while (registry.Find({1, 0}) != nullptr) std::this_thread::yield();
  EXPECT_FALSE(removed);
  EXPECT_FALSE(ring->closed);
  use.unlock();
  remover.join();
  EXPECT_TRUE(ring->closed);
}

}  // namespace
}  // namespace jax_cxl::tier
