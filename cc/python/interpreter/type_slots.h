#ifndef JAX_CXL_PYTHON_INTERPRETER_TYPE_SLOTS_H_
#define JAX_CXL_PYTHON_INTERPRETER_TYPE_SLOTS_H_

#include <Python.h>

// Changes slots of existing types. Python's stable ABI can read these slots,
// but not change them. This is the only part of the modules that depends on the
// layout of Python's structures. Callers compare the slots with the values that
// the stable ABI reads.
namespace jax_cxl::type_slots {

// Whether a type has the layout that this module was compiled for.
bool LayoutIsKnown(PyTypeObject* type);

// Each of these functions replaces a slot, and returns its previous value. They
// require LayoutIsKnown.
ternaryfunc SetCall(PyTypeObject* type, ternaryfunc call);  // no vectorcall
initproc SetInit(PyTypeObject* type, initproc init);
destructor SetDealloc(PyTypeObject* type, destructor dealloc);

// Returns the attribute `code` of a SystemExit, a borrowed reference or null.
PyObject* CodeOfSystemExit(PyObject* error);

}  // namespace jax_cxl::type_slots

#endif  // JAX_CXL_PYTHON_INTERPRETER_TYPE_SLOTS_H_
