#ifndef JAX_CXL_PYTHON_ENUMERATIONS_H_
#define JAX_CXL_PYTHON_ENUMERATIONS_H_

#include <nanobind/nanobind.h>

// The enumerations that Python and C++ share.
namespace jax_cxl {

// Adds OPERATIONS, REDUCE_OPS and DTYPES to the module. The position of an
// entry is its value.
void BindEnumerations(nanobind::module_& m);

}  // namespace jax_cxl

#endif  // JAX_CXL_PYTHON_ENUMERATIONS_H_
