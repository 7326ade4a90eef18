#ifndef JAX_CXL_PYTHON_INTERPRETER_UNCAUGHT_EXIT_H_
#define JAX_CXL_PYTHON_INTERPRETER_UNCAUGHT_EXIT_H_

#include <nanobind/nanobind.h>

namespace jax_cxl {

// Adds watch_exit() and uncaught_exit() to the module.
//
// At exit, peers must learn whether the program failed. Python keeps an
// uncaught exception in sys.last_value, but drops an uncaught SystemExit before
// it calls exit handlers. Therefore this module changes slots of the type
// SystemExit to note the last SystemExit of the main thread, and its fate. It
// is freed when no frame is left that could catch it. Otherwise it is still
// alive at exit.
void BindUncaughtExit(nanobind::module_& m);

}  // namespace jax_cxl

#endif  // JAX_CXL_PYTHON_INTERPRETER_UNCAUGHT_EXIT_H_
