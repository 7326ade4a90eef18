#include "cc/pool/persistent/persistent_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <utility>

#include "cc/base/idle.h"
#include "cc/pool/mapping/mapping_guard.h"
#include "cc/pool/persistent/kept_paths.h"

namespace jax_cxl::pool {
namespace {

CoherenceMode ModeOf(const PoolSpec& spec) {
  return spec.medium->DurableMode(spec.coherence);
}

}  // namespace

struct PersistentMemory::Path {
  explicit Path(KeptPath opened) : kept(std::move(opened)) {}

  KeptPath kept;
  std::unique_ptr<MappingGuard> guard;
  std::atomic<bool> unnamed = false;  // a file that was deleted or replaced
};

PersistentMemory::PersistentMemory() = default;

Result<std::unique_ptr<PersistentMemory>> PersistentMemory::Open(
    const PoolSpec& spec, const Signature& signature, OpenMode mode,
    uint64_t least_bytes) {
  if (!spec.medium->shared() || spec.paths.empty())
    return Error(
        Code::kInvalidArgument,
        "memory that outlives a job lies in files or devices; name them "
        "(file:/path or dax:/dev/dax0.0)");
  CXL_RETURN_IF_ERROR(CheckSpec(spec));
  CXL_RETURN_IF_ERROR(CheckCoherenceSupported(ModeOf(spec)));
  CXL_ASSIGN_OR_RETURN(std::vector<KeptPath> paths,
                       OpenKeptPaths(spec, signature, mode, least_bytes));
  std::unique_ptr<PersistentMemory> memory(new PersistentMemory);
  for (KeptPath& path : paths)
    memory->paths_.push_back(std::make_unique<Path>(std::move(path)));
  CXL_RETURN_IF_ERROR(memory->Map(spec));
  for (const auto& path : memory->paths_) {
    if (!path->kept.file) continue;
    path->kept.file->KeepName();
    path->kept.file->KeepSize();
  }
  return memory;
}

Status PersistentMemory::Map(const PoolSpec& spec) {
  std::vector<MapPiece> pieces;
  std::vector<uint64_t> sizes;
  for (const auto& path : paths_) {
    pieces.push_back(path->kept.piece);
    sizes.push_back(path->kept.piece.bytes);
  }
  devices_per_path_ = spec.devices_per_path;
  devices_ = SplitExtents(sizes, spec.devices_per_path);
  device_bytes_ = UINT64_MAX;
  for (const ByteRange& device : devices_)
    device_bytes_ = std::min(device_bytes_, device.bytes);
  CXL_ASSIGN_OR_RETURN(mapped_, MapContiguous(pieces));
  base_ = mapped_;
  for (const auto& path : paths_) {
    const MapPiece& piece = path->kept.piece;
    path->guard =
        std::make_unique<MappingGuard>(mapped_ + total_bytes_, piece.bytes,
                                       std::max(FilePageBytes(), piece.align));
    total_bytes_ += piece.bytes;
  }
  coherence_ = Coherence(ModeOf(spec));
  if (!spec.make_interposer) return OkStatus();
  // Without ranks and extents, because this memory has no layout of a pool.
  const MappedMemory memory = {mapped_, total_bytes_, {},
                               0,       ModeOf(spec), &StartOwnThread};
  CXL_ASSIGN_OR_RETURN(interposer_, spec.make_interposer(memory));
  base_ = interposer_->base();
  coherence_ = interposer_->coherence();
  return OkStatus();
}

PersistentMemory::~PersistentMemory() {
  interposer_.reset();
  for (const auto& path : paths_) path->guard.reset();
  if (mapped_ != nullptr) munmap(mapped_, total_bytes_);
}

PersistentMemory::Path& PersistentMemory::path_of(int device) const {
  return *paths_[device / devices_per_path_];
}

const std::string& PersistentMemory::path(int device) const {
  return path_of(device).kept.path;
}

std::byte* PersistentMemory::At(int device, uint64_t offset,
                                uint64_t bytes) const {
  if (device < 0 || device >= num_devices() || bytes > device_bytes_ ||
      offset > device_bytes_ - bytes)
    return nullptr;
  return base_ + devices_[device].offset + offset;
}

Result<std::byte*> PersistentMemory::Find(int device, uint64_t offset,
                                          uint64_t bytes) const {
  std::byte* at = At(device, offset, bytes);
  if (at != nullptr) return at;
  return Error(Code::kInvalidArgument, FormatBytes(bytes), " at ", offset,
               " of device ", device, " are outside the memory, which has ",
               num_devices(), " devices of ", FormatBytes(device_bytes_),
               "; please report this to jax_cxl");
}

Status PersistentMemory::CheckReadable(int device) const {
  const Path& path = path_of(device);
  if (!path.kept.lost.empty()) return Error(Code::kDataLoss, path.kept.lost);
  if (path.guard->intact()) return OkStatus();
  return Error(
      Code::kDataLoss, path.kept.path,
      " was cut short, or its memory failed, while it was in use; repair it "
      "(python -m jax_cxl store repair), and leave the file alone");
}

Status PersistentMemory::CheckIntact(int device) const {
  CXL_RETURN_IF_ERROR(CheckReadable(device));
  if (!path_of(device).unnamed) return OkStatus();
  return Error(Code::kDataLoss, path(device),
               " was deleted or replaced while it was in use; open the memory "
               "again, and leave the file alone");
}

void PersistentMemory::CheckNames() {
  for (const auto& path : paths_) {
    if (path->kept.file && path->kept.piece.file_bytes == 0 &&
        !path->kept.file->StillNamed())
      path->unnamed = true;
  }
}

Status PersistentMemory::Write(int device, uint64_t offset,
                               std::span<const std::byte> from) const {
  CXL_ASSIGN_OR_RETURN(std::byte * to, Find(device, offset, from.size()));
  CXL_RETURN_IF_ERROR(CheckIntact(device));
  if (from.empty()) return OkStatus();  // memcpy takes no null pointer.
  std::memcpy(to, from.data(), from.size());
  coherence_.PublishPayload(to, from.size());
  return CheckIntact(device);
}

Status PersistentMemory::PublishDeviceWrites(int device, uint64_t offset,
                                             uint64_t bytes) const {
  CXL_ASSIGN_OR_RETURN(std::byte * at, Find(device, offset, bytes));
  const Part part = {at, bytes};
  coherence_.PublishDeviceParts({&part, 1});
  return CheckIntact(device);
}

Status PersistentMemory::Read(int device, uint64_t offset,
                              std::span<std::byte> to) const {
  CXL_ASSIGN_OR_RETURN(std::byte * from, Find(device, offset, to.size()));
  CXL_RETURN_IF_ERROR(CheckReadable(device));
  if (to.empty()) return OkStatus();
  coherence_.AcquirePayload(from, to.size());
  std::memcpy(to.data(), from, to.size());
  return CheckReadable(device);
}

Status PersistentMemory::StoreWord(int device, uint64_t offset,
                                   uint64_t value) const {
  CXL_ASSIGN_OR_RETURN(std::byte * to, Find(device, offset, sizeof(value)));
  if (offset % sizeof(value) != 0)
    return Error(Code::kInvalidArgument,
                 "a word must start at a multiple of 8, not at ", offset,
                 "; please report this to jax_cxl");
  CXL_RETURN_IF_ERROR(CheckIntact(device));
  coherence_.StoreFlag(reinterpret_cast<uint64_t*>(to), value);
  return CheckIntact(device);
}

Result<uint64_t> PersistentMemory::LoadWord(int device, uint64_t offset) const {
  CXL_ASSIGN_OR_RETURN(std::byte * from,
                       Find(device, offset, sizeof(uint64_t)));
  if (offset % sizeof(uint64_t) != 0)
    return Error(Code::kInvalidArgument,
                 "a word must start at a multiple of 8, not at ", offset,
                 "; please report this to jax_cxl");
  const uint64_t value =
      coherence_.LoadFlag(reinterpret_cast<const uint64_t*>(from));
  CXL_RETURN_IF_ERROR(CheckReadable(device));
  return value;
}

}  // namespace jax_cxl::pool
