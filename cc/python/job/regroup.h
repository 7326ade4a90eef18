#ifndef JAX_CXL_PYTHON_JOB_REGROUP_H_
#define JAX_CXL_PYTHON_JOB_REGROUP_H_

#include <nanobind/nanobind.h>

namespace jax_cxl {

// Adds the functions of the running runtime that jax_cxl/_job/regroup.py
// needs.
void BindRegroup(nanobind::module_& m);

}  // namespace jax_cxl

#endif  // JAX_CXL_PYTHON_JOB_REGROUP_H_
