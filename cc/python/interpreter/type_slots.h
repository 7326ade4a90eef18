#ifndef JAX_CXL_PYTHON_INTERPRETER_TYPE_SLOTS_H_
#define JAX_CXL_PYTHON_INTERPRETER_TYPE_SLOTS_H_

#include <Python.h>

// Changes slots of existing types. Python's stable ABI can read these slots,
// but not change them. This is the only code of the extension modules that
// depends on the layout of Python's structures. To find out whether the layout
// is the expected one, callers compare slots with the values that the stable
// ABI reads.
namespace jax_cxl::type_slots {

// Returns true if a type has the layout for which this module was compiled.
bool LayoutIsKnown(PyTypeObject* type);

// Each of these functions replaces a slot, and returns the slot's previous
// value. LayoutIsKnown must have returned true for the type.
ternaryfunc SetCall(PyTypeObject* type, ternaryfunc call);  // no vectorcall
initproc SetInit(PyTypeObject* type, initproc init);
destructor SetDealloc(PyTypeObject* type, destructor dealloc);

// Returns the attribute `code` of a SystemExit, as a borrowed reference or
// null.
PyObject* CodeOfSystemExit(PyObject* error);

}  // namespace jax_cxl::type_slots

#endif  // JAX_CXL_PYTHON_INTERPRETER_TYPE_SLOTS_H_
