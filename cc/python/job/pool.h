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

// Holds this process's mapping of a pool until Release passes it to the
// runtime. In tests, interposers may emulate a host for each rank. Then there
// is one mapping for each of these hosts.
class PyPool {
 public:
  explicit PyPool(std::unique_ptr<pool::Pool> pool);

  PyPool(PyPool&&) = default;

  pool::Pool* get() const;

  // Writes the identity of a rank of this process into the pool. `device_id` is
  // the rank's JAX device.
  void Register(int rank, int process_index, int device_id);

  // Gives up the mappings, one for each emulated host (usually one), and
  // returns them for the runtime.
  std::vector<comm::Runtime::Host> Release();

 private:
  std::vector<comm::Runtime::Host> hosts_;
};

}  // namespace jax_cxl

#endif  // JAX_CXL_PYTHON_JOB_POOL_H_
