// Sanitizers: address

// Which library makes a communicator, with a modeled device and a stand-in for
// NVIDIA's library.

#include "cc/nccl/communicator.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "cc/nccl/bootstrap.h"
#include "cc/nccl/job.h"
#include "cc/testing/nccl/model_device.h"

namespace jax_cxl::nccl {
namespace {

constexpr int kSize = 3;

// What the ranks of a communicator got.
struct Outcome {
  std::vector<std::unique_ptr<Communicator>> ranks;
  std::set<std::string> whys;  // of the real library's communicators
  int problems = 0;
  int real = 0;  // ranks with a communicator of the real library
};

Outcome MeetAll(const Settings& settings, bool blocking,
                const MakeDevice& make_device) {
  PoolToken token = *RandomPoolToken();
  token.bootstrap = OwnBootstrap("");
  Outcome outcome;
  std::mutex mutex;
  const auto make_real = [&](const Gather& gather, const std::string& why,
                             bool problem) -> Result<void*> {
    const std::byte block{7};
    const auto all = gather({&block, 1});
    CXL_RETURN_IF_ERROR(all.status());
    EXPECT_EQ(*all, std::vector<std::byte>(kSize, block));
    std::lock_guard lock(mutex);
    outcome.whys.insert(why);
    outcome.problems += problem ? 1 : 0;
    return &outcome;
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kSize; ++rank) {
    outcome.ranks.push_back(std::make_unique<Communicator>(
        token, rank, kSize, 0, blocking, make_device));
    threads.emplace_back([&, raw = outcome.ranks.back().get()] {
      const auto open = [&, raw] { return raw->Open(settings, make_real); };
      if (!blocking) return raw->OpenLater(open);
      const Status status = open();
      EXPECT_TRUE(status.ok()) << status.message();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& rank : outcome.ranks) {
    while (rank->in_progress()) std::this_thread::yield();
    EXPECT_EQ(rank->real() == nullptr, rank->device() != nullptr);
    outcome.real += rank->real() == &outcome ? 1 : 0;
  }
  return outcome;
}

Settings OfHosts(Hosts hosts) {
  Settings settings;
  settings.hosts = hosts;
  settings.rank_bytes = kLeastRankBytes;
  settings.timeout_s = 60;
  return settings;
}

TEST(CommunicatorTest, APoolServesRanksOfSeveralHosts) {
  for (const bool blocking : {true, false})
    EXPECT_EQ(MeetAll(OfHosts(Hosts::kAll), blocking, MakeModel).real, 0);
}

TEST(CommunicatorTest, TheRealLibraryServesOneHost) {
  const Outcome outcome =
      MeetAll(OfHosts(Hosts::kProcesses), /*blocking=*/true, MakeModel);
  EXPECT_EQ(outcome.real, kSize);
  EXPECT_EQ(outcome.problems, 0);
}

// Only one rank has the problem, but all take the real library.
TEST(CommunicatorTest, ADeviceThatCannotUseThePool) {
  for (const bool blocking : {true, false}) {
    const Outcome outcome = MeetAll(
        OfHosts(Hosts::kAll), blocking,
        [](Job* job,
           const std::atomic<bool>& cancel) -> Result<std::unique_ptr<Device>> {
          if (job->rank() != 1) return MakeModel(job, cancel);
          return Error(Code::kUnimplemented, "an old driver");
        });
    EXPECT_EQ(outcome.real, kSize);
    EXPECT_EQ(outcome.problems, kSize);
    EXPECT_EQ(outcome.whys, std::set<std::string>(
                                {"because it cannot use a pool: rank 1: an old "
                                 "driver"}));
  }
}

}  // namespace
}  // namespace jax_cxl::nccl
