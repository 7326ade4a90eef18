#ifndef JAX_CXL_FFI_CUDA_STORE_DEVICE_CACHE_H_
#define JAX_CXL_FFI_CUDA_STORE_DEVICE_CACHE_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cc/base/cuda/streams.h"
#include "cc/base/status.h"
#include "cc/store/table/cache.h"

namespace jax_cxl::ffi {

// A cache of rows in the memory of a GPU.
class DeviceCache final : public table::Cache {
 public:
  static Result<std::unique_ptr<DeviceCache>> Make(int device, uint64_t rows,
                                                   uint64_t row_bytes);
  ~DeviceCache() override;

  Result<Counts> counts() override;

 private:
  DeviceCache(int device, uint64_t rows) : Cache(rows), device_(device) {}

  Status Open(uint64_t row_bytes);
  // Waits for all calls on the GPU. These calls may wait for calls that other
  // threads of this process have yet to start. So the caller must not hold a
  // lock that those threads need.
  Result<std::vector<int64_t>> ReadLog() override;
  Status Fill(const table::Column& column,
              std::span<const int64_t> rows) override;
  Status Copy(void* to, const void* from, uint64_t bytes);

  const int device_;
  cuda::Stream stream_;
  std::byte* memory_ = nullptr;
  int64_t* rows_ = nullptr;
  std::byte* data_ = nullptr;
};

}  // namespace jax_cxl::ffi

#endif  // JAX_CXL_FFI_CUDA_STORE_DEVICE_CACHE_H_
