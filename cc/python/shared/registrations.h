#ifndef JAX_CXL_PYTHON_SHARED_REGISTRATIONS_H_
#define JAX_CXL_PYTHON_SHARED_REGISTRATIONS_H_

#include <nanobind/nanobind.h>

#include <initializer_list>
#include <utility>

#include "cc/ffi/call/call_site.h"
#include "xla/ffi/api/ffi.h"

namespace jax_cxl {

// Makes the arguments of jax.ffi.register_ffi_target and register_ffi_type. The
// modules jax_cxl._core and jax_cxl._cuda share this code.

using Handler = XLA_FFI_Error*(XLA_FFI_CallFrame*);

inline nanobind::capsule HandlerCapsule(Handler* handler) {
  return nanobind::capsule(reinterpret_cast<void*>(handler));
}

// Adds an entry to `targets` for each name in `executes`. The value of the
// entry is a dict that maps the name of each stage to the capsule of the
// stage's handler. `instantiate` is null for targets without state.
inline void AddTargets(
    nanobind::dict targets, Handler* instantiate,
    std::initializer_list<std::pair<const char*, Handler*>> executes) {
  for (auto [name, execute] : executes) {
    nanobind::dict stages;
    if (instantiate != nullptr)
      stages["instantiate"] = HandlerCapsule(instantiate);
    stages["execute"] = HandlerCapsule(execute);
    targets[name] = stages;
  }
}

// Returns a dict with one entry. It maps `name`, by which XLA knows the type of
// a call site's state, to that type. Each module has a type of its own.
inline nanobind::dict CallSiteType(const char* name) {
  static auto type_info = xla::ffi::MakeTypeInfo<ffi::CallSite>();
  nanobind::dict type;
  type["type_id"] = nanobind::capsule(static_cast<void*>(&ffi::CallSite::id));
  type["type_info"] = nanobind::capsule(static_cast<void*>(&type_info));
  nanobind::dict types;
  types[name] = type;
  return types;
}

}  // namespace jax_cxl

#endif  // JAX_CXL_PYTHON_SHARED_REGISTRATIONS_H_
