#include "cc/pool/media/file.h"

#include <algorithm>

#include "cc/pool/layout/geometry.h"
#include "cc/pool/layout/layout.h"

namespace jax_cxl::pool {
namespace {

// Returns how many whole pages a file has from `offset` on.
uint64_t RestOf(const PoolFile& file, uint64_t offset) {
  const uint64_t size = file.Size();
  return RoundDown(size - std::min(size, offset), FilePageBytes());
}

}  // namespace

const Medium& Medium::File() {
  // Never destroyed: pools may still be opened while the process exits.
  static const auto& medium = *new FileMedium;
  return medium;
}

Status CheckPathList(const std::vector<std::string>& paths) {
  if (paths.empty() ||
      std::any_of(paths.begin(), paths.end(),
                  [](const std::string& path) { return path.empty(); })) {
    return Error(Code::kInvalidArgument,
                 "the pool names no path or an empty one; write for example "
                 "file:/mnt/pool/a or dax:/dev/dax0.0,/dev/dax1.0");
  }
  for (const std::string& path : paths) {
    if (std::count(paths.begin(), paths.end(), path) > 1) {
      return Error(Code::kInvalidArgument, path,
                   " is named twice; name each path once");
    }
  }
  return OkStatus();
}

uint64_t FileMedium::unit_bytes() const { return FilePageBytes(); }

Status FileMedium::Check(const PoolSpec& spec) const {
  return CheckPathList(spec.paths);
}

Result<PoolFile> FileMedium::OpenForCreate(const std::string& path,
                                           uint64_t offset) const {
  return PoolFile::OpenForCreate(path, offset,
                                 shared() ? PoolFile::Ownership::kIfCreated
                                          : PoolFile::Ownership::kAlways);
}

Result<PoolFile> FileMedium::OpenForAttach(const std::string& path) const {
  return PoolFile::OpenForAttach(path);
}

Result<uint64_t> FileMedium::PathBytes(const PoolSpec& spec,
                                       const std::vector<PoolFile>& files,
                                       int world_size, bool creating) const {
  if (spec.bytes != 0) return spec.bytes;
  // If no other job has the files open, they are leftovers, and this job did
  // not choose their size.
  const bool reuse =
      !creating || (shared() && std::all_of(files.begin(), files.end(),
                                            [](const PoolFile& file) {
                                              return file.Size() > 0;
                                            }));
  if (!reuse) {
    return AutomaticPathBytes(world_size, static_cast<int>(files.size()),
                              spec.devices_per_path);
  }
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
  MapPiece piece = {file.fd(), spec.offset, spec.bytes, kPageBytes, 0};
  if (piece.bytes == 0) piece.bytes = RestOf(file, spec.offset);
  return piece;
}

}  // namespace jax_cxl::pool
