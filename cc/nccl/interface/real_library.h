#ifndef JAX_CXL_NCCL_INTERFACE_REAL_LIBRARY_H_
#define JAX_CXL_NCCL_INTERFACE_REAL_LIBRARY_H_

#include <string>
#include <vector>

#include "cc/base/status.h"

namespace jax_cxl::nccl {

// The folders in which the loader looks for the libraries of an object: its
// DT_RPATH or DT_RUNPATH, with $ORIGIN replaced.
std::vector<std::string> SearchFolders(const std::string& run_path,
                                       const std::string& object);

// NVIDIA's NCCL, to which this library forwards what it does not do itself.
//
// Thread-safe.
class RealLibrary {
 public:
  // The library of this process. Loads it at the first call.
  static RealLibrary& Loaded();
  // Returns true if Loaded has loaded it.
  static bool is_loaded();

  // OK, or why the library could not be loaded.
  const Status& status() const { return status_; }
  const std::string& path() const { return path_; }

  // Returns a function, or null.
  void* Find(const char* name) const;

 private:
  RealLibrary();

  Status status_;
  std::string path_;
  void* handle_ = nullptr;
};

}  // namespace jax_cxl::nccl

#endif  // JAX_CXL_NCCL_INTERFACE_REAL_LIBRARY_H_
