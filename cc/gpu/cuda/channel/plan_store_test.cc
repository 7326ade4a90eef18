#include "cc/gpu/cuda/channel/plan_store.h"

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "cc/testing/cuda/counted_pair.h"

namespace jax_cxl::comm {
namespace {

class PlanStoreTest : public testing::Test {
 protected:
  void SetUp() override {
    if (CountDevices() < 1) GTEST_SKIP() << "needs a GPU";
  }
};

// Returns a plan whose steps contain `mark`.
cuda::GpuPlan PlanOf(uint64_t sending, uint64_t receiving, uint8_t mark) {
  cuda::GpuPlan plan;
  plan.sending.resize(sending);
  plan.receiving.resize(receiving);
  for (auto* steps : {&plan.sending, &plan.receiving})
    std::memset(static_cast<void*>(steps->data()), mark++,
                steps->size() * sizeof(cuda::DeviceStep));
  return plan;
}

void ExpectMark(const cuda::DeviceStep* steps, uint64_t count, uint8_t mark) {
  std::vector<uint8_t> bytes(count * sizeof(*steps));
  OkOrDie(cudaMemcpy(bytes.data(), steps, bytes.size(), cudaMemcpyDefault));
  for (uint8_t byte : bytes) ASSERT_EQ(byte, mark);
}

// The plans fill several chunks, and one plan is larger than a chunk.
TEST_F(PlanStoreTest, PlansNeverMove) {
  PlanStore store;
  OkOrDie(store.MakeRoom());
  const uint64_t steps = PlanStore::kChunkBytes / sizeof(cuda::DeviceStep) / 5;
  std::vector<const StoredPlan*> plans;
  for (int n = 0; n < 20; ++n) {
    if (store.lacks_room()) OkOrDie(store.MakeRoom());
    cuda::JournalEntry record = {};
    record.descriptor.count = n;
    plans.push_back(OrDie(store.Store(
        std::to_string(n), PlanOf(n == 7 ? 6 * steps : steps - n, n, 2 * n),
        false, nullptr, n % 2 == 0 ? &record : nullptr)));
  }
  EXPECT_EQ(store.Find("20"), nullptr);
  for (int n = 0; n < 20; ++n) {
    const StoredPlan& plan = *plans[n];
    EXPECT_EQ(store.Find(std::to_string(n)), &plan);
    const std::vector<cuda::DeviceStep>& sending = plan.gpu_plan.sending;
    const std::vector<cuda::DeviceStep>& receiving = plan.gpu_plan.receiving;
    ASSERT_EQ(sending.size(), n == 7 ? 6 * steps : steps - n);
    ASSERT_EQ(receiving.size(), n);
    ExpectMark(plan.sending, sending.size(), 2 * n);
    ExpectMark(plan.receiving, receiving.size(), 2 * n + 1);
    ExpectMark(sending.data(), sending.size(), 2 * n);
    ExpectMark(receiving.data(), receiving.size(), 2 * n + 1);
    ASSERT_EQ(plan.record != nullptr, n % 2 == 0);
    if (plan.record == nullptr) continue;
    cuda::JournalEntry record;
    OkOrDie(cudaMemcpy(&record, plan.record, sizeof(record),
                       cudaMemcpyDeviceToHost));
    EXPECT_EQ(record.descriptor.count, n);
  }
}

// One thread serves both ranks. Rank 0's kernel waits for rank 1's call, whose
// plan is not on the device yet. So storing that plan must not wait for the
// kernel, and neither may plans of many other kinds.
TEST_F(PlanStoreTest, StoringDoesNotWaitForKernels) {
  CountedPair pair((DeviceOptions()));
  CountedData data(&pair, 300000);
  for (int rank = 0; rank < kRanks; ++rank) data.Set(rank, 0);
  pair.AllReduce(0, data.on_device[0], data.count);
  pair.Use(1);
  for (uint64_t stored = 0; stored < PlanStore::kChunkBytes / 2;) {
    const cuda::GpuPlan plan = PlanOf(1000, 1000, 1);
    OrDie(pair.plans(1).Store(std::to_string(stored), plan, false, nullptr));
    stored += 2000 * sizeof(cuda::DeviceStep);
  }
  EXPECT_EQ(cudaStreamQuery(pair.stream(0)), cudaErrorNotReady);
  pair.AllReduce(1, data.on_device[1], data.count);
  for (int rank = 0; rank < kRanks; ++rank) EXPECT_EQ(data.Wrong(rank, 0), 0);
}

}  // namespace
}  // namespace jax_cxl::comm
