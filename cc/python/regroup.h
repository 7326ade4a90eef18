#ifndef JAX_CXL_PYTHON_REGROUP_H_
#define JAX_CXL_PYTHON_REGROUP_H_

#include <nanobind/nanobind.h>

namespace jax_cxl {

// Adds what jax_cxl/_runtime/regroup.py needs of the running runtime.
void BindRegroup(nanobind::module_& m);

}  // namespace jax_cxl

#endif  // JAX_CXL_PYTHON_REGROUP_H_
