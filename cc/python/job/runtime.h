#ifndef JAX_CXL_PYTHON_JOB_RUNTIME_H_
#define JAX_CXL_PYTHON_JOB_RUNTIME_H_

#include <nanobind/nanobind.h>

#include <memory>

#include "cc/comm/runtime.h"

namespace jax_cxl {

// Returns the runtime of this process. Raises an exception if there is none.
std::shared_ptr<comm::Runtime> RunningRuntime();

// Adds the functions that start, stop and observe the runtime to the module.
void BindRuntime(nanobind::module_& m);

}  // namespace jax_cxl

#endif  // JAX_CXL_PYTHON_JOB_RUNTIME_H_
