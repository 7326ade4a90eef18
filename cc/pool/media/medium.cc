#include "cc/pool/media/medium.h"

#include <algorithm>
#include <iterator>
#include <limits>

#include "cc/pool/layout/geometry.h"
#include "cc/pool/layout/layout.h"
#include "cc/pool/open/shm.h"

namespace jax_cxl::pool {
namespace {

// Returns how many whole pages a file has from `offset` on.
uint64_t RestOf(const PoolFile& file, uint64_t offset) {
  const uint64_t size = file.Size();
  return RoundDown(size - std::min(size, offset), FilePageBytes());
}

// Checks the part of a device that `spec` names, and returns it.
Result<MapPiece> PartOf(const PoolFile& device, const PoolSpec& spec) {
  const std::string& path = device.path();
  const uint64_t offset = spec.offset, bytes = spec.bytes;
  CXL_ASSIGN_OR_RETURN(const DaxLimits limits,
                       ReadDaxLimits(device.fd(), path, *spec.dax));
  if (offset % limits.align != 0 || bytes % limits.align != 0) {
    return Error(Code::kInvalidArgument, "offset ", offset, " and size ", bytes,
                 " must be multiples of the alignment of ", path, ", ",
                 FormatBytes(limits.align), "; change offset= and size=");
  }
  if (offset > limits.size || bytes > limits.size - offset) {
    return Error(Code::kInvalidArgument, "offset ", offset, " and size ", bytes,
                 " exceed ", path, ", which has ", FormatBytes(limits.size),
                 "; change offset= and size=");
  }
  const uint64_t rest = RoundDown(limits.size - offset, limits.align);
  if (bytes == 0 && rest == 0) {
    return Error(Code::kInvalidArgument, path, " has nothing left at offset ",
                 offset, ": its size is ", FormatBytes(limits.size),
                 "; use a smaller offset=");
  }
  return MapPiece{device.fd(), offset, bytes != 0 ? bytes : rest, limits.align,
                  limits.size};
}

}  // namespace

Result<Medium> ParseMedium(std::string_view name) {
  const auto index = std::ranges::find(kMediumNames, name) - kMediumNames;
  if (index < std::ssize(kMediumNames)) return static_cast<Medium>(index);
  return Error(Code::kInvalidArgument, "a pool cannot be in '", name,
               "', only in shm, file or dax");
}

Status CheckSpec(const PoolSpec& spec) {
  CXL_RETURN_IF_ERROR(CheckCoherenceSupported(spec.coherence));
  if (spec.paths.empty())
    return Error(Code::kInvalidArgument,
                 "the pool has no name and no path; write for example "
                 "shm:my_job or file:/mnt/pool/a");
  if (!spec.shared() && (spec.paths.size() > 1 || !IsShmName(spec.paths[0])))
    return Error(Code::kInvalidArgument, "a pool in /dev/shm has one name of ",
                 kShmNames, ", not ", spec.paths.size(), " that begin with '",
                 spec.paths[0], "'; write for example shm:my_job");
  if (spec.devices_per_path < 1 ||
      spec.devices_per_path * spec.paths.size() > kMaxExtents) {
    return Error(Code::kInvalidArgument, spec.devices_per_path,
                 " devices in each of ", spec.paths.size(),
                 " paths: a pool has 1 to ", kMaxExtents,
                 " devices; change devices=, or name fewer paths");
  }
  const uint64_t unit = FilePageBytes();
  if (spec.bytes % unit != 0 || spec.offset % unit != 0) {
    return Error(Code::kInvalidArgument, "size ", spec.bytes, " and offset ",
                 spec.offset, " must be multiples of the page size, ", unit,
                 " bytes; change size= and offset=");
  }
  constexpr uint64_t kMax = std::numeric_limits<int64_t>::max();
  if (spec.offset > kMax / 2 ||
      spec.bytes > kMax / 2 / (spec.paths.size() + 1)) {
    return Error(Code::kInvalidArgument, "size ", spec.bytes, " and offset ",
                 spec.offset,
                 " are too large for any file; change size= and offset=");
  }
  return OkStatus();
}

Result<PoolFile> OpenPath(const PoolSpec& spec, const std::string& path,
                          bool creating) {
  if (spec.on_devices()) return PoolFile::OpenDevice(path);
  if (!creating) return PoolFile::OpenShared(path, /*create=*/false);
  return PoolFile::OpenForCreate(path, spec.offset,
                                 spec.shared() ? PoolFile::Ownership::kIfCreated
                                               : PoolFile::Ownership::kAlways);
}

Result<uint64_t> PathBytes(const PoolSpec& spec,
                           const std::vector<PoolFile>& files, int world_size,
                           bool creating) {
  if (spec.on_devices() || spec.bytes != 0) return spec.bytes;
  // A process that attaches uses the size of the existing files. So does a
  // creator, if jobs share the medium and no file is empty. If jobs do not
  // share the medium (kShm), existing files are leftovers, and their size means
  // nothing.
  const bool reuse =
      !creating ||
      (spec.shared() && std::ranges::all_of(files, [](const PoolFile& file) {
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

Result<MapPiece> TakePart(PoolFile& file, const PoolSpec& spec, bool creating) {
  if (!spec.on_devices()) {
    const uint64_t bytes =
        spec.bytes != 0 ? spec.bytes : RestOf(file, spec.offset);
    return MapPiece{file.fd(), spec.offset, bytes, 0, file.Size()};
  }
  CXL_ASSIGN_OR_RETURN(const MapPiece part, PartOf(file, spec));
  CXL_RETURN_IF_ERROR(
      file.LockRange(part.offset, part.bytes, part.align, creating));
  return part;
}

Result<MapPiece> DevicePartOf(const PoolSpec& spec) {
  CXL_ASSIGN_OR_RETURN(const PoolFile device,
                       PoolFile::OpenDevice(spec.paths[0]));
  CXL_ASSIGN_OR_RETURN(MapPiece part, PartOf(device, spec));
  part.fd = -1;
  return part;
}

}  // namespace jax_cxl::pool
