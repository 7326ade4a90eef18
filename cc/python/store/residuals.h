#ifndef JAX_CXL_PYTHON_STORE_RESIDUALS_H_
#define JAX_CXL_PYTHON_STORE_RESIDUALS_H_

#include <nanobind/nanobind.h>

namespace jax_cxl {

void BindResiduals(nanobind::module_& m);

}  // namespace jax_cxl

#endif  // JAX_CXL_PYTHON_STORE_RESIDUALS_H_
