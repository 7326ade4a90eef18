#ifndef JAX_CXL_POOL_MEDIA_DAX_H_
#define JAX_CXL_POOL_MEDIA_DAX_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cc/base/status.h"
#include "cc/pool/media/medium.h"
#include "cc/pool/media/pool_spec.h"
#include "cc/pool/open/dax.h"

namespace jax_cxl::pool {

// Dax devices. Jobs may share a device, each in a part of its own.
class DaxMedium final : public Medium {
 public:
  // Tests pass another machine than this one.
  explicit DaxMedium(DaxSystem system) : system_(std::move(system)) {}

  std::string_view name() const override { return "dax"; }
  bool shared() const override { return true; }
  bool allocates() const override { return false; }
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
  CoherenceMode DurableMode(CoherenceMode mode) const override;

 private:
  DaxSystem system_;
};

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_POOL_MEDIA_DAX_H_
