#ifndef JAX_CXL_PYTHON_SHARED_BINDINGS_H_
#define JAX_CXL_PYTHON_SHARED_BINDINGS_H_

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>

#include "cc/comm/call/call.h"

namespace jax_cxl {

using Bytes = nanobind::ndarray<uint8_t, nanobind::shape<-1>,
                                nanobind::c_contig, nanobind::device::cpu>;
using ConstBytes = nanobind::ndarray<const uint8_t, nanobind::shape<-1>,
                                     nanobind::c_contig, nanobind::device::cpu>;

// A call guard: the bound function runs without Python's lock.
using Unlocked = nanobind::call_guard<nanobind::gil_scoped_release>;

// Returns the counters of `stats` as a dict. jax_cxl.stats() adds up such
// dicts.
inline nanobind::dict StatsDict(const comm::Stats& stats) {
  nanobind::dict values;
  values["calls"] = stats.calls;
  values["bytes_published"] = stats.bytes_published;
  values["bytes_retrieved"] = stats.bytes_retrieved;
  values["seconds"] = stats.seconds;
  return values;
}

// Each function adds its part to the module. jax_cxl._core and jax_cxl._cuda
// each have tables and residuals of their own.
void BindPool(nanobind::module_& m);
void BindRuntime(nanobind::module_& m);
void BindRecorded(nanobind::module_& m);
void BindPersistentMemory(nanobind::module_& m);
void BindTables(nanobind::module_& m);
void BindResiduals(nanobind::module_& m);
void BindDispatchErrors(nanobind::module_& m);
void BindUncaughtExit(nanobind::module_& m);

}  // namespace jax_cxl

#endif  // JAX_CXL_PYTHON_SHARED_BINDINGS_H_
