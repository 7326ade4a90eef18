#ifndef JAX_CXL_TESTING_DEVICES_FLAGGED_DEVICE_H_
#define JAX_CXL_TESTING_DEVICES_FLAGGED_DEVICE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "cc/testing/devices/device_copies.h"
#include "cc/testing/devices/model_device.h"

namespace jax_cxl::comm {

// Does what the kernel for short messages does
// (cc/engine/cuda/flagged/flagged.cu), word by word, in a random order. Like
// the kernel, it writes its words and data to the pool, and polls the words and
// data of its peers there.
class FlaggedDevice {
 public:
  // All rounds before `first_round` count as read by all peers.
  FlaggedDevice(const pool::DeviceCopies& copies, uint64_t seed,
                uint64_t first_round)
      : copies_(copies), random_(seed), released_(first_round) {}

  // Executes a call. Its `base_round` counts the rounds of the rings for short
  // messages. Returns the problem, or "" if there is none. Gives up when `stop`
  // becomes true.
  std::string Execute(const ModelCall& call, const std::atomic<bool>& stop);

 private:
  bool AwaitPeers(const std::function<bool(int)>& ready,
                  const std::atomic<bool>& stop);
  void Put(const cuda::DeviceStep& step);
  bool Get(int member, uint64_t at, std::span<std::byte> to,
           const std::atomic<bool>& stop);
  bool Receive(const cuda::DeviceStep& step, const std::atomic<bool>& stop);
  uint64_t ReleasedBy(int member) const;
  uint64_t* Word(int member, uint64_t unit, int word) const;

  const pool::DeviceCopies copies_;
  std::mt19937_64 random_;
  uint64_t released_;  // rounds that all peers have certainly read
  const ModelCall* call_ = nullptr;
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_TESTING_DEVICES_FLAGGED_DEVICE_H_
