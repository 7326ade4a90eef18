#ifndef JAX_CXL_ENGINE_CUDA_ROWS_H_
#define JAX_CXL_ENGINE_CUDA_ROWS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cc/plan/plan.h"

// The rows of a take_rows, as kernels use them. All pointers are to device
// memory.
namespace jax_cxl::cuda {

// One row that this rank takes.
struct RowEntry {
  uint32_t from = 0;  // row of the member's block
  uint32_t to = 0;    // row of the output
};

// Entries are sorted by member and by bucket, which are the rows
// [i * bucket_rows, (i + 1) * bucket_rows) of a block. Inside a bucket they
// have any order.
struct DeviceRows {
  uint64_t row_bytes = 0;
  uint64_t table_rows = 0;  // of a member's block
  uint32_t bucket_rows = 1;
  uint32_t buckets = 1;  // of a member
  // Which rows of this rank's block other ranks take; null: all of them.
  const uint8_t* published = nullptr;
  RowEntry* entries = nullptr;
  uint32_t* starts = nullptr;  // of each bucket, and the end of the last one
};

// The bytes that PrepareRows uses, of any call of so many ranks and rows.
uint64_t RowScratchBytes(int num_ranks, uint64_t taken);

// Enqueues the sorting of `indices` (int32, request.rows.taken of them) into
// `scratch`. Indices outside the table are left out. Sets `rows`.
cudaError_t PrepareRows(const plan::Request& request, const int32_t* indices,
                        const uint8_t* published, void* scratch,
                        DeviceRows* rows, cudaStream_t stream);

// Enqueues zeros for the rows of the output whose index is outside the table.
cudaError_t ZeroRows(const plan::Request& request, const int32_t* indices,
                     void* output, cudaStream_t stream);

// Loads the kernels on the current device, as Preload does.
cudaError_t PreloadRows();

}  // namespace jax_cxl::cuda

#endif  // JAX_CXL_ENGINE_CUDA_ROWS_H_
