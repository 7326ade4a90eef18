#ifndef JAX_CXL_FFI_STORE_CHUNKS_H_
#define JAX_CXL_FFI_STORE_CHUNKS_H_

#include <cstdint>
#include <functional>

#include "cc/base/status.h"
#include "xla/ffi/api/ffi.h"

namespace jax_cxl::ffi {

// Cuts `size` items into chunks of at most `each` items, and calls `run(begin,
// end)` for each chunk. Threads of XLA's pool and the calling thread share the
// work: each takes one chunk after another. The calling thread waits only for
// threads that have taken a chunk, so the function returns even if all threads
// of the pool are busy with other work. Returns OK, or the status of the first
// chunk that failed.
Status RunChunks(xla::ffi::ThreadPool& pool, uint64_t size, uint64_t each,
                 std::function<Status(uint64_t begin, uint64_t end)> run);

}  // namespace jax_cxl::ffi

#endif  // JAX_CXL_FFI_STORE_CHUNKS_H_
