// Sanitizers: address, thread
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "cc/base/process_identity.h"
#include "cc/pool/coherence/doorbell.h"
#include "cc/pool/layout/header.h"
#include "cc/pool/pool.h"
#include "cc/testing/pool/pool_specs.h"
#include "cc/testing/pool/scratch.h"

// Tests jobs of several kernels that use one file. A kernel does not see the
// locks of another kernel. So, to imitate a job of another kernel, these tests
// drop the job's lock and change the identity of its processes.
namespace jax_cxl::pool {
namespace {

HeaderPage& PageOf(Pool& pool) {
  return *reinterpret_cast<HeaderPage*>(pool.base());
}

void MoveElsewhere(ProcessIdentity* process) {
  std::strcpy(process->boot_id, "00000001-0000-4000-8000-000000000000");
  std::strcpy(process->host, "elsewhere");
  process->pid = 4711;
}

void MoveElsewhere(Pool& pool) {
  flock(pool.fd(), LOCK_UN);
  MoveElsewhere(&PageOf(pool).keeper.process);
}

class SharingTest : public testing::Test {
 protected:
  void SetUp() override {
    WriteFile(dir_ / "pool", "");  // a pool's end leaves existing files
    spec_ = FileSpec({dir_ / "pool"});
    spec_.dead_after_s = 1;
  }

  std::unique_ptr<Pool> Create() {
    auto pool = Pool::Create(spec_, 2);
    EXPECT_TRUE(pool.ok()) << pool.status().message();
    return pool.ok() ? *std::move(pool) : nullptr;
  }

  double Seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() -
                                         began_)
        .count();
  }

  const TempDirectory dir_;
  PoolSpec spec_;
  const std::chrono::steady_clock::time_point began_ =
      std::chrono::steady_clock::now();
};

TEST_F(SharingTest, JobOfAnotherHostIsNamedAndKeepsItsPool) {
  const auto first = Create();
  MoveElsewhere(*first);
  EXPECT_EQ(CreateCode(spec_, "a job of process 4711 on host elsewhere"),
            Code::kAlreadyExists);
  EXPECT_TRUE(first->CheckIntact().ok());
}

// Even if the job's creator has ended, a heartbeat of any rank shows that the
// job is alive.
TEST_F(SharingTest, RankOfAnotherHostIsNamed) {
  std::jthread heart;
  auto first = Create();
  MoveElsewhere(*first);
  const Doorbells doorbells(first->coherence(), first->epoch());
  RankInfo& info = first->rank_page(1)->info;
  info.process = ThisProcess();
  MoveElsewhere(&info.process);
  info.process.pid = 12;
  doorbells.Ring(&info.ready, 1);
  PageOf(*first).keeper.released = first->token();
  heart = std::jthread([&](const std::stop_token& stop) {
    for (uint64_t beat = 1; !stop.stop_requested(); ++beat) {
      doorbells.Ring(&first->rank_page(1)->heartbeat.word, beat);
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  });
  EXPECT_EQ(CreateCode(spec_, "process 12 on host elsewhere"),
            Code::kAlreadyExists);
  heart.request_stop();
  heart.join();
}

TEST_F(SharingTest, DeadJobOfAnotherHostIsWaitedForAndReplaced) {
  {
    const auto first = Create();
    RankInfo& info = first->rank_page(0)->info;
    info.process = ThisProcess();
    MoveElsewhere(&info.process);
    Doorbells(first->coherence(), first->epoch()).Ring(&info.ready, 1);
  }
  const double before = Seconds();
  const auto second = Create();
  EXPECT_GE(Seconds() - before, spec_.dead_after_s);
  EXPECT_EQ(second->epoch(), 2u);
}

TEST_F(SharingTest, DeadJobOfThisKernelIsReplacedAtOnce) {
  spec_.dead_after_s = 1000;
  Child child([&] { return Pool::Create(spec_, 2)->release() != nullptr; });
  ASSERT_TRUE(child.ready());
  EXPECT_EQ(CreateCode(spec_, std::to_string(child.pid())),
            Code::kAlreadyExists);
  child.Kill();
  EXPECT_NE(Create(), nullptr);
}

TEST_F(SharingTest, CreatorThatDiedBeforeTheHeaderLeavesAPlaceForAPool) {
  spec_.dead_after_s = 0.2;
  {
    const auto first = Create();
    PageOf(*first).header = {};
    std::atomic_ref(PageOf(*first).keeper.claim)
        .store(1);  // so that its destructor does not release it
    MoveElsewhere(*first);
  }
  EXPECT_NE(Create(), nullptr);
}

TEST_F(SharingTest, MembersNoticeThatTheirPoolWasFormatted) {
  spec_.dead_after_s = 0.2;
  auto first = Create();
  auto member = Pool::Attach(spec_, 2, first->token());
  ASSERT_TRUE(member.ok());
  flock((*member)->fd(), LOCK_UN);
  MoveElsewhere(*first);
  // Stop the counter of the first job, as if its host had been stopped for a
  // long time. The job increments the counter only while it finds its own token
  // as the claim.
  std::atomic_ref(PageOf(*first).keeper.claim).store(1);
  const auto second = Create();
  ASSERT_NE(second, nullptr);

  const Status status = (*member)->CheckIntact();
  EXPECT_EQ(status.code(), Code::kDataLoss);
  for (const std::string& words :
       {std::string("was formatted by another job"),
        DescribeProcess(ThisProcess()), spec_.paths[0]})
    EXPECT_NE(status.message().find(words), std::string::npos)
        << status.message();
  EXPECT_FALSE((*member)->CheckIntact().ok());
  // Stores of the first job's member no longer reach the pool.
  std::memset((*member)->base(), 0xee, (*member)->total_bytes());
  EXPECT_TRUE(second->CheckIntact().ok());
  EXPECT_FALSE(first->CheckIntact().ok());
}

// Creators on two hosts look for a free pool at the same time. At most one of
// them gets it, and the other reports why it failed.
TEST_F(SharingTest, CreatorsOfTwoHostsAtOnce) {
  const auto first = Create();
  MoveElsewhere(*first);
  HeaderPage& page = PageOf(*first);
  page.keeper.released = page.keeper.claim;  // free to take
  std::jthread other([&] {
    // This thread is the other creator, which has seen a free pool too. It
    // waits until CreateCode below has replaced the old claim with 0 and then
    // with a new token. A moment later, it stores its own claim, 4711.
    uint64_t claim = 0;
    while (claim == 0 || claim == first->token()) {
      std::this_thread::yield();
      claim = __atomic_load_n(&page.keeper.claim, __ATOMIC_ACQUIRE);
    }
    __atomic_store_n(&page.keeper.claim, 4711, __ATOMIC_RELEASE);
  });
  EXPECT_EQ(CreateCode(spec_, "was taken at the same moment by another job"),
            Code::kAlreadyExists);
}

}  // namespace
}  // namespace jax_cxl::pool
