#ifndef JAX_CXL_PYTHON_SHARED_ERRORS_H_
#define JAX_CXL_PYTHON_SHARED_ERRORS_H_

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>

#include "cc/base/status.h"

namespace jax_cxl {

// Raises the Python exception that jax_cxl/errors.py names for the code.
inline void RaiseIfError(const Status& status) {
  if (status.ok()) return;
  const std::string code(CodeName(status.code()));
  nanobind::object exception =
      nanobind::module_::import_("jax_cxl.errors")
          .attr("from_code")(code, status.message(), status.details());
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())),
                  exception.ptr());
  throw nanobind::python_error();
}

// Returns the tuple from which jax_cxl/_job/ending/program_errors.py makes an
// exception.
inline nanobind::object FailureTuple(const Status& status) {
  return nanobind::make_tuple(std::string(CodeName(status.code())),
                              status.message(), status.details());
}

template <typename T>
T ValueOrRaise(Result<T> result) {
  RaiseIfError(result.status());
  return *std::move(result);
}

}  // namespace jax_cxl

#endif  // JAX_CXL_PYTHON_SHARED_ERRORS_H_
