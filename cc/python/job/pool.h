#ifndef JAX_CXL_PYTHON_JOB_POOL_H_
#define JAX_CXL_PYTHON_JOB_POOL_H_

#include <nanobind/nanobind.h>

#include <memory>
#include <vector>

#include "cc/comm/runtime.h"
#include "cc/pool/pool.h"

namespace jax_cxl {

// Reads a PoolSpec from a dict that `for_core` of jax_cxl/_job/pool/pool_uri.py
// has made. SpecOf ignores other entries of the dict.
pool::PoolSpec SpecOf(const nanobind::dict& place);

// A mapped pool until the runtime takes it over.
class PyPool {
 public:
  explicit PyPool(std::unique_ptr<pool::Pool> pool);

  PyPool(PyPool&&) = default;

  // Returns the pool that this process created or attached to first.
  pool::Pool* get() const;

  // Writes the identity of a rank of this process into the pool.
  void Register(int rank, int process_index, int device_id);

  // Returns the pool of each host, for the runtime.
  std::vector<comm::Runtime::Host> Release();

 private:
  std::vector<comm::Runtime::Host> hosts_;
};

// Adds Pool, and the functions about pools, to the module.
void BindPool(nanobind::module_& m);

}  // namespace jax_cxl

#endif  // JAX_CXL_PYTHON_JOB_POOL_H_
