#ifndef JAX_CXL_PYTHON_STORE_PERSISTENT_MEMORY_H_
#define JAX_CXL_PYTHON_STORE_PERSISTENT_MEMORY_H_

#include <nanobind/nanobind.h>

namespace jax_cxl {

// Adds PersistentMemory to the module.
void BindPersistentMemory(nanobind::module_& m);

}  // namespace jax_cxl

#endif  // JAX_CXL_PYTHON_STORE_PERSISTENT_MEMORY_H_
