#ifndef JAX_CXL_PYTHON_CUDA_RESIDUALS_H_
#define JAX_CXL_PYTHON_CUDA_RESIDUALS_H_

#include <nanobind/nanobind.h>

namespace jax_cxl {

// Adds the class ResidualRing to the module. An object of the class is the ring
// of a store in which one GPU keeps its residuals.
void BindResiduals(nanobind::module_& m);

}  // namespace jax_cxl

#endif  // JAX_CXL_PYTHON_CUDA_RESIDUALS_H_
