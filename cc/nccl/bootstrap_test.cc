// Sanitizers: address

// What ranks decide before they share memory, and in containers that have too
// little of it or do not share it.

#include "cc/nccl/bootstrap.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cc/nccl/job.h"
#include "cc/testing/nccl/container.h"
#include "cc/testing/pool/scratch.h"

namespace jax_cxl::nccl {
namespace {

using pool::kMiB;
constexpr double kTime = 60;
std::atomic<bool> cancel = false;

PoolToken NewToken() {
  PoolToken token = *RandomPoolToken();
  token.bootstrap = OwnBootstrap("");
  return token;
}

std::unique_ptr<Bootstrap> Join(const PoolToken& token, int rank, int size,
                                double timeout_s = kTime) {
  auto joined = Bootstrap::Join(token, rank, size, timeout_s, cancel);
  EXPECT_TRUE(joined.ok()) << joined.status().message();
  return joined.ok() ? *std::move(joined) : nullptr;
}

void InThreads(int count, const std::function<void(int)>& run) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back(run, i);
  for (std::thread& thread : threads) thread.join();
}

TEST(BootstrapTest, RanksOfTwoCommunicatorsGather) {
  constexpr int kSize = 3;
  const PoolToken tokens[] = {NewToken(), NewToken()};
  EXPECT_EQ(tokens[0].bootstrap, tokens[1].bootstrap);
  InThreads(2 * kSize, [&](int i) {
    const int rank = i / 2;
    const auto bootstrap = Join(tokens[i % 2], rank, kSize);
    for (int round = 0; round < 3; ++round) {
      const std::byte mine[] = {std::byte(i % 2), std::byte(rank + round)};
      const auto all = bootstrap->AllGather(mine);
      ASSERT_TRUE(all.ok()) << all.status().message();
      for (int each = 0; each < kSize; ++each) {
        EXPECT_EQ((*all)[2 * each], mine[0]);
        EXPECT_EQ((*all)[2 * each + 1], std::byte(each + round));
      }
    }
  });
}

TEST(BootstrapTest, OneFailureIsAFailureOfAll) {
  const PoolToken token = NewToken();
  InThreads(3, [&](int rank) {
    const auto bootstrap = Join(token, rank, 3);
    EXPECT_TRUE(bootstrap->Agree(OkStatus()).ok());
    EXPECT_FALSE(bootstrap->agreed_to_fail());
    const Status mine = rank == 0 ? OkStatus()
                                  : Error(Code::kNotFound, "no memory ", rank,
                                          std::string(2000, 'x'));
    const Status status = bootstrap->Agree(mine);
    EXPECT_TRUE(bootstrap->agreed_to_fail());
    EXPECT_EQ(status.code(), Code::kNotFound);
    EXPECT_EQ(status.message().substr(0, 21), "rank 1: no memory 1xx");
  });
}

TEST(BootstrapTest, ARankThatIsMissingOrEnds) {
  const PoolToken token = NewToken();
  const auto early = Join(token, 0, 2, /*timeout_s=*/0.2);
  const Status status = early->Agree(OkStatus());
  EXPECT_EQ(status.code(), Code::kDeadlineExceeded) << status.message();
  EXPECT_FALSE(early->agreed_to_fail());
  InThreads(2, [token = NewToken()](int rank) {
    const auto bootstrap = Join(token, rank, 2);
    if (rank == 1) return;
    EXPECT_EQ(bootstrap->Agree(OkStatus()).code(), Code::kPeerLost);
  });
}

TEST(BootstrapTest, AnAbortEndsTheWait) {
  const auto early = Join(NewToken(), 0, 2);
  std::thread aborting([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    cancel = true;
  });
  EXPECT_EQ(early->Agree(OkStatus()).code(), Code::kFailedPrecondition);
  aborting.join();
  cancel = false;
}

TEST(BootstrapTest, AServerThatHasEnded) {
  PoolToken token = NewToken();
  token.bootstrap.port = 1 << 8;  // port 1
  const auto joined = Bootstrap::Join(token, 0, 2, kTime, cancel);
  EXPECT_EQ(joined.status().code(), Code::kPeerLost);
}

TEST(BootstrapTest, Interfaces) {
  EXPECT_TRUE(AllowsInterface("", "eth0"));
  EXPECT_TRUE(AllowsInterface("ib,eth", "eth0"));
  EXPECT_FALSE(AllowsInterface("ib,eth", "lo"));
  EXPECT_FALSE(AllowsInterface("=eth", "eth0"));
  EXPECT_TRUE(AllowsInterface("=lo,eth0", "eth0"));
  EXPECT_FALSE(AllowsInterface("^docker,lo", "docker0"));
  EXPECT_TRUE(AllowsInterface("^docker,lo", "eth0"));
  EXPECT_TRUE(AllowsInterface("^=eth", "eth0"));
}

// One rank meets the others. Returns the bytes that it may use, or 0 and why.
uint64_t Meet(const PoolToken& token, int rank, int size, std::string* why) {
  Settings settings;
  settings.hosts = Hosts::kAll;
  settings.timeout_s = kTime;
  const auto bootstrap = Join(token, rank, size);
  const auto job =
      Job::Meet(token, rank, size, 0, settings, cancel, bootstrap.get());
  if (!job.ok()) {
    *why = (bootstrap->agreed_to_fail() ? "" : "not agreed: ") +
           job.status().message();
    return 0;
  }
  const auto mine = static_cast<std::byte>(rank);
  const auto all = (*job)->AllGather({&mine, 1});
  if (!all.ok()) *why = all.status().message();
  return all.ok() ? (*job)->rank_bytes() : 0;
}

// Meets all ranks of a communicator in threads of this process.
uint64_t MeetAll(int size, std::string* why) {
  const PoolToken token = NewToken();
  std::vector<uint64_t> bytes(size);
  std::vector<std::string> whys(size);
  InThreads(size, [&](int rank) {
    bytes[rank] = Meet(token, rank, size, &whys[rank]);
  });
  *why = whys[0];
  for (int rank = 0; rank < size; ++rank)
    if (bytes[rank] != bytes[0] || whys[rank] != whys[0]) *why = "not alike";
  return bytes[0];
}

// The first communicator takes a quarter of what is free. The second one gets
// the least that ranks need.
TEST(ContainerTest, TakesWhatIsThere) {
  const auto status = InContainer(CLONE_NEWNS, "size=256m", [] {
    std::string why;
    const uint64_t part = MeetAll(2, &why), least = MeetAll(5, &why);
    std::printf("%lu, %lu %s\n", part, least, why.c_str());
    return part / kMiB == 32 && least / kMiB == 24;
  });
  RETURN_IF_NOT_ALLOWED(status);
}

TEST(ContainerTest, TooSmallForAPool) {
  for (const char* options : {"size=40m", "size=64m,mode=555", "nr_inodes=1"}) {
    const auto status = InContainer(CLONE_NEWNS, options, [&] {
      if (std::string(options).find("mode") != std::string::npos &&
          mount("none", "/dev/shm", nullptr, MS_REMOUNT | MS_RDONLY, nullptr) !=
              0)
        return false;
      std::string why;
      const uint64_t bytes = MeetAll(2, &why);
      std::printf("%s: %s\n", options, why.c_str());
      return bytes == 0 && why.starts_with("rank 0: ");
    });
    RETURN_IF_NOT_ALLOWED(status);
  }
}

TEST(ContainerTest, DockersDefault) {
  const auto status = InContainer(CLONE_NEWNS, "size=64m", [] {
    std::string why;
    const uint64_t two = MeetAll(2, &why), three = MeetAll(3, &why);
    std::printf("%lu, %lu %s\n", two, three, why.c_str());
    return two / kMiB == 24 && three == 0 &&
           why.find("docker run --shm-size") != std::string::npos;
  });
  RETURN_IF_NOT_ALLOWED(status);
}

// Ranks in two containers with an own /dev/shm each, and with a common one.
TEST(ContainerTest, TwoContainers) {
  for (const char* shm : {"size=256m", static_cast<const char*>(nullptr)}) {
    const PoolToken token = NewToken();
    std::vector<std::optional<int>> statuses(2);
    const int namespaces =
        CLONE_NEWPID | CLONE_NEWIPC | (shm != nullptr ? CLONE_NEWNS : 0);
    InThreads(2, [&](int rank) {
      statuses[rank] = InContainer(namespaces, shm, [&, rank] {
        std::string why;
        const uint64_t bytes = Meet(token, rank, 2, &why);
        if (shm == nullptr) return bytes > 0;
        return bytes == 0 && why.find("is not the one of rank 0") != why.npos;
      });
    });
    for (const auto& status : statuses) {
      RETURN_IF_NOT_ALLOWED(status);
    }
  }
}

}  // namespace
}  // namespace jax_cxl::nccl
