#ifndef JAX_CXL_NCCL_INTERFACE_POOL_SETTING_H_
#define JAX_CXL_NCCL_INTERFACE_POOL_SETTING_H_

#include <string>

#include "cc/base/status.h"
#include "cc/pool/media/uri.h"

namespace jax_cxl::nccl {

// Reads JAX_CXL_NCCL_POOL: memory that several machines map, in which
// communicators have their pools. The result has one path. For a device, the
// spec is the part of the device in which pools lie.
//
// Fails with kInvalidArgument if the URI is wrong, and with kUnimplemented if
// it names memory that this library cannot use.
Result<pool::PoolUri> ReadSharedMemory(const std::string& uri);

}  // namespace jax_cxl::nccl

#endif  // JAX_CXL_NCCL_INTERFACE_POOL_SETTING_H_
