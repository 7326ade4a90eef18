#ifndef JAX_CXL_TESTING_CUDA_DEVICE_SOAK_H_
#define JAX_CXL_TESTING_CUDA_DEVICE_SOAK_H_

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "cc/comm/call/call.h"
#include "cc/engine/cuda/rows.h"
#include "cc/plan/plan.h"
#include "cc/testing/cuda/device_world.h"
#include "cc/testing/soak/soak_call.h"

// Random collectives of GPUs, checked against plain loops.
namespace jax_cxl::comm::soak {

inline constexpr uint64_t kLargest = uint64_t{48} << 20;  // bytes of one buffer

// Device memory of one rank. The calls of a test use it one at a time.
class Scratch {
 public:
  explicit Scratch(int device) {
    OkOrDie(cudaSetDevice(device));
    OkOrDie(cudaMalloc(&input_, kLargest + 64));
    OkOrDie(cudaMalloc(&output_, kLargest + 64));
    OkOrDie(cudaMalloc(&rows_, kRowBytes));
  }
  ~Scratch() {
    cudaFree(input_);
    cudaFree(output_);
    cudaFree(rows_);
  }
  Scratch(const Scratch&) = delete;

  // Copies the call's buffers to the device, with the same alignment, and makes
  // the call use the copies.
  void Upload(Call* call, const SoakCall& soak, int self, cudaStream_t stream) {
    auto place = [](void* base, const std::byte* like) {
      return static_cast<std::byte*>(base) +
             reinterpret_cast<uintptr_t>(like) % 64;
    };
    host_output_ = call->output;
    input_bytes_ = plan::InputBytes(call->request);
    output_bytes_ = plan::OutputBytes(call->request);
    ASSERT_LE(std::max(input_bytes_, output_bytes_), kLargest);
    std::byte* input = place(input_, call->input);
    std::byte* output = place(output_, call->output);
    OkOrDie(cudaMemcpyAsync(input, call->input, input_bytes_,
                            cudaMemcpyHostToDevice, stream));
    OkOrDie(cudaMemcpyAsync(output, call->output, output_bytes_,
                            cudaMemcpyHostToDevice, stream));
    // Fill the output with other bytes, because the device itself has to fill
    // rows with zeros.
    if (call->request.op == plan::Op::kTakeRows)
      OkOrDie(cudaMemsetAsync(output, 0xa5, output_bytes_, stream));
    if (call->rows != nullptr) UploadRows(call, soak, self, stream);
    call->input = input;
    call->output = output;
    device_output_ = output;
  }

  void Download(cudaStream_t stream) {
    OkOrDie(cudaMemcpyAsync(host_output_, device_output_, output_bytes_,
                            cudaMemcpyDeviceToHost, stream));
  }

 private:
  // Uploads the row operands (indices, mask or slices) of an operation that
  // moves rows, and sets the operation's scratch memory.
  void UploadRows(Call* call, const SoakCall& soak, int self,
                  cudaStream_t stream) {
    call->rows.reset();
    call->request.rows.slice_bytes = 0;
    uint64_t used = 0;
    const auto upload = [&](const auto& values) {
      std::byte* to = static_cast<std::byte*>(rows_) + used;
      const uint64_t bytes = values.size() * sizeof(values[0]);
      used += (bytes + 15) / 16 * 16;
      OkOrDie(cudaMemcpyAsync(to, values.data(), bytes, cudaMemcpyHostToDevice,
                              stream));
      return to;
    };
    RowOperands& operands = call->row_operands;
    if (call->request.op == plan::Op::kTakeRows) {
      operands.indices =
          reinterpret_cast<const int32_t*>(upload(soak.indices(self)));
      if (const std::vector<uint8_t>& mask = soak.published(self);
          !mask.empty())
        operands.published = reinterpret_cast<const uint8_t*>(upload(mask));
    } else if (call->identity % 2 == 0) {
      operands.slices = upload(soak.slices(self));
      operands.slice_entry_bytes = sizeof(int64_t);
    } else {
      const std::vector<int64_t> wide = soak.slices(self);
      operands.slices = upload(std::vector<int32_t>(wide.begin(), wide.end()));
      operands.slice_entry_bytes = sizeof(int32_t);
    }
    operands.scratch = static_cast<std::byte*>(rows_) + used;
    ASSERT_LE(used + cuda::RowScratchBytes(call->request), kRowBytes);
  }

  static constexpr uint64_t kRowBytes = uint64_t{256} << 20;
  void* rows_ = nullptr;
  void* input_ = nullptr;
  void* output_ = nullptr;
  std::byte* host_output_ = nullptr;
  std::byte* device_output_ = nullptr;
  uint64_t input_bytes_ = 0;
  uint64_t output_bytes_ = 0;
};

enum class StartMode { kEnqueue, kStartAndDone };

// Runs one random call on all its members. Returns the number of wrong
// elements.
inline uint64_t RunCall(DeviceWorld& world,
                        std::vector<std::unique_ptr<Scratch>>& scratch,
                        SoakCall& soak, StartMode mode) {
  const std::vector<int32_t>& members = soak.members();
  world.OpenChannels(members);
  // Upload all buffers before the first call starts. A copy from memory that is
  // not pinned may wait for copies of other streams. Those copies may wait for
  // a rank whose call this thread starts later, which would be a deadlock.
  std::vector<std::unique_ptr<Call>> calls;
  for (size_t self = 0; self < members.size(); ++self) {
    const int rank = members[self];
    OkOrDie(cudaSetDevice(world.device(rank)));
    calls.push_back(soak.ForMember(static_cast<int>(self)));
    scratch[rank]->Upload(calls[self].get(), soak, static_cast<int>(self),
                          world.stream(rank));
    OkOrDie(cudaStreamSynchronize(world.stream(rank)));
  }
  // Use a thread for each rank, because ranks wait for each other when flags
  // start again at 0.
  std::vector<std::thread> threads;
  for (size_t self = 0; self < members.size(); ++self) {
    threads.emplace_back([&, self] {
      const int rank = members[self];
      const cudaStream_t stream = world.stream(rank);
      const Call& call = *calls[self];
      OkOrDie(cudaSetDevice(world.device(rank)));
      if (mode == StartMode::kStartAndDone) {
        OkOrDie(world.endpoint(rank).EnqueueStart(members, call, stream));
        OkOrDie(world.endpoint(rank).EnqueueDone(call.output, call.output, 0,
                                                 stream));
      } else {
        OkOrDie(world.endpoint(rank).Enqueue(members, call, stream));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int32_t rank : members) scratch[rank]->Download(world.stream(rank));
  for (int32_t rank : members)
    OkOrDie(cudaStreamSynchronize(world.stream(rank)));
  return soak.CountWrong();
}

// Checks the channels like the runtime's watcher, so that a call that hangs
// ends the test with an error that names the call.
class Watcher {
 public:
  explicit Watcher(DeviceWorld& world)
      : thread_([this, &world] { Watch(world); }) {}
  ~Watcher() {
    stop_ = true;
    thread_.join();
  }

 private:
  void Watch(DeviceWorld& world) {
    while (!stop_) {
      for (int rank = 0; rank < world.size(); ++rank)
        OkOrDie(world.endpoint(rank).Check(Clock::now()));
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }

  std::atomic<bool> stop_{false};
  std::thread thread_;
};

struct Setting {
  int ranks;
  uint64_t slot_bytes;
  int num_slots;
  int pool_devices;
  uint32_t blocks;
  StartMode mode = StartMode::kEnqueue;
  uint64_t copy_engine_bytes = uint64_t{12} << 20;
  uint64_t flagged_slot_bytes = DeviceOptions().flagged_slot_bytes;
  uint64_t first_flagged_round = 0;
  pool::CoherenceMode coherence = pool::ChosenCoherence();
  bool gpu_writes_memory = false;
};

inline DeviceOptions OptionsOf(const Setting& setting) {
  DeviceOptions options;
  options.slot_bytes = setting.slot_bytes;
  options.num_slots = setting.num_slots;
  options.shape.blocks = setting.blocks;
  options.copy_engine_bytes = setting.copy_engine_bytes;
  options.copy_engine_bytes_aside = setting.copy_engine_bytes / 4;
  options.warn_after_s = 5;
  options.timeout_s = 20;
  options.flagged_slot_bytes = setting.flagged_slot_bytes;
  options.first_flagged_round = setting.first_flagged_round;
  options.gpu_writes_memory = setting.gpu_writes_memory;
  return options;
}

inline void RunSoak(uint64_t seed, const Setting& setting, int calls,
                    uint64_t large) {
  Random random(seed);
  DeviceWorld world(setting.ranks, OptionsOf(setting), setting.pool_devices,
                    192 << 20, setting.coherence);
  const Watcher watcher(world);
  std::vector<std::unique_ptr<Scratch>> scratch;
  for (int rank = 0; rank < setting.ranks; ++rank)
    scratch.push_back(std::make_unique<Scratch>(world.device(rank)));
  std::vector<int32_t> everyone(setting.ranks);
  std::iota(everyone.begin(), everyone.end(), 0);
  std::vector<std::vector<int32_t>> groups = {everyone};
  std::shuffle(everyone.begin(), everyone.end(), random);
  groups.push_back(everyone);
  groups.emplace_back(everyone.begin(), everyone.begin() + 2);
  for (int i = 0; i < calls; ++i) {
    SoakCall call(random, groups[Pick(random, 0, groups.size() - 1)], i, large);
    const uint64_t wrong = RunCall(world, scratch, call, setting.mode);
    ASSERT_EQ(wrong, 0u) << call.Text() << ", call " << i << " of "
                         << setting.ranks << " ranks, " << setting.num_slots
                         << " slots of " << setting.slot_bytes << ", seed "
                         << seed;
    ASSERT_TRUE(world.failure().ok()) << world.failure().message();
  }
}

// Runs `batches` batches of random calls of all ranks. In a batch, `under_way`
// calls are started before the first one is done, so that calls follow each
// other without a pause.
inline void RunBatches(uint64_t seed, const Setting& setting, int under_way,
                       int batches, uint64_t large) {
  Random random(seed);
  DeviceWorld world(setting.ranks, OptionsOf(setting), setting.pool_devices,
                    192 << 20, setting.coherence);
  const Watcher watcher(world);
  std::vector<int32_t> everyone(setting.ranks);
  std::iota(everyone.begin(), everyone.end(), 0);
  world.OpenChannels(everyone);
  std::vector<std::vector<std::unique_ptr<Scratch>>> scratch(setting.ranks);
  for (int rank = 0; rank < setting.ranks; ++rank)
    for (int i = 0; i < under_way; ++i)
      scratch[rank].push_back(std::make_unique<Scratch>(world.device(rank)));
  for (int done = 0; done < batches; ++done) {
    std::vector<std::unique_ptr<SoakCall>> soaks;
    for (int i = 0; i < under_way; ++i)
      soaks.push_back(std::make_unique<SoakCall>(random, everyone,
                                                 done * under_way + i, large));
    std::vector<std::vector<std::unique_ptr<Call>>> calls(setting.ranks);
    for (int rank : everyone) {
      OkOrDie(cudaSetDevice(world.device(rank)));
      const cudaStream_t stream = world.stream(rank);
      for (int i = 0; i < under_way; ++i) {
        calls[rank].push_back(soaks[i]->ForMember(rank));
        scratch[rank][i]->Upload(calls[rank][i].get(), *soaks[i], rank, stream);
      }
      OkOrDie(cudaStreamSynchronize(stream));
    }
    for (int rank : everyone) {
      OkOrDie(cudaSetDevice(world.device(rank)));
      DeviceEndpoint& endpoint = world.endpoint(rank);
      for (const auto& call : calls[rank])
        OkOrDie(endpoint.EnqueueStart(everyone, *call, world.stream(rank)));
      for (const auto& call : calls[rank])
        OkOrDie(endpoint.EnqueueDone(call->output, call->output, 0,
                                     world.stream(rank)));
    }
    for (int rank : everyone)
      for (const auto& buffers : scratch[rank])
        buffers->Download(world.stream(rank));
    for (int rank : everyone)
      OkOrDie(cudaStreamSynchronize(world.stream(rank)));
    for (const auto& soak : soaks)
      ASSERT_EQ(soak->CountWrong(), 0u)
          << soak->Text() << ", batch " << done << ", seed " << seed;
    ASSERT_TRUE(world.failure().ok()) << world.failure().message();
  }
}

}  // namespace jax_cxl::comm::soak

#endif  // JAX_CXL_TESTING_CUDA_DEVICE_SOAK_H_
