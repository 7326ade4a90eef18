#include "cc/base/cuda/pool_registration.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "cc/base/cuda/current_device.h"

namespace jax_cxl::comm {
namespace {

// CUDA refuses to register 512 GiB or more at once.
constexpr uint64_t kPieceBytes = uint64_t{256} << 30;

}  // namespace

Result<std::unique_ptr<PoolRegistration>> PoolRegistration::Create(
    std::byte* base, uint64_t total, const std::vector<int>& devices) {
  for (int device : devices) {
    int same_address = 0;
    cudaDeviceGetAttribute(
        &same_address, cudaDevAttrCanUseHostPointerForRegisteredMem, device);
    if (same_address == 0)
      return Error(Code::kUnimplemented, "GPU ", device,
                   " cannot use registered memory at the host's addresses");
  }
  std::unique_ptr<PoolRegistration> made(new PoolRegistration);
  // CUDA reports that registered memory belongs to the device that was current
  // at the registration. XLA ends the process if JAX does not use that device.
  // So make one of `devices` current.
  const cuda::CurrentDevice current(devices.front());
  for (uint64_t offset = 0; offset < total; offset += kPieceBytes) {
    const uint64_t bytes = std::min(kPieceBytes, total - offset);
    std::byte* piece = base + offset;
    const cudaError_t error = cudaHostRegister(
        piece, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
    if (error != cudaSuccess) {
      cudaGetLastError();  // clears the error, which is not a later call's
      return Error(Code::kUnimplemented,
                   "CUDA cannot register the pool's mapping (",
                   cudaGetErrorString(error),
                   "). It registers memory in /dev/shm and of dax devices");
    }
    made->pieces_.push_back(piece);
  }
  return made;
}

PoolRegistration::~PoolRegistration() {
  for (std::byte* piece : pieces_) cudaHostUnregister(piece);
}

}  // namespace jax_cxl::comm
