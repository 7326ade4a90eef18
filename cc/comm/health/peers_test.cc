// Sanitizers: address, thread

#include "cc/comm/health/peers.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cc/testing/pool/scratch.h"
#include "cc/testing/world/status_text.h"
#include "cc/testing/world/world.h"

namespace jax_cxl::comm {
namespace {

using std::chrono::milliseconds;

// Rank 0 belongs to this process. Tests register the other ranks.
class PeersTest : public testing::Test {
 protected:
  PeersTest() {
    pool::PoolSpec spec;
    spec.paths = {pool::UniqueName("peers-test")};
    spec.bytes = 64 << 20;
    pool_ = OrDie(pool::Pool::Create(spec, 3));
    Register(pool_.get(), 0, 0, 0);
  }

  // Registers `rank` in the pool as a process of another host.
  void RegisterElsewhere(int rank) {
    const pool::Doorbells doorbells(pool_->coherence(), pool_->epoch());
    pool::RankInfo& info = pool_->rank_page(rank)->info;
    info.process = ThisProcess();
    std::snprintf(info.process.boot_id, sizeof(info.process.boot_id),
                  "another kernel");
    std::snprintf(info.process.host, sizeof(info.process.host), "elsewhere");
    doorbells.Ring(&info.ready, 1);
  }
  void Beat(int rank) {
    const pool::Doorbells doorbells(pool_->coherence(), pool_->epoch());
    uint64_t* word = &pool_->rank_page(rank)->heartbeat.word;
    doorbells.Ring(word, doorbells.Read(word) + 1);
  }

  // Waits until Alive fails and returns its status. Returns OK after 20 s.
  static Status WhenLost(const Peers& peers, int rank) {
    for (int i = 0; i < 2000 && peers.Alive(rank).ok(); ++i)
      std::this_thread::sleep_for(milliseconds(10));
    return peers.Alive(rank);
  }

  std::unique_ptr<pool::Pool> pool_;
};

TEST_F(PeersTest, TheEndOfAProcessOfThisHostIsSeenAtOnce) {
  pool::Child child([this] {
    Register(pool_.get(), 1, 1, 1);
    return true;
  });
  ASSERT_TRUE(child.ready());
  Register(pool_.get(), 2, 2, 2);
  // The heartbeat timeout is far longer than the test. So the loss must come
  // from the kernel, which reports the end of the process at once.
  auto peers = OrDie(Peers::Start(pool_.get(), {0, 2}, 1000));
  EXPECT_TRUE(peers->Alive(0).ok());
  EXPECT_TRUE(peers->Alive(1).ok());
  const std::string pid = std::to_string(child.pid());
  EXPECT_TRUE(Contains(peers->Name(1), "rank 1 (pid " + pid + " on host "))
      << peers->Name(1);
  child.Kill();
  const Status lost = WhenLost(*peers, 1);
  EXPECT_EQ(lost.code(), Code::kPeerLost);
  EXPECT_TRUE(Contains(lost.message(), "its process ended")) << lost.message();
  EXPECT_EQ(Detail(lost, "rank"), "1");
  EXPECT_EQ(Detail(lost, "pid"), pid);
  EXPECT_TRUE(peers->Alive(0).ok());
  EXPECT_TRUE(peers->Alive(2).ok());
}

// Makes the first thread of the process end on SIGUSR1, while another thread of
// the process goes on. So the kernel does not report the end of the process, as
// if the driver of a GPU still had to finish.
void EndFirstThreadOnSignal() {
  signal(SIGUSR1, [](int) { syscall(SYS_exit, 0); });
}

void KeepProcess(const std::function<void()>& every_20_ms) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::thread([every_20_ms] {
    for (;;) {
      every_20_ms();
      std::this_thread::sleep_for(milliseconds(20));
    }
  }).detach();
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
}

TEST_F(PeersTest, AProcessWhoseEndTakesLongIsLostWithItsHeartbeat) {
  pool::Child dying([this] {
    Register(pool_.get(), 1, 1, 1);
    EndFirstThreadOnSignal();
    KeepProcess([] {});
    return true;
  });
  pool::Child living([this] {
    Register(pool_.get(), 2, 2, 2);
    EndFirstThreadOnSignal();
    KeepProcess([this] { Beat(2); });
    return true;
  });
  ASSERT_TRUE(dying.ready() && living.ready());
  auto peers = OrDie(Peers::Start(pool_.get(), {0}, 1000));
  // Rank 1's heartbeat is late, but this does not mean that its process has
  // ended.
  std::this_thread::sleep_for(milliseconds(500));
  EXPECT_TRUE(peers->Alive(1).ok());
  kill(dying.pid(), SIGUSR1);
  kill(living.pid(), SIGUSR1);
  const Status lost = WhenLost(*peers, 1);
  EXPECT_EQ(lost.code(), Code::kPeerLost);
  EXPECT_TRUE(Contains(lost.message(), "its process ended")) << lost.message();
  // The first thread of rank 2's process has ended too. But the rank's
  // heartbeat goes on, so the process has not ended.
  std::this_thread::sleep_for(milliseconds(500));
  EXPECT_TRUE(peers->Alive(2).ok());
}

TEST_F(PeersTest, AProcessThatEndedBeforeTheStartIsLost) {
  {
    pool::Child child([this] {
      Register(pool_.get(), 1, 1, 1);
      return true;
    });
    ASSERT_TRUE(child.ready());
  }
  Register(pool_.get(), 2, 2, 2);
  auto peers = OrDie(Peers::Start(pool_.get(), {0, 2}, 1000));
  EXPECT_EQ(peers->Alive(1).code(), Code::kPeerLost);
}

TEST_F(PeersTest, AProcessOfAnotherHostIsLostWhenItsHeartbeatStops) {
  RegisterElsewhere(1);
  RegisterElsewhere(2);
  auto peers = OrDie(Peers::Start(pool_.get(), {0}, 1));
  // Rank 2's heartbeat advances for longer than the timeout, and rank 1's
  // heartbeat never advances.
  for (int i = 0; i < 300 && peers->Alive(1).ok(); ++i) {
    Beat(2);
    std::this_thread::sleep_for(milliseconds(20));
  }
  const Status lost = peers->Alive(1);
  EXPECT_EQ(lost.code(), Code::kPeerLost);
  EXPECT_TRUE(Contains(lost.message(), "its heartbeat stopped"))
      << lost.message();
  EXPECT_TRUE(Contains(lost.message(), "on host elsewhere")) << lost.message();
  EXPECT_EQ(Detail(lost, "host"), "elsewhere");
  EXPECT_TRUE(peers->Alive(2).ok());
  EXPECT_GT(peers->Silence(1), 0.9);
  EXPECT_EQ(peers->Silence(0), 0);
  // Then rank 2's heartbeat stops too.
  EXPECT_EQ(WhenLost(*peers, 2).code(), Code::kPeerLost);
}

TEST_F(PeersTest, BeatsForItsOwnRanks) {
  for (int rank : {1, 2}) Register(pool_.get(), rank, rank, rank);
  auto peers = OrDie(Peers::Start(pool_.get(), {0, 2}, 5));
  const pool::Doorbells doorbells(pool_->coherence(), pool_->epoch());
  auto beats = [&](int rank) {
    return doorbells.Read(&pool_->rank_page(rank)->heartbeat.word);
  };
  const uint64_t first = beats(0), third = beats(2);
  for (int i = 0; i < 1000 && (beats(0) == first || beats(2) == third); ++i)
    std::this_thread::sleep_for(milliseconds(10));
  EXPECT_GT(beats(0), first);
  EXPECT_GT(beats(2), third);
  EXPECT_EQ(beats(1), 0u);
}

class GivingUpTest : public testing::Test {
 protected:
  GivingUpTest()
      : world_(3, {}, 64 << 20, 1, pool::CoherenceMode::kCoherent, {}),
        peers_(world_.peers(0)) {}

  World world_;
  Peers& peers_;
};

TEST_F(GivingUpTest, OthersReadWhyARankGaveUp) {
  EXPECT_TRUE(peers_.GaveUp(1).ok());
  peers_.GiveUp(1, Error(Code::kMismatch, "psum is not a barrier")
                       .With("call_0", "psum")
                       .With("call_1", "barrier"));
  const Status status = peers_.GaveUp(1);
  EXPECT_EQ(status.code(), Code::kMismatch);
  EXPECT_EQ(status.message(),
            peers_.Name(1) + " gave up: psum is not a barrier");
  EXPECT_EQ(Detail(status, "call_0"), "psum");
  EXPECT_EQ(Detail(status, "call_1"), "barrier");
  EXPECT_TRUE(peers_.GaveUp(0).ok());
  EXPECT_TRUE(peers_.GaveUp(2).ok());
}

TEST_F(GivingUpTest, TheFirstReasonCounts) {
  peers_.GiveUp(1, Error(Code::kDeadlineExceeded, "first"));
  peers_.GiveUp(1, Error(Code::kMismatch, "second"));
  EXPECT_EQ(peers_.GaveUp(1).code(), Code::kDeadlineExceeded);
  EXPECT_TRUE(Contains(peers_.GaveUp(1).message(), "first"));
}

TEST_F(GivingUpTest, AReasonThatIsPassedOnNamesItsFirstRank) {
  peers_.GiveUp(1, Error(Code::kDeadlineExceeded, "rank 0 is late"));
  const Status heard = peers_.GaveUp(1);
  peers_.GiveUp(2, heard);
  const Status passed_on = peers_.GaveUp(2);
  EXPECT_EQ(passed_on.code(), Code::kDeadlineExceeded);
  EXPECT_EQ(passed_on.message(), heard.message());
}

TEST_F(GivingUpTest, LongTextsAreCut) {
  Status reason = Error(Code::kInternal, std::string(5000, 'x'));
  for (int i = 0; i < 100; ++i)
    reason = std::move(reason).With("name_" + std::to_string(i),
                                    std::string(50, 'y'));
  peers_.GiveUp(1, reason);
  const Status status = peers_.GaveUp(1);
  EXPECT_EQ(status.code(), Code::kInternal);
  EXPECT_TRUE(Contains(status.message(), std::string(500, 'x')));
  // Details are kept or dropped as a whole.
  EXPECT_EQ(Detail(status, "name_0"), std::string(50, 'y'));
  EXPECT_EQ(Detail(status, "name_99"), "");
  for (const auto& [name, value] : status.details())
    EXPECT_TRUE(!name.starts_with("name_") || value.size() == 50) << name;
}

TEST_F(GivingUpTest, ARankThatLeftSaysHow) {
  EXPECT_TRUE(peers_.Left(1).ok());
  peers_.Leave(1, 7, "", /*program_ends=*/true);
  EXPECT_EQ(peers_.Left(1).code(), Code::kMismatch);
  EXPECT_TRUE(
      Contains(peers_.Left(1).message(), "ended normally, after 7 collectives"))
      << peers_.Left(1).message();
  EXPECT_EQ(Detail(peers_.Left(1), "rank_1"), "1");

  peers_.Leave(2, 8, "", /*program_ends=*/false);
  EXPECT_EQ(peers_.Left(2).code(), Code::kMismatch);
  EXPECT_TRUE(Contains(peers_.Left(2).message(), "jax_cxl.shutdown()"))
      << peers_.Left(2).message();

  EXPECT_TRUE(peers_.Left(0).ok());
  peers_.Leave(0, 9, "ValueError: no", /*program_ends=*/true);
  EXPECT_EQ(peers_.Left(0).code(), Code::kPeerLost);
  EXPECT_TRUE(Contains(peers_.Left(0).message(), "ended with ValueError: no"))
      << peers_.Left(0).message();
}

}  // namespace
}  // namespace jax_cxl::comm
