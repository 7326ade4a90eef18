#include "cc/python/interpreter/type_slots.h"
#include "cc/python/shared/bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace jax_cxl {
namespace {

// The Python function that translates errors of jitted functions. It is never
// released, because jitted functions outlive every module.
PyObject* translate = nullptr;

// Calls `translate` with the text of the ValueError that this thread has
// raised. If the result is an exception, raises it instead of the ValueError.
void Translate() {
  nb::python_error error;  // takes the error
  nb::object translated = nb::none();
  try {
    translated = nb::handle(translate)(nb::str(error.value()));
  } catch (nb::python_error& another) {
    // An Exception that `translate` raises is only reported. But if Ctrl-C has
    // interrupted `translate`, KeyboardInterrupt must end the program, and not
    // only the translation.
    if (!another.matches(PyExc_Exception)) {
      another.restore();
      return;
    }
    another.discard_as_unraisable("jax_cxl: translating an error of JAX");
  }
  if (translated.is_none()) {
    error.restore();
    return;
  }
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(translated.ptr())),
                  translated.ptr());
}

// The function that SetCall puts into the slot tp_call of the type. The slot
// held PyVectorcall_Call before, so this function calls PyVectorcall_Call.
PyObject* Call(PyObject* callable, PyObject* args, PyObject* kwargs) {
  PyObject* result = PyVectorcall_Call(callable, args, kwargs);
  // Translate only ValueError itself. Its subclasses are not errors of XLA:
  // they come from tracing, and from names that are too long.
  if (result == nullptr && PyErr_Occurred() == PyExc_ValueError) Translate();
  return result;
}

}  // namespace

// Adds translate_dispatch_errors(type, translate) to the module.
//
// Functions returned by jax.jit call XLA without any Python code. They raise a
// plain ValueError if the program fails before the call returns. The class
// ValueError cannot be changed, but `type`, the type of jitted functions, can.
// Afterwards, when a call of such a function raises ValueError, `translate`
// gets its text. If `translate` returns an exception, the call raises that
// exception instead (docs/decisions/0005).
void BindDispatchErrors(nb::module_& m) {
  m.def(
      "translate_dispatch_errors",
      [](nb::type_object type, nb::callable with) {
        auto* jitted = reinterpret_cast<PyTypeObject*>(type.ptr());
        void* call = PyType_GetSlot(jitted, Py_tp_call);
        if (!type_slots::LayoutIsKnown(jitted) ||
            (call != reinterpret_cast<void*>(PyVectorcall_Call) &&
             call != reinterpret_cast<void*>(Call)))
          throw nb::type_error("the type is not called by vectorcall");
        nb::object known = nb::steal(translate);
        translate = with.release().ptr();
        type_slots::SetCall(jitted, Call);
      },
      "When a call of an instance of `type` raises ValueError, `translate` "
      "gets its text. If it returns an exception, the call raises that.",
      "type"_a, "translate"_a);
}

}  // namespace jax_cxl
