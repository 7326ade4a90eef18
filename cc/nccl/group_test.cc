// Sanitizers: address

// Communicators and groups, with a modeled device.

#include "cc/nccl/group.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cc/nccl/communicator.h"
#include "cc/nccl/interface/abi.h"
#include "cc/nccl/interface/results.h"
#include "cc/nccl/interface/settings.h"
#include "cc/nccl/job.h"
#include "cc/testing/nccl/model_device.h"

namespace jax_cxl::nccl {
namespace {

constexpr int kFloat32 = 7, kInt32 = 2;

// A device whose peers never open the channels for sends.
class LonelyDevice final : public ModelDevice {
 public:
  using ModelDevice::ModelDevice;
  Result<bool> TryConnectPair(int, int) override {
    waits = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    return false;
  }
  inline static std::atomic<bool> waits = false;
};

Status Open(Communicator* communicator) {
  Settings settings;
  settings.hosts = Hosts::kAll;
  return communicator->Open(settings, /*make_real=*/{});
}

// Ranks of one communicator, all in this process.
std::vector<std::unique_ptr<Communicator>> MakeRanks(
    int size, const MakeDevice& make_device = MakeModel) {
  const PoolToken token = *RandomPoolToken();
  std::vector<std::unique_ptr<Communicator>> ranks;
  Group group;
  group.Start();
  for (int rank = 0; rank < size; ++rank) {
    ranks.push_back(std::make_unique<Communicator>(token, rank, size, 0, true,
                                                   make_device));
    EXPECT_TRUE(
        group.AddOpening([raw = ranks.back().get()] { return Open(raw); })
            .ok());
  }
  const Status status = group.End();
  EXPECT_TRUE(status.ok()) << status.message();
  return ranks;
}

void ExpectOk(const Status& status) {
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST(GroupTest, CollectivesOfSeveralRanksOfOneThread) {
  constexpr int kSize = 3;
  auto ranks = MakeRanks(kSize);
  std::vector<std::vector<float>> in(kSize), out(kSize), gathered(kSize);
  Group group;
  group.Start();
  for (int rank = 0; rank < kSize; ++rank) {
    in[rank] = {1.0f + rank, 10.0f * rank};
    out[rank].resize(2);
    gathered[rank].resize(2 * kSize);
    ExpectOk(group.Add(ranks[rank].get(),
                       {Verb::kAllReduce, in[rank].data(), out[rank].data(), 2,
                        kFloat32, kSum, 0, nullptr}));
    ExpectOk(group.Add(ranks[rank].get(),
                       {Verb::kAllGather, in[rank].data(),
                        gathered[rank].data(), 2, kFloat32, 0, 0, nullptr}));
  }
  ExpectOk(group.End());
  for (auto& rank : ranks) ExpectOk(rank->Finalize());
  for (int rank = 0; rank < kSize; ++rank) {
    EXPECT_EQ(out[rank], (std::vector<float>{6, 30}));
    EXPECT_EQ(gathered[rank], (std::vector<float>{1, 0, 2, 10, 3, 20}));
  }
}

// PyTorch makes a reduction for each call, and destroys it before the group
// ends. Ranks have different factors.
TEST(GroupTest, PremultipliedSums) {
  constexpr int kSize = 3;
  auto ranks = MakeRanks(kSize);
  std::vector<float> values(kSize, 1);
  Group group;
  group.Start();
  for (int rank = 0; rank < kSize; ++rank) {
    Reductions& reductions = ranks[rank]->reductions();
    const float factor = 0.5f + rank;
    const Result<int> number =
        reductions.Add(&factor, kFloat32, kScalarHostImmediate);
    ASSERT_TRUE(number.ok()) << number.status().message();
    ExpectOk(group.Add(ranks[rank].get(),
                       {Verb::kAllReduce, &values[rank], &values[rank], 1,
                        kFloat32, *number, 0, nullptr}));
    ExpectOk(reductions.Remove(*number));
  }
  ExpectOk(group.End());
  for (auto& rank : ranks) ExpectOk(rank->Finalize());
  EXPECT_EQ(values, std::vector<float>(kSize, 4.5f));
}

// Each rank sends to all ranks, including itself, as programs without
// all-to-all do.
TEST(GroupTest, SendsAndReceivesInNestedGroups) {
  constexpr int kSize = 3;
  auto ranks = MakeRanks(kSize);
  std::vector<std::vector<int>> in(kSize, std::vector<int>(kSize));
  std::vector<std::vector<int>> out = in;
  Group group;
  group.Start();
  for (int rank = 0; rank < kSize; ++rank) {
    group.Start();
    for (int peer = 0; peer < kSize; ++peer) {
      in[rank][peer] = 10 * rank + peer;
      ExpectOk(
          group.Add(ranks[rank].get(), {Verb::kRecv, nullptr, &out[rank][peer],
                                        1, kInt32, 0, peer, nullptr}));
      ExpectOk(
          group.Add(ranks[rank].get(), {Verb::kSend, &in[rank][peer], nullptr,
                                        1, kInt32, 0, peer, nullptr}));
    }
    ExpectOk(group.End());
    EXPECT_TRUE(group.open());
  }
  ExpectOk(group.End());
  for (auto& rank : ranks) ExpectOk(rank->Finalize());
  for (int rank = 0; rank < kSize; ++rank)
    EXPECT_EQ(out[rank], (std::vector<int>{rank, 10 + rank, 20 + rank}));
}

TEST(GroupTest, AnErrorStopsTheGroup) {
  auto ranks = MakeRanks(1);
  float in = 1, out = 0;
  const Operation good = {Verb::kAllReduce, &in,  &out, 1,
                          kFloat32,         kSum, 0,    nullptr};
  Operation bad = good;
  bad.type = 99;
  Group group;
  group.Start();
  ExpectOk(group.Add(ranks[0].get(), good));
  EXPECT_EQ(group.Add(ranks[0].get(), bad).code(), Code::kInvalidArgument);
  EXPECT_EQ(group.End().code(), Code::kInvalidArgument);
  ExpectOk(ranks[0]->Finalize());
  EXPECT_EQ(out, 0);
  EXPECT_EQ(group.End().code(), Code::kFailedPrecondition);
  ExpectOk(group.Add(ranks[0].get(), good));  // the group is as new
  ExpectOk(ranks[0]->Finalize());
  EXPECT_EQ(out, 1);
}

// Runs two of the four ranks of a communicator between processes.
bool RunHalf(const PoolToken& token, int first) {
  constexpr int kSize = 4, kHalf = 2;
  Settings settings;
  settings.hosts = Hosts::kProcesses;
  settings.timeout_s = 60;
  std::vector<std::unique_ptr<Communicator>> ranks;
  Group group;
  group.Start();
  for (int rank = first; rank < first + kHalf; ++rank) {
    ranks.push_back(
        std::make_unique<Communicator>(token, rank, kSize, 0, true, MakeModel));
    const Status added =
        group.AddOpening([&settings, raw = ranks.back().get()] {
          return raw->Open(
              settings, [](const auto&, const auto&, bool) -> Result<void*> {
                return Error(Code::kInternal, "these are two processes");
              });
        });
    if (!added.ok()) return false;
  }
  if (!group.End().ok()) return false;
  std::vector<float> sums, gathered(kHalf * kSize);
  for (int rank = first; rank < first + kHalf; ++rank)
    sums.push_back(1.0f + rank);
  group.Start();
  for (int i = 0; i < kHalf; ++i) {
    static_cast<void>(group.Add(
        ranks[i].get(), {Verb::kAllGather, &sums[i], &gathered[i * kSize], 1,
                         kFloat32, 0, 0, nullptr}));
    static_cast<void>(group.Add(
        ranks[i].get(),
        {Verb::kAllReduce, &sums[i], &sums[i], 1, kFloat32, kSum, 0, nullptr}));
  }
  bool ok = group.End().ok();
  for (auto& rank : ranks) ok = rank->Finalize().ok() && ok;
  return ok && sums == std::vector<float>(kHalf, 10) &&
         gathered == std::vector<float>{1, 2, 3, 4, 1, 2, 3, 4};
}

// A communicator whose processes have several ranks each is one group of all
// ranks, as is one with a rank in each process.
TEST(CommunicatorTest, SeveralRanksInEachOfTwoProcesses) {
  const PoolToken token = *RandomPoolToken();
  const pid_t other = fork();
  if (other == 0) _exit(RunHalf(token, 2) ? 0 : 1);
  EXPECT_TRUE(RunHalf(token, 0));
  int status = -1;
  ASSERT_EQ(waitpid(other, &status, 0), other);
  EXPECT_EQ(status, 0);
}

TEST(CommunicatorTest, AMismatchEndsBothRanksWithBothCalls) {
  auto ranks = MakeRanks(2);
  std::vector<float> in(4), out(4);
  Group group;
  for (size_t count : {2, 3}) {
    auto& rank = ranks[count - 2];
    ExpectOk(group.Add(rank.get(), {Verb::kAllReduce, in.data(), out.data(),
                                    count, kFloat32, kSum, 0, nullptr}));
  }
  for (auto& rank : ranks) {
    for (int i = 0; i < 500 && rank->status().ok(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    const std::string message = rank->status().message();
    EXPECT_NE(message.find("of 2 float32"), std::string::npos) << message;
    EXPECT_NE(message.find("of 3 float32"), std::string::npos) << message;
  }
  // The calls failed on another thread, but ncclGetLastError reports their
  // errors here too.
  const std::string last = LastError();
  EXPECT_NE(last.find("of 3 float32"), std::string::npos) << last;
}

TEST(CommunicatorTest, WithoutBlocking) {
  const PoolToken token = *RandomPoolToken();
  Communicator zero(token, 0, 2, 0, false, MakeModel);
  Communicator one(token, 1, 2, 0, false, MakeModel);
  Group group;
  zero.OpenLater([&] { return Open(&zero); });
  EXPECT_TRUE(zero.in_progress());
  float value = 1;
  const Operation call = {Verb::kAllReduce, &value, &value, 1,
                          kFloat32,         kSum,   0,      nullptr};
  // Both errors name the function of NCCL that the program called.
  for (const auto& [status, function] :
       {std::pair(group.Add(&zero, call), "ncclAllReduce: "),
        std::pair(zero.CheckReady("ncclCommSplit"), "ncclCommSplit: ")}) {
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_TRUE(status.message().starts_with(function)) << status.message();
  }
  one.OpenLater([&] { return Open(&one); });
  for (Communicator* rank : {&zero, &one}) {
    while (rank->in_progress())
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ExpectOk(rank->status());
  }
}

TEST(CommunicatorTest, RanksThatRemainAgreeOnATokenWithoutTheOthers) {
  const PoolToken token = *RandomPoolToken();
  Communicator one(token, 1, 4, 0, true, MakeModel);
  Communicator three(token, 3, 4, 0, true, MakeModel);
  const PoolToken first = one.NextToken({0, 1, 2});  // rank 3 does not know
  const PoolToken second = one.NextToken({1, 2, 3});
  EXPECT_EQ(second, three.NextToken({1, 2, 3}));
  EXPECT_NE(first, second);
  const PoolToken third = one.NextToken({1, 2, 3});
  EXPECT_EQ(third, three.NextToken({1, 2, 3}));
  EXPECT_NE(second, third);
}

TEST(CommunicatorTest, AbortWhileTheRanksMeet) {
  Communicator zero(*RandomPoolToken(), 0, 2, 0, false, MakeModel);
  zero.OpenLater([&] { return Open(&zero); });
  zero.Abort();
  EXPECT_EQ(zero.status().code(), Code::kFailedPrecondition);
}

void AwaitTrue(const std::function<bool()>& holds) {
  for (int i = 0; i < 500 && !holds(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  ASSERT_TRUE(holds());
}

// Aborts and destroys a rank while another thread waits in it, as PyTorch's
// watchdog does.
void ExpectAbortEnds(std::unique_ptr<Communicator> rank,
                     const std::function<Status(Communicator*)>& wait,
                     const std::function<bool()>& waits) {
  Status status;
  std::thread waiting([&] { status = wait(rank.get()); });
  AwaitTrue(waits);
  rank->Abort();
  rank.reset();
  waiting.join();
  EXPECT_EQ(status.code(), Code::kPeerLost);
}

TEST(CommunicatorTest, AbortWhileAnotherThreadWaitsForAPeer) {
  auto ranks = MakeRanks(2, [](Job* job, const std::atomic<bool>&) {
    return Result<std::unique_ptr<Device>>(std::make_unique<LonelyDevice>(job));
  });
  LonelyDevice::waits = false;
  int value = 0;
  ExpectAbortEnds(
      std::move(ranks[0]),
      [&](Communicator* rank) {
        return Group::OfThisThread().Add(
            rank, {Verb::kRecv, nullptr, &value, 1, kInt32, 0, 1, nullptr});
      },
      [] { return LonelyDevice::waits.load(); });
}

TEST(CommunicatorTest, AbortWhileAnotherThreadAsksTheRanks) {
  auto ranks = MakeRanks(2);
  std::atomic<bool> asks = false;
  ExpectAbortEnds(
      std::move(ranks[0]),
      [&](Communicator* rank) {
        std::lock_guard lock(rank->mutex());
        asks = true;
        return rank->job()->AllGather(std::vector<std::byte>(1)).status();
      },
      [&] { return asks.load(); });
}

TEST(CommunicatorTest, AbortIsAnErrorOfTheOtherRanks) {
  auto ranks = MakeRanks(2);
  float value = 1;
  Group group;
  ExpectOk(group.Add(ranks[1].get(), {Verb::kAllReduce, &value, &value, 1,
                                      kFloat32, kSum, 0, nullptr}));
  ranks[0]->Abort();
  for (int i = 0; i < 500 && ranks[1]->status().ok(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  const std::string message = ranks[1]->status().message();
  EXPECT_NE(message.find("aborted"), std::string::npos) << message;
}

}  // namespace
}  // namespace jax_cxl::nccl
