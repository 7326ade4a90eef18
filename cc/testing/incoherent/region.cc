#include "cc/testing/incoherent/region.h"

#include <algorithm>

#include "cc/engine/gpu_plan/channel_words.h"
#include "cc/pool/layout/channel_layout.h"
#include "cc/pool/layout/layout.h"
#include "cc/pool/layout/recorder_layout.h"
#include "cc/pool/layout/words.h"

namespace jax_cxl::pool {

std::string_view RegionName(Region region) {
  static constexpr std::array<std::string_view, kNumRegions> kNames = {
      "other",
      "header",
      "rank_info",
      "abort",
      "stall",
      "end",
      "directory",
      "submission",
      "announcement",
      "name",
      "slot",
      "recorder",
      "flagged",
      "flagged_words",
      "rank_ready",
      "heartbeat",
      "abort_raised",
      "stall_flag",
      "end_raised",
      "directory_ready",
      "published",
      "released",
      "submission_ready",
      "announcement_ready",
      "name_ready",
      "submissions_read",
      "finished",
      "call_word",
      "ended",
      "host_word",
  };
  return kNames[static_cast<int>(region)];
}

Region RegionMap::Find(uint64_t offset, uint64_t bytes) const {
  const bool word = bytes == sizeof(uint64_t);
  for (const ByteRange& extent : extents_) {
    if (offset >= extent.offset && offset < extent.offset + kPageBytes)
      return Region::kHeader;
  }
  const int owner = OwnerOf(offset);
  if (owner < 0) return Region::kOther;
  if (offset < recorders())
    return FindInRankPage((offset - kPageBytes) % kRankPageBytes, word);
  if (offset < arenas()) return Region::kRecorder;
  return FindInArena(offset, word, owner);
}

int RegionMap::OwnerOf(uint64_t offset) const {
  if (offset >= kPageBytes && offset < recorders())
    return static_cast<int>((offset - kPageBytes) / kRankPageBytes);
  if (offset >= recorders() && offset < arenas())
    return static_cast<int>((offset - recorders()) / kRecorderBytes);
  for (size_t extent = 0; extent < extents_.size(); ++extent) {
    if (offset < extents_[extent].offset ||
        offset >= extents_[extent].offset + extents_[extent].bytes)
      continue;
    for (int rank = 0; rank < world_size_; ++rank) {
      const ByteRange arena =
          ArenaOf(extents_, static_cast<int>(extent), rank, world_size_);
      if (offset >= arena.offset && offset < arena.offset + arena.bytes)
        return rank;
    }
  }
  return -1;
}

Region RegionMap::FindInRankPage(uint64_t offset, bool word) const {
  if (offset < offsetof(RankPage, heartbeat))
    return word && offset == offsetof(RankInfo, ready) ? Region::kRankReady
                                                       : Region::kRankInfo;
  if (offset < offsetof(RankPage, abort)) return Region::kHeartbeat;
  if (offset < offsetof(RankPage, stall))
    return word && offset == offsetof(RankPage, abort) ? Region::kAbortRaised
                                                       : Region::kAbort;
  if (offset < offsetof(RankPage, end))
    return word && (offset == offsetof(RankPage, stall) ||
                    offset == offsetof(RankPage, stall_beats))
               ? Region::kStallFlag
               : Region::kStall;
  if (offset < offsetof(RankPage, channels))
    return word && offset == offsetof(RankPage, end) ? Region::kEndRaised
                                                     : Region::kEnd;
  if (offset >= offsetof(RankPage, regroup)) return Region::kOther;
  const uint64_t inside =
      (offset - offsetof(RankPage, channels)) % sizeof(ChannelEntry);
  return word && inside == offsetof(ChannelEntry, version)
             ? Region::kDirectoryReady
             : Region::kDirectory;
}

Region RegionMap::FindInArena(uint64_t offset, bool word, int owner) const {
  const auto* page = reinterpret_cast<const RankPage*>(base_ + kPageBytes +
                                                       owner * kRankPageBytes);
  uint64_t inside = UINT64_MAX;  // offset in the last control block before it
  uint64_t stride = 0;           // of that block's submissions
  bool of_devices = false;       // a channel of devices has no submissions
  for (const ChannelEntry& entry : page->channels) {
    if (__atomic_load_n(&entry.version, __ATOMIC_ACQUIRE) == 0) break;
    const ChannelPlace place = LoadWords(entry.place);  // its owner writes
    for (uint32_t slot = 0; slot < place.num_slots && slot < kMaxSlots; ++slot)
      if (offset - place.slots[slot] < place.slot_bytes) return Region::kSlot;
    if (offset - place.control >= inside) continue;
    inside = offset - place.control;
    stride = SubmissionStride(place.payload_bytes);
    of_devices = place.payload_bytes == 0;
  }
  if (of_devices) return FindInDeviceControl(inside, word);
  const uint64_t reads = sizeof(ControlBlock) + kCallRing * stride;
  if (inside >= reads + world_size_ * sizeof(Doorbell)) return Region::kOther;
  if (inside >= reads) return Region::kSubmissionsRead;
  if (inside >= sizeof(ControlBlock)) {
    inside -= sizeof(ControlBlock);
    return word && inside % stride == 0 ? Region::kSubmissionReady
                                        : Region::kSubmission;
  }
  if (inside >= offsetof(ControlBlock, announcements)) {
    inside -= offsetof(ControlBlock, announcements);
    return word && inside % sizeof(Announcement) == 0
               ? Region::kAnnouncementReady
               : Region::kAnnouncement;
  }
  if (inside >= offsetof(ControlBlock, names)) {
    inside -= offsetof(ControlBlock, names);
    return word && inside % sizeof(CallName) == 0 ? Region::kNameReady
                                                  : Region::kName;
  }
  if (inside >= offsetof(ControlBlock, finished)) return Region::kFinished;
  return inside < offsetof(ControlBlock, released) ? Region::kPublished
                                                   : Region::kReleased;
}

Region RegionMap::FindInDeviceControl(uint64_t inside, bool word) {
  using cuda::DeviceControl;
  if (inside < offsetof(DeviceControl, released))
    return word && inside % sizeof(cuda::SendLine) != 0 ? Region::kCallWord
                                                        : Region::kPublished;
  if (inside < offsetof(DeviceControl, ended)) return Region::kReleased;
  if (inside < offsetof(DeviceControl, journal)) return Region::kEnded;
  if (inside >= sizeof(DeviceControl)) return Region::kOther;
  if (inside >= offsetof(DeviceControl, flagged.vectors))
    return Region::kFlagged;
  if (inside >= offsetof(DeviceControl, flagged)) return Region::kFlaggedWords;
  if (inside >= offsetof(DeviceControl, host)) return Region::kHostWord;
  inside -= offsetof(DeviceControl, journal);
  return word && inside % sizeof(cuda::JournalEntry) == 0 ? Region::kNameReady
                                                          : Region::kName;
}

}  // namespace jax_cxl::pool
