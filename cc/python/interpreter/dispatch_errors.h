#ifndef JAX_CXL_PYTHON_INTERPRETER_DISPATCH_ERRORS_H_
#define JAX_CXL_PYTHON_INTERPRETER_DISPATCH_ERRORS_H_

#include <nanobind/nanobind.h>

namespace jax_cxl {

// Adds translate_dispatch_errors(type, translate) to the module.
//
// Functions returned by jax.jit call XLA without any Python code. They raise a
// plain ValueError if the program fails before the call returns. ValueError
// cannot be changed, but the type of jitted functions can. After
// translate_dispatch_errors, if such a call raises a ValueError with a text
// that `translate` converts to an exception, the call raises that exception
// instead. (docs/decisions/0005)
void BindDispatchErrors(nanobind::module_& m);

}  // namespace jax_cxl

#endif  // JAX_CXL_PYTHON_INTERPRETER_DISPATCH_ERRORS_H_
