// Sanitizers: address

// The meeting of a communicator's ranks in memory that machines share.

#include "cc/nccl/communicator_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cc/nccl/job.h"
#include "cc/testing/pool/fake_dax.h"
#include "cc/testing/pool/scratch.h"

namespace jax_cxl::nccl {
namespace {

using pool::kMiB;
using Jobs = std::vector<std::unique_ptr<Job>>;

// Meets the ranks of a communicator, each in a thread of its own. Returns them,
// or nothing after an error, which `error` gets.
Jobs Meet(int size, const Settings& settings, Status* error = nullptr) {
  const PoolToken token = *RandomPoolToken();
  static const std::atomic<bool> never = false;
  Jobs jobs(size);
  std::vector<Status> statuses(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      auto job = Job::Meet(token, rank, size, /*device=*/0, settings, never);
      statuses[rank] = job.status();
      if (job.ok()) jobs[rank] = *std::move(job);
    });
  for (std::thread& thread : threads) thread.join();
  if (error != nullptr) *error = statuses[0];
  for (const Status& status : statuses) {
    EXPECT_TRUE(status.ok() || error != nullptr) << status.message();
    if (!status.ok()) return {};
  }
  return jobs;
}

void ExpectConnected(const Jobs& jobs) {
  std::vector<std::thread> threads;
  for (const std::unique_ptr<Job>& job : jobs)
    threads.emplace_back([raw = job.get()] {
      const auto mine = static_cast<std::byte>(raw->rank() + 1);
      const auto all = raw->AllGather({&mine, 1});
      ASSERT_TRUE(all.ok()) << all.status().message();
      for (int rank = 0; rank < raw->size(); ++rank)
        EXPECT_EQ((*all)[rank], static_cast<std::byte>(rank + 1));
    });
  for (std::thread& thread : threads) thread.join();
}

class SharedDeviceTest : public testing::Test {
 protected:
  // A device with space for `parts` communicators, and some more bytes.
  void MakeDevice(uint64_t parts) {
    const std::string path = machine_.Add("dax0.0", (parts * 64 + 10) * kMiB,
                                          std::to_string(2 * kMiB));
    settings_.shared_memory = {machine_.Spec({path}), true};
    settings_.shared_memory->spec.offset = 4 * kMiB;
    settings_.communicator_bytes = 64 * kMiB;
    settings_.rank_bytes = 48 * kMiB;
    settings_.timeout_s = 1;
  }

  pool::FakeDax machine_;
  Settings settings_;
};

TEST_F(SharedDeviceTest, CommunicatorsTakePartsOfADevice) {
  MakeDevice(3);
  std::vector<Jobs> communicators;
  std::vector<uint64_t> offsets;
  for (int size : {2, 1, 2}) {
    communicators.push_back(Meet(size, settings_));
    ASSERT_FALSE(communicators.back().empty());
    offsets.push_back(communicators.back()[0]->pool()->spec().offset);
  }
  std::ranges::sort(offsets);
  EXPECT_EQ(offsets, (std::vector<uint64_t>{4 * kMiB, 68 * kMiB, 132 * kMiB}));
  for (const Jobs& jobs : communicators) ExpectConnected(jobs);
  // Two ranks share the part's 64 MiB. A rank alone gets what it asks for.
  EXPECT_LT(communicators[0][1]->rank_bytes(), 32 * kMiB);
  EXPECT_EQ(communicators[1][0]->rank_bytes(), 48 * kMiB);

  Status status;
  EXPECT_TRUE(Meet(2, settings_, &status).empty());
  EXPECT_EQ(status.code(), Code::kAlreadyExists);
  EXPECT_NE(status.message().find("none of the 3 parts"), std::string::npos)
      << status.message();
  // Rank 0 waits for a part that becomes free.
  std::thread leaving([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    communicators[1].clear();
  });
  settings_.timeout_s = 30;
  EXPECT_FALSE(Meet(2, settings_).empty());
  leaving.join();
}

TEST_F(SharedDeviceTest, APartWithAStoreIsNotFree) {
  MakeDevice(3);
  const std::string& path = settings_.shared_memory->spec.paths[0];
  pool::FakeDax::WriteStore(path, 80 * kMiB, 16 * kMiB);
  std::vector<Jobs> communicators;
  for (int i = 0; i < 2; ++i) {
    communicators.push_back(Meet(1, settings_));
    ASSERT_FALSE(communicators.back().empty());
  }
  Status status;
  EXPECT_TRUE(Meet(1, settings_, &status).empty());
  EXPECT_EQ(status.code(), Code::kAlreadyExists) << status.message();
}

TEST_F(SharedDeviceTest, APartIsFreeOnceAllRanksHaveLeft) {
  MakeDevice(1);
  for (int i = 0; i < 4; ++i) {
    const Jobs jobs = Meet(2, settings_);
    ASSERT_FALSE(jobs.empty());
    ExpectConnected(jobs);
  }
}

// The other rank waits for rank 0 as long as the timeout says, although it
// finds the device at once.
TEST_F(SharedDeviceTest, RankZeroIsLate) {
  MakeDevice(1);
  settings_.timeout_s = 30;
  const PoolToken token = *RandomPoolToken();
  const std::atomic<bool> never = false;
  Result<std::unique_ptr<Job>> other = Error(Code::kInternal, "not yet");
  std::thread early(
      [&] { other = Job::Meet(token, 1, 2, /*device=*/0, settings_, never); });
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  const auto job = Job::Meet(token, 0, 2, /*device=*/0, settings_, never);
  early.join();
  EXPECT_TRUE(job.ok() && other.ok()) << other.status().message();
}

TEST_F(SharedDeviceTest, ADeviceThatIsMissing) {
  MakeDevice(1);
  settings_.shared_memory->spec.paths = {machine_ / "dax7.0"};
  settings_.timeout_s = 1000;
  Status status;
  EXPECT_TRUE(Meet(2, settings_, &status).empty());
  EXPECT_EQ(status.code(), Code::kNotFound);
}

TEST_F(SharedDeviceTest, TooManyRanksForAPart) {
  MakeDevice(1);
  Status status;
  EXPECT_TRUE(Meet(3, settings_, &status).empty());
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_NE(status.message().find("JAX_CXL_NCCL_COMMUNICATOR_BYTES"),
            std::string::npos)
      << status.message();
}

TEST_F(SharedDeviceTest, TooSmallForACommunicator) {
  MakeDevice(1);
  settings_.communicator_bytes = 128 * kMiB;
  Status status;
  EXPECT_TRUE(Meet(1, settings_, &status).empty());
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
}

TEST(SharedFileTest, EachCommunicatorHasAFileWhileItsRanksMeet) {
  const pool::TempDirectory folder;
  Settings settings;
  const auto memory =
      pool::ParsePoolUri("file:" + (folder / "pool") + "?coherence=coherent");
  ASSERT_TRUE(memory.ok()) << memory.status().message();
  settings.shared_memory = *memory;
  settings.rank_bytes = kLeastRankBytes;
  const Jobs one = Meet(2, settings), other = Meet(3, settings);
  ASSERT_FALSE(one.empty() || other.empty());
  ExpectConnected(one);
  ExpectConnected(other);
  EXPECT_NE(one[0]->pool()->spec().paths, other[0]->pool()->spec().paths);
  EXPECT_TRUE(std::filesystem::is_empty(folder / ""));
}

TEST(HostsTest, TheSettingSaysWhatAHostIs) {
  Settings settings;
  settings.rank_bytes = kLeastRankBytes;
  for (const Hosts hosts : {Hosts::kMachines, Hosts::kProcesses, Hosts::kAll}) {
    settings.hosts = hosts;
    const Jobs jobs = Meet(2, settings);
    ASSERT_FALSE(jobs.empty());
    for (const std::unique_ptr<Job>& job : jobs)
      EXPECT_EQ(job->on_one_host(), hosts != Hosts::kAll);
    EXPECT_EQ(jobs[0]->rank_bytes(), kLeastRankBytes);
  }
}

}  // namespace
}  // namespace jax_cxl::nccl
