#include "cc/pool/layout/header.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <system_error>

namespace jax_cxl::pool {
namespace {

constexpr uint64_t kMaxEpoch = 65535;  // 16 bits of a doorbell word

bool HasMagic(const PoolHeader& header) {
  return std::memcmp(header.magic, kMagic, sizeof(kMagic)) == 0;
}

bool HasMagic(const PoolKeeper& keeper) {
  return std::memcmp(keeper.magic, kKeeperMagic, sizeof(kKeeperMagic)) == 0;
}

Status WrongVersion(uint32_t version, const std::string& path) {
  return Error(Code::kDataLoss, path, " holds a pool of layout version ",
               version, ", but this jax_cxl uses version ", kLayoutVersion,
               "; run the same jax_cxl everywhere, and delete the file if it "
               "was left by another version");
}

}  // namespace

uint64_t HeaderChecksum(const PoolHeader& header) {
  // FNV-1a, which detects accidental damage, but not attacks.
  const auto* bytes = reinterpret_cast<const unsigned char*>(&header);
  uint64_t hash = 0xcbf29ce484222325u;
  for (size_t i = 0; i < offsetof(PoolHeader, checksum); ++i) {
    hash = (hash ^ bytes[i]) * 0x100000001b3u;
  }
  return hash;
}

Result<uint64_t> RandomToken() {
  uint64_t token = 0;
  if (getentropy(&token, sizeof(token)) == 0) return token | 1;
  return Error(Code::kInternal,
               "getentropy failed: ", std::generic_category().message(errno));
}

PoolHeader MakeHeader(int world_size, const std::vector<ByteRange>& extents,
                      uint64_t total_bytes, uint64_t epoch, uint64_t token) {
  PoolHeader header = {};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  header.layout_version = kLayoutVersion;
  header.world_size = world_size;
  header.num_extents = static_cast<uint32_t>(extents.size());
  header.creator_uid = geteuid();
  header.epoch = epoch;
  header.token = token;
  header.total_bytes = total_bytes;
  for (size_t e = 0; e < extents.size(); ++e) {
    header.extent_bytes[e] = extents[e].bytes;
  }
  return ForExtent(header, 0);
}

PoolHeader ForExtent(PoolHeader header, int extent_index) {
  header.extent_index = extent_index;
  header.checksum = HeaderChecksum(header);
  return header;
}

bool IsValid(const PoolHeader& header) {
  return HasMagic(header) && header.layout_version == kLayoutVersion &&
         header.checksum == HeaderChecksum(header) && header.world_size >= 1 &&
         header.world_size <= kMaxWorldSize && header.num_extents >= 1 &&
         header.num_extents <= kMaxExtents &&
         header.extent_index < header.num_extents && header.epoch >= 1 &&
         header.epoch <= kMaxEpoch;
}

uint64_t EpochOf(const PoolHeader& header) {
  return IsValid(header) ? header.epoch : 0;
}

uint64_t NextEpoch(uint64_t previous) { return previous % kMaxEpoch + 1; }

bool IsClaimed(const PoolKeeper& keeper) {
  return HasMagic(keeper) && keeper.claim != 0 &&
         keeper.released != keeper.claim;
}

void BeginKeeper(PoolKeeper& keeper) {
  std::memcpy(keeper.magic, kKeeperMagic, sizeof(kKeeperMagic));
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

bool IsUnfinished(const HeaderPage& page) {
  const PoolHeader none = {};
  return HasMagic(page.keeper) &&
         std::memcmp(&page.header, &none, sizeof(none)) == 0;
}

Result<bool> HoldsPool(const std::byte* first_page, uint64_t bytes,
                       const std::string& path) {
  if (std::all_of(first_page, first_page + bytes,
                  [](std::byte b) { return b == std::byte{0}; })) {
    return false;
  }
  HeaderPage page = {};
  std::memcpy(&page, first_page, std::min(bytes, sizeof(page)));
  if (IsUnfinished(page)) return true;
  const PoolHeader& header = page.header;
  if (bytes < offsetof(PoolHeader, world_size) || !HasMagic(header)) {
    return Error(Code::kDataLoss, path,
                 " is not a jax_cxl pool and not empty, so it is left alone; "
                 "name another path, or delete the file if you do not need it "
                 "(a pool made with another offset= looks like this too)");
  }
  if (header.layout_version != kLayoutVersion) {
    return WrongVersion(header.layout_version, path);
  }
  return true;
}

Status CheckReadable(const PoolHeader& header, const std::string& where) {
  if (!HasMagic(header)) {
    return Error(Code::kDataLoss, where,
                 " is not a jax_cxl pool; check that every process uses the "
                 "same pool URI, offset included");
  }
  if (header.layout_version != kLayoutVersion) {
    return WrongVersion(header.layout_version, where);
  }
  if (!IsValid(header)) {
    return Error(Code::kDataLoss, where,
                 " has a damaged header (checksum or fields are wrong); "
                 "restart the job, and check what else writes to this pool");
  }
  return OkStatus();
}

Status CheckHeader(const PoolHeader& found, const PoolHeader& expected,
                   const std::string& where) {
  CXL_RETURN_IF_ERROR(CheckReadable(found, where));
  if (found.token != expected.token) {
    return Error(Code::kDataLoss, where,
                 " belongs to another job (its token differs); use a pool of "
                 "your own, or wait until that job is done");
  }
  if (found.extent_index != expected.extent_index) {
    return Error(Code::kDataLoss, where, " is pool device ", found.extent_index,
                 " but was expected to be device ", expected.extent_index,
                 "; list the paths in the same order on every host");
  }
  if (found.world_size != expected.world_size) {
    return Error(Code::kDataLoss, where, " was made for ", found.world_size,
                 " ranks, but this process expects ", expected.world_size,
                 "; start every process with the same number of ranks");
  }
  if (found.num_extents != expected.num_extents ||
      found.total_bytes != expected.total_bytes ||
      std::memcmp(found.extent_bytes, expected.extent_bytes,
                  sizeof(found.extent_bytes)) != 0) {
    return Error(Code::kDataLoss, where, " was made with ", found.num_extents,
                 " devices and ", FormatBytes(found.total_bytes),
                 ", but this process maps ", expected.num_extents,
                 " devices and ", FormatBytes(expected.total_bytes),
                 "; use the same pool URI (size=, devices=) everywhere");
  }
  return OkStatus();
}

}  // namespace jax_cxl::pool
