#include "cc/pool/job_record.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>

#include "cc/pool/open/unique_fd.h"
#include "cc/pool/pool.h"
#include "cc/testing/pool/pool_specs.h"
#include "cc/testing/pool/scratch.h"

namespace jax_cxl::pool {
namespace {

class JobRecordTest : public testing::Test {
 protected:
  JobRecordTest() {
    std::ofstream(path_).close();  // a pool's end leaves existing files
    std::filesystem::resize_file(path_, 8 * kMiB);
    // Only the owner may read and write the file, because Pool::Create refuses
    // a file that other users can read.
    std::filesystem::permissions(path_,
                                 std::filesystem::perms::owner_read |
                                     std::filesystem::perms::owner_write);
    PoolSpec spec = FileSpec({path_}, 7 * kMiB);
    spec.offset = kMiB;
    auto pool = Pool::Create(spec, 3);
    EXPECT_TRUE(pool.ok()) << pool.status().message();
    pool_ = *std::move(pool);
    fd_ = UniqueFd(open(path_.c_str(), O_RDONLY | O_CLOEXEC));
  }

  Result<JobRecord> Read() { return JobRecord::Read(fd_.get(), kMiB, path_); }

  TempDirectory dir_;
  std::string path_ = dir_ / "pool";
  std::unique_ptr<Pool> pool_;
  UniqueFd fd_;
};

TEST_F(JobRecordTest, HasWhatTheRanksWroteWhenItWasTaken) {
  pool_->rank_page(2)->info.process.pid = 17;
  pool_->recorder(2)->calls[4095].identity = 4;
  const Result<JobRecord> job_record = Read();
  ASSERT_TRUE(job_record.ok()) << job_record.status().message();
  pool_->rank_page(2)->info.process.pid = 18;
  EXPECT_EQ(job_record->world_size(), 3);
  EXPECT_EQ(job_record->header().token, pool_->token());
  EXPECT_EQ(job_record->rank_page(2).info.process.pid, 17);
  EXPECT_EQ(job_record->recorder(2).calls[4095].identity, 4u);
}

TEST_F(JobRecordTest, OutlivesThePool) {
  pool_->rank_page(1)->info.process.pid = 17;
  pool_.reset();
  const Result<JobRecord> job_record = Read();
  ASSERT_TRUE(job_record.ok()) << job_record.status().message();
  EXPECT_EQ(job_record->rank_page(1).info.process.pid, 17);
}

TEST_F(JobRecordTest, CanBeKeptInAFile) {
  pool_->recorder(1)->calls[0].identity = 5;
  const Result<JobRecord> job_record = Read();
  ASSERT_TRUE(job_record.ok());
  const std::string kept = dir_ / "kept";
  std::ofstream(kept).write(reinterpret_cast<const char*>(job_record->data()),
                            static_cast<std::streamsize>(job_record->size()));
  const UniqueFd fd(open(kept.c_str(), O_RDONLY | O_CLOEXEC));
  const Result<JobRecord> again = JobRecord::Read(fd.get(), 0, kept);
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(again->recorder(1).calls[0].identity, 5u);
}

TEST_F(JobRecordTest, RefusesWhatIsNoPool) {
  EXPECT_EQ(JobRecord::Read(fd_.get(), 0, path_).status().code(),
            Code::kDataLoss);
  EXPECT_EQ(JobRecord::Read(fd_.get(), 100 * kMiB, path_).status().code(),
            Code::kDataLoss);
  EXPECT_FALSE(JobRecord::Read(-1, 0, "nothing").ok());
}

TEST_F(JobRecordTest, AFileThatIsCutShortIsAnError) {
  pool_.reset();
  std::filesystem::resize_file(path_, kMiB + 3 * kPageBytes);
  const Status status = Read().status();
  EXPECT_EQ(status.code(), Code::kDataLoss);
  EXPECT_NE(status.message().find("cut short"), std::string::npos);
}

TEST_F(JobRecordTest, SurvivesAnyHeader) {
  pool_.reset();
  std::mt19937_64 random(1);
  const UniqueFd writer(open(path_.c_str(), O_RDWR | O_CLOEXEC));
  PoolHeader right;
  ASSERT_EQ(pread(fd_.get(), &right, sizeof(right), kMiB),
            static_cast<ssize_t>(sizeof(right)));
  for (int i = 0; i < 2000; ++i) {
    PoolHeader header = right;
    auto* bytes = reinterpret_cast<unsigned char*>(&header);
    for (int k = 0; k < 3; ++k)
      bytes[random() % sizeof(header)] = static_cast<unsigned char>(random());
    ASSERT_EQ(pwrite(writer.get(), &header, sizeof(header), kMiB),
              static_cast<ssize_t>(sizeof(header)));
    const bool same = std::memcmp(&header, &right, sizeof(right)) == 0;
    EXPECT_EQ(Read().ok(), same);
  }
}

}  // namespace
}  // namespace jax_cxl::pool
