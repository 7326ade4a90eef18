#include "cc/pool/older_jobs.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>

#include "cc/base/process_identity.h"
#include "cc/pool/coherence/coherence.h"
#include "cc/pool/coherence/doorbell.h"
#include "cc/pool/layout/geometry.h"
#include "cc/pool/layout/header.h"
#include "cc/pool/layout/layout.h"
#include "cc/pool/open/window.h"

namespace jax_cxl::pool {
namespace {

using Seconds = std::chrono::duration<double>;

constexpr std::chrono::milliseconds kLook(20);
// How much of a device is mapped at once.
constexpr uint64_t kWindowBytes = uint64_t{1} << 30;

// A process that may live, and the word that it increments while it lives.
struct Sign {
  const uint64_t* word;
  uint64_t seen;
  ProcessIdentity process;
  std::string path;
};

class Search {
 public:
  // Finds the pools that overlap a part.
  Status Add(int index, const WantedPart& part) {
    if (part.align == 0)
      return CheckPage(index, part, part.offset,
                       part.file_bytes >= part.offset + kPageBytes);
    const uint64_t end = part.offset + part.bytes;
    const uint64_t step = std::max(kWindowBytes, part.align);
    for (uint64_t begin = 0; begin < end; begin += step) {
      const uint64_t bytes = std::min(step, end - begin);
      CXL_ASSIGN_OR_RETURN(
          const Window window,
          Window::Map(part.fd, part.path, part.align, begin, bytes));
      for (uint64_t at = 0; at < bytes; at += part.align) {
        const auto& page = *reinterpret_cast<const HeaderPage*>(window.at(at));
        CXL_RETURN_IF_ERROR(CheckPage(index, part, begin + at, MayBegin(page)));
        CXL_RETURN_IF_ERROR(CheckNoSnapshots(part, begin + at, window.at(at)));
      }
    }
    return OkStatus();
  }

  // Fails with kAlreadyExists as soon as one of the words advances.
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
  // A cheap check of the magic bytes. A device has many places where a pool
  // could begin, and most of them hold data of other jobs.
  bool MayBegin(const HeaderPage& page) const {
    coherence_.AcquirePayload(page.header.magic, sizeof(page.header.magic));
    coherence_.AcquirePayload(page.keeper.magic, sizeof(page.keeper.magic));
    return std::equal(kMagic, std::end(kMagic), page.header.magic) ||
           std::equal(kKeeperMagic, std::end(kKeeperMagic), page.keeper.magic);
  }

  // Snapshots outlive their jobs, so no lock protects them. A pool of a file
  // cannot begin there, because HoldsPool does not recognize them.
  Status CheckNoSnapshots(const WantedPart& part, uint64_t at,
                          const std::byte* page) const {
    for (const uint64_t offset : kSnapshotsMagicOffsets) {
      coherence_.AcquirePayload(page + offset, sizeof(kSnapshotsMagic));
      if (std::memcmp(page + offset, kSnapshotsMagic, sizeof(kSnapshotsMagic)))
        continue;
      return Error(Code::kDataLoss, part.path, " holds a store at offset ", at,
                   "; give the pool another offset= and size=, or remove the "
                   "store (python -m jax_cxl store delete)");
    }
    return OkStatus();
  }

  Status CheckPage(int index, const WantedPart& part, uint64_t at,
                   bool may_begin) {
    if (!may_begin) return OkStatus();
    CXL_ASSIGN_OR_RETURN(Window first, Window::Map(part.fd, part.path,
                                                   part.align, at, kPageBytes));
    const HeaderPage page = coherence_.AcquireCopy(
        *reinterpret_cast<const HeaderPage*>(first.at(0)));
    const bool valid = IsValid(page.header);
    const uint64_t bytes =
        valid ? page.header.extent_bytes[page.header.extent_index] : kPageBytes;
    if (at + bytes <= part.offset || at >= part.offset + part.bytes)
      return OkStatus();
    if (at > part.offset) old_.push_back({index, at - part.offset});
    if (IsClaimed(page.keeper))
      WatchWord(
          part, page.keeper.process,
          &reinterpret_cast<const HeaderPage*>(first.at(0))->keeper_beat.word);
    windows_.push_back(std::move(first));
    if (!valid || page.header.extent_index != 0) return OkStatus();
    const uint64_t control = RecorderOffset(0, page.header.world_size);
    if (at + control > part.file_bytes) return OkStatus();
    CXL_ASSIGN_OR_RETURN(
        Window ranks, Window::Map(part.fd, part.path, part.align, at, control));
    const Doorbells doorbells(coherence_, page.header.epoch);
    for (uint32_t rank = 0; rank < page.header.world_size; ++rank) {
      const auto& entry = *reinterpret_cast<const RankPage*>(
          ranks.at(kPageBytes + rank * kRankPageBytes));
      if (doorbells.Read(&entry.info.ready) == 0 ||
          doorbells.Read(&entry.end.raised) != 0)
        continue;
      WatchWord(part, coherence_.AcquireCopy(entry.info).process,
                &entry.heartbeat.word);
    }
    windows_.push_back(std::move(ranks));
    return OkStatus();
  }

  void WatchWord(const WantedPart& part, const ProcessIdentity& process,
                 const uint64_t* word) {
    const bool ended = (part.locked && OnThisKernel(process)) ||
                       (PidMeansTheSame(process) && HasEnded(process));
    if (!ended)
      signs_.push_back({word, coherence_.LoadFlag(word), process, part.path});
  }

  Coherence coherence_ = Coherence::ForReading();
  std::vector<Window> windows_;  // keep the words of signs_ mapped
  std::vector<Sign> signs_;
  std::vector<OldHeader> old_;
};

}  // namespace

Result<std::vector<OldHeader>> CheckNoJobLives(
    const std::vector<WantedPart>& parts, double dead_after_s) {
  Search search;
  for (size_t i = 0; i < parts.size(); ++i)
    CXL_RETURN_IF_ERROR(search.Add(static_cast<int>(i), parts[i]));
  CXL_RETURN_IF_ERROR(search.Watch(dead_after_s));
  return search.TakeOldHeaders();
}

}  // namespace jax_cxl::pool
