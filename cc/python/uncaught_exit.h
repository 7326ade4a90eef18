#ifndef JAX_CXL_PYTHON_UNCAUGHT_EXIT_H_
#define JAX_CXL_PYTHON_UNCAUGHT_EXIT_H_

#include <nanobind/nanobind.h>

namespace jax_cxl {

// Adds watch_exit() and uncaught_exit() to the module.
//
// At exit, peers must learn whether the program failed. Python keeps an
// uncaught exception in sys.last_value, but drops an uncaught SystemExit before
// it calls exit handlers. Therefore changed slots of the type SystemExit note
// the last one of the main thread, and how it ends: it is freed when no frame
// is left that could catch it, or it is still alive.
void BindUncaughtExit(nanobind::module_& m);

}  // namespace jax_cxl

#endif  // JAX_CXL_PYTHON_UNCAUGHT_EXIT_H_
