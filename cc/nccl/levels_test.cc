// Sanitizers: address

// Collectives in levels, with modeled devices and a model of NVIDIA's NCCL.

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cc/nccl/communicator.h"
#include "cc/nccl/group.h"
#include "cc/nccl/interface/abi.h"
#include "cc/testing/nccl/model_device.h"

namespace jax_cxl::nccl {
namespace {

constexpr int kTypeInt32 = 2, kTypeFloat32 = 7;

// A communicator of `hosts` hosts with `per_host` ranks each. All
// run in this process.
class LevelJob {
 public:
  LevelJob(int hosts, int per_host, uint64_t scratch_bytes)
      : hosts_(hosts), per_host_(per_host) {
    const PoolToken token = *RandomPoolToken();
    devices_.resize(size());
    Group group;
    group.Start();
    for (int host = 0; host < hosts; ++host)
      inner_.push_back(std::make_unique<ModelHost>(per_host));
    for (int rank = 0; rank < size(); ++rank) {
      const int host = rank / per_host;
      const Levels levels = {{hosts, per_host, host, rank % per_host},
                             /*least_bytes=*/kLeastBytes,
                             nullptr,
                             scratch_bytes};
      ranks_.push_back(std::make_unique<Communicator>(
          token, rank, size(), 0, true,
          [this, rank, host, levels](Job* job, const std::atomic<bool>&)
              -> Result<std::unique_ptr<Device>> {
            auto device =
                std::make_unique<ModelDevice>(job, inner_[host].get(), levels);
            devices_[rank] = device.get();
            return std::unique_ptr<Device>(std::move(device));
          }));
      EXPECT_TRUE(
          group.AddOpening([raw = ranks_.back().get()] { return raw->Open(); })
              .ok());
    }
    const Status status = group.End();
    EXPECT_TRUE(status.ok()) << status.message();
  }

  int size() const { return hosts_ * per_host_; }

  // Runs an operation of each rank: with a thread for each host or for each
  // rank.
  std::vector<Status> Run(const std::vector<Operation>& operations,
                          bool thread_of_rank) {
    std::vector<Status> statuses(size());
    std::vector<std::thread> threads;
    const int each = thread_of_rank ? 1 : per_host_;
    for (int first = 0; first < size(); first += each)
      threads.emplace_back([&, first] {
        Group group;
        group.Start();
        for (int rank = first; rank < first + each; ++rank)
          statuses[rank] = group.Add(ranks_[rank].get(), operations[rank]);
        const Status status = group.End();
        for (int rank = first; rank < first + each; ++rank)
          if (statuses[rank].ok()) statuses[rank] = status;
      });
    for (std::thread& thread : threads) thread.join();
    for (int rank = 0; rank < size(); ++rank)
      if (statuses[rank].ok()) statuses[rank] = ranks_[rank]->Finalize();
    return statuses;
  }

  uint64_t TakeBytesBetween(int rank) {
    return std::exchange(devices_[rank]->bytes_between, 0);
  }

  static constexpr uint64_t kLeastBytes = 4096;

 private:
  const int hosts_, per_host_;
  std::vector<std::unique_ptr<ModelHost>> inner_;
  std::vector<ModelDevice*> devices_;
  std::vector<std::unique_ptr<Communicator>> ranks_;
};

uint64_t InputBlocks(Verb verb, int size) {
  return verb == Verb::kReduceScatter ? size : 1;
}
uint64_t OutputBlocks(Verb verb, int size) {
  return verb == Verb::kAllGather ? size : 1;
}

template <typename T>
T Reduced(int reduction, T left, T right) {
  return reduction == kProd  ? left * right
         : reduction == kMax ? std::max(left, right)
         : reduction == kMin ? std::min(left, right)
                             : left + right;
}

// The outputs of all ranks.
template <typename T>
std::vector<std::vector<T>> Expected(
    const Operation& operation, const std::vector<std::vector<T>>& inputs) {
  const size_t size = inputs.size();
  std::vector<std::vector<T>> outputs(size);
  if (operation.verb == Verb::kAllGather) {
    for (auto& output : outputs)
      for (const auto& input : inputs)
        output.insert(output.end(), input.begin(), input.end());
    return outputs;
  }
  if (operation.verb == Verb::kBroadcast) return {size, inputs[operation.root]};
  std::vector<T> sum = inputs[0];
  for (size_t rank = 1; rank < size; ++rank)
    for (size_t i = 0; i < sum.size(); ++i)
      sum[i] = Reduced(operation.reduction, sum[i], inputs[rank][i]);
  if (operation.reduction == kAvg)
    for (T& value : sum) value /= static_cast<T>(size);
  if (operation.verb == Verb::kAllReduce) return {size, sum};
  for (size_t rank = 0; rank < size; ++rank)
    outputs[rank].assign(sum.begin() + rank * operation.count,
                         sum.begin() + (rank + 1) * operation.count);
  return outputs;
}

// Sets the buffers of the operation, runs it, and compares all outputs.
template <typename T>
void Check(LevelJob* job, Operation operation, bool in_place,
           bool thread_of_rank) {
  const int size = job->size();
  SCOPED_TRACE("verb " + std::to_string(static_cast<int>(operation.verb)) +
               " of " + std::to_string(operation.count) + ", reduction " +
               std::to_string(operation.reduction) +
               (in_place ? ", in place" : "") +
               (thread_of_rank ? ", a thread for each rank" : ""));
  const uint64_t count = operation.count;
  const uint64_t in = count * InputBlocks(operation.verb, size);
  const uint64_t out = count * OutputBlocks(operation.verb, size);
  std::vector<std::vector<T>> inputs(size), buffers(size), outputs(size);
  std::vector<Operation> operations(size, operation);
  for (int rank = 0; rank < size; ++rank) {
    for (uint64_t i = 0; i < in; ++i)
      inputs[rank].push_back(static_cast<T>(1 + (i * 7 + rank * 5) % 3));
    outputs[rank].resize(std::max(in, out));
    buffers[rank] = inputs[rank];
    T* input = buffers[rank].data();
    T* output = outputs[rank].data();
    if (in_place) {
      input = output + (out > in ? rank * count : 0);
      std::ranges::copy(inputs[rank], input);
      if (in > out) output += rank * count;
    }
    operations[rank].input = input;
    operations[rank].output = output;
  }
  for (const Status& status : job->Run(operations, thread_of_rank))
    ASSERT_TRUE(status.ok()) << status.message();
  const auto expected = Expected(operation, inputs);
  for (int rank = 0; rank < size; ++rank) {
    const T* output = static_cast<const T*>(operations[rank].output);
    ASSERT_EQ(std::vector<T>(output, output + out), expected[rank])
        << "rank " << rank;
    if (!in_place) {
      ASSERT_EQ(buffers[rank], inputs[rank]);
    }
  }
}

using Shape = std::pair<int, int>;

class LevelsTest : public testing::TestWithParam<Shape> {};

// Tests counts from below the limit up to several chunks, aligned and not.
TEST_P(LevelsTest, AllOperations) {
  const auto [hosts, per_host] = GetParam();
  const uint64_t chunk = 512;  // elements
  LevelJob job(hosts, per_host, hosts * chunk * sizeof(float));
  const uint64_t unit = 64 * per_host;
  bool in_place = false;
  for (uint64_t count : {uint64_t{1}, uint64_t{63}, 8 * unit, 8 * unit + 1,
                         20 * unit - 1, chunk, 3 * chunk + 5}) {
    in_place = !in_place;
    for (bool thread_of_rank : {false, true}) {
      for (int reduction : {kSum, kAvg, kMin})
        for (Verb verb : {Verb::kAllReduce, Verb::kReduceScatter})
          Check<float>(&job,
                       {verb, nullptr, nullptr, count, kTypeFloat32, reduction,
                        0, nullptr},
                       in_place, thread_of_rank);
      for (int reduction : {kProd, kMax})
        Check<int32_t>(&job,
                       {Verb::kAllReduce, nullptr, nullptr, count, kTypeInt32,
                        reduction, 0, nullptr},
                       !in_place, thread_of_rank);
      Check<int32_t>(&job,
                     {Verb::kAllGather, nullptr, nullptr, count, kTypeInt32, 0,
                      0, nullptr},
                     in_place, thread_of_rank);
      Check<float>(&job,
                   {Verb::kBroadcast, nullptr, nullptr, count, kTypeFloat32, 0,
                    static_cast<int>(count) % job.size(), nullptr},
                   in_place, thread_of_rank);
    }
  }
}

TEST_P(LevelsTest, AHostSendsEachByteOnce) {
  const auto [hosts, per_host] = GetParam();
  LevelJob job(hosts, per_host, uint64_t{1} << 20);
  const uint64_t count = 64 * per_host * 16;
  const auto bytes = [&](Verb verb, uint64_t elements) {
    Check<float>(
        &job,
        {verb, nullptr, nullptr, elements, kTypeFloat32, kSum, 1, nullptr},
        false, false);
    std::vector<uint64_t> of_ranks;
    for (int rank = 0; rank < job.size(); ++rank)
      of_ranks.push_back(job.TakeBytesBetween(rank));
    return of_ranks;
  };
  const std::vector<uint64_t> parts(job.size(),
                                    count * sizeof(float) / per_host);
  const std::vector<uint64_t> blocks(job.size(), count * sizeof(float));
  const std::vector<uint64_t> nothing(job.size());
  EXPECT_EQ(bytes(Verb::kAllReduce, count), parts);
  EXPECT_EQ(bytes(Verb::kBroadcast, count), parts);
  EXPECT_EQ(bytes(Verb::kReduceScatter, count), blocks);
  EXPECT_EQ(bytes(Verb::kAllGather, count), blocks);
  const uint64_t few = LevelJob::kLeastBytes / sizeof(float) - 1;
  EXPECT_EQ(bytes(Verb::kAllReduce, few), nothing);
}

INSTANTIATE_TEST_SUITE_P(Shapes, LevelsTest,
                         testing::Values(Shape{2, 2}, Shape{2, 3}, Shape{2, 4},
                                         Shape{3, 2}, Shape{3, 3},
                                         Shape{3, 4}));

TEST(LevelsMismatchTest, RanksOfOneThreadCallDifferentSizes) {
  LevelJob job(2, 2, uint64_t{1} << 20);
  std::vector<std::vector<float>> buffers(4, std::vector<float>(4096));
  std::vector<Operation> operations;
  for (int rank = 0; rank < 4; ++rank)
    operations.push_back({Verb::kAllReduce, buffers[rank].data(),
                          buffers[rank].data(), 4096 - 128u * (rank % 2),
                          kTypeFloat32, kSum, 0, nullptr});
  for (const Status& status : job.Run(operations, false)) {
    EXPECT_EQ(status.code(), Code::kMismatch);
    EXPECT_NE(status.message().find("call different collectives"),
              std::string::npos)
        << status.message();
  }
}

}  // namespace
}  // namespace jax_cxl::nccl
