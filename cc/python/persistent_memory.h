#ifndef JAX_CXL_PYTHON_PERSISTENT_MEMORY_H_
#define JAX_CXL_PYTHON_PERSISTENT_MEMORY_H_

#include <nanobind/nanobind.h>

#include <functional>
#include <string>
#include <vector>

#include "cc/pool/pool.h"

namespace jax_cxl {

// Makes a PoolSpec from the contents of a pool URI, as
// jax_cxl/_runtime/pool_uri.py parses it.
using MakePoolSpec = std::function<pool::PoolSpec(
    const std::string& kind, std::vector<std::string> paths, uint64_t bytes,
    int devices_per_path, uint64_t offset, const std::string& coherence)>;

// Adds PersistentMemory to the module.
void BindPersistentMemory(nanobind::module_& m, MakePoolSpec make_spec);

}  // namespace jax_cxl

#endif  // JAX_CXL_PYTHON_PERSISTENT_MEMORY_H_
