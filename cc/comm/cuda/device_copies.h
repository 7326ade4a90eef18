#ifndef JAX_CXL_COMM_CUDA_DEVICE_COPIES_H_
#define JAX_CXL_COMM_CUDA_DEVICE_COPIES_H_

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "cc/base/status.h"
#include "cc/comm/cuda/pool_registration.h"

namespace jax_cxl::comm {

// Copies from the memory of devices of this process into mapped memory, by the
// copy engines, beside whatever else the devices do.
//
// Thread-safe.
class DeviceCopies {
 public:
  // Registers [base, base + bytes) for the devices (local ordinals).
  // Errors: kUnimplemented, as PoolRegistration.
  static Result<std::unique_ptr<DeviceCopies>> Create(
      std::byte* base, uint64_t bytes, const std::vector<int>& devices);
  ~DeviceCopies();  // waits for the copies
  DeviceCopies(const DeviceCopies&) = delete;
  DeviceCopies& operator=(const DeviceCopies&) = delete;

  // Starts a copy. The copies of a device come one after the other, and copies
  // of the program come between them. Returns the number of the copy, for Wait.
  Result<uint64_t> Start(int device, const void* from, std::byte* to,
                         uint64_t bytes);
  // Waits until a copy has ended, without spinning. Once for each copy.
  Status Wait(uint64_t copy);

 private:
  // The copy engine takes the next copy of a stream before those of other
  // streams, so the program's own small copies would wait for all of a save.
  // Copies on two streams in turn, of which each waits for the one before,
  // leave the engine a moment to choose.
  struct Lane {
    std::array<cudaStream_t, 2> streams = {};
    uint64_t last = 0;  // the copy that was started last
  };

  DeviceCopies() = default;

  std::unique_ptr<PoolRegistration> registration_;
  std::byte* base_ = nullptr;
  uint64_t bytes_ = 0;
  std::mutex mutex_;
  std::map<int, Lane> lanes_;                  // by device
  std::map<uint64_t, cudaEvent_t> under_way_;  // by copy
  uint64_t next_ = 0;
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_CUDA_DEVICE_COPIES_H_
