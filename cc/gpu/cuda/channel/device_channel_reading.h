#ifndef JAX_CXL_GPU_CUDA_CHANNEL_DEVICE_CHANNEL_READING_H_
#define JAX_CXL_GPU_CUDA_CHANNEL_DEVICE_CHANNEL_READING_H_

#include <atomic>

namespace jax_cxl::comm {

// Reads a word that a device writes. Both the enqueuing side and the checking
// side of DeviceChannel do this.
template <typename T>
T Read(T& word) {
  return std::atomic_ref(word).load(std::memory_order_acquire);
}

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_GPU_CUDA_CHANNEL_DEVICE_CHANNEL_READING_H_
