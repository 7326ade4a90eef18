#ifndef JAX_CXL_STORE_CUDA_KERNELS_TAKE_H_
#define JAX_CXL_STORE_CUDA_KERNELS_TAKE_H_

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "cc/store/table/column.h"
#include "cc/store/table/lookup.h"

namespace jax_cxl::table {

// A call that takes rows on a GPU. All pointers are to memory that the GPU can
// access. The rows lie in registered memory of the host. The ids and the output
// are in memory of the GPU.
struct DeviceTake {
  const std::byte* data = nullptr;
  uint64_t rows = 0;
  uint64_t row_bytes = 0;
  const PartWords* parts = nullptr;  // as in Column
  uint64_t rows_of_part = 1;
  uint64_t timeout_ns = 0;
  // A word of the host that becomes 1 if a step does not finish in time.
  uint32_t* stalled = nullptr;

  const void* ids = nullptr;
  bool wide = false;
  uint64_t count = 0;
  Mode mode = Mode::kFill;
  // A kernel may read the whole array as one vector of 16 bytes, so it is
  // aligned to 16 bytes.
  alignas(16) std::array<std::byte, 16> fill = {};  // elements, repeated
  std::byte* output = nullptr;
  // In mode kError, receives the smallest position of an id outside the table.
  unsigned long long* outside = nullptr;
  CacheView cache = {};      // for tables that never change
  uint32_t most_blocks = 0;  // 0: enough to keep the GPU busy
};

// Enqueues the call. The kernel moves vectors of 1, 2, 4, 8 or 16 bytes: the
// widest that divide the size of a row and the addresses.
cudaError_t LaunchTake(const DeviceTake& take, cudaStream_t stream);

}  // namespace jax_cxl::table

#endif  // JAX_CXL_STORE_CUDA_KERNELS_TAKE_H_
