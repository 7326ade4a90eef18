// Sanitizers: address

// Communicators that share a small /dev/shm, and take their memory at their
// first calls.

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cc/nccl/communicator.h"
#include "cc/nccl/communicator_pool.h"
#include "cc/nccl/group.h"
#include "cc/nccl/interface/abi.h"
#include "cc/nccl/interface/results.h"
#include "cc/nccl/job.h"
#include "cc/pool/open/shm.h"
#include "cc/testing/nccl/container.h"
#include "cc/testing/nccl/model_device.h"
#include "cc/testing/pool/scratch.h"

namespace jax_cxl::nccl {
namespace {

using pool::kMiB;
using Ranks = std::vector<std::unique_ptr<Communicator>>;

constexpr int kFloats = 7;
constexpr uint64_t kLeastOfTwo = 2 * kLeastRankBytes;

#define CHECK_THAT(condition)                        \
  do {                                               \
    if (!(condition)) {                              \
      std::printf("%d: %s\n", __LINE__, #condition); \
      return false;                                  \
    }                                                \
  } while (false)

// Makes the ranks of a communicator in this process. Returns nothing if they
// get no pool.
Ranks OpenRanks(int size) {
  const PoolToken token = *RandomPoolToken();
  Ranks ranks;
  Group group;
  group.Start();
  for (int rank = 0; rank < size; ++rank) {
    Communicator* raw = ranks
                            .emplace_back(std::make_unique<Communicator>(
                                token, rank, size, 0, true, MakeModel))
                            .get();
    static_cast<void>(group.AddOpening([raw]() -> Status {
      Settings settings;
      settings.hosts = Hosts::kAll;
      settings.timeout_s = 2;
      return raw->Open(settings, /*make_real=*/{});
    }));
  }
  const Status status = group.End();
  std::printf("%s\n", status.message().c_str());
  return status.ok() ? std::move(ranks) : Ranks();
}

struct stat FileOf(const Ranks& ranks) {
  struct stat file = {};
  fstat(ranks[0]->job()->pool()->fd(), &file);
  return file;
}
uint64_t TakenBy(const Ranks& ranks) { return FileOf(ranks).st_blocks * 512; }

// Sums a number over the ranks, all in one group.
Status Sum(const Ranks& ranks) {
  std::vector<float> values;
  for (size_t rank = 0; rank < ranks.size(); ++rank)
    values.push_back(1.0f + rank);
  Group group;
  group.Start();
  for (size_t rank = 0; rank < ranks.size(); ++rank)
    CXL_RETURN_IF_ERROR(group.Add(
        ranks[rank].get(), {Verb::kAllReduce, &values[rank], &values[rank], 1,
                            kFloats, kSum, 0, nullptr}));
  CXL_RETURN_IF_ERROR(group.End());
  for (const auto& rank : ranks) CXL_RETURN_IF_ERROR(rank->Finalize());
  const float sum = ranks.size() * (ranks.size() + 1) / 2.0f;
  return values == std::vector<float>(ranks.size(), sum)
             ? OkStatus()
             : Error(Code::kInternal, "wrong sum");
}

// Gathers a message of several pieces between the hosts.
Status GatherOnHosts(const Ranks& ranks) {
  std::vector<Status> statuses(ranks.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < ranks.size(); ++rank)
    threads.emplace_back([&, rank] {
      Job* job = ranks[rank]->job();
      statuses[rank] =
          job->AllGather(std::vector<std::byte>(100 * kMessageBytes)).status();
      if (statuses[rank].ok()) statuses[rank] = job->pool()->CheckIntact();
    });
  for (std::thread& thread : threads) thread.join();
  for (const Status& status : statuses) CXL_RETURN_IF_ERROR(status);
  return OkStatus();
}

// As vLLM makes them: world, tensor, pipeline, data and expert parallel.
TEST(IdleTest, FiveCommunicatorsOfTwoRanks) {
  const auto status = InContainer(CLONE_NEWNS, "size=300m", [] {
    std::vector<Ranks> all;
    uint64_t promised = 0;
    for (int i = 0; i < 5; ++i) {
      all.push_back(OpenRanks(2));
      CHECK_THAT(!all.back().empty());
      CHECK_THAT(all.back()[1]->job()->rank_bytes() >= kLeastRankBytes);
      promised += FileOf(all.back()).st_size;
    }
    CHECK_THAT(promised > 5 * kLeastOfTwo && promised <= 300 * kMiB);
    CHECK_THAT(OpenRanks(2).empty());
    for (const Ranks& ranks : all) CHECK_THAT(TakenBy(ranks) <= kMiB);
    for (const Ranks& ranks : all) {
      CHECK_THAT(Sum(ranks).ok());
      CHECK_THAT(TakenBy(ranks) ==
                 static_cast<uint64_t>(FileOf(ranks).st_size));
    }
    all.erase(all.begin());  // frees its memory, which another one can take
    return !OpenRanks(2).empty();
  });
  RETURN_IF_NOT_ALLOWED(status);
}

TEST(IdleTest, PromisesOfOtherProcessesCount) {
  const auto status = InContainer(CLONE_NEWNS, "size=128m", [] {
    Ranks theirs;
    pool::Child other([&] {
      theirs = OpenRanks(2);
      return !theirs.empty();
    });
    CHECK_THAT(other.ready());
    const uint64_t left = pool::UnpromisedShmBytes();
    CHECK_THAT(left <= 128 * kMiB - kLeastOfTwo && left > 64 * kMiB);
    const Ranks mine = OpenRanks(2);
    CHECK_THAT(!mine.empty() && OpenRanks(2).empty());
    other.Kill();
    return !OpenRanks(2).empty();
  });
  RETURN_IF_NOT_ALLOWED(status);
}

// The ranks get errors, but no SIGBUS, and other communicators go on.
TEST(IdleTest, AnotherProgramHasTakenTheMemory) {
  const auto status = InContainer(CLONE_NEWNS, "size=200m", [] {
    const Ranks used = OpenRanks(2), idle = OpenRanks(2), late = OpenRanks(2);
    CHECK_THAT(!used.empty() && !idle.empty() && !late.empty());
    CHECK_THAT(Sum(used).ok());
    std::ofstream("/dev/shm/other") << std::string(200 * kMiB, 'x');
    CHECK_THAT(GatherOnHosts(late).ok());  // idle, but its ranks can still talk
    for (const auto& rank : idle) {
      float value = 1;
      const Status failed = Group::OfThisThread().Add(
          rank.get(),
          {Verb::kAllReduce, &value, &value, 1, kFloats, kSum, 0, nullptr});
      std::printf("%s\n", failed.message().c_str());
      CHECK_THAT(ResultOf(failed) == kSystemError);
      CHECK_THAT(failed.message().find("docker run --shm-size") !=
                 std::string::npos);
      CHECK_THAT(rank->status().code() == failed.code());
    }
    CHECK_THAT(TakenBy(idle) <= kMiB);
    CHECK_THAT(Sum(used).ok());
    std::filesystem::remove("/dev/shm/other");
    return Sum(late).ok();
  });
  RETURN_IF_NOT_ALLOWED(status);
}

// A rank takes the memory for all, and the third rank never calls.
TEST(IdleTest, OnlyTwoRanksSendAndReceive) {
  const Ranks ranks = OpenRanks(3);
  ASSERT_FALSE(ranks.empty());
  float out = 0, in = 5;
  const Operation send = {Verb::kSend, &in, nullptr, 1, kFloats, 0, 2, nullptr};
  Operation receive = {Verb::kRecv, nullptr, &out, 1, kFloats, 0, 0, nullptr};
  EXPECT_TRUE(Group::OfThisThread().Add(ranks[0].get(), send).ok());
  EXPECT_TRUE(Group::OfThisThread().Add(ranks[2].get(), receive).ok());
  EXPECT_TRUE(ranks[2]->Finalize().ok());
  EXPECT_EQ(out, in);
  EXPECT_TRUE(ranks[0]->job()->pool()->reserved());
  EXPECT_FALSE(ranks[1]->job()->pool()->reserved());
}

}  // namespace
}  // namespace jax_cxl::nccl
