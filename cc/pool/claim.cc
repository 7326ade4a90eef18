#include "cc/pool/claim.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <utility>

#include "cc/base/idle.h"
#include "cc/base/process_identity.h"
#include "cc/pool/coherence/doorbell.h"
#include "cc/pool/layout/geometry.h"
#include "cc/pool/layout/header.h"
#include "cc/pool/open/contents.h"

namespace jax_cxl::pool {
namespace {

using std::chrono::milliseconds;
using Seconds = std::chrono::duration<double>;

constexpr milliseconds kLook(20);
// The number of bytes of a device that a search maps at once.
constexpr uint64_t kWindowBytes = uint64_t{1} << 30;

constexpr milliseconds kBeat(100);
// How long a creator waits between storing its token and checking it. This is
// much longer than the time between another creator's last check and its store
// of a token.
constexpr milliseconds kSettle(100);

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

class Search {
 public:
  // Finds the pools that overlap part number `index`.
  Status Add(size_t index, const MapPiece& part, const PoolFile& file) {
    if (!part.is_device())
      return SizeOf(part, file) < part.offset + kPageBytes
                 ? OkStatus()
                 : CheckPage(index, part, file, part.offset);
    const uint64_t end = part.offset + part.bytes;
    const uint64_t step = std::max(kWindowBytes, part.align);
    for (uint64_t begin = 0; begin < end; begin += step) {
      const uint64_t bytes = std::min(step, end - begin);
      CXL_ASSIGN_OR_RETURN(
          const Window window,
          Window::Map(part.fd, file.path(), part.align, begin, bytes));
      for (uint64_t at = 0; at < bytes; at += part.align) {
        if (MayBegin(*reinterpret_cast<const HeaderPage*>(window.at(at))))
          CXL_RETURN_IF_ERROR(CheckPage(index, part, file, begin + at));
        CXL_RETURN_IF_ERROR(
            CheckNoSnapshots(file.path(), begin + at, window.at(at)));
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
        return Error(
            Code::kAlreadyExists, sign.path, " is in use by a job of ",
            DescribeProcess(sign.process),
            ", whose heartbeat advances; give this job a pool of its own (on "
            "a device also another offset= and size=), or stop that "
            "one");
      }
    } while (std::chrono::steady_clock::now() < end);
    return OkStatus();
  }

  std::vector<OldHeader> TakeOldHeaders() { return std::move(old_); }

 private:
  // Returns true if a pool may begin at `page`, according to its magic bytes.
  // The check must be cheap, because a device has many places where a pool
  // could begin, and most of them hold other data.
  bool MayBegin(const HeaderPage& page) const {
    coherence_.AcquirePayload(page.header.magic, sizeof(page.header.magic));
    coherence_.AcquirePayload(page.keeper.magic, sizeof(page.keeper.magic));
    return std::equal(kMagic, std::end(kMagic), page.header.magic) ||
           std::equal(kKeeperMagic, std::end(kKeeperMagic), page.keeper.magic);
  }

  // Fails with kDataLoss if snapshots begin at `page`. Snapshots outlive their
  // jobs, so no lock protects them. Only devices need this check. For a file,
  // HoldsPool fails if the file holds anything but a pool or zeros.
  Status CheckNoSnapshots(const std::string& path, uint64_t at,
                          const std::byte* page) const {
    for (const uint64_t offset : kSnapshotsMagicOffsets) {
      coherence_.AcquirePayload(page + offset, sizeof(kSnapshotsMagic));
      if (std::memcmp(page + offset, kSnapshotsMagic, sizeof(kSnapshotsMagic)))
        continue;
      return Error(Code::kDataLoss, path, " holds a store at offset ", at,
                   "; give the pool another offset= and size=, or remove the "
                   "store (python -m jax_cxl store delete)");
    }
    return OkStatus();
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
    if (IsClaimed(page.keeper))
      WatchWord(file, page.keeper.process, &mapped.keeper_beat.word);
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
    const bool ended = (file.locked() && OnThisKernel(process)) ||
                       (PidMeansTheSame(process) && HasEnded(process));
    if (!ended)
      signs_.push_back({word, coherence_.LoadFlag(word), process, file.path()});
  }

  Coherence coherence_ = Coherence::ForReading();
  std::vector<Window> windows_;  // keep the words of signs_ mapped
  std::vector<Sign> signs_;
  std::vector<OldHeader> old_;
};

}  // namespace

Result<std::vector<OldHeader>> CheckNoJobLives(
    const std::vector<MapPiece>& parts, const std::vector<PoolFile>& files,
    double dead_after_s) {
  Search search;
  for (size_t i = 0; i < parts.size(); ++i)
    CXL_RETURN_IF_ERROR(search.Add(i, parts[i], files[i]));
  CXL_RETURN_IF_ERROR(search.Watch(dead_after_s));
  return search.TakeOldHeaders();
}

Result<std::unique_ptr<Claim>> Claim::Take(std::vector<HeaderPage*> pages,
                                           const Coherence& coherence,
                                           const MappingGuard& guard,
                                           uint64_t token,
                                           const std::string& path) {
  for (HeaderPage* page : pages) {
    PoolKeeper& keeper = page->keeper;
    coherence.StoreFlag(&keeper.claim, 0);
    BeginKeeper(keeper);
    keeper.released = 0;
    keeper.process = ThisProcess();
    coherence.PublishPayload(&keeper, sizeof(keeper));
    coherence.StoreFlag(&keeper.claim, token);
  }
  std::unique_ptr<Claim> claim(
      new Claim(std::move(pages), coherence, guard, token));
  std::this_thread::sleep_for(kSettle);
  for (HeaderPage* page : claim->pages_) {
    const PoolKeeper keeper = coherence.AcquireCopy(page->keeper);
    if (keeper.claim != token)
      return Error(Code::kAlreadyExists, path,
                   " was taken at the same moment by another job, of ",
                   DescribeProcess(keeper.process),
                   "; give this job a pool of its own");
  }
  return claim;
}

Claim::Claim(std::vector<HeaderPage*> pages, const Coherence& coherence,
             const MappingGuard& guard, uint64_t token)
    : pages_(std::move(pages)),
      coherence_(coherence),
      guard_(guard),
      token_(token),
      beats_([this](const std::stop_token& stop) {
        const OwnThread own;
        Beat(stop);
      }) {}

Claim::~Claim() {
  beats_.request_stop();
  beats_.join();
  for (HeaderPage* page : pages_) {
    PoolKeeper& keeper = page->keeper;
    if (guard_.intact() && coherence_.LoadFlag(&keeper.claim) == token_)
      coherence_.StoreFlag(&keeper.released, token_);
  }
}

void Claim::Beat(const std::stop_token& stop) {
  std::mutex mutex;
  std::condition_variable_any stopped;
  std::unique_lock lock(mutex);
  for (uint64_t beat = 1; !stop.stop_requested(); ++beat) {
    for (HeaderPage* page : pages_) {
      // If another job has taken the extent, leave the counter there alone,
      // because it belongs to that job.
      if (guard_.intact() && coherence_.LoadFlag(&page->keeper.claim) == token_)
        coherence_.StoreFlag(&page->keeper_beat.word, beat);
    }
    stopped.wait_for(lock, stop, kBeat, [] { return false; });
  }
}

}  // namespace jax_cxl::pool
