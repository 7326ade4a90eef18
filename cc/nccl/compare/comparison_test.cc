// Sanitizers: address

// Communicators whose calls are compared, with modeled devices and a stand-in
// for NVIDIA's library.

#include "cc/nccl/compare/comparison.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cc/nccl/communicator.h"
#include "cc/nccl/group.h"
#include "cc/nccl/interface/abi.h"
#include "cc/nccl/interface/results.h"
#include "cc/nccl/interface/settings.h"
#include "cc/nccl/job.h"
#include "cc/testing/nccl/model_device.h"
#include "cc/testing/nccl/stand_in_nccl.h"

namespace jax_cxl::nccl {
namespace {

// Compares in the host's memory, once the device has finished the calls.
class HostComparer final : public Comparer {
 public:
  explicit HostComparer(Device* device) : device_(device) {}

  Status Begin(std::span<const Stream>) override {
    memory_.clear();
    ++found_.begun;
    return device_->Drain();
  }
  Result<std::byte*> Take(uint64_t bytes) override {
    return memory_.emplace_back(bytes, std::byte{0xee}).data();
  }
  Status Copy(void* to, const void* from, uint64_t bytes) override {
    std::memcpy(to, from, bytes);
    return OkStatus();
  }
  Status Weigh(const Rule& rule, const void* input, uint64_t count,
               const std::optional<comm::Factor>& factor,
               void* weights) override {
    const double by = factor ? ValueOf(rule.dtype, factor->bits) : 1;
    for (uint64_t i = 0; i < count; ++i)
      static_cast<float*>(weights)[i] =
          PartOfWeight(rule, ValueOf(rule.dtype, ElementBits(input, i, 4)), by);
    return OkStatus();
  }
  Status Compare(const Results& results) override {
    ++found_.compared;
    for (uint64_t i = 0; i < results.count && found_.results.number == 0; ++i) {
      const uint64_t ours = ElementBits(results.ours, i, results.element_bytes);
      const uint64_t theirs =
          ElementBits(results.theirs, i, results.element_bytes);
      const double weight = results.weights == nullptr
                                ? 0
                                : static_cast<const float*>(results.weights)[i];
      if (Differ(results.rule, ours, theirs, weight))
        found_ = {found_.compared, found_.begun, found_.ended, results, i, ours,
                  theirs};
    }
    return OkStatus();
  }
  Status End() override {
    ++found_.ended;
    return OkStatus();
  }
  Status Drain() override { return OkStatus(); }
  Found found() const override { return found_; }

 private:
  Device* device_;
  std::deque<std::vector<std::byte>> memory_;
  Found found_;
};

class ComparisonTest : public testing::Test {
 protected:
  void SetUp() override { StandInNccl::The().Reset(); }

  void MakeRanks(uint64_t every) {
    MakeRanks(every, *RandomPoolToken(), 0, kSize);
  }
  void MakeRanks(uint64_t every, const PoolToken& token, int first, int end) {
    group_.Start();
    for (int rank = first; rank < end; ++rank) {
      ranks_.push_back(std::make_unique<Communicator>(token, rank, kSize, 0,
                                                      true, MakeModel));
      const Status added = group_.AddOpening([raw = ranks_.back().get(), rank,
                                              every]() -> Status {
        Settings settings;
        settings.hosts = Hosts::kAll;
        CXL_RETURN_IF_ERROR(raw->Open(settings, /*make_real=*/{}));
        raw->Compare(std::make_unique<Comparison>(
            StandInNccl::Find, StandInNccl::Shadow(rank),
            std::make_unique<HostComparer>(raw->device()), rank, kSize, every));
        return OkStatus();
      });
      ASSERT_TRUE(added.ok()) << added.message();
    }
    const Status ended = group_.End();
    ASSERT_TRUE(ended.ok()) << ended.message();
    StandInNccl::The().wait = [this] {
      DrainDevices();
      return true;
    };
  }

  void DrainDevices() {
    for (auto& rank : ranks_) EXPECT_TRUE(rank->device()->Drain().ok());
  }

  // Waits until a rank has an error.
  static void AwaitError(const Communicator& rank) {
    for (int i = 0; i < 500 && rank.status().ok(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }

  // Makes a call on all ranks, with inputs that are not small integers, in
  // place where NCCL defines that.
  void CallAll(Verb verb, int type, int op, bool in_place = false) {
    const Status status = TryCallAll(verb, type, op, in_place);
    ASSERT_TRUE(status.ok()) << status.message();
  }
  Status TryCallAll(Verb verb, int type, int op, bool in_place = false) {
    constexpr size_t kCount = 5;
    std::vector<std::vector<float>> floats(kSize);
    in_.assign(kSize, std::vector<float>(kSize * kCount));
    out_ = in_;
    group_.Start();
    for (auto& communicator : ranks_) {
      const int rank = communicator->rank();
      for (size_t i = 0; i < in_[rank].size(); ++i) {
        const float value = 0.1f + 0.7f * rank + 1.3f * i;
        if (type == kNcclFloat32)
          in_[rank][i] = value;
        else
          in_[rank][i] = cpu::FromBits(static_cast<int>(10 * value));
      }
      const float* input = in_[rank].data();
      float* output = in_place ? in_[rank].data() : out_[rank].data();
      if (in_place && verb == Verb::kReduceScatter) output += rank * kCount;
      if (in_place && verb == Verb::kAllGather) input += rank * kCount;
      Add(*communicator,
          {verb, input, output, kCount, type, op, /*root=*/1, nullptr});
    }
    return group_.End();
  }

  // Sends an int from each rank to the next one.
  Status SendInts() {
    group_.Start();
    AddInts();
    return group_.End();
  }
  // Sends 3 bytes to the one before, too: these are two batches of a device.
  Status Exchange() {
    bytes_.assign(kSize, std::vector<char>(3));
    group_.Start();
    AddInts();
    for (int rank = 0; rank < kSize; ++rank) {
      Add(*ranks_[rank],
          {Verb::kSend, "abc", nullptr, 3, 0, 0, Before(rank), nullptr});
      Add(*ranks_[rank], {Verb::kRecv, nullptr, bytes_[rank].data(), 3, 0, 0,
                          After(rank), nullptr});
    }
    return group_.End();
  }
  void AddInts() {
    static constexpr int kInts[kSize] = {1, 2, 3};
    ints_.assign(kSize, 0);
    for (int rank = 0; rank < kSize; ++rank) {
      Add(*ranks_[rank], {Verb::kSend, &kInts[rank], nullptr, 1, kNcclInt32, 0,
                          After(rank), nullptr});
      Add(*ranks_[rank], {Verb::kRecv, nullptr, &ints_[rank], 1, kNcclInt32, 0,
                          Before(rank), nullptr});
    }
  }
  void Add(Communicator& communicator, const Operation& operation) {
    const Status added = group_.Add(&communicator, operation);
    EXPECT_TRUE(added.ok()) << added.message();
  }
  static int After(int rank) { return (rank + 1) % kSize; }
  static int Before(int rank) { return (rank + kSize - 1) % kSize; }

  // Expects this number of compared calls of each rank, without a difference.
  void ExpectEqual(std::vector<uint64_t> compared) {
    for (int rank = 0; rank < kSize; ++rank) {
      const Status status = ranks_[rank]->Finalize();
      EXPECT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(ranks_[rank]->comparison()->compared(), compared[rank]) << rank;
    }
  }

  Group group_;
  std::vector<std::unique_ptr<Communicator>> ranks_;
  std::vector<std::vector<float>> in_, out_;
  std::vector<int> ints_;
  std::vector<std::vector<char>> bytes_;
};

TEST_F(ComparisonTest, AllCallsAreRepeatedAndEqual) {
  MakeRanks(1);
  for (const bool in_place : {false, true}) {
    for (const Verb verb :
         {Verb::kAllReduce, Verb::kReduceScatter, Verb::kReduce}) {
      for (const int op : {kSum, kProd, kMax, kAvg})
        CallAll(verb, kNcclFloat32, op, in_place);
      CallAll(verb, kNcclInt32, kSum, in_place);
    }
    CallAll(Verb::kAllGather, kNcclFloat32, 0, in_place);
    CallAll(Verb::kBroadcast, kNcclFloat32, 0, in_place);
  }
  for (const Verb verb : {Verb::kAllToAll, Verb::kGather, Verb::kScatter})
    CallAll(verb, kNcclFloat32, 0);
  EXPECT_TRUE(Exchange().ok());
  // Two rounds of 10 sums that all ranks have, 5 at the root, 2 moves. Then 3
  // moves, one of them at the root, and 2 receives.
  ExpectEqual({28, 39, 28});
  EXPECT_EQ(StandInNccl::The().counts["ncclBroadcast"], 2 * kSize);
  // Those of floats twice, because the weights are sums, too.
  EXPECT_EQ(StandInNccl::The().counts["ncclReduce"], 18 * kSize);
  for (auto& rank : ranks_) rank.reset();
  EXPECT_EQ(StandInNccl::The().destroyed, kSize);
  EXPECT_EQ(StandInNccl::The().aborted, 0);
}

TEST_F(ComparisonTest, EveryThirdCallOfAllRanks) {
  MakeRanks(3);
  for (int call = 0; call < 8; ++call)
    CallAll(Verb::kAllReduce, kNcclInt32, kSum);
  for (int turn = 0; turn < 4; ++turn) EXPECT_TRUE(Exchange().ok());
  ExpectEqual({4, 4, 4});
  EXPECT_EQ(StandInNccl::The().counts["ncclAllReduce"], 2 * kSize);
  EXPECT_EQ(StandInNccl::The().counts["ncclSend"], 2 * kSize);
}

TEST_F(ComparisonTest, PremultipliedSums) {
  MakeRanks(1);
  std::vector<float> values = {1.1f, 2.3f, 3.7f};
  group_.Start();
  for (int rank = 0; rank < kSize; ++rank) {
    const float factor = 0.3f + rank;
    const Result<int> number = ranks_[rank]->reductions().Add(
        &factor, kNcclFloat32, kScalarHostImmediate);
    ASSERT_TRUE(number.ok()) << number.status().message();
    Add(*ranks_[rank], {Verb::kAllReduce, &values[rank], &values[rank], 1,
                        kNcclFloat32, *number, 0, nullptr});
  }
  ASSERT_TRUE(group_.End().ok());
  ExpectEqual({1, 1, 1});
}

// A wrong byte ends the communicator with the call and the element.
TEST_F(ComparisonTest, FindsAPlantedFault) {
  struct Case {
    const char* function;
    Verb verb;
    int type;
    const char* text;
  };
  for (const Case& each : {
           Case{"ncclAllReduce", Verb::kAllReduce, kNcclFloat32,
                "call 2, ncclAllReduce: all_reduce sum of 5 float32: element 3 "
                "on rank "},
           Case{"ncclReduceScatter", Verb::kReduceScatter, kNcclInt32,
                "call 2, ncclReduceScatter: reduce_scatter sum of 5 int32: "
                "element 3 on rank "},
           Case{"ncclReduce", Verb::kReduce, kNcclInt32,
                "reduce sum of 5 int32, root 1: element 3 on rank 1 is "},
           Case{"ncclAllGather", Verb::kAllGather, kNcclFloat32,
                "element 3 on"},
           Case{"ncclBroadcast", Verb::kBroadcast, kNcclFloat32,
                "element 3 on"},
           Case{"ncclRecv", Verb::kAllToAll, kNcclInt32, "element 3 on"},
       }) {
    StandInNccl& nvidias = StandInNccl::The();
    nvidias.Reset();
    ranks_.clear();
    MakeRanks(1);
    CallAll(each.verb, each.type, kSum);
    nvidias.fault = each.function;
    nvidias.at = 15;
    CallAll(each.verb, each.type, kSum);
    AwaitError(*ranks_[1]);
    const Status status = ranks_[1]->status();
    EXPECT_EQ(status.code(), Code::kDataLoss);
    EXPECT_NE(status.message().find(each.text), std::string::npos)
        << status.message();
    EXPECT_NE(status.message().find("by NVIDIA's library"), std::string::npos);
    EXPECT_NE(std::string(LastError()).find("by NVIDIA's library"),
              std::string::npos);
    for (auto& rank : ranks_) rank->Abort();
    EXPECT_EQ(nvidias.aborted, kSize);
    ranks_.clear();
    EXPECT_EQ(nvidias.destroyed, 0);
  }
}

// The pool's calls have ended, so only the comparison shows that ranks wait.
TEST_F(ComparisonTest, ARankThatFailsDuringACallEndsTheOthers) {
  MakeRanks(1);
  StandInNccl::The().wait = [this] {
    DrainDevices();
    ranks_[1]->Fail(Error(Code::kInternal, "no memory"));
    AwaitError(*ranks_[0]);
    AwaitError(*ranks_[2]);
    return false;
  };
  EXPECT_FALSE(TryCallAll(Verb::kAllReduce, kNcclInt32, kSum).ok());
  for (const int rank : {0, 2})
    EXPECT_NE(ranks_[rank]->status().message().find("gave up: no memory"),
              std::string::npos)
        << ranks_[rank]->status().message();
  for (auto& rank : ranks_) rank->Abort();
}

TEST_F(ComparisonTest, ARankThatDiesDuringACallEndsTheOthers) {
  const PoolToken token = *RandomPoolToken();
  const pid_t child = fork();
  MakeRanks(1, token, child == 0 ? 2 : 0, child == 0 ? 3 : 2);
  StandInNccl::The().wait = [&] {
    DrainDevices();
    if (child == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      _exit(3);
    }
    AwaitError(*ranks_[0]);
    AwaitError(*ranks_[1]);
    return false;
  };
  const Status called = TryCallAll(Verb::kAllReduce, kNcclInt32, kSum);
  if (child == 0) _exit(1);
  EXPECT_FALSE(called.ok());
  for (auto& rank : ranks_) {
    EXPECT_EQ(rank->status().code(), Code::kPeerLost);
    EXPECT_NE(rank->status().message().find("its process ended"),
              std::string::npos)
        << rank->status().message();
    rank->Abort();
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 3);
}

TEST_F(ComparisonTest, ARankMayEndAfterItsLastCall) {
  MakeRanks(1);
  CallAll(Verb::kAllReduce, kNcclInt32, kSum);
  ranks_[1]->Abort();
  std::this_thread::sleep_for(std::chrono::milliseconds(1300));
  EXPECT_TRUE(ranks_[0]->status().ok()) << ranks_[0]->status().message();
  EXPECT_TRUE(ranks_[2]->Finalize().ok());
}

TEST_F(ComparisonTest, FindsAPlantedFaultOfASend) {
  MakeRanks(1);
  StandInNccl::The().fault = "ncclRecv";
  StandInNccl::The().at = 3;
  // One batch, because a second one may or may not have a rank that failed.
  ASSERT_TRUE(SendInts().ok());
  const Status status = ranks_[0]->Finalize();
  EXPECT_EQ(status.message(),
            "call 1, ncclSend of 4 bytes from rank 2: element 3 on "
            "rank 0 is 0 (0x0), but 64 (0x40) by NVIDIA's library "
            "(JAX_CXL_NCCL_COMPARE)");
  for (auto& rank : ranks_) rank->Abort();
}

}  // namespace
}  // namespace jax_cxl::nccl
