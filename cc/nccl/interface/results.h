#ifndef JAX_CXL_NCCL_INTERFACE_RESULTS_H_
#define JAX_CXL_NCCL_INTERFACE_RESULTS_H_

#include "cc/base/status.h"
#include "cc/nccl/interface/abi.h"

namespace jax_cxl::nccl {

// Returns the NCCL result that stands for a status. Frameworks continue after
// some results and end after others.
NcclResult ResultOf(const Status& status);

// Returns the status that stands for a result of `function` of NVIDIA's
// library.
Status StatusOf(int result, const char* function);

// Returns the text of ncclGetErrorString.
const char* ErrorString(int result);

// Notes an error for ncclGetLastError. As in NCCL, the last error of the
// process counts: the thread of PyTorch that asks is not the one whose call
// failed.
void NoteError(const Status& status);
// Notes the error, and prints it on stderr if NCCL_DEBUG asks for warnings.
NcclResult Report(const Status& status);
// Returns the last error, or "". The text stays until this thread calls again.
const char* LastError();

}  // namespace jax_cxl::nccl

#endif  // JAX_CXL_NCCL_INTERFACE_RESULTS_H_
