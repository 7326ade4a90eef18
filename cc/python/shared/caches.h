#ifndef JAX_CXL_PYTHON_SHARED_CACHES_H_
#define JAX_CXL_PYTHON_SHARED_CACHES_H_

#include <nanobind/nanobind.h>

#include "cc/python/shared/errors.h"
#include "cc/store/table/column.h"

// Functions about caches that the TableColumn classes of jax_cxl._core and
// jax_cxl._cuda share.
namespace jax_cxl {

inline void RefreshCaches(const table::Column& column) {
  for (const auto& [device, cache] : column.caches)
    RaiseIfError([&] {
      nanobind::gil_scoped_release release;
      return cache->Refresh(column);
    }());
}

// Returns two sums over all caches of the column: how many rows were looked up,
// and how many of these rows were found.
inline nanobind::tuple CacheCounts(const table::Column& column) {
  table::Cache::Counts all;
  for (const auto& [device, cache] : column.caches) {
    const table::Cache::Counts counts = ValueOrRaise(cache->counts());
    all.wanted += counts.wanted;
    all.found += counts.found;
  }
  return nanobind::make_tuple(all.wanted, all.found);
}

}  // namespace jax_cxl

#endif  // JAX_CXL_PYTHON_SHARED_CACHES_H_
