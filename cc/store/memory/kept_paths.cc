#include "cc/store/memory/kept_paths.h"

#include <algorithm>
#include <span>
#include <utility>

#include "cc/pool/layout/layout.h"
#include "cc/pool/open/contents.h"
#include "cc/pool/unused_memory.h"

namespace jax_cxl::pool {
namespace {

bool IsFile(const KeptPath& path) { return !path.piece.is_device(); }

Result<bool> HasSignature(const KeptPath& path) {
  for (const uint64_t offset : kSuperblockOffsets) {
    char found[sizeof(kStoreMagic)] = {};
    CXL_RETURN_IF_ERROR(ReadAt(path.file->fd(), path.path, path.piece.align,
                               path.piece.offset + offset,
                               std::as_writable_bytes(std::span(found)))
                            .status());
    if (std::ranges::equal(found, kStoreMagic)) return true;
  }
  return false;
}

// Fails with kDataLoss if the part of a device that `path` names holds anything
// but zeros.
Status CheckZeros(const KeptPath& path) {
  const MapPiece& piece = path.piece;
  CXL_ASSIGN_OR_RETURN(const std::optional<uint64_t> data,
                       FirstData(piece.fd, path.path, piece.align, piece.offset,
                                 piece.offset + piece.bytes));
  if (!data) return OkStatus();
  return Error(Code::kDataLoss, path.path, " holds other data at byte ", *data,
               ", so it is left alone; name another offset= and size=, or "
               "erase it: python -m jax_cxl store format");
}

Result<KeptPath> OpenKept(const std::string& name, const PoolSpec& spec) {
  KeptPath path;
  path.path = name;
  path.piece = {-1, spec.offset, spec.bytes};
  Result<PoolFile> file = OpenPath(spec, name, /*creating=*/false);
  if (file.status().code() == Code::kNotFound) {
    path.lost = file.status().message();
    return path;
  }
  if (!file.ok()) return file.status();
  path.file.emplace(*std::move(file));
  CXL_ASSIGN_OR_RETURN(path.piece,
                       TakePart(*path.file, spec, /*creating=*/false));
  CXL_ASSIGN_OR_RETURN(path.ours, HasSignature(path));
  return path;
}

Result<std::vector<KeptPath>> OpenAll(const PoolSpec& spec) {
  std::vector<KeptPath> paths;
  for (const std::string& name : spec.paths) {
    CXL_ASSIGN_OR_RETURN(KeptPath path, OpenKept(name, spec));
    for (const KeptPath& other : paths) {
      if (other.file) CXL_RETURN_IF_ERROR(CheckNamedOnce(*other.file, name));
    }
    paths.push_back(std::move(path));
  }
  return paths;
}

bool AnyIsOurs(const std::vector<KeptPath>& paths) {
  return std::ranges::any_of(paths, &KeptPath::ours);
}

bool HaveNoBytes(const std::vector<KeptPath>& paths) {
  return std::ranges::all_of(paths, [](const KeptPath& path) {
    return !path.file || path.file->Size() == 0;
  });
}

// The error of kExisting if no path has the signature.
Status NothingIn(const KeptPath& path, const PoolSpec& spec) {
  if (path.file) return Error(Code::kNotFound, path.path, " is empty");
  if (spec.on_devices()) return Error(Code::kNotFound, path.lost);
  return Error(Code::kNotFound, path.path, " does not exist");
}

// If the user gives no size, files and missing paths get the size of the
// existing paths. Fails if no path has a size.
Status Measure(std::vector<KeptPath>& paths, const PoolSpec& spec) {
  if (spec.bytes != 0) return OkStatus();
  const bool any = AnyIsOurs(paths);
  uint64_t bytes = 0;
  for (const KeptPath& path : paths) {
    if (!path.file || path.piece.bytes == 0 || (any && !path.ours)) continue;
    // Files with the signature had equal sizes, so a shorter one was cut short.
    // Use the largest size. Without a signature, paths may have any size, so
    // use the smallest.
    bytes = bytes == 0 ? path.piece.bytes
            : any      ? std::max(bytes, path.piece.bytes)
                       : std::min(bytes, path.piece.bytes);
  }
  for (KeptPath& path : paths) {
    if (bytes != 0) {
      if (!path.file || IsFile(path)) path.piece.bytes = bytes;
    } else if (path.file && path.file->Size() > 0) {
      return Error(Code::kInvalidArgument, path.path, " has nothing at offset ",
                   spec.offset,
                   "; pass size= to let it grow, or another offset=");
    } else {
      return Error(Code::kInvalidArgument, path.path,
                   " is new or empty; pass size=");
    }
  }
  return OkStatus();
}

Status CheckSizes(const std::vector<KeptPath>& paths, const PoolSpec& spec,
                  uint64_t least_bytes) {
  for (const KeptPath& path : paths) {
    const uint64_t device =
        RoundDown(path.piece.bytes / spec.devices_per_path, kPageBytes);
    if (device < least_bytes)
      return Error(Code::kResourceExhausted, path.path,
                   " is too small: each device needs at least ", least_bytes,
                   " bytes and has ", device, "; pass a larger size=");
  }
  return OkStatus();
}

// Fails with kDataLoss unless a path holds only zeros, or memory with the
// signature.
Status CheckContents(KeptPath& path) {
  const Status zeros = IsFile(path) ? path.file->CheckMayTake(path.piece.offset,
                                                              path.piece.bytes)
                                    : CheckZeros(path);
  if (zeros.ok()) return OkStatus();
  // Another process may have prepared the path in the meantime. In that case
  // the signature is there, because a process writes it before everything else.
  CXL_ASSIGN_OR_RETURN(path.ours, HasSignature(path));
  return path.ours ? OkStatus() : zeros;
}

// Marks a path as lost if its file is too short.
void FindLost(std::vector<KeptPath>& paths) {
  for (KeptPath& path : paths) {
    const uint64_t end = path.piece.offset + path.piece.bytes;
    if (path.file && IsFile(path) && path.file->Size() < end)
      path.lost = path.path + " has " + FormatBytes(path.file->Size()) +
                  ", not " + FormatBytes(end) +
                  ": it was cut short, or made with another size=";
  }
}

bool AnyIsLost(const std::vector<KeptPath>& paths) {
  return std::ranges::any_of(
      paths, [](const KeptPath& path) { return !path.lost.empty(); });
}

// Opens and checks the paths that exist, and changes nothing.
Result<std::vector<KeptPath>> Examine(const PoolSpec& spec, OpenMode mode,
                                      uint64_t least_bytes) {
  CXL_ASSIGN_OR_RETURN(std::vector<KeptPath> paths, OpenAll(spec));
  if (mode == OpenMode::kExisting && HaveNoBytes(paths))
    return NothingIn(paths.front(), spec);
  CXL_RETURN_IF_ERROR(Measure(paths, spec));
  CXL_RETURN_IF_ERROR(CheckSizes(paths, spec, least_bytes));
  for (KeptPath& path : paths)
    if (mode != OpenMode::kFormat && path.file && !path.ours)
      CXL_RETURN_IF_ERROR(CheckContents(path));
  FindLost(paths);
  return paths;
}

// Fails if other users of the memory overlap the parts in which this process is
// about to make new memory.
Status CheckOthers(const std::vector<KeptPath>& paths, OpenMode mode,
                   double dead_after_s) {
  if (AnyIsOurs(paths) && mode != OpenMode::kFormat) return OkStatus();
  std::vector<MapPiece> parts;
  std::vector<const PoolFile*> files;
  for (const KeptPath& path : paths) {
    if (!path.file) continue;
    parts.push_back(path.piece);
    files.push_back(&*path.file);
  }
  return CheckUnused(parts, files, Purpose::kStore, dead_after_s).status();
}

Status Create(KeptPath& path, std::vector<KeptPath>& paths) {
  CXL_ASSIGN_OR_RETURN(PoolFile file,
                       PoolFile::OpenShared(path.path, /*create=*/true));
  for (const KeptPath& other : paths) {
    if (other.file) CXL_RETURN_IF_ERROR(CheckNamedOnce(*other.file, path.path));
  }
  path.file.emplace(std::move(file));
  path.piece.fd = path.file->fd();
  if (path.file->created()) return OkStatus();
  return CheckContents(path);
}

}  // namespace

Result<std::vector<KeptPath>> OpenKeptPaths(const PoolSpec& spec, OpenMode mode,
                                            uint64_t least_bytes) {
  Result<std::vector<KeptPath>> found = Examine(spec, mode, least_bytes);
  auto incomplete = [&] {
    return found.ok() &&
           (mode == OpenMode::kNormal || mode == OpenMode::kExisting) &&
           AnyIsOurs(*found) && AnyIsLost(*found);
  };
  // Some paths seem to be lost, although others have the signature. Perhaps
  // another process of this job made the paths while this process looked at
  // them. A process makes all paths before it writes the first signature, so
  // all paths exist by now. Look again.
  if (incomplete()) found = Examine(spec, mode, least_bytes);
  if (!found.ok()) return found.status();
  if (mode == OpenMode::kExisting && !AnyIsOurs(*found))
    return NothingIn(found->front(), spec);
  CXL_RETURN_IF_ERROR(CheckOthers(*found, mode, spec.dead_after_s));
  const bool keep_lost = incomplete();
  for (KeptPath& path : *found) {
    if (keep_lost && !path.lost.empty()) {
      path.piece.fd = -1;
      continue;
    }
    if (!path.file) {
      if (spec.on_devices()) return Error(Code::kNotFound, path.lost);
      CXL_RETURN_IF_ERROR(Create(path, *found));
    }
    path.lost.clear();
    if (IsFile(path))
      CXL_RETURN_IF_ERROR(
          path.file->Reserve(path.piece.offset, path.piece.bytes));
  }
  return found;
}

}  // namespace jax_cxl::pool
