#include "cc/pool/persistent/persistent_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "cc/base/idle.h"
#include "cc/pool/open/dax.h"

namespace jax_cxl::pool {
namespace {

// Returns the coherence mode to use. On a device all cache lines are written
// back: a host may die with lines in its cache, even if hardware keeps caches
// coherent.
CoherenceMode ModeOf(const PoolSpec& spec) {
  return spec.kind == PoolKind::kDax &&
                 spec.coherence == CoherenceMode::kCoherent
             ? CoherenceMode::kFlush
             : spec.coherence;
}

}  // namespace

Result<std::unique_ptr<PersistentMemory>> PersistentMemory::Open(
    const PoolSpec& spec) {
  return Open(spec, DaxSystem::Machine());
}

Result<std::unique_ptr<PersistentMemory>> PersistentMemory::Open(
    const PoolSpec& spec, const DaxSystem& dax) {
  if (spec.kind == PoolKind::kShm || spec.paths.empty())
    return Error(Code::kInvalidArgument,
                 "memory that outlives a job needs the "
                 "paths of files or devices");
  CXL_RETURN_IF_ERROR(CheckCoherenceSupported(ModeOf(spec)));
  std::unique_ptr<PersistentMemory> memory(new PersistentMemory);
  CXL_RETURN_IF_ERROR(memory->OpenFiles(spec));
  CXL_ASSIGN_OR_RETURN(const std::vector<MapPiece> pieces,
                       memory->Measure(spec, dax));
  CXL_RETURN_IF_ERROR(memory->Map(spec, pieces));
  return memory;
}

Status PersistentMemory::OpenFiles(const PoolSpec& spec) {
  for (const std::string& path : spec.paths) {
    CXL_ASSIGN_OR_RETURN(PoolFile file, spec.kind == PoolKind::kDax
                                            ? PoolFile::OpenDevice(path)
                                            : PoolFile::OpenToKeep(path));
    files_.push_back(std::move(file));
  }
  return OkStatus();
}

Result<std::vector<MapPiece>> PersistentMemory::Measure(const PoolSpec& spec,
                                                        const DaxSystem& dax) {
  std::vector<MapPiece> pieces;
  std::vector<uint64_t> sizes;
  for (PoolFile& file : files_) {
    MapPiece piece = {file.fd(), spec.offset, spec.bytes, kPageBytes, 0};
    if (spec.kind == PoolKind::kDax) {
      CXL_ASSIGN_OR_RETURN(const DaxPart part,
                           TakeDaxPart(&file, spec.offset, spec.bytes,
                                       /*exclusive=*/false, dax));
      piece.bytes = part.bytes;
      piece.align = part.limits.align;
      piece.file_bytes = part.limits.size;
    } else {
      if (piece.bytes == 0)
        piece.bytes = RoundDown(
            file.Size() - std::min(file.Size(), spec.offset), FilePageBytes());
      if (piece.bytes == 0)
        return Error(Code::kInvalidArgument, file.path(),
                     " is new or empty; pass size=");
      CXL_RETURN_IF_ERROR(file.Reserve(piece.offset, piece.bytes));
    }
    pieces.push_back(piece);
    sizes.push_back(piece.bytes);
  }
  devices_ = SplitExtents(sizes, spec.devices_per_path);
  device_bytes_ = UINT64_MAX;
  for (const ByteRange& device : devices_)
    device_bytes_ = std::min(device_bytes_, device.bytes);
  return pieces;
}

Status PersistentMemory::Map(const PoolSpec& spec,
                             const std::vector<MapPiece>& pieces) {
  CXL_ASSIGN_OR_RETURN(mapped_, MapContiguous(pieces));
  base_ = mapped_;
  uint64_t unit = FilePageBytes();
  for (const MapPiece& piece : pieces) {
    total_bytes_ += piece.bytes;
    unit = std::max(unit, piece.align);
  }
  guard_ = std::make_unique<MappingGuard>(mapped_, total_bytes_, unit);
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
  guard_.reset();
  if (mapped_ != nullptr) munmap(mapped_, total_bytes_);
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
               " of device ", device, " are outside the memory of ",
               num_devices(), " devices of ", FormatBytes(device_bytes_));
}

Status PersistentMemory::CheckIntact() const {
  if (guard_->intact()) return OkStatus();
  return Error(Code::kDataLoss, files_.front().path(),
               " was cut short, or its memory failed, while it was in use");
}

Status PersistentMemory::Write(int device, uint64_t offset,
                               std::span<const std::byte> from) const {
  CXL_ASSIGN_OR_RETURN(std::byte * to, Find(device, offset, from.size()));
  if (from.empty()) return CheckIntact();  // memcpy takes no null pointer.
  std::memcpy(to, from.data(), from.size());
  coherence_.PublishPayload(to, from.size());
  return CheckIntact();
}

Status PersistentMemory::PublishDeviceWrites(int device, uint64_t offset,
                                             uint64_t bytes) const {
  CXL_ASSIGN_OR_RETURN(std::byte * at, Find(device, offset, bytes));
  const Part part = {at, bytes};
  coherence_.PublishDeviceParts({&part, 1});
  return CheckIntact();
}

Status PersistentMemory::Read(int device, uint64_t offset,
                              std::span<std::byte> to) const {
  CXL_ASSIGN_OR_RETURN(std::byte * from, Find(device, offset, to.size()));
  if (to.empty()) return CheckIntact();
  coherence_.AcquirePayload(from, to.size());
  std::memcpy(to.data(), from, to.size());
  return CheckIntact();
}

Status PersistentMemory::StoreWord(int device, uint64_t offset,
                                   uint64_t value) const {
  CXL_ASSIGN_OR_RETURN(std::byte * to, Find(device, offset, sizeof(value)));
  if (offset % sizeof(value) != 0)
    return Error(Code::kInvalidArgument,
                 "a word must start at a multiple of 8, not at ", offset);
  coherence_.StoreFlag(reinterpret_cast<uint64_t*>(to), value);
  return CheckIntact();
}

Result<uint64_t> PersistentMemory::LoadWord(int device, uint64_t offset) const {
  CXL_ASSIGN_OR_RETURN(std::byte * from,
                       Find(device, offset, sizeof(uint64_t)));
  if (offset % sizeof(uint64_t) != 0)
    return Error(Code::kInvalidArgument,
                 "a word must start at a multiple of 8, not at ", offset);
  const uint64_t value =
      coherence_.LoadFlag(reinterpret_cast<const uint64_t*>(from));
  CXL_RETURN_IF_ERROR(CheckIntact());
  return value;
}

}  // namespace jax_cxl::pool
