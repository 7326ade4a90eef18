#ifndef JAX_CXL_POOL_LAYOUT_LAYOUT_H_
#define JAX_CXL_POOL_LAYOUT_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "cc/base/process_identity.h"

// Every struct that lies in the pool. All offsets are 64-bit and relative to
// the start of the pool: hosts map it at different addresses.
//
//   0                 HeaderPage, padded to kPageBytes
//   kPageBytes        RankPage of rank 0, 1, ... world_size - 1
//   then              Recorder of rank 0, 1, ... (recorder_layout.h)
//   then              rank 0's arena in extent 0, rank 1's, ...
//   extent e > 0      a copy of the header with its own extent_index, padded
//                     to kPageBytes, then rank 0's arena in extent e, ...
//
// An extent is one pool device (or, emulated, one equal part of the file).
// Every word has one writer for life: the creator writes the header, rank r
// writes RankPage r, Recorder r and its arenas, and nobody writes anything
// else.
namespace jax_cxl::pool {

// Control words of different writers keep this distance, and so do words that
// are polled separately. It is the destructive interference size, two cache
// lines, because adjacent-line prefetch loads them in pairs.
inline constexpr uint64_t kInterferenceBytes = 128;
inline constexpr uint64_t kPageBytes = 4096;

inline constexpr char kMagic[8] = {'J', 'A', 'X', 'C', 'X', 'L', 'P', '1'};
inline constexpr char kKeeperMagic[8] = {'J', 'A', 'X', 'C',
                                         'X', 'L', 'K', '1'};
inline constexpr uint32_t kLayoutVersion = 6;
// Memory of snapshots has this magic in two pages of each device
// (jax_cxl/_store/memory/layout.py).
inline constexpr char kSnapshotsMagic[8] = {'J', 'A', 'X', '_',
                                            'C', 'X', 'L', 's'};
inline constexpr uint64_t kSnapshotsMagicOffsets[] = {0, 2 * kPageBytes};
inline constexpr int kMaxExtents = 64;
inline constexpr int kMaxWorldSize = 1024;
inline constexpr int kMaxSlots = 12;
inline constexpr int kMaxChannels = 120;

// A 64-bit word that only grows, and on which peers wait with >=. The upper 16
// bits hold the epoch of the pool's job, the lower 48 the value, so that a word
// left by an earlier job never satisfies a wait of this one.
inline constexpr int kValueBits = 48;
inline constexpr uint64_t kValueMask = (uint64_t{1} << kValueBits) - 1;
struct alignas(kInterferenceBytes) Doorbell {
  uint64_t word;
};

struct PoolHeader {
  char magic[8];
  uint32_t layout_version;
  uint32_t world_size;
  uint32_t num_extents;
  uint32_t creator_uid;
  uint32_t extent_index;  // finds paths listed in another order
  uint32_t reserved;
  uint64_t epoch;  // 1 to 65535, one more than the last job's on this pool
  uint64_t token;  // random; differs from any other job's
  uint64_t total_bytes;
  uint64_t extent_bytes[kMaxExtents];
  uint64_t checksum;  // over everything before it
};
static_assert(sizeof(PoolHeader) == 576);
static_assert(std::is_trivially_copyable_v<PoolHeader>);

// The process that keeps an extent for its job: the creator of the pool. The
// creator writes this before the header, so that two hosts never format the
// same memory.
struct alignas(kInterferenceBytes) PoolKeeper {
  char magic[8];
  uint64_t claim;     // token of the job that takes the extent
  uint64_t released;  // equals `claim` once the keeper has released the pool
  ProcessIdentity process;
};

struct alignas(kInterferenceBytes) HeaderPage {
  PoolHeader header;
  PoolKeeper keeper;
  Doorbell keeper_beat;  // a plain counter that grows while the keeper runs
};
static_assert(sizeof(HeaderPage) <= kPageBytes);

// Identifies a rank. Its process writes it once, before the ranks meet.
struct alignas(kInterferenceBytes) RankInfo {
  uint64_t ready;  // a doorbell word: 1 once the rest is written
  ProcessIdentity process;
  int32_t process_index;  // jax.process_index()
  int32_t device_id;      // global id of the JAX device
};

// The reason why a rank gave up. Peers that wait see it and give up too.
struct alignas(kInterferenceBytes) RankAbort {
  uint64_t raised;     // a doorbell word: 1 once the rest is written
  uint32_t code;       // jax_cxl::Code
  char reason[1012];   // zero-terminated
  char details[1024];  // lines name=value; zero-terminated
};

// The calls in which a rank waits while it has stalled
// (cc/comm/health/stall_detector.h).
struct alignas(kInterferenceBytes) RankStall {
  uint64_t version;  // a doorbell word: odd while the rank has stalled
  uint64_t started;  // collectives that it has started so far
  uint64_t waits_for[kMaxWorldSize / 64];  // one bit per rank
  // If a call waits for memory of this rank, the size in bytes of a pool that
  // would have enough. Otherwise 0.
  uint64_t needs_pool_bytes;
  char call[488];  // zero-terminated
};

// Reports that a rank has left the job and will start no more calls.
struct alignas(kInterferenceBytes) RankEnd {
  uint64_t raised;           // a doorbell word: 1 once the rest is written
  uint64_t started;          // collectives that it had started
  uint64_t program_goes_on;  // 1: it only shut jax_cxl down
  char reason[360];          // zero-terminated error; empty: none
};

// Counts the multi-process programs that have failed on a rank, but not in a
// collective: for example in a host callback.
struct alignas(kInterferenceBytes) RankFailures {
  uint64_t count;    // a doorbell word
  char reason[504];  // of the last one; zero-terminated
};

// Where a rank's part of a group's channel lies.
struct ChannelPlace {
  uint64_t group;    // hash of the member list
  uint64_t control;  // offset of the control block
  uint64_t first;    // from which the words of the control block count
  uint32_t slot_bytes;
  uint16_t num_slots;
  uint16_t payload_bytes;     // the largest payload of a submission
  uint64_t slots[kMaxSlots];  // offsets
};

// A rank's directory of channels. An entry is open while a group uses the
// memory that the entry names.
struct alignas(kInterferenceBytes) ChannelEntry {
  // A doorbell word: how often the entry was opened and closed. Odd while it is
  // open.
  uint64_t version;
  ChannelPlace place;  // changes only while the entry is closed
};
static_assert(sizeof(ChannelEntry) == 2 * kInterferenceBytes);

// The messages of a rank while the surviving ranks of a job form a group that
// continues in another pool (cc/comm/health/regroup.h).
struct alignas(kInterferenceBytes) RankRegroup {
  uint64_t joined;   // a doorbell word: the attempt in which it takes part
  uint64_t decided;  // a doorbell word: the attempt to which the rest belongs
  uint64_t members[kMaxWorldSize / 64];  // one bit per rank
  char place[1136];                      // of the new pool; zero-terminated
};

struct RankPage {
  RankInfo info;
  Doorbell heartbeat;  // grows while the process runs
  RankAbort abort;
  RankStall stall;
  Doorbell stall_beats;
  RankEnd end;
  ChannelEntry channels[kMaxChannels];
  RankRegroup regroup;
  RankFailures failures;
};
inline constexpr uint64_t kRankPageBytes = 36864;
static_assert(sizeof(RankPage) <= kRankPageBytes);
static_assert(std::is_trivially_copyable_v<RankPage>);

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_POOL_LAYOUT_LAYOUT_H_
