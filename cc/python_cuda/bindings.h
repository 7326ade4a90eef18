#ifndef JAX_CXL_PYTHON_CUDA_BINDINGS_H_
#define JAX_CXL_PYTHON_CUDA_BINDINGS_H_

#include <nanobind/nanobind.h>

namespace jax_cxl {

// Each function adds a class for programs on GPUs to the module: TableColumn
// and ResidualRing.
void BindTables(nanobind::module_& m);
void BindResiduals(nanobind::module_& m);

}  // namespace jax_cxl

#endif  // JAX_CXL_PYTHON_CUDA_BINDINGS_H_
