#ifndef JAX_CXL_STORE_CUDA_DEVICE_RING_H_
#define JAX_CXL_STORE_CUDA_DEVICE_RING_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <vector>

#include "cc/base/cuda/device_memory.h"
#include "cc/base/cuda/streams.h"
#include "cc/base/status.h"
#include "cc/store/cuda/kernels/get.h"
#include "cc/store/cuda/staging.h"
#include "cc/store/ring/ring.h"

namespace jax_cxl::comm {

// The ring in which a GPU stores values that the backward pass needs
// (residuals). The ring lies in memory that is registered with CUDA. Copy
// engines move the values while the program computes.
//
// Thread-safe.
class DeviceRing {
 public:
  // The ring has one part on each device of the store. The parts begin at the
  // addresses in `parts`. Each part has `rows` blocks (tier::Ring). Fails with
  // kUnimplemented if the store has too many devices.
  static Result<std::shared_ptr<DeviceRing>> Create(
      uint32_t number, int device, std::vector<std::byte*> parts,
      uint64_t rows);
  ~DeviceRing();
  DeviceRing(const DeviceRing&) = delete;
  DeviceRing& operator=(const DeviceRing&) = delete;

  // Enqueue a put or a get on the stream of a program, and return. Put writes
  // the handle of the value to `handle`, and Get reads it there. `number` is
  // the number of the value in its layer. They fail with kResourceExhausted if
  // an earlier get found that its value had been overwritten.
  Status Put(int32_t number, const std::byte* value, uint64_t bytes,
             tier::DeviceHandle* handle, cudaStream_t stream);
  Status Get(int32_t number, const tier::DeviceHandle* handle, std::byte* value,
             uint64_t bytes, cudaStream_t stream);

  // See pool::Registry. Once the ring is removed from it, nothing uses the ring
  // but the work that the device still has.
  mutable std::shared_mutex in_use;
  bool closed = false;  // guarded by in_use

 private:
  DeviceRing(uint32_t number, int device, std::vector<std::byte*> parts,
             uint64_t rows);

  Status Prepare();
  // Fails, once, if an earlier get has failed on the device: Get cannot report
  // that, because it returns before the device executes the get.
  Status CheckEarlierGets();
  Status CopyOut(const tier::Handle& value, StagingBuffer& from,
                 uint64_t bytes);
  Status StartFetch(const Staging::Fetch& fetch);

  const uint32_t number_;
  const int device_;
  const std::vector<std::byte*> parts_;
  tier::Ring ring_;
  PinnedMemory<tier::GetError> error_;
  cuda::Stream out_;
  cuda::Stream in_;
  cuda::Event last_put_;

  std::mutex mutex_;
  std::map<int32_t, Staging> staging_;  // by number of the value
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_STORE_CUDA_DEVICE_RING_H_
