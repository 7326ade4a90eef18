#include "cc/pool/mapping/mapping_guard.h"

#include <gtest/gtest.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <string>
#include <thread>

#include "cc/pool/layout/geometry.h"
#include "cc/pool/open/unique_fd.h"
#include "cc/pool/pool.h"
#include "cc/testing/pool/pool_specs.h"

namespace jax_cxl::pool {
namespace {

// Installs a SIGBUS handler before there is any guard. The handler jumps out of
// the access that faults.
sigjmp_buf jump;
[[maybe_unused]] const bool installed = [] {
  struct sigaction action = {};
  action.sa_handler = [](int) { siglongjmp(jump, 1); };
  return sigaction(SIGBUS, &action, nullptr) == 0;
}();

// Returns true if an access to `at` ends in the handler above.
bool Faults(volatile char* at) {
  if (sigsetjmp(jump, /*savesigs=*/1) != 0) return true;
  *at = 1;
  return false;
}

// Maps four shared pages of a file without a name.
class MappingGuardTest : public testing::Test {
 protected:
  MappingGuardTest() : fd_(memfd_create("guarded", MFD_CLOEXEC)) {
    if (ftruncate(fd_.get(), 4 * page_) != 0) abort();
    begin_ = static_cast<char*>(mmap(nullptr, 4 * page_, PROT_READ | PROT_WRITE,
                                     MAP_SHARED, fd_.get(), 0));
    for (int i = 0; i < 4; ++i) begin_[i * page_] = static_cast<char>('a' + i);
  }
  ~MappingGuardTest() override { munmap(begin_, 4 * page_); }

  std::byte* bytes() const { return reinterpret_cast<std::byte*>(begin_); }

  const uint64_t page_ = FilePageBytes();
  UniqueFd fd_;
  char* begin_;
};

TEST_F(MappingGuardTest, CutShortWhileMapped) {
  const MappingGuard guard(bytes(), 4 * page_, page_);
  EXPECT_TRUE(guard.intact());
  ASSERT_EQ(ftruncate(fd_.get(), page_), 0);
  EXPECT_TRUE(guard.intact());  // no access has failed yet
  EXPECT_FALSE(Faults(begin_ + 2 * page_ + 7));
  EXPECT_FALSE(guard.intact());
  EXPECT_EQ(begin_[2 * page_], 0);
  EXPECT_EQ(begin_[2 * page_ + 7], 1);
  // The page that the file still has is still shared.
  begin_[1] = 'X';
  char found = 0;
  EXPECT_EQ(pread(fd_.get(), &found, 1, 1), 1);
  EXPECT_EQ(found, 'X');
}

TEST_F(MappingGuardTest, UnitsAreReplacedWhole) {
  const MappingGuard guard(bytes(), 4 * page_, 2 * page_);
  ASSERT_EQ(ftruncate(fd_.get(), 3 * page_), 0);
  EXPECT_EQ(begin_[2 * page_], 'c');
  EXPECT_FALSE(Faults(begin_ + 3 * page_));
  EXPECT_EQ(begin_[2 * page_], 0);
  EXPECT_EQ(begin_[page_], 'b');
}

TEST_F(MappingGuardTest, FaultsElsewhereGoToTheHandlerBefore) {
  const MappingGuard guard(bytes(), page_, page_);
  ASSERT_EQ(ftruncate(fd_.get(), 0), 0);
  EXPECT_TRUE(Faults(begin_ + page_));
  EXPECT_TRUE(guard.intact());
  EXPECT_FALSE(Faults(begin_));
  EXPECT_FALSE(guard.intact());
}

TEST_F(MappingGuardTest, AGuardEndsWithItsObject) {
  {
    const MappingGuard guard(bytes(), 4 * page_, page_);
    ASSERT_EQ(ftruncate(fd_.get(), 0), 0);
    EXPECT_FALSE(Faults(begin_));
  }
  EXPECT_TRUE(Faults(begin_ + page_));
  const MappingGuard next(bytes(), 4 * page_, page_);
  EXPECT_TRUE(next.intact());
  EXPECT_FALSE(Faults(begin_ + page_));
}

TEST(PoolIntactTest, TruncationUnderAJobIsAnError) {
  const TempDirectory dir;
  const PoolSpec spec = FileSpec({dir / "a", dir / "b"}, 4 * kMiB);
  auto creator = Pool::Create(spec, 2);
  ASSERT_TRUE(creator.ok()) << creator.status().message();
  auto peer = Pool::Attach(spec, 2, (*creator)->token());
  ASSERT_TRUE(peer.ok()) << peer.status().message();
  std::filesystem::resize_file(spec.paths[1], kMiB);
  for (auto& pool : {creator->get(), peer->get()}) {
    EXPECT_TRUE(pool->CheckIntact().ok());
    const Pool::Range last = pool->arena(1, 1);
    *pool->At(last.offset + last.bytes - 1, 1) = std::byte{1};
    const Status status = pool->CheckIntact();
    EXPECT_EQ(status.code(), Code::kDataLoss);
    for (const char* words : {"cut the file short", "restart the job"})
      EXPECT_NE(status.message().find(words), std::string::npos)
          << status.message();
  }
}

// A child process that was forked while another thread used guards can use
// guards too.
TEST_F(MappingGuardTest, ForkedWhileAThreadMaps) {
  std::atomic<bool> done = false;
  std::thread mapping([&] {
    while (!done) const MappingGuard guard(bytes(), page_, page_);
  });
  for (int i = 0; i < 500; ++i) {
    const pid_t pid = fork();
    if (pid == 0) {
      alarm(10);  // ends a process that waits for a lock forever
      {
        const MappingGuard guard(bytes() + page_, page_, page_);
      }
      _exit(0);
    }
    int status = 0;
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_TRUE(WIFEXITED(status));
    if (!WIFEXITED(status)) break;
  }
  done = true;
  mapping.join();
}

}  // namespace
}  // namespace jax_cxl::pool
