#ifndef JAX_CXL_PYTHON_STORE_SESSIONS_H_
#define JAX_CXL_PYTHON_STORE_SESSIONS_H_

#include <nanobind/nanobind.h>

namespace jax_cxl {

// Adds Sessions to the module.
void BindSessions(nanobind::module_& m);

}  // namespace jax_cxl

#endif  // JAX_CXL_PYTHON_STORE_SESSIONS_H_
