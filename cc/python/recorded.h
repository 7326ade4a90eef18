#ifndef JAX_CXL_PYTHON_RECORDED_H_
#define JAX_CXL_PYTHON_RECORDED_H_

#include <nanobind/nanobind.h>

namespace jax_cxl {

// Adds what reads the flight recorder of a pool, live or post mortem.
void BindRecorded(nanobind::module_& m);

}  // namespace jax_cxl

#endif  // JAX_CXL_PYTHON_RECORDED_H_
