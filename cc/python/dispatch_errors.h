#ifndef JAX_CXL_PYTHON_DISPATCH_ERRORS_H_
#define JAX_CXL_PYTHON_DISPATCH_ERRORS_H_

#include <nanobind/nanobind.h>

namespace jax_cxl {

// Adds translate_dispatch_errors(type, translate) to the module.
//
// What jax.jit returns calls XLA without passing through Python, and raises a
// plain ValueError where the program fails before the call returns. ValueError
// cannot be changed, but the type of jitted functions can: from now on, where
// a call of one raises ValueError with a text that `translate` turns into an
// exception, it raises that instead. (docs/decisions/0005)
void BindDispatchErrors(nanobind::module_& m);

}  // namespace jax_cxl

#endif  // JAX_CXL_PYTHON_DISPATCH_ERRORS_H_
