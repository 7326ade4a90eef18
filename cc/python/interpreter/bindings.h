#ifndef JAX_CXL_PYTHON_INTERPRETER_BINDINGS_H_
#define JAX_CXL_PYTHON_INTERPRETER_BINDINGS_H_

#include <nanobind/nanobind.h>

namespace jax_cxl {

// Adds translate_dispatch_errors(type, translate) to the module.
//
// Functions returned by jax.jit call XLA without any Python code. They raise a
// plain ValueError if the program fails before the call returns. The class
// ValueError cannot be changed, but `type`, the type of jitted functions, can.
// Afterwards, when a call of such a function raises ValueError, `translate`
// gets its text. If `translate` returns an exception, the call raises that
// exception instead (docs/decisions/0005).
void BindDispatchErrors(nanobind::module_& m);

// Adds watch_exit() and uncaught_exit() to the module.
//
// When a program ends, its exit handler must tell the peers whether the program
// failed. Python keeps an uncaught exception in sys.last_value, but drops an
// uncaught SystemExit before it calls exit handlers. Therefore this module
// changes slots of the type SystemExit, to note the last SystemExit of the main
// thread and when it is freed. If the exception is freed while a frame is
// running, the program has caught it. If it is uncaught, it is freed when no
// frame is left, or is still alive at exit.
void BindUncaughtExit(nanobind::module_& m);

}  // namespace jax_cxl

#endif  // JAX_CXL_PYTHON_INTERPRETER_BINDINGS_H_
