#include <algorithm>

#include "cc/pool/layout/geometry.h"
#include "cc/pool/media/medium.h"
#include "cc/pool/open/shm_name.h"

namespace jax_cxl::pool {
namespace {

// Returns how many whole pages a file has from `offset` on.
uint64_t RestOf(const PoolFile& file, uint64_t offset) {
  const uint64_t size = file.Size();
  return RoundDown(size - std::min(size, offset), FilePageBytes());
}

// Files of any file system.
class FileMedium : public Medium {
 public:
  std::string_view name() const override { return "file"; }
  bool shared() const override { return true; }
  bool allocates() const override { return true; }

  Result<PoolFile> Open(const std::string& path, uint64_t offset,
                        bool creating) const override {
    if (!creating) return PoolFile::OpenShared(path, /*create=*/false);
    return PoolFile::OpenForCreate(path, offset,
                                   shared() ? PoolFile::Ownership::kIfCreated
                                            : PoolFile::Ownership::kAlways);
  }

  Result<uint64_t> PathBytes(const PoolSpec& spec,
                             const std::vector<PoolFile>& files, int world_size,
                             bool creating) const override {
    if (spec.bytes != 0) return spec.bytes;
    // If no other job has the files open, they are leftovers, and this job did
    // not choose their size.
    const bool reuse =
        !creating ||
        (shared() && std::ranges::all_of(files, [](const PoolFile& file) {
           return file.Size() > 0;
         }));
    if (!reuse)
      return AutomaticPathBytes(world_size, static_cast<int>(files.size()),
                                spec.devices_per_path);
    uint64_t bytes = UINT64_MAX;
    for (const PoolFile& file : files)
      bytes = std::min(bytes, RestOf(file, spec.offset));
    if (bytes != 0) return bytes;
    return Error(creating ? Code::kInvalidArgument : Code::kDataLoss,
                 files[0].path(), " has nothing at offset ", spec.offset,
                 "; pass size= to let it grow, or another offset=");
  }

  Result<MapPiece> Take(PoolFile& file, const PoolSpec& spec,
                        bool /*creating*/) const override {
    const uint64_t bytes =
        spec.bytes != 0 ? spec.bytes : RestOf(file, spec.offset);
    return MapPiece{file.fd(), spec.offset, bytes, 0, file.Size()};
  }
};

// A file in /dev/shm. A job reserves its name, so no other job opens the file.
class ShmMedium final : public FileMedium {
 public:
  std::string_view name() const override { return "shm"; }
  bool shared() const override { return false; }

  Status Check(const PoolSpec& spec) const override {
    if (spec.paths.size() == 1) return CheckShmName(spec.paths[0]);
    return Error(Code::kInvalidArgument, "a shm pool has one name, not ",
                 spec.paths.size(), "; write for example shm:my_job");
  }

  Result<UniqueFd> ReserveNames(const PoolSpec& spec) const override {
    return ClaimShmName(spec.paths[0]);
  }

  std::string PathOf(const std::string& given) const override {
    return ShmPath(given);
  }
};

}  // namespace

// Media are never destroyed: pools may still be opened while the process exits.
const Medium& Medium::File() {
  static const auto& medium = *new FileMedium;
  return medium;
}

const Medium& Medium::Shm() {
  static const auto& medium = *new ShmMedium;
  return medium;
}

}  // namespace jax_cxl::pool
