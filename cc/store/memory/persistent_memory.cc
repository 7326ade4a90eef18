#include "cc/store/memory/persistent_memory.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "cc/base/idle.h"
#include "cc/pool/mapping/mapping_guard.h"
#include "cc/store/memory/kept_paths.h"

namespace jax_cxl::pool {
namespace {

// Returns the coherence mode of the memory. Cache lines of devices must be
// written back even if hardware keeps the caches coherent, because a host may
// die with lines in its cache.
CoherenceMode ModeOf(const PoolSpec& spec) {
  return spec.on_devices() && spec.coherence == CoherenceMode::kCoherent
             ? CoherenceMode::kFlush
             : spec.coherence;
}

}  // namespace

PersistentMemory::PersistentMemory() = default;
PersistentMemory::~PersistentMemory() = default;

Result<std::unique_ptr<PersistentMemory>> PersistentMemory::Open(
    const PoolSpec& spec, OpenMode mode, uint64_t least_bytes) {
  if (!spec.shared() || spec.paths.empty())
    return Error(
        Code::kInvalidArgument,
        "memory that outlives a job must be in files or devices; name them "
        "(file:/path or dax:/dev/dax0.0)");
  CXL_RETURN_IF_ERROR(CheckSpec(spec));
  CXL_RETURN_IF_ERROR(CheckCoherenceSupported(ModeOf(spec)));
  std::unique_ptr<PersistentMemory> memory(new PersistentMemory);
  CXL_ASSIGN_OR_RETURN(memory->paths_, OpenKeptPaths(spec, mode, least_bytes));
  CXL_RETURN_IF_ERROR(memory->Map(spec));
  for (KeptPath& path : memory->paths_) {
    if (!path.file) continue;
    path.file->KeepName();
    path.file->KeepSize();
  }
  return memory;
}

Status PersistentMemory::Map(const PoolSpec& spec) {
  std::vector<MapPiece> pieces;
  std::vector<uint64_t> sizes;
  for (const KeptPath& path : paths_) {
    pieces.push_back(path.piece);
    sizes.push_back(path.piece.bytes);
  }
  devices_per_path_ = spec.devices_per_path;
  devices_ = SplitExtents(sizes, spec.devices_per_path);
  device_bytes_ = UINT64_MAX;
  for (const ByteRange& device : devices_)
    device_bytes_ = std::min(device_bytes_, device.bytes);
  CXL_ASSIGN_OR_RETURN(mapped_, MapContiguous(pieces));
  base_ = mapped_.get();
  for (KeptPath& path : paths_) {
    path.guard = std::make_unique<MappingGuard>(
        base_ + total_bytes_, path.piece.bytes,
        std::max(FilePageBytes(), path.piece.align));
    total_bytes_ += path.piece.bytes;
  }
  coherence_ = Coherence(ModeOf(spec));
  if (!spec.make_interposer) return OkStatus();
  // The number of ranks is 0 and there are no extents, because this memory does
  // not have the layout of a pool.
  const MappedMemory memory = {base_, total_bytes_, {},
                               0,     ModeOf(spec), &StartOwnThread};
  CXL_ASSIGN_OR_RETURN(interposer_, spec.make_interposer(memory));
  base_ = interposer_->base();
  coherence_ = interposer_->coherence();
  return OkStatus();
}

const KeptPath& PersistentMemory::path_of(int device) const {
  return paths_[device / devices_per_path_];
}

const std::string& PersistentMemory::path(int device) const {
  return path_of(device).path;
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

Status PersistentMemory::CheckIntact(int device) const {
  const KeptPath& path = path_of(device);
  if (!path.lost.empty()) return Error(Code::kDataLoss, path.lost);
  if (!path.guard->intact())
    return Error(
        Code::kDataLoss, path.path,
        " was cut short, or its memory failed, while it was in use; repair it "
        "(python -m jax_cxl store repair), and leave the file alone");
  if (!*path.unnamed) return OkStatus();
  return Error(Code::kDataLoss, path.path,
               " was deleted or replaced while it was in use; open the memory "
               "again, and leave the file alone");
}

void PersistentMemory::CheckFiles() const {
  for (const KeptPath& path : paths_) {
    if (!path.file || path.piece.is_device() || !path.lost.empty()) continue;
    if (path.file->Size() < path.piece.offset + path.piece.bytes)
      path.guard->Lose();
    if (!path.file->StillNamed()) *path.unnamed = true;
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
  CXL_RETURN_IF_ERROR(CheckIntact(device));
  if (to.empty()) return OkStatus();
  coherence_.AcquirePayload(from, to.size());
  std::memcpy(to.data(), from, to.size());
  return CheckIntact(device);
}

Status PersistentMemory::StoreWord(int device, uint64_t offset,
                                   uint64_t value) const {
  CXL_ASSIGN_OR_RETURN(std::byte* const to,
                       Find(device, offset, sizeof(value)));
  CXL_RETURN_IF_ERROR(CheckIntact(device));
  coherence_.StoreFlag(reinterpret_cast<uint64_t*>(to), value);
  return CheckIntact(device);
}

Result<uint64_t> PersistentMemory::LoadWord(int device, uint64_t offset) const {
  CXL_ASSIGN_OR_RETURN(const std::byte* const from,
                       Find(device, offset, sizeof(uint64_t)));
  const uint64_t value =
      coherence_.LoadFlag(reinterpret_cast<const uint64_t*>(from));
  CXL_RETURN_IF_ERROR(CheckIntact(device));
  return value;
}

}  // namespace jax_cxl::pool
