#ifndef JAX_CXL_PYTHON_UNCAUGHT_EXIT_H_
#define JAX_CXL_PYTHON_UNCAUGHT_EXIT_H_

#include <nanobind/nanobind.h>

namespace jax_cxl {

// Adds watch_exit() and uncaught_exit() to the module.
//
// At exit, peers must be told whether the program failed. Python keeps an
// uncaught exception in sys.last_value, but drops an uncaught SystemExit before
// it calls exit handlers. So slots of the type SystemExit note the last one
// that the main thread made, and how it ends: where no frame is left that could
// catch it, or still alive.
void BindUncaughtExit(nanobind::module_& m);

}  // namespace jax_cxl

#endif  // JAX_CXL_PYTHON_UNCAUGHT_EXIT_H_
