#ifndef JAX_CXL_NCCL_INTERFACE_RESULTS_H_
#define JAX_CXL_NCCL_INTERFACE_RESULTS_H_

#include "cc/base/status.h"
#include "cc/nccl/interface/abi.h"

namespace jax_cxl::nccl {

// Returns the NCCL result that stands for a status. Frameworks continue after
// some results and end after others.
NcclResult ResultOf(const Status& status);

// Returns the text of ncclGetErrorString.
const char* ErrorString(int result);

// The error of this thread's last failed call, for ncclGetLastError. Also
// prints the error on stderr if NCCL_DEBUG asks for warnings.
NcclResult Report(const Status& status);
const char* LastError();

}  // namespace jax_cxl::nccl

#endif  // JAX_CXL_NCCL_INTERFACE_RESULTS_H_
