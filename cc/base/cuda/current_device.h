#ifndef JAX_CXL_BASE_CUDA_CURRENT_DEVICE_H_
#define JAX_CXL_BASE_CUDA_CURRENT_DEVICE_H_

namespace jax_cxl::cuda {

// Makes a device the current device of this thread while the object lives. The
// destructor restores the previous device, because XLA's threads rely on it.
//
// There is one exception: the destructor does not restore a device that this
// process has not used. CUDA would create a context there, which takes half a
// second and hundreds of MB of the device's memory. A thread can have such a
// current device, because each new thread begins with device 0.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device);
  ~CurrentDevice();
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

}  // namespace jax_cxl::cuda

#endif  // JAX_CXL_BASE_CUDA_CURRENT_DEVICE_H_
