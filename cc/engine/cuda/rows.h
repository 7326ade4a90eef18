#ifndef JAX_CXL_ENGINE_CUDA_ROWS_H_
#define JAX_CXL_ENGINE_CUDA_ROWS_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "cc/engine/cuda/device_call.h"
#include "cc/plan/plan.h"

// The rows of a take_rows or a ragged_all_to_all, as kernels use them. All
// pointers are to device memory.
namespace jax_cxl::cuda {

// Where the rows of the table go. The blocks of all members form the table. The
// places of a row in the output are first[row], next[first[row]], and so on,
// until -1. Most rows have one place or none. Rows of this rank's own block
// have no places, because they have been copied.
struct DeviceRows {
  uint64_t row_bytes = 0;
  uint64_t table_rows = 0;  // of a member's block
  // How many 16-byte vectors a row has. 0 if rows do not consist of whole
  // vectors.
  uint32_t row_vectors = 0;
  int32_t row_shift = -1;  // row_vectors is 2**row_shift; -1: no power of two
  // Contains 1 for each row of this rank's block that other ranks take. If
  // `published` is null, they may take all rows.
  const uint8_t* published = nullptr;
  const int32_t* first = nullptr;  // of each row of all blocks
  const int32_t* next = nullptr;   // of each row of the output
};

// How the scratch memory of a call is divided.
struct RowScratch {
  std::byte* slices = nullptr;  // ragged_all_to_all: the tables of all ranks
  uint64_t* fault = nullptr;    // number of the first wrong slice or pair
  int32_t* first = nullptr;
  uint8_t* published = nullptr;  // ragged_all_to_all
  int32_t* next = nullptr;
  uint64_t bytes = 0;  // of all of it

  RowScratch(const plan::Request& request, void* memory);
};

inline uint64_t RowScratchBytes(const plan::Request& request) {
  return RowScratch(request, nullptr).bytes;
}

// Enqueues the clearing of the scratch memory. Call it before PrepareIndices or
// PrepareSlices.
cudaError_t ClearRows(const plan::Request& request, void* scratch,
                      cudaStream_t stream);

// Enqueues the preparation of a take_rows. It finds the places of each row,
// copies this rank's own rows, and fills some rows of the output with zeros:
// those whose index is outside the table. There are request.rows.taken indices
// (int32). Sets `rows`.
cudaError_t PrepareIndices(const plan::Request& request, const int32_t* indices,
                           const uint8_t* published, void* scratch,
                           const void* input, void* output, DeviceRows* rows,
                           cudaStream_t stream);

// Enqueues the preparation of a ragged_all_to_all: finds the places of each
// row, marks the published rows, and copies this rank's own rows. The tables of
// slices lie in the scratch memory, with entries of 4 or 8 bytes. If a table is
// wrong, the device reports DeviceFault::kSlices and stops (see Launch), before
// it moves a row. All ranks find the same fault.
cudaError_t PrepareSlices(const plan::Request& request, uint32_t entry_bytes,
                          void* scratch, const void* input, void* output,
                          DeviceStatus* status, DeviceRows* rows,
                          cudaStream_t stream);

cudaError_t PreloadRows();

}  // namespace jax_cxl::cuda

#endif  // JAX_CXL_ENGINE_CUDA_ROWS_H_
