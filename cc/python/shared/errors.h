#ifndef JAX_CXL_PYTHON_SHARED_ERRORS_H_
#define JAX_CXL_PYTHON_SHARED_ERRORS_H_

#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <utility>

#include "cc/base/status.h"

namespace jax_cxl {

// Raises the Python exception that jax_cxl/errors.py names for the code.
inline void RaiseIfError(const Status& status) {
  if (status.ok()) return;
  nanobind::object exception =
      nanobind::module_::import_("jax_cxl.errors")
          .attr("from_code")(CodeName(status.code()), status.message(),
                             status.details());
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())),
                  exception.ptr());
  throw nanobind::python_error();
}

// Returns the code, the message and the details of an error.
// jax_cxl/_job/ending/program_errors.py makes an exception from this tuple.
inline nanobind::object FailureTuple(const Status& status) {
  return nanobind::make_tuple(CodeName(status.code()), status.message(),
                              status.details());
}

template <typename T>
T ValueOrRaise(Result<T> result) {
  RaiseIfError(result.status());
  return *std::move(result);
}

}  // namespace jax_cxl

// If a bound function returns a Status or a Result, nanobind uses these
// casters, which raise the error in Python. nanobind calls them after the
// function's call guards have ended, so the casters hold Python's lock even if
// a guard has released it for the function.
namespace nanobind::detail {

template <>
struct type_caster<jax_cxl::Status> {
  static constexpr auto Name = const_name("None");
  static handle from_cpp(const jax_cxl::Status& status, rv_policy,
                         cleanup_list*) noexcept {
    try {
      jax_cxl::RaiseIfError(status);
      return none().release();
    } catch (python_error& error) {
      error.restore();
      return {};
    }
  }
};

template <typename T>
struct type_caster<jax_cxl::Result<T>> {
  static constexpr auto Name = make_caster<T>::Name;
  static handle from_cpp(jax_cxl::Result<T>&& result, rv_policy policy,
                         cleanup_list* cleanup) noexcept {
    if (result.ok())
      return make_caster<T>::from_cpp(*std::move(result), policy, cleanup);
    return make_caster<jax_cxl::Status>::from_cpp(result.status(), policy,
                                                  cleanup);
  }
};

}  // namespace nanobind::detail

#endif  // JAX_CXL_PYTHON_SHARED_ERRORS_H_
