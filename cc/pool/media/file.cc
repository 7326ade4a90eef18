#include "cc/pool/media/file.h"

#include <algorithm>

#include "cc/pool/layout/geometry.h"

namespace jax_cxl::pool {
namespace {

// Returns how many whole pages a file has from `offset` on.
uint64_t RestOf(const PoolFile& file, uint64_t offset) {
  const uint64_t size = file.Size();
  return RoundDown(size - std::min(size, offset), FilePageBytes());
}

}  // namespace

Result<PoolFile> FileMedium::Open(const std::string& path, uint64_t offset,
                                  bool creating) const {
  if (!creating) return PoolFile::OpenShared(path, /*create=*/false);
  return PoolFile::OpenForCreate(path, offset,
                                 shared() ? PoolFile::Ownership::kIfCreated
                                          : PoolFile::Ownership::kAlways);
}

Result<uint64_t> FileMedium::PathBytes(const PoolSpec& spec,
                                       const std::vector<PoolFile>& files,
                                       int world_size, bool creating) const {
  if (spec.bytes != 0) return spec.bytes;
  // A process that attaches uses the size of the existing files. So does a
  // creator, if jobs share the medium and no file is empty. If jobs do not
  // share the medium (Shm), existing files are leftovers, and their size means
  // nothing.
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

Result<MapPiece> FileMedium::Take(PoolFile& file, const PoolSpec& spec,
                                  bool /*creating*/) const {
  const uint64_t bytes =
      spec.bytes != 0 ? spec.bytes : RestOf(file, spec.offset);
  return MapPiece{file.fd(), spec.offset, bytes, 0, file.Size()};
}

const Medium& Medium::File() {
  // Never destroyed: pools may still be opened while the process exits.
  static const auto& medium = *new FileMedium;
  return medium;
}

}  // namespace jax_cxl::pool
