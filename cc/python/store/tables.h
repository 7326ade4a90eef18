#ifndef JAX_CXL_PYTHON_STORE_TABLES_H_
#define JAX_CXL_PYTHON_STORE_TABLES_H_

#include <nanobind/nanobind.h>

namespace jax_cxl {

// Defines TableColumn: a column of a table in persistent memory.
void BindTables(nanobind::module_& m);

}  // namespace jax_cxl

#endif  // JAX_CXL_PYTHON_STORE_TABLES_H_
