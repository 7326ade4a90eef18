#ifndef JAX_CXL_BASE_CUDA_CURRENT_DEVICE_H_
#define JAX_CXL_BASE_CUDA_CURRENT_DEVICE_H_

namespace jax_cxl::cuda {

// Makes a device the current device of this thread while the object lives. The
// destructor restores the previous device, which XLA's threads rely on. But it
// never makes a device current that this process has not used: CUDA would then
// create a context there, which takes half a second and hundreds of MB of that
// device's memory. A new thread's current device is device 0.
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
