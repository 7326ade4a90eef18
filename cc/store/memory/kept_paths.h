#ifndef JAX_CXL_STORE_MEMORY_KEPT_PATHS_H_
#define JAX_CXL_STORE_MEMORY_KEPT_PATHS_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cc/base/status.h"
#include "cc/pool/mapping/map.h"
#include "cc/pool/mapping/mapping_guard.h"
#include "cc/pool/open/file.h"
#include "cc/pool/pool.h"
#include "cc/store/memory/persistent_memory.h"

// Opens the files and devices of memory that outlives its jobs, and decides
// which of them may be taken.
namespace jax_cxl::pool {

struct KeptPath {
  std::string path;
  std::optional<PoolFile> file;         // none: it is missing
  MapPiece piece;                       // its fd is -1 if the path is lost
  bool ours = false;                    // it has the signature
  std::string lost;                     // why it is lost; empty: it is not
  std::unique_ptr<MappingGuard> guard;  // once it is mapped
  // Whether the file was deleted or replaced. The flag is on the heap, because
  // an atomic cannot be moved.
  std::unique_ptr<std::atomic<bool>> unnamed =
      std::make_unique<std::atomic<bool>>(false);
};

// Opens the paths of `spec`, and returns them with their space reserved.
// PersistentMemory::Open explains the other parameters.
Result<std::vector<KeptPath>> OpenKeptPaths(const PoolSpec& spec, OpenMode mode,
                                            uint64_t least_bytes);

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_STORE_MEMORY_KEPT_PATHS_H_
