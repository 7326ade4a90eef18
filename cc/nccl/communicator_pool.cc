#include "cc/nccl/communicator_pool.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cc/pool/layout/geometry.h"
#include "cc/pool/layout/header.h"
#include "cc/pool/layout/layout.h"
#include "cc/pool/open/contents.h"
#include "cc/pool/open/file.h"

namespace jax_cxl::nccl {
namespace {

// Returns a hash of the token that is not 0.
uint64_t HashOf(const PoolToken& token) {
  return (token.high * 0x9e3779b97f4a7c15 ^ token.low) | 1;
}

// Where a communicator's pool may lie. All of its ranks get the same places in
// the same order. Different communicators begin at different places, so that
// they rarely try the same one.
struct Places {
  std::vector<pool::PoolSpec> specs;
  std::optional<pool::DevicePart> part;  // if they are parts of a device
};

Result<Places> PlacesFor(const PoolToken& token, int size,
                         const Settings& settings) {
  pool::PoolSpec spec;
  if (settings.shared_memory) spec = settings.shared_memory->spec;
  spec.token = HashOf(token);
  std::optional<pool::DevicePart> part;
  if (settings.shared_memory) {
    CXL_ASSIGN_OR_RETURN(part, spec.medium->PartOf(spec));
  }
  if (!part) {
    const std::string name = PoolName(token);
    spec.paths = {settings.shared_memory ? spec.paths[0] + "." + name : name};
    spec.bytes = pool::AutomaticPathBytes(size, 1, 1, settings.rank_bytes);
    return Places{{spec}, {}};
  }
  spec.bytes = pool::RoundUp(settings.communicator_bytes, part->align);
  const uint64_t count = part->bytes / spec.bytes;
  if (count == 0)
    return Error(Code::kResourceExhausted, "JAX_CXL_POOL has ",
                 pool::FormatBytes(part->bytes), " at ", spec.paths[0],
                 ", less than a communicator takes, ",
                 pool::FormatBytes(spec.bytes),
                 "; name a larger part of the device, or set "
                 "JAX_CXL_NCCL_COMMUNICATOR_BYTES to less on all ranks");
  Places places = {{}, part};
  for (uint64_t i = 0; i < count; ++i) {
    spec.offset = part->offset + (spec.token % count + i) % count * spec.bytes;
    places.specs.push_back(spec);
  }
  return places;
}

// Returns the spec of the part that holds the pool. This takes no locks, which
// would disturb creators that look for a free part.
Result<std::optional<pool::PoolSpec>> FindPart(const Places& places) {
  CXL_ASSIGN_OR_RETURN(const pool::PoolFile file,
                       pool::PoolFile::OpenDevice(places.specs[0].paths[0]));
  for (const pool::PoolSpec& spec : places.specs) {
    pool::PoolHeader header;
    CXL_ASSIGN_OR_RETURN(
        const uint64_t bytes,
        pool::ReadAt(file.fd(), file.path(), places.part->align, spec.offset,
                     std::as_writable_bytes(std::span(&header, 1))));
    if (bytes == sizeof(header) && header.token == spec.token &&
        pool::IsValid(header))
      return std::optional(spec);
  }
  return std::optional<pool::PoolSpec>();
}

}  // namespace

Result<std::unique_ptr<pool::Pool>> CreatePool(const PoolToken& token, int size,
                                               const Settings& settings) {
  CXL_ASSIGN_OR_RETURN(const Places places, PlacesFor(token, size, settings));
  Status last;
  for (const pool::PoolSpec& spec : places.specs) {
    auto pool = pool::Pool::Create(spec, size);
    last = pool.status();
    if (last.code() != Code::kAlreadyExists) return pool;
  }
  if (!places.part) return last;
  return Error(Code::kResourceExhausted, "all ", places.specs.size(),
               " parts of JAX_CXL_POOL are in use: give this job another part "
               "of the device (offset= and size=), or set "
               "JAX_CXL_NCCL_COMMUNICATOR_BYTES to less on all ranks. The last "
               "part: ",
               last.message());
}

Result<std::unique_ptr<pool::Pool>> AttachPool(const PoolToken& token, int size,
                                               const Settings& settings) {
  CXL_ASSIGN_OR_RETURN(const Places places, PlacesFor(token, size, settings));
  std::optional<pool::PoolSpec> found = places.specs[0];
  if (places.part) {
    CXL_ASSIGN_OR_RETURN(found, FindPart(places));
  }
  if (found) return pool::Pool::Attach(*found, size, found->token);
  return Error(Code::kNotFound, "none of the ", places.specs.size(),
               " parts of JAX_CXL_POOL holds the communicator's pool");
}

std::string MeetingAdvice(const Settings& settings) {
  return settings.shared_memory
             ? "All ranks have to map the same memory, with the same "
               "JAX_CXL_POOL and JAX_CXL_NCCL_ variables"
             : "All ranks have to run on this machine, with the same "
               "JAX_CXL_NCCL_HOSTS, and share /dev/shm";
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
