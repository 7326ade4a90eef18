#ifndef JAX_CXL_TESTING_INCOHERENT_REGION_H_
#define JAX_CXL_TESTING_INCOHERENT_REGION_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "cc/pool/layout/geometry.h"

namespace jax_cxl::pool {

// The kind of data in a range that the protocol publishes, acquires or polls.
enum class Region : uint8_t {
  kOther,  // not in use: arenas that no directory entry names
  kHeader,
  // Kinds of payloads.
  kRankInfo,
  kAbort,
  kStall,
  kEnd,
  kDirectory,
  kSubmission,
  kAnnouncement,
  kName,
  kSlot,
  kRecorder,
  kFlagged,       // data with flags, of short messages between devices
  kFlaggedWords,  // the words of their ring
  // Kinds of flags.
  kRankReady,
  kHeartbeat,
  kAbortRaised,
  kStallFlag,
  kEndRaised,
  kDirectoryReady,
  kPublished,
  kReleased,
  kSubmissionReady,
  kAnnouncementReady,
  kNameReady,
  kSubmissionsRead,
  kFinished,
  kCallWord,
  kEnded,
  kHostWord,  // by which hosts take memory back from a group of devices
};
inline constexpr int kNumRegions = static_cast<int>(Region::kHostWord) + 1;

std::string_view RegionName(Region region);
inline constexpr bool IsFlag(Region region) {
  return region >= Region::kRankReady;
}

// Finds out what kind of data a range of the pool holds, from the directory
// entries in the pool. It is for emulation and diagnosis, not for the protocol.
// Stateless and thread-safe.
class RegionMap {
 public:
  // `base` is the address of the pool in this process.
  RegionMap(const std::byte* base, std::vector<ByteRange> extents,
            int world_size)
      : base_(base), extents_(std::move(extents)), world_size_(world_size) {}

  // Returns the kind of data in [offset, offset + bytes), with bytes > 0.
  // Returns the kind of a flag only if the range is exactly the flag's word.
  Region Find(uint64_t offset, uint64_t bytes) const;

  // Returns the only rank that may write at the offset, or -1 if only the
  // creator of the pool may.
  int OwnerOf(uint64_t offset) const;

 private:
  // Offsets in the pool: the recorders start at recorders(). They end at
  // arenas(), where the arenas start.
  uint64_t recorders() const { return RecorderOffset(0, world_size_); }
  uint64_t arenas() const { return ControlBytes(0, world_size_); }

  Region FindInRankPage(uint64_t offset, bool word) const;
  Region FindInArena(uint64_t offset, bool word, int owner) const;
  static Region FindInDeviceControl(uint64_t inside, bool word);

  const std::byte* base_;
  std::vector<ByteRange> extents_;
  int world_size_;
};

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_TESTING_INCOHERENT_REGION_H_
