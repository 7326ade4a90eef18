#ifndef JAX_CXL_PYTHON_JOB_POOL_H_
#define JAX_CXL_PYTHON_JOB_POOL_H_

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cc/comm/runtime.h"
#include "cc/pool/pool.h"

namespace jax_cxl {

// Makes a PoolSpec from the contents of a pool URI, as
// jax_cxl/_job/pool/pool_uri.py parses it.
pool::PoolSpec MakePoolSpec(const std::string& kind,
                            std::vector<std::string> paths, uint64_t bytes,
                            int devices_per_path, uint64_t offset,
                            const std::string& coherence);

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
