#ifndef JAX_CXL_POOL_MEDIA_FILE_H_
#define JAX_CXL_POOL_MEDIA_FILE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cc/base/status.h"
#include "cc/pool/media/medium.h"
#include "cc/pool/media/pool_spec.h"

namespace jax_cxl::pool {

// Files of any file system.
class FileMedium : public Medium {
 public:
  std::string_view name() const override { return "file"; }
  bool shared() const override { return true; }
  bool allocates() const override { return true; }
  uint64_t unit_bytes() const override;
  Status Check(const PoolSpec& spec) const override;
  Result<PoolFile> OpenForCreate(const std::string& path,
                                 uint64_t offset) const override;
  Result<PoolFile> OpenForAttach(const std::string& path) const override;
  Result<uint64_t> PathBytes(const PoolSpec& spec,
                             const std::vector<PoolFile>& files, int world_size,
                             bool creating) const override;
  Result<MapPiece> Take(PoolFile& file, const PoolSpec& spec,
                        bool creating) const override;
};

// Checks that there is at least one path, and no path twice.
Status CheckPathList(const std::vector<std::string>& paths);

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_POOL_MEDIA_FILE_H_
