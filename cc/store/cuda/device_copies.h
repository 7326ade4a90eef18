#ifndef JAX_CXL_STORE_CUDA_DEVICE_COPIES_H_
#define JAX_CXL_STORE_CUDA_DEVICE_COPIES_H_

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "cc/base/cuda/pool_registration.h"
#include "cc/base/cuda/streams.h"
#include "cc/base/status.h"

namespace jax_cxl::comm {

// Copies from memory of this process's devices to mapped memory, for snapshots.
// The copy engines do the copies, while the devices do other work.
//
// Thread-safe.
class DeviceCopies {
 public:
  // Registers the memory [base, base + bytes), so that the devices (local
  // ordinals) can copy to it. Fails with kUnimplemented if a device cannot use
  // the memory (PoolRegistration).
  static Result<std::unique_ptr<DeviceCopies>> Create(
      std::byte* base, uint64_t bytes, const std::vector<int>& devices);
  ~DeviceCopies();  // waits for the copies
  DeviceCopies(const DeviceCopies&) = delete;
  DeviceCopies& operator=(const DeviceCopies&) = delete;

  struct Copy {
    const std::byte* from;
    std::byte* to;
    uint64_t bytes;
  };
  // Starts copies. The copies of one device run one after another, and copies
  // of the program can run between them. Returns a number for Wait.
  Result<uint64_t> Start(int device, const std::vector<Copy>& copies);
  // Waits, without spinning, until all copies of a Start have ended. Call it
  // once for each Start.
  Status Wait(uint64_t number);

  struct Blocks {
    int device;
    std::vector<uint64_t> addresses;  // multiples of 16
  };
  // Returns the checksums (XXH3 with 64 bits) of the given blocks of each
  // device's memory. A block has `bytes` bytes, a multiple of 1 KiB. All
  // devices compute at once. The calling thread waits without spinning, and
  // does not wait for copies.
  Result<std::vector<std::vector<uint64_t>>> Checksums(
      const std::vector<Blocks>& of_devices, uint64_t bytes);

 private:
  // After a copy, the copy engine prefers the next copy of the same stream to
  // copies of other streams. With one stream, the program's small copies would
  // wait for a whole save. So two streams take turns, and each waits for the
  // other. In between, the engine can choose another copy.
  struct CopyQueue {
    std::array<cuda::Stream, 2> streams;
    cuda::Event last;  // the end of the last copy
    cuda::Stream checksums;
  };

  // Addresses and checksums of blocks, in host memory that all devices can
  // access. If they were copied between host and device, these copies would
  // wait in the copy engines behind the copies of data.
  struct Exchange {
    uint64_t* words = nullptr;
    size_t count = 0;
    cuda::Event end;  // of the computation
  };

  DeviceCopies() = default;
  bool IsInside(const Copy& copy) const;
  static cudaError_t Enqueue(CopyQueue& queue, const Copy& copy);
  Result<Exchange> StartChecksums(const Blocks& blocks, uint64_t bytes);
  Result<Exchange> Borrow(size_t count);

  std::unique_ptr<PoolRegistration> registration_;
  std::byte* base_ = nullptr;
  uint64_t bytes_ = 0;
  std::mutex mutex_;
  std::map<int, CopyQueue> queues_;            // by device
  std::map<uint64_t, cuda::Event> under_way_;  // by number
  std::vector<Exchange> unused_;
  uint64_t next_ = 0;
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_STORE_CUDA_DEVICE_COPIES_H_
