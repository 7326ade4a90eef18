// Sanitizers: address, thread

#include "cc/store/memory/sessions.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cc/store/memory/persistent_memory.h"
#include "cc/testing/incoherent/incoherent_cache.h"
#include "cc/testing/pool/memory_bytes.h"
#include "cc/testing/pool/pool_specs.h"
#include "cc/testing/pool/scratch.h"

namespace jax_cxl::pool {
namespace {

constexpr uint64_t kTable = 3 * 4096;
constexpr uint64_t kWord = kTable + Sessions::kBytes;

using namespace std::chrono_literals;

// Objects of this process imitate processes of several hosts. The test
// parameter is a seed for emulated caches that are not coherent, or nothing for
// coherent memory.
class SessionsTest : public testing::TestWithParam<std::optional<uint64_t>> {
 protected:
  std::unique_ptr<PersistentMemory> Memory() {
    PoolSpec spec = FileSpec({dir_ / "a"}, kMiB);
    if (GetParam()) spec.make_interposer = IncoherentHosts(*GetParam(), "");
    return Open(spec);
  }

  TempDirectory dir_;
};

TEST_P(SessionsTest, OthersSeeALeaseWhileItIsHeld) {
  const auto memory = Memory(), other = Memory();
  Sessions reader(*memory, {0}, kTable), writer(*other, {0}, kTable);
  EXPECT_TRUE(writer.HoldersOf(7)->empty());
  const auto lease = reader.AddLease(7);
  ASSERT_TRUE(lease.ok());
  EXPECT_TRUE(reader.Holds(*lease));
  ASSERT_EQ(writer.HoldersOf(7)->size(), 1u);
  EXPECT_NE(writer.HoldersOf(7)->front().find(std::to_string(getpid())),
            std::string::npos);
  EXPECT_TRUE(writer.HoldersOf(8)->empty());
  reader.RemoveLease(*lease);
  EXPECT_TRUE(writer.HoldersOf(7)->empty());
}

TEST_P(SessionsTest, ALeaseThatIsRemovedTwiceTakesNoOtherAway) {
  const auto memory = Memory(), other = Memory();
  Sessions reader(*memory, {0}, kTable), writer(*other, {0}, kTable);
  const auto first = reader.AddLease(7);
  ASSERT_TRUE(first.ok());
  reader.RemoveLease(*first);
  const auto second = reader.AddLease(8);
  ASSERT_TRUE(second.ok());
  ASSERT_EQ(first->index, second->index);
  reader.RemoveLease(*first);
  EXPECT_FALSE(reader.Holds(*first));
  EXPECT_TRUE(reader.Holds(*second));
  EXPECT_EQ(writer.HoldersOf(8)->size(), 1u);
}

TEST_P(SessionsTest, AChildEndsNoSessionOfItsParent) {
  const auto memory = Memory(), other = Memory();
  auto session = std::make_unique<Sessions>(*memory, std::vector{0}, kTable);
  Sessions writer(*other, {0}, kTable);
  const auto lease = session->AddLease(7);
  ASSERT_TRUE(lease.ok());
  std::this_thread::sleep_for(10ms);  // The thread waits for its next beat.
  const pid_t child = fork();
  if (child == 0) {
    session->RemoveLease(*lease);
    if (session->Holds(*lease)) _exit(1);
    session.reset();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(writer.HoldersOf(7)->size(), 1u);
}

TEST_P(SessionsTest, ASessionEndsWithItsObject) {
  const auto memory = Memory(), other = Memory();
  Sessions watching(*other, {0}, kTable);
  auto session =
      std::make_unique<Sessions>(*memory, std::vector<int>{0}, kTable);
  ASSERT_TRUE(session->AddLease(7).ok());
  const auto own = session->Enter();
  EXPECT_TRUE(watching.Living(own->slot, own->identity)->has_value());
  EXPECT_FALSE(watching.Living(own->slot, own->identity + 1)->has_value());
  session.reset();
  EXPECT_FALSE(watching.Living(own->slot, own->identity)->has_value());
  EXPECT_TRUE(watching.HoldersOf(7)->empty());
}

TEST_P(SessionsTest, ThereAreAsManyLeasesAsTheSlotHas) {
  const auto memory = Memory();
  Sessions session(*memory, {0}, kTable);
  std::vector<Sessions::Lease> leases;
  for (int i = 0; i < kMaxLeases; ++i)
    leases.push_back(*session.AddLease(i + 1));
  ExpectRefused(session.AddLease(99).status(), Code::kResourceExhausted,
                "close views");
  session.RemoveLease(leases[5]);
  EXPECT_TRUE(session.AddLease(99).ok());
  EXPECT_EQ(session.HoldersOf(99)->size(), 1u);
}

TEST_P(SessionsTest, TheLockLetsOneInAtATime) {
  constexpr int kProcesses = 4, kTimes = 10;
  // Open the memory for all processes before any of them writes, because it has
  // no signature: memory that is no longer all zeros would be refused. The
  // processes enter one after another. Two that enter at once may choose the
  // same slot. They would notice that, but the emulated caches treat it as an
  // error.
  std::vector<std::unique_ptr<PersistentMemory>> opened;
  for (int i = 0; i < kProcesses; ++i) opened.push_back(Memory());
  std::vector<std::unique_ptr<Sessions>> entered;
  for (const auto& memory : opened) {
    entered.push_back(
        std::make_unique<Sessions>(*memory, std::vector<int>{0}, kTable));
    ASSERT_TRUE(entered.back()->Enter().ok());
  }
  std::vector<std::thread> threads;
  for (int i = 0; i < kProcesses; ++i) {
    threads.emplace_back([&session = *entered[i], &memory = opened[i]] {
      for (int k = 0; k < kTimes; ++k) {
        ASSERT_TRUE(session.Lock(60).ok());
        const uint64_t value = *memory->LoadWord(0, kWord);
        std::this_thread::yield();
        EXPECT_TRUE(memory->StoreWord(0, kWord, value + 1).ok());
        EXPECT_TRUE(session.CheckLocked().ok());
        session.Unlock();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(*Memory()->LoadWord(0, kWord), uint64_t{kProcesses * kTimes});
}

INSTANTIATE_TEST_SUITE_P(Caches, SessionsTest,
                         testing::Values(std::nullopt, 1, 2));

class EndedTest : public testing::Test {
 protected:
  TempDirectory dir_;
  std::unique_ptr<PersistentMemory> memory_ =
      Open(FileSpec({dir_ / "a"}, kMiB));
};

// Returns a slot that a process on another host has taken, but that has no
// heartbeat.
SessionSlot SilentSlot() {
  SessionSlot slot = {};
  slot.identity = 5;
  slot.process = ThisProcess();
  slot.process.boot_id[0] ^= 1;
  slot.leases[3] = 7;
  return slot;
}

TEST_F(EndedTest, AHeartThatStopsEndsASession) {
  const SessionSlot slot = SilentSlot();
  ASSERT_TRUE(memory_
                  ->Write(0, kTable + 9 * sizeof(slot),
                          std::as_bytes(std::span(&slot, 1)))
                  .ok());
  Sessions session(*memory_, {0}, kTable, 300ms);
  EXPECT_EQ(session.HoldersOf(7)->size(), 1u) << "it may live";
  std::this_thread::sleep_for(150ms);
  ASSERT_TRUE(memory_
                  ->StoreWord(0,
                              kTable + 9 * sizeof(slot) +
                                  offsetof(SessionSlot, heartbeat),
                              1)
                  .ok());
  EXPECT_EQ(session.HoldersOf(7)->size(), 1u);
  std::this_thread::sleep_for(200ms);
  EXPECT_EQ(session.HoldersOf(7)->size(), 1u) << "it has beaten in between";
  std::this_thread::sleep_for(200ms);
  EXPECT_TRUE(session.HoldersOf(7)->empty());
  EXPECT_FALSE(session.Living(9, 5)->has_value());
}

TEST_F(EndedTest, ADeadOwnerOfTheLockIsPassed) {
  SessionSlot slot = SilentSlot();
  slot.ticket = 1;
  ASSERT_TRUE(memory_
                  ->Write(0, kTable + 9 * sizeof(slot),
                          std::as_bytes(std::span(&slot, 1)))
                  .ok());
  Sessions hasty(*memory_, {0}, kTable, 10s);
  ExpectRefused(hasty.Lock(0.05), Code::kDeadlineExceeded, "has not released");
  Sessions session(*memory_, {0}, kTable, 100ms);
  EXPECT_TRUE(session.Lock(60).ok());
  session.Unlock();
}

TEST_F(EndedTest, AProcessOfThisHostEndsAtOnce) {
  const pid_t child = fork();
  if (child == 0) {
    Sessions session(*memory_, {0}, kTable);
    (void)session.AddLease(7);
    _exit(0);  // without the destructor
  }
  int status = 0;
  waitpid(child, &status, 0);
  Sessions session(*memory_, {0}, kTable);
  EXPECT_TRUE(session.HoldersOf(7)->empty());
}

TEST_F(EndedTest, DamageIsNamed) {
  const auto store = [&](int slot, size_t at, uint64_t word) {
    const uint64_t begin = kTable + slot * sizeof(SessionSlot);
    return memory_->StoreWord(0, begin + at, word).ok();
  };
  constexpr size_t kProcess = offsetof(SessionSlot, process);
  for (const auto& [at, word] : std::vector<std::pair<size_t, uint64_t>>{
           {offsetof(SessionSlot, choosing), 2},
           {offsetof(SessionSlot, ticket), ~uint64_t{0}},
           {kProcess, uint64_t{1} << 63},
           {kProcess + offsetof(ProcessIdentity, boot_id), 0x80},
           {kProcess + sizeof(ProcessIdentity) - 8, ~uint64_t{0}}}) {
    Sessions session(*memory_, {0}, kTable);
    ASSERT_TRUE(store(9, at, word));
    EXPECT_TRUE(session.AddLease(7).ok()) << "there are other slots";
    ExpectRefused(session.Lock(60), Code::kDataLoss, "store repair");
    ASSERT_EQ(session.Damaged().size(), 1u);
    EXPECT_EQ(session.Damaged()[0].second, kTable + 9 * sizeof(SessionSlot));
    ASSERT_TRUE(store(9, at, 0));
    EXPECT_TRUE(session.Lock(60).ok());
    session.Unlock();
  }
  for (int slot = 0; slot < kMaxSessions; ++slot)
    for (size_t at = 0; at < sizeof(SessionSlot); at += 8)
      ASSERT_TRUE(store(slot, at, ~uint64_t{0}));
  Sessions session(*memory_, {0}, kTable);
  ExpectRefused(session.AddLease(7).status(), Code::kDataLoss, "damaged");
}

// An owner may be killed after any of its stores. Then its slot has words of
// several processes.
TEST_F(EndedTest, ASlotThatIsHalfWrittenIsNoDamage) {
  SessionSlot slot = SilentSlot();
  slot.ticket = slot.choosing = 1;
  std::ranges::fill(slot.process.host, 'x');
  std::end(slot.process.host)[-1] = 0;
  const auto words =
      std::bit_cast<std::array<uint64_t, sizeof(slot) / 8>>(slot);
  Sessions session(*memory_, {0}, kTable);
  for (size_t i = 0; i < words.size(); ++i) {
    const uint64_t begin = kTable + 9 * sizeof(slot);
    ASSERT_TRUE(memory_->StoreWord(0, begin + i * 8, words[i]).ok());
    EXPECT_TRUE(session.Damaged().empty()) << i;
  }
}

TEST_F(EndedTest, TwoThatShareASlotNotice) {
  Sessions session(*memory_, {0}, kTable);
  const auto own = session.Enter();
  const auto lease = session.AddLease(7);
  ASSERT_TRUE(session.Holds(*lease));
  ASSERT_TRUE(memory_
                  ->StoreWord(0, kTable + own->slot * sizeof(SessionSlot),
                              own->identity + 2)
                  .ok());
  for (int i = 0; i < 1000 && session.Holds(*lease); ++i)
    std::this_thread::sleep_for(10ms);
  EXPECT_FALSE(session.Holds(*lease));
  const auto again = session.AddLease(8);
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(session.Holds(*again));
  EXPECT_NE(session.Enter()->identity, own->identity);
}

}  // namespace
}  // namespace jax_cxl::pool
