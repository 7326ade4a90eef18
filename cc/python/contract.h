#ifndef JAX_CXL_PYTHON_CONTRACT_H_
#define JAX_CXL_PYTHON_CONTRACT_H_

#include <nanobind/nanobind.h>

// The names that Python and C++ must share.
namespace jax_cxl {

// Adds to the module:
//  - OPERATIONS, REDUCE_OPS and DTYPES. The position of an entry is its value.
//  - TARGETS and ATTRIBUTE_TYPES, of custom calls (cc/ffi/call/contract.h).
//  - the class Tuning (cc/comm/call/tuning.h) and TUNING_FIELDS, its fields.
void BindContract(nanobind::module_& m);

}  // namespace jax_cxl

#endif  // JAX_CXL_PYTHON_CONTRACT_H_
