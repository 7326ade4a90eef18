// CMakeLists.txt compiles this file without Py_LIMITED_API, because that hides
// PyTypeObject.
#include "cc/python/interpreter/type_slots.h"

#include <utility>

namespace jax_cxl::type_slots {

bool LayoutIsKnown(PyTypeObject* type) {
  const auto same = [type](int slot, auto member) {
    return PyType_GetSlot(type, slot) == reinterpret_cast<void*>(member);
  };
  return same(Py_tp_call, type->tp_call) && same(Py_tp_init, type->tp_init) &&
         same(Py_tp_dealloc, type->tp_dealloc) &&
         PyType_GetFlags(type) == type->tp_flags;
}

ternaryfunc SetCall(PyTypeObject* type, ternaryfunc call) {
  const ternaryfunc previous = std::exchange(type->tp_call, call);
  type->tp_flags &= ~Py_TPFLAGS_HAVE_VECTORCALL;
  PyType_Modified(type);
  return previous;
}

initproc SetInit(PyTypeObject* type, initproc init) {
  return std::exchange(type->tp_init, init);
}

destructor SetDealloc(PyTypeObject* type, destructor dealloc) {
  return std::exchange(type->tp_dealloc, dealloc);
}

PyObject* CodeOfSystemExit(PyObject* error) {
  return reinterpret_cast<PySystemExitObject*>(error)->code;
}

}  // namespace jax_cxl::type_slots
