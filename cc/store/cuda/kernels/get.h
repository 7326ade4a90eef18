#ifndef JAX_CXL_STORE_CUDA_KERNELS_GET_H_
#define JAX_CXL_STORE_CUDA_KERNELS_GET_H_

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "cc/store/ring/ring.h"

namespace jax_cxl::tier {

// A tier::Handle in the memory of a GPU, with the alignment of a vector.
struct alignas(16) DeviceHandle : Handle {};

// An error that a kernel reports if it could not return a value. It is in host
// memory.
struct GetError {
  static constexpr uint64_t kOtherRing = ~uint64_t{0};

  // 0 if there is no error. kOtherRing if the handle is of another ring.
  // Otherwise the value was overwritten, and this is how many bytes the ring
  // has given out since the start of the value.
  uint64_t since = 0;
};

// A call that brings a value to a GPU. Pointers are to memory that the GPU
// reaches.
struct DeviceGet {
  static constexpr int kMostDevices = 64;

  // Where the ring begins on each device of the store. `devices` and `rows` are
  // the fields of tier::Layout.
  std::array<const std::byte*, kMostDevices> parts = {};
  int devices = 0;
  uint64_t rows = 0;

  const DeviceHandle* handle = nullptr;
  // A handle with the number and the device of the ring. Its position is the
  // head of the ring.
  DeviceHandle own;
  // A copy, in the memory of the GPU, of the value whose position is
  // `staged_position`. Null if there is no copy.
  const std::byte* staged = nullptr;
  uint64_t staged_position = 0;

  std::byte* output = nullptr;
  uint64_t bytes = 0;
  GetError* error = nullptr;
};

// Enqueues the call. If the value was overwritten, all bytes of the output
// become 0xff, which is NaN in all formats of floating point.
cudaError_t LaunchGet(const DeviceGet& get, cudaStream_t stream);

cudaError_t LaunchWriteHandle(const DeviceHandle& handle, DeviceHandle* to,
                              cudaStream_t stream);

}  // namespace jax_cxl::tier

#endif  // JAX_CXL_STORE_CUDA_KERNELS_GET_H_
