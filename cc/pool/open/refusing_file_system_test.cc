#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "cc/pool/pool.h"
#include "cc/testing/pool/pool_specs.h"
#include "cc/testing/pool/scratch.h"

// Imitates a file system that refuses the same operations as famfs and other
// shared file systems. The following functions replace those of the C library.
namespace {

int refusal = 0;  // 0: nothing is refused
bool grows = false;
bool allocates = false;
std::function<void()> before_allocation;  // runs once

int Refuse() {
  errno = refusal;
  return -1;
}

}  // namespace

extern "C" {

int flock(int fd, int operation) {
  return refusal ? Refuse() : syscall(SYS_flock, fd, operation);
}

int fallocate(int fd, int mode, off_t offset, off_t bytes) {
  if (const auto run = std::exchange(before_allocation, nullptr)) run();
  return refusal && !allocates
             ? Refuse()
             : syscall(SYS_fallocate, fd, mode, offset, bytes);
}

int ftruncate(int fd, off_t bytes) noexcept {
  return refusal ? Refuse() : syscall(SYS_ftruncate, fd, bytes);
}

int unlink(const char* path) noexcept {
  return refusal ? Refuse() : syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}

ssize_t pwrite(int fd, const void* data, size_t bytes, off_t offset) {
  if (refusal && !grows) return Refuse();
  return syscall(SYS_pwrite64, fd, data, bytes, offset);
}

}  // extern "C"

namespace jax_cxl::pool {
namespace {

class RefusingFileSystemTest : public testing::TestWithParam<int> {
 protected:
  RefusingFileSystemTest() {
    WriteFile(path_, "");
    spec_ = FileSpec({path_}, 0);
    spec_.dead_after_s = 0.3;
  }
  ~RefusingFileSystemTest() override {
    refusal = 0;
    grows = false;
    allocates = false;
  }

  const TempDirectory dir_;
  const std::string path_ = dir_ / "pool";
  PoolSpec spec_;
};

TEST_P(RefusingFileSystemTest, FileOfTheRightSizeBecomesAPool) {
  std::filesystem::resize_file(path_, 8 * kMiB);
  refusal = GetParam();
  for (int i = 0; i < 2; ++i) {
    auto pool = Pool::Create(spec_, 2);
    ASSERT_TRUE(pool.ok()) << pool.status().message();
    EXPECT_EQ((*pool)->total_bytes(), 8 * kMiB);
    EXPECT_TRUE(Pool::Attach(spec_, 2, (*pool)->token()).ok());
    (*pool)->Unlink();
  }
  EXPECT_TRUE(std::filesystem::exists(path_));
}

// The file system refuses locks, so only the heartbeat of the living job can
// keep the second job out.
TEST_P(RefusingFileSystemTest, SecondJobIsRefused) {
  std::filesystem::resize_file(path_, 8 * kMiB);
  refusal = GetParam();
  Child child([&] { return Pool::Create(spec_, 2)->release() != nullptr; });
  ASSERT_TRUE(child.ready());
  EXPECT_EQ(CreateCode(spec_, "process " + std::to_string(child.pid())),
            Code::kAlreadyExists);
  child.Kill();
  EXPECT_EQ(CreateCode(spec_), Code::kOk);
}

// While one creator reserves space in an empty file, which may take long,
// another creator takes the file. The first creator must then fail.
TEST_P(RefusingFileSystemTest, JobThatBeganMeanwhileKeepsItsPool) {
  refusal = GetParam();
  allocates = true;
  std::unique_ptr<Pool> other;
  before_allocation = [&] {
    auto made = Pool::Create(spec_, 2);
    ASSERT_TRUE(made.ok()) << made.status().message();
    other = *std::move(made);
  };
  EXPECT_EQ(CreateCode(spec_, "whose heartbeat advances"),
            Code::kAlreadyExists);
  ASSERT_NE(other, nullptr);
  EXPECT_TRUE(other->CheckIntact().ok());
}

TEST_P(RefusingFileSystemTest, FileThatIsTooSmallNamesTheSizeItNeeds) {
  std::filesystem::resize_file(path_, 4 * kMiB);
  spec_.bytes = 8 * kMiB;
  refusal = GetParam();
  EXPECT_EQ(CreateCode(spec_, "8388608"), Code::kInvalidArgument);
  grows = true;
  EXPECT_EQ(CreateCode(spec_), Code::kOk);
  EXPECT_EQ(std::filesystem::file_size(path_), 8 * kMiB);
}

// Holes could not be filled later, so no space is left out.
TEST_P(RefusingFileSystemTest, NoSpaceIsReservedLater) {
  PoolSpec spec = ShmSpec(UniqueName("refusing"));
  spec.idle_arena_bytes = kPageBytes;
  for (const bool refuses : {false, true}) {
    refusal = refuses ? GetParam() : 0;
    grows = true;
    auto pool = Pool::Create(spec, 2);
    ASSERT_TRUE(pool.ok()) << pool.status().message();
    EXPECT_EQ((*pool)->reserved(), refuses);
    struct stat file;
    ASSERT_EQ(fstat((*pool)->fd(), &file), 0);
    EXPECT_EQ(file.st_blocks * 512 == file.st_size, refuses);
    refusal = 0;
  }
}

INSTANTIATE_TEST_SUITE_P(Errors, RefusingFileSystemTest,
                         testing::Values(EOPNOTSUPP, ENOSYS, EINVAL));

}  // namespace
}  // namespace jax_cxl::pool
