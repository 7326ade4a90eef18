#include "cc/base/cuda/current_device.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "cc/base/cuda/driver.h"

namespace jax_cxl::cuda {
namespace {

// Returns true if this process has a CUDA context on the device, or if the
// driver cannot tell.
bool IsUsed(int device) {
  static const auto get = InDriver<CUresult (*)(CUdevice*, int)>("cuDeviceGet");
  static const auto state =
      InDriver<CUresult (*)(CUdevice, unsigned int*, int*)>(
          "cuDevicePrimaryCtxGetState");
  CUdevice found = 0;
  unsigned int flags = 0;
  int active = 0;
  if (get == nullptr || state == nullptr ||
      get(&found, device) != CUDA_SUCCESS ||
      state(found, &flags, &active) != CUDA_SUCCESS)
    return true;
  return active != 0;
}

}  // namespace

CurrentDevice::CurrentDevice(int device) {
  cudaGetDevice(&before_);
  changed_ = before_ != device;
  if (changed_) cudaSetDevice(device);
}

CurrentDevice::~CurrentDevice() {
  if (changed_ && IsUsed(before_)) cudaSetDevice(before_);
}

}  // namespace jax_cxl::cuda
