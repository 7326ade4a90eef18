#include "cc/pool/media/medium.h"

#include <algorithm>
#include <limits>

#include "cc/pool/layout/geometry.h"
#include "cc/pool/layout/layout.h"

namespace jax_cxl::pool {
namespace {

// Checks that there is at least one path, and that no path occurs twice.
Status CheckPathList(const std::vector<std::string>& paths) {
  if (paths.empty() || std::ranges::count(paths, "") > 0)
    return Error(Code::kInvalidArgument,
                 "the pool names no path or an empty one; write for example "
                 "file:/mnt/pool/a or dax:/dev/dax0.0,/dev/dax1.0");
  for (const std::string& path : paths)
    if (std::ranges::count(paths, path) > 1)
      return Error(Code::kInvalidArgument, path,
                   " is named twice; name each path once");
  return OkStatus();
}

}  // namespace

Result<const Medium*> Medium::Find(std::string_view name) {
  for (const Medium* medium : All()) {
    if (medium->name() == name) return medium;
  }
  return Error(Code::kInvalidArgument, "a pool cannot be in '", name,
               "'; write for example shm:my_job, file:/mnt/pool/a or "
               "dax:/dev/dax0.0");
}

Status CheckSpec(const PoolSpec& spec) {
  CXL_RETURN_IF_ERROR(CheckCoherenceSupported(spec.coherence));
  CXL_RETURN_IF_ERROR(spec.medium->Check(spec));
  CXL_RETURN_IF_ERROR(CheckPathList(spec.paths));
  const size_t max_devices = kMaxExtents / spec.paths.size();
  if (spec.devices_per_path < 1 ||
      static_cast<size_t>(spec.devices_per_path) > max_devices) {
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

}  // namespace jax_cxl::pool
