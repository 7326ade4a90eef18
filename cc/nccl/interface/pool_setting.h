#ifndef JAX_CXL_NCCL_INTERFACE_POOL_SETTING_H_
#define JAX_CXL_NCCL_INTERFACE_POOL_SETTING_H_

#include <string>

#include "cc/base/status.h"
#include "cc/pool/media/medium.h"

namespace jax_cxl::nccl {

// Memory that several machines map, as JAX_CXL_NCCL_POOL names it.
// Communicators have their pools there.
struct SharedMemory {
  // One path. For a device, the part of the device in which pools lie.
  pool::PoolSpec spec;
  bool coherence_given = false;  // false: the default
  // With coherence=flush: writes of GPUs reach the memory without a write-back.
  bool gpu_writes_memory = false;
};

// Reads a URI of dax: or file:, as jax_cxl/_job/pool/pool_uri.py does. Fails
// with kInvalidArgument if the URI is wrong, and with kUnimplemented if it
// names memory that this library cannot use.
Result<SharedMemory> ReadSharedMemory(const std::string& uri);

}  // namespace jax_cxl::nccl

#endif  // JAX_CXL_NCCL_INTERFACE_POOL_SETTING_H_
