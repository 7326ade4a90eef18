#include "cc/nccl/communicator_pool.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "cc/pool/layout/channel_layout.h"
#include "cc/pool/layout/geometry.h"
#include "cc/pool/layout/header.h"
#include "cc/pool/layout/layout.h"
#include "cc/pool/open/contents.h"
#include "cc/pool/open/file.h"
#include "cc/pool/open/shm.h"

namespace jax_cxl::nccl {
namespace {

// Returns a hash of the token that is not 0.
uint64_t HashOf(const PoolToken& token) {
  return (token.high * 0x9e3779b97f4a7c15 ^ token.low) | 1;
}

constexpr std::string_view kEnlarge =
    "Enlarge it: docker run --shm-size=1g, or mount -o remount,size=1g "
    "/dev/shm";

// Returns the size of a new pool in /dev/shm where `free` bytes are free.
// Leaves room there for other communicators and for NCCL, which need some too.
uint64_t FittingBytes(int size, uint64_t wanted, uint64_t free) {
  return pool::AutomaticPathBytes(
      size, 1, 1,
      std::clamp(pool::RoundDown(free / 4 / size, uint64_t{1} << 20),
                 std::min(kLeastRankBytes, wanted), wanted));
}

}  // namespace

Result<PoolPlaces> PoolPlaces::Of(const PoolToken& token, int size,
                                  const Settings& settings) {
  PoolPlaces places;
  places.size_ = size;
  places.rank_bytes_ = settings.rank_bytes;
  places.in_shm_ = !settings.shared_memory;
  pool::PoolSpec spec;
  if (settings.shared_memory) spec = settings.shared_memory->spec;
  spec.token = HashOf(token);
  if (spec.on_devices()) {
    CXL_ASSIGN_OR_RETURN(places.part_, pool::DevicePartOf(spec));
  }
  if (!places.part_) {
    const std::string name = PoolName(token);
    spec.paths = {settings.shared_memory ? spec.paths[0] + "." + name : name};
    spec.bytes = pool::AutomaticPathBytes(size, 1, 1, settings.rank_bytes);
    // The exchange between the hosts is the first that a rank allocates.
    if (places.in_shm_)
      spec.idle_arena_bytes = pool::ControlBytes(size, kMessageBytes);
    const std::filesystem::path folder =
        std::filesystem::path(spec.paths[0]).parent_path();
    std::error_code error;
    if (!folder.empty() && !std::filesystem::is_directory(folder, error))
      return Error(Code::kNotFound, "there is no folder ", folder.string(),
                   " for the pools of JAX_CXL_NCCL_POOL; mount it on all "
                   "machines");
    places.specs_ = {spec};
    return places;
  }
  const pool::MapPiece& part = *places.part_;
  spec.bytes = pool::RoundUp(settings.communicator_bytes, part.align);
  const uint64_t count = part.bytes / spec.bytes;
  if (count == 0)
    return Error(Code::kResourceExhausted, "JAX_CXL_NCCL_POOL has ",
                 pool::FormatBytes(part.bytes), " at ", spec.paths[0],
                 ", but a communicator takes ", pool::FormatBytes(spec.bytes),
                 "; name a larger part of the device, or set "
                 "JAX_CXL_NCCL_COMMUNICATOR_BYTES to less on all ranks");
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t first = (spec.token >> 1) % count;  // bit 0 is always 1
    spec.offset = part.offset + (first + i) % count * spec.bytes;
    places.specs_.push_back(spec);
  }
  return places;
}

Result<std::unique_ptr<pool::Pool>> PoolPlaces::Create() const {
  Status last;
  std::optional<pool::ShmSpaceLock> lock;
  if (in_shm_) lock.emplace();
  for (pool::PoolSpec spec : specs_) {
    if (in_shm_) {
      const uint64_t free = pool::UnpromisedShmBytes();
      spec.bytes = FittingBytes(size_, rank_bytes_, free);
      if (free < spec.bytes)
        return Error(Code::kResourceExhausted, size_, " ranks need ",
                     pool::FormatBytes(spec.bytes), " in /dev/shm, where ",
                     pool::FormatBytes(free),
                     " are free and not promised to other communicators. ",
                     kEnlarge);
    }
    auto pool = pool::Pool::Create(spec, size_);
    last = pool.status();
    // Create fails with kDataLoss if the part overlaps a store.
    const bool taken = last.code() == Code::kAlreadyExists ||
                       (part_ && last.code() == Code::kDataLoss);
    if (!taken) return pool;
  }
  if (!part_) return last;
  return Error(Code::kAlreadyExists, "none of the ", specs_.size(),
               " parts of JAX_CXL_NCCL_POOL is free: give this job another "
               "part of the device (offset= and size=), or set "
               "JAX_CXL_NCCL_COMMUNICATOR_BYTES to less on all ranks. The last "
               "part: ",
               last.message());
}

Result<std::optional<pool::PoolSpec>> PoolPlaces::FindPart() const {
  CXL_ASSIGN_OR_RETURN(const pool::PoolFile file,
                       pool::PoolFile::OpenDevice(specs_[0].paths[0]));
  for (const pool::PoolSpec& spec : specs_) {
    pool::PoolHeader header;
    CXL_ASSIGN_OR_RETURN(
        const uint64_t bytes,
        pool::ReadAt(file.fd(), file.path(), part_->align, spec.offset,
                     std::as_writable_bytes(std::span(&header, 1))));
    if (bytes == sizeof(header) && header.token == spec.token &&
        pool::IsValid(header))
      return std::optional(spec);
  }
  return std::optional<pool::PoolSpec>();
}

Result<std::unique_ptr<pool::Pool>> PoolPlaces::Attach() const {
  std::optional<pool::PoolSpec> found = specs_[0];
  if (part_) {
    CXL_ASSIGN_OR_RETURN(found, FindPart());
  } else {
    found->bytes = 0;  // the file has as many as rank 0 has chosen
  }
  if (found) return pool::Pool::Attach(*found, size_, found->token);
  return Error(Code::kNotFound, "none of the ", specs_.size(),
               " parts of JAX_CXL_NCCL_POOL holds the communicator's pool");
}

std::string MeetingAdvice(const Settings& settings) {
  return settings.shared_memory
             ? "All ranks have to map the same memory, with the same "
               "JAX_CXL_NCCL_POOL and JAX_CXL_NCCL_ variables"
             : "All ranks have to run on this machine, with the same "
               "JAX_CXL_NCCL_HOSTS, and share /dev/shm";
}

Status TakeMemory(pool::Pool& pool) {
  if (pool.reserved()) return OkStatus();
  const pool::ShmSpaceLock lock;
  const Status reserved = pool.Reserve();
  if (reserved.code() != Code::kResourceExhausted) return reserved;
  return Error(Code::kResourceExhausted,
               "at its first call, a communicator of ", pool.world_size(),
               " ranks needs ", pool::FormatBytes(pool.total_bytes()),
               " in /dev/shm, which were free when it was made. Now another "
               "program has filled /dev/shm. ",
               kEnlarge);
}

Result<uint64_t> RankBytes(const pool::Pool& pool, const Settings& settings) {
  const uint64_t bytes =
      std::min(settings.rank_bytes, pool.arena(/*extent=*/0, /*rank=*/0).bytes);
  if (bytes >= kLeastRankBytes) return bytes;
  return Error(Code::kResourceExhausted, "a communicator of ",
               pool.world_size(), " ranks has ", pool::FormatBytes(bytes),
               " for each rank, and a rank needs ",
               pool::FormatBytes(kLeastRankBytes),
               "; raise JAX_CXL_NCCL_COMMUNICATOR_BYTES on all ranks");
}

}  // namespace jax_cxl::nccl
