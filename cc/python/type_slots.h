#ifndef JAX_CXL_PYTHON_TYPE_SLOTS_H_
#define JAX_CXL_PYTHON_TYPE_SLOTS_H_

#include <Python.h>

// Slots of types that exist, which Python's stable ABI reads but does not
// change. This is the only part of the modules that knows layouts of Python's
// structures, and callers compare them with what the stable ABI reads.
namespace jax_cxl::type_slots {

// Whether a type has the layout that this module was compiled for.
bool LayoutIsKnown(PyTypeObject* type);

// Replaces a slot, and returns the previous one. Require LayoutIsKnown.
ternaryfunc SetCall(PyTypeObject* type, ternaryfunc call);  // no vectorcall
initproc SetInit(PyTypeObject* type, initproc init);
destructor SetDealloc(PyTypeObject* type, destructor dealloc);

// Returns the attribute `code` of a SystemExit, a borrowed reference or null.
PyObject* CodeOfSystemExit(PyObject* error);

}  // namespace jax_cxl::type_slots

#endif  // JAX_CXL_PYTHON_TYPE_SLOTS_H_
