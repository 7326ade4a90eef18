#ifndef JAX_CXL_ENGINE_CUDA_TRANSFERS_TRANSFERS_H_
#define JAX_CXL_ENGINE_CUDA_TRANSFERS_TRANSFERS_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "cc/engine/cuda/device_call.h"

namespace jax_cxl::cuda {

// A transfer from one rank of a pair to the other. It runs as a call of the
// pair's channel: a broadcast from member 0.
struct DeviceTransfer {
  DeviceCall call;
  // The bytes of a short message (flagged/flagged.h); 0: the transfer goes
  // through the slots.
  uint32_t flagged_bytes = 0;
};

// Enqueues transfers of different channels (at most kMostTransfers). They run
// side by side in one kernel, with `shape.blocks` blocks each. `shape` has
// kMaxThreads threads that move data. The device's memory holds the number of
// each transfer, as it does for LaunchCounted (executor.h). If each transfer
// had its own kernel, kernels could wait for each other forever: a rank may
// send a long message before a short one, while its peer expects both at once.
inline constexpr size_t kMostTransfers = 14;
cudaError_t LaunchTransfers(std::span<const DeviceTransfer> transfers,
                            const Shape& shape, cudaStream_t stream);

// See executor.h.
cudaError_t PreloadTransfers();

}  // namespace jax_cxl::cuda

#endif  // JAX_CXL_ENGINE_CUDA_TRANSFERS_TRANSFERS_H_
