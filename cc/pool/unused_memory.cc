#include "cc/pool/unused_memory.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "cc/base/process_identity.h"
#include "cc/pool/coherence/coherence.h"
#include "cc/pool/coherence/doorbell.h"
#include "cc/pool/layout/geometry.h"
#include "cc/pool/layout/header.h"
#include "cc/pool/layout/layout.h"
#include "cc/pool/open/contents.h"

namespace jax_cxl::pool {
namespace {

using std::chrono::milliseconds;
using Seconds = std::chrono::duration<double>;

constexpr milliseconds kLook(20);
constexpr milliseconds kSuperblocksSettle(100);
// The number of bytes of a device that a search maps at once.
constexpr uint64_t kWindowBytes = uint64_t{1} << 30;

// A process that may be alive. If it is, it increments the word at `word`.
struct Sign {
  const uint64_t* word;
  uint64_t seen;
  ProcessIdentity process;
  std::string path;
};

// Returns the size of a device or of a file. The size of a file is read again
// each time, because a creator on another host may have enlarged the file since
// it was opened.
uint64_t SizeOf(const MapPiece& part, const PoolFile& file) {
  return part.is_device() ? part.file_bytes : file.Size();
}

// A store on a device, as its two superblocks describe it.
struct FoundStore {
  std::optional<uint64_t> end;  // nothing if it is not known
  std::string_view problem;     // why it is not known, and what to do
};

// Reads the superblocks of the store that begins at byte `at` of a device.
Result<FoundStore> ReadStore(const MapPiece& part, const std::string& path,
                             uint64_t at) {
  constexpr FoundStore kDamaged = {
      std::nullopt,
      " with damaged superblocks, so it may end anywhere; repair it "
      "(python -m jax_cxl store repair), or choose offset= and size= so that "
      "your part ends before it"};
  std::array<SuperblockFields, 2> copies;
  // Another process may be writing them at this moment, so read them twice.
  for (const bool again : {true, false}) {
    for (size_t i = 0; i < copies.size(); ++i) {
      const uint64_t from = at + kSuperblockOffsets[i];
      if (part.file_bytes - from < kPageBytes) return kDamaged;
      const std::span to(&copies[i], 1);
      CXL_RETURN_IF_ERROR(
          ReadAt(part.fd, path, part.align, from, std::as_writable_bytes(to))
              .status());
    }
    if (std::memcmp(&copies[0], &copies[1], sizeof(copies[0])) == 0) break;
    if (!again) return kDamaged;
    std::this_thread::sleep_for(kSuperblocksSettle);
  }
  const SuperblockFields& fields = copies[0];
  if (!std::equal(kStoreMagic, std::end(kStoreMagic), fields.magic) ||
      fields.device_bytes > part.file_bytes - at)
    return kDamaged;
  if (fields.version != kStoreVersion)
    return FoundStore{
        std::nullopt,
        " of another version of jax_cxl, so it may end anywhere; "
        "delete it with that version, or choose offset= and size= "
        "so that your part ends before it"};
  return FoundStore{at + fields.device_bytes, ""};
}

class Search {
 public:
  explicit Search(Purpose purpose) : purpose_(purpose) {}

  // Finds the pools that overlap part number `index`. Fails with kDataLoss if a
  // store overlaps it.
  Status Add(size_t index, const MapPiece& part, const PoolFile& file) {
    if (!part.is_device())
      return SizeOf(part, file) < part.offset + kPageBytes
                 ? OkStatus()
                 : CheckPage(index, part, file, part.offset);
    const uint64_t end = part.offset + part.bytes;
    const uint64_t step = std::max(kWindowBytes, part.align);
    uint64_t store_end = 0;  // of the last store
    for (uint64_t begin = 0; begin < end; begin += step) {
      const uint64_t bytes = std::min(step, end - begin);
      CXL_ASSIGN_OR_RETURN(
          const Window window,
          Window::Map(part.fd, file.path(), part.align, begin, bytes));
      for (uint64_t at = 0; at < bytes; at += part.align) {
        if (begin + at < store_end) continue;
        if (MayBegin(*reinterpret_cast<const HeaderPage*>(window.at(at))))
          CXL_RETURN_IF_ERROR(CheckPage(index, part, file, begin + at));
        if (!MayBeStore(part, window.at(at))) continue;
        CXL_ASSIGN_OR_RETURN(store_end,
                             CheckStore(part, file.path(), begin + at));
      }
    }
    return OkStatus();
  }

  // For `dead_after_s`, watches the words of all processes that may be alive.
  // Fails with kAlreadyExists as soon as one of the words changes.
  Status Watch(double dead_after_s) {
    if (signs_.empty()) return OkStatus();
    const auto end = std::chrono::steady_clock::now() + Seconds(dead_after_s);
    do {
      std::this_thread::sleep_for(kLook);
      for (const Sign& sign : signs_) {
        if (coherence_.LoadFlag(sign.word) == sign.seen) continue;
        return InUse(sign.path, sign.process, "whose heartbeat advances");
      }
    } while (std::chrono::steady_clock::now() < end);
    return OkStatus();
  }

  std::vector<OldHeader> TakeOldHeaders() { return std::move(old_); }

 private:
  static bool IsAlive(const ProcessIdentity& process) {
    return PidMeansTheSame(process) && !HasEnded(process);
  }

  static Status InUse(const std::string& path, const ProcessIdentity& process,
                      std::string_view sign) {
    return Error(Code::kAlreadyExists, path, " is in use by a job of ",
                 DescribeProcess(process), ", ", sign,
                 "; name other memory (on a device, another offset= and "
                 "size=), or stop that job");
  }

  // Returns true if a pool may begin at `page`, according to its magic bytes.
  // The check must be cheap, because a device has many places where a pool
  // could begin, and most of them hold other data.
  bool MayBegin(const HeaderPage& page) const {
    coherence_.AcquirePayload(page.header.magic, sizeof(page.header.magic));
    coherence_.AcquirePayload(page.keeper.magic, sizeof(page.keeper.magic));
    return std::equal(kMagic, std::end(kMagic), page.header.magic) ||
           std::equal(kKeeperMagic, std::end(kKeeperMagic), page.keeper.magic);
  }

  // Returns true if a store may begin at `page`. Only devices need this check.
  // For a file, HoldsPool fails if the file holds anything but a pool or zeros.
  bool MayBeStore(const MapPiece& part, const std::byte* page) const {
    return std::ranges::any_of(kSuperblockOffsets, [&](const uint64_t offset) {
      // With a small alignment the search comes to this page by itself.
      if (offset != 0 && offset % part.align == 0) return false;
      coherence_.AcquirePayload(page + offset, sizeof(kStoreMagic));
      return std::memcmp(page + offset, kStoreMagic, sizeof(kStoreMagic)) == 0;
    });
  }

  // Returns where the store ends that begins at `at`, or `at` if that is not
  // known. Fails with kDataLoss if it overlaps the part. Stores outlive their
  // jobs, so no lock protects them.
  Result<uint64_t> CheckStore(const MapPiece& part, const std::string& path,
                              uint64_t at) const {
    // The part may hold the store itself. With a small alignment, the search
    // also comes to its second superblock.
    const bool own = purpose_ == Purpose::kStore &&
                     std::ranges::any_of(kSuperblockOffsets, [&](uint64_t o) {
                       return at == part.offset + o;
                     });
    if (own) return at;
    CXL_ASSIGN_OR_RETURN(const FoundStore found, ReadStore(part, path, at));
    if (found.end && *found.end <= part.offset) return *found.end;
    if (!found.end)
      return Error(Code::kDataLoss, path, " holds a store at offset ", at,
                   found.problem);
    return Error(Code::kDataLoss, path, " holds a store at offset ", at,
                 " that ends at ", *found.end,
                 "; name another offset= and size=, or remove that store "
                 "(python -m jax_cxl store delete)");
  }

  Status CheckPage(size_t index, const MapPiece& part, const PoolFile& file,
                   uint64_t at) {
    CXL_ASSIGN_OR_RETURN(Window first, Window::Map(part.fd, file.path(),
                                                   part.align, at, kPageBytes));
    const auto& mapped = *reinterpret_cast<const HeaderPage*>(first.at(0));
    const HeaderPage page = coherence_.AcquireCopy(mapped);
    const bool valid = IsValid(page.header);
    const uint64_t bytes =
        valid ? page.header.extent_bytes[page.header.extent_index] : kPageBytes;
    if (at + bytes <= part.offset || at >= part.offset + part.bytes)
      return OkStatus();
    if (at > part.offset) old_.push_back({index, at - part.offset});
    if (IsClaimed(page.keeper)) {
      // The process may be stopped, so that its heartbeat does not advance.
      if (purpose_ == Purpose::kStore && IsAlive(page.keeper.process))
        return InUse(file.path(), page.keeper.process, "which still runs");
      WatchWord(file, page.keeper.process, &mapped.keeper_beat.word);
    }
    windows_.push_back(std::move(first));
    if (!valid || page.header.extent_index != 0) return OkStatus();
    const uint64_t control = RecorderOffset(0, page.header.world_size);
    if (at + control > SizeOf(part, file)) return OkStatus();
    CXL_ASSIGN_OR_RETURN(Window ranks, Window::Map(part.fd, file.path(),
                                                   part.align, at, control));
    const Doorbells doorbells(coherence_, page.header.epoch);
    for (uint32_t rank = 0; rank < page.header.world_size; ++rank) {
      const auto& entry = *reinterpret_cast<const RankPage*>(
          ranks.at(kPageBytes + rank * kRankPageBytes));
      if (doorbells.Read(&entry.info.ready) == 0 ||
          doorbells.Read(&entry.end.raised) != 0)
        continue;
      WatchWord(file, coherence_.AcquireCopy(entry.info).process,
                &entry.heartbeat.word);
    }
    windows_.push_back(std::move(ranks));
    return OkStatus();
  }

  void WatchWord(const PoolFile& file, const ProcessIdentity& process,
                 const uint64_t* word) {
    const bool alone = purpose_ == Purpose::kPool && file.locked();
    const bool ended = (alone && OnThisKernel(process)) ||
                       (PidMeansTheSame(process) && HasEnded(process));
    if (!ended)
      signs_.push_back({word, coherence_.LoadFlag(word), process, file.path()});
  }

  const Purpose purpose_;
  Coherence coherence_ = Coherence::ForReading();
  std::vector<Window> windows_;  // keep the words of signs_ mapped
  std::vector<Sign> signs_;
  std::vector<OldHeader> old_;
};

}  // namespace

Result<std::vector<OldHeader>> CheckUnused(
    const std::vector<MapPiece>& parts,
    const std::vector<const PoolFile*>& files, Purpose purpose,
    double dead_after_s) {
  Search search(purpose);
  for (size_t i = 0; i < parts.size(); ++i)
    CXL_RETURN_IF_ERROR(search.Add(i, parts[i], *files[i]));
  CXL_RETURN_IF_ERROR(search.Watch(dead_after_s));
  return search.TakeOldHeaders();
}

}  // namespace jax_cxl::pool
