#ifndef JAX_CXL_PYTHON_SHARED_STATS_H_
#define JAX_CXL_PYTHON_SHARED_STATS_H_

#include <nanobind/nanobind.h>

#include "cc/comm/call/call.h"

namespace jax_cxl {

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

}  // namespace jax_cxl

#endif  // JAX_CXL_PYTHON_SHARED_STATS_H_
