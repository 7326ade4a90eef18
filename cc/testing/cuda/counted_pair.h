#ifndef JAX_CXL_TESTING_CUDA_COUNTED_PAIR_H_
#define JAX_CXL_TESTING_CUDA_COUNTED_PAIR_H_

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "cc/base/cuda/cuda_status.h"
#include "cc/base/cuda/pool_registration.h"
#include "cc/engine/cuda/flagged/flagged.h"
#include "cc/engine/cuda/premultiplied/premultiplied.h"
#include "cc/engine/cuda/transfers/transfers.h"
#include "cc/gpu/cuda/channel/counted_channel.h"
#include "cc/gpu/relay/relay.h"
#include "cc/testing/cuda/device_world.h"
#include "cc/testing/world/world.h"

// For tests: two ranks that number their calls in the device's memory
// (cc/gpu/cuda/channel).
namespace jax_cxl::comm {

inline constexpr int kRanks = 2;

// Two ranks of this process with a channel between them, on one GPU or two.
class CountedPair {
 public:
  explicit CountedPair(const DeviceOptions& options)
      : world_(kRanks, Options{}, kRanks * (uint64_t{64} << 20)) {
    const int devices = std::min(CountDevices(), kRanks);
    std::vector<int> ordinals;
    for (int device = 0; device < devices; ++device) ordinals.push_back(device);
    registration_ = OrDie(PoolRegistration::Create(
        world_.pool().base(), world_.pool().total_bytes(), ordinals));
    for (int rank = 0; rank < kRanks; ++rank) {
      Use(rank);
      const pool::Coherence& coherence = world_.pool(rank).coherence();
      if (coherence.cache() != nullptr)
        relays_[rank] = std::make_unique<Relay>(coherence, /*threads=*/2,
                                                options.flush_piece_bytes);
      OkOrDie(cuda::CudaStatus(cuda::Preload(), "loading"));
      OkOrDie(cuda::CudaStatus(cuda::PreloadFlagged(), "loading"));
      OkOrDie(cuda::CudaStatus(cuda::PreloadPremultiplied(), "loading"));
      OkOrDie(cuda::CudaStatus(cuda::PreloadTransfers(), "loading"));
      OkOrDie(plans_[rank].MakeRoom());
      channels_[rank] = std::make_unique<CountedChannel>(
          &world_.pool(rank), &world_.peers(rank), options,
          OrDie(world_.endpoint(rank).GroupOf({0, 1})), &plans_[rank],
          relays_[rank].get());
      OkOrDie(channels_[rank]->Open(world_.endpoint(rank).arena(),
                                    world_.endpoint(rank).recorder()));
      OkOrDie(
          cudaStreamCreateWithFlags(&streams_[rank], cudaStreamNonBlocking));
    }
    for (int rank = 0; rank < kRanks; ++rank) {
      Use(rank);
      EXPECT_TRUE(OrDie(channels_[rank]->TryConnect()));
    }
  }
  ~CountedPair() {
    for (int rank = 0; rank < kRanks; ++rank) {
      Use(rank);
      cudaDeviceSynchronize();
      while (!channels_[rank]->RelayIsDone()) std::this_thread::yield();
      relays_[rank].reset();
      channels_[rank].reset();
      cudaStreamDestroy(streams_[rank]);
    }
  }

  void Use(int rank) { OkOrDie(cudaSetDevice(rank % CountDevices())); }
  cudaStream_t stream(int rank) { return streams_[rank]; }
  PlanStore& plans(int rank) { return plans_[rank]; }
  CountedChannel& channel(int rank) { return *channels_[rank]; }

  // Enqueues the rank's part of a sum. `data` is the input and the output.
  void Sum(int rank, plan::Op op, DType dtype, void* data, uint64_t count,
           uint32_t divisor, const std::optional<Factor>& factor = {}) {
    Call call = MakeCall(op, rank, dtype, data, count);
    if (factor) call.name += " (premultiplied)";
    if (op == plan::Op::kReduceScatter)
      call.output += rank * plan::OutputBytes(call.request);
    Use(rank);
    const CountedCall counted =
        OrDie(channels_[rank]->Prepare(call, divisor, factor));
    OkOrDie(channels_[rank]->Launch(counted, streams_[rank]));
  }
  void AllReduce(int rank, int32_t* data, uint64_t count,
                 uint32_t divisor = 0) {
    Sum(rank, plan::Op::kAllReduce, DType::kInt32, data, count, divisor);
  }

  // Enqueues the rank's part of a send from rank 0 to rank 1.
  void Send(int rank, int32_t* data, uint64_t count) {
    const Call call =
        MakeCall(plan::Op::kBroadcast, rank, DType::kInt32, data, count);
    Use(rank);
    const CountedCall counted = OrDie(channels_[rank]->Prepare(call, 0));
    const cuda::DeviceTransfer transfer = {
        counted.device,
        counted.plan->flagged ? cuda::Way::kFlagged : cuda::Way::kSlots,
        static_cast<uint32_t>(count * sizeof(int32_t))};
    OkOrDie(cuda::LaunchTransfers({&transfer, 1}, channels_[rank]->shape(),
                                  streams_[rank]));
  }

 private:
  static Call MakeCall(plan::Op op, int rank, DType dtype, void* data,
                       uint64_t count) {
    Call call;
    call.name = "test";
    call.dtype = dtype;
    call.request.op = op;
    call.request.num_ranks = kRanks;
    call.request.rank = rank;
    call.request.count = count;
    call.request.element_bytes = static_cast<uint32_t>(DTypeBytes(dtype));
    call.input = static_cast<const std::byte*>(data);
    call.output = static_cast<std::byte*>(data);
    return call;
  }

  World world_;
  std::unique_ptr<PoolRegistration> registration_;
  std::array<PlanStore, kRanks> plans_;
  std::array<std::unique_ptr<Relay>, kRanks> relays_;  // in a flush pool
  std::array<std::unique_ptr<CountedChannel>, kRanks> channels_;
  std::array<cudaStream_t, kRanks> streams_ = {};
};

// Each rank's data, in memory of its GPU.
struct CountedData {
  explicit CountedData(CountedPair* pair, uint64_t count)
      : pair(pair), count(count) {
    for (int rank = 0; rank < kRanks; ++rank) {
      pair->Use(rank);
      OkOrDie(cudaMalloc(&on_device[rank], count * sizeof(int32_t)));
    }
  }
  ~CountedData() {
    for (int32_t* memory : on_device) cudaFree(memory);
  }
  void Set(int rank, int32_t first) {
    std::vector<int32_t> values(count);
    for (uint64_t i = 0; i < count; ++i)
      values[i] = first + static_cast<int32_t>(i % 1000);
    pair->Use(rank);
    OkOrDie(cudaMemcpyAsync(on_device[rank], values.data(),
                            count * sizeof(int32_t), cudaMemcpyHostToDevice,
                            pair->stream(rank)));
    OkOrDie(cudaStreamSynchronize(pair->stream(rank)));
  }
  // Counts the elements i that differ from (first + times * (i % 1000)) /
  // divisor.
  uint64_t Wrong(int rank, int32_t first, int32_t divisor = 1,
                 int32_t times = 2) {
    std::vector<int32_t> values(count);
    pair->Use(rank);
    OkOrDie(cudaMemcpyAsync(values.data(), on_device[rank],
                            count * sizeof(int32_t), cudaMemcpyDeviceToHost,
                            pair->stream(rank)));
    OkOrDie(cudaStreamSynchronize(pair->stream(rank)));
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < count; ++i)
      wrong += values[i] !=
               (first + times * static_cast<int32_t>(i % 1000)) / divisor;
    return wrong;
  }

  CountedPair* pair;
  uint64_t count;
  std::array<int32_t*, kRanks> on_device = {};
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_TESTING_CUDA_COUNTED_PAIR_H_
