#ifndef JAX_CXL_POOL_MEDIA_FILE_H_
#define JAX_CXL_POOL_MEDIA_FILE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cc/pool/media/medium.h"

namespace jax_cxl::pool {

// The medium of files in any file system.
class FileMedium : public Medium {
 public:
  std::string_view name() const override { return "file"; }
  bool shared() const override { return true; }
  bool allocates() const override { return true; }
  Result<PoolFile> Open(const std::string& path, uint64_t offset,
                        bool creating) const override;
  Result<uint64_t> PathBytes(const PoolSpec& spec,
                             const std::vector<PoolFile>& files, int world_size,
                             bool creating) const override;
  Result<MapPiece> Take(PoolFile& file, const PoolSpec& spec,
                        bool creating) const override;
};

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_POOL_MEDIA_FILE_H_
