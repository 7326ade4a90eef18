#ifndef JAX_CXL_PYTHON_SIMULATE_H_
#define JAX_CXL_PYTHON_SIMULATE_H_

#include <nanobind/nanobind.h>

namespace jax_cxl {

// Adds what jax_cxl/_simulate calls: the machine, its costs, and the runs.
void BindSimulator(nanobind::module_& m);

}  // namespace jax_cxl

#endif  // JAX_CXL_PYTHON_SIMULATE_H_
