#ifndef JAX_CXL_PYTHON_CUDA_TABLES_H_
#define JAX_CXL_PYTHON_CUDA_TABLES_H_

#include <nanobind/nanobind.h>

namespace jax_cxl {

// Adds the class TableColumn to the module: a column of a table, for programs
// on GPUs.
void BindTables(nanobind::module_& m);

}  // namespace jax_cxl

#endif  // JAX_CXL_PYTHON_CUDA_TABLES_H_
