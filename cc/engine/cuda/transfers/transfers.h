#ifndef JAX_CXL_ENGINE_CUDA_TRANSFERS_TRANSFERS_H_
#define JAX_CXL_ENGINE_CUDA_TRANSFERS_TRANSFERS_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "cc/engine/cuda/device_call.h"

namespace jax_cxl::cuda {

// How a transfer moves its data: through slots, as a short message
// (flagged/flagged.h), or within the device.
enum class Way : uint32_t { kSlots, kFlagged, kCopy };

// A transfer from one rank of a pair to the other runs as a call of the pair's
// channel, namely as a broadcast from member 0, the sender. A transfer of a
// rank to itself (kCopy) has no channel.
struct DeviceTransfer {
  DeviceCall call;  // kCopy: only its input and output
  Way way = Way::kSlots;
  uint32_t bytes = 0;  // unless it goes through slots
};

inline constexpr uint64_t kMostCopiedByKernel = 4 << 20;

// Returns a transfer of a rank to itself. Beside other transfers it takes no
// time of its own. A copy engine would make the stream's kernels wait.
DeviceTransfer MakeCopy(void* to, const void* from, uint32_t bytes);

// Enqueues at most kMostTransfers transfers, no two on the same channel. The
// transfers run side by side in one kernel, with `shape.blocks` blocks each.
// `shape` must give each block kMaxThreads threads that move data. The number
// of each call is in the device's memory, as it is for LaunchCounted
// (executor.h).
//
// If each transfer had its own kernel, the kernels of a stream would run one
// after another. Two ranks could then wait for each other forever. For example,
// one rank first sends a long message, and its kernel ends only when the peer
// receives that message. But the peer first waits for a short message, which
// the rank sends after the long one.
inline constexpr size_t kMostTransfers = 14;
cudaError_t LaunchTransfers(std::span<const DeviceTransfer> transfers,
                            const Shape& shape, cudaStream_t stream);

// Loads the kernels.
cudaError_t PreloadTransfers();

}  // namespace jax_cxl::cuda

#endif  // JAX_CXL_ENGINE_CUDA_TRANSFERS_TRANSFERS_H_
