#ifndef JAX_CXL_PYTHON_JOB_RUNTIME_H_
#define JAX_CXL_PYTHON_JOB_RUNTIME_H_

#include <nanobind/nanobind.h>

namespace jax_cxl {

// Adds the functions that start, stop and observe the runtime to the module.
void BindRuntime(nanobind::module_& m);

// Adds the functions that read the flight recorder of a pool, during a job or
// after it.
void BindRecorded(nanobind::module_& m);

}  // namespace jax_cxl

#endif  // JAX_CXL_PYTHON_JOB_RUNTIME_H_
