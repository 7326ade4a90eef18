#ifndef JAX_CXL_COMM_CUDA_CURRENT_DEVICE_H_
#define JAX_CXL_COMM_CUDA_CURRENT_DEVICE_H_

#include <cuda_runtime_api.h>

namespace jax_cxl::comm {

// Makes a device the current device of this thread while the object lives. The
// destructor restores the previous device, which XLA's threads rely on.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device) {
    cudaGetDevice(&before_);
    if (before_ != device) cudaSetDevice(device);
    changed_ = before_ != device;
  }
  ~CurrentDevice() {
    if (changed_) cudaSetDevice(before_);
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_CUDA_CURRENT_DEVICE_H_
