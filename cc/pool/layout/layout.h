#ifndef JAX_CXL_POOL_LAYOUT_LAYOUT_H_
#define JAX_CXL_POOL_LAYOUT_LAYOUT_H_

#include <cstdint>
#include <type_traits>

#include "cc/base/process_identity.h"

// The layout of a pool, and the structs in its first pages. All offsets are
// 64-bit and relative to the start of the pool, because hosts map the pool at
// different addresses.
//
//   0                 HeaderPage, padded to kPageBytes
//   kPageBytes        RankPage of rank 0, 1, ... world_size - 1
//   then              Recorder of rank 0, 1, ... (recorder_layout.h)
//   then              rank 0's arena in extent 0, rank 1's, ...
//   extent e > 0      a copy of the header with its own extent_index, padded
//                     to kPageBytes, then rank 0's arena in extent e, ...
//
// An extent is one pool device. If files emulate devices, an extent is one of
// the equal parts of a file. Every word has only one writer as long as the job
// runs. The creator writes the header. Rank r writes RankPage r, Recorder r and
// its own arenas, and nothing else.
namespace jax_cxl::pool {

// The distance between control words of different writers, and between words
// that are polled separately. It is the destructive interference size: two
// cache lines, because processors prefetch adjacent lines in pairs.
inline constexpr uint64_t kInterferenceBytes = 128;
inline constexpr uint64_t kPageBytes = 4096;

inline constexpr char kMagic[8] = {'J', 'A', 'X', 'C', 'X', 'L', 'P', '1'};
inline constexpr char kKeeperMagic[8] = {'J', 'A', 'X', 'C',
                                         'X', 'L', 'K', '1'};
inline constexpr uint32_t kLayoutVersion = 7;

// Each device of a store has two equal superblocks, at these offsets. They are
// pages that begin with the fields below (jax_cxl/_store/memory/layout.py).
inline constexpr uint64_t kSuperblockOffsets[] = {0, 2 * kPageBytes};
inline constexpr char kStoreMagic[8] = {'J', 'A', 'X', '_', 'C', 'X', 'L', 's'};
inline constexpr uint32_t kStoreVersion = 8;
struct [[gnu::packed]] SuperblockFields {
  char magic[8] = {};
  uint32_t version = 0;
  uint32_t parity = 0;
  uint32_t num_devices = 0;
  uint32_t device = 0;
  uint32_t block_bytes = 0;
  uint64_t device_bytes = 0;
};

inline constexpr int kMaxExtents = 64;
inline constexpr int kMaxWorldSize = 1024;
inline constexpr int kMaxSlots = 12;
inline constexpr int kMaxChannels = 120;

// A 64-bit word whose value only grows. Peers wait until it is at least some
// value. The upper 16 bits hold the epoch of the pool's job, and the lower 48
// bits hold the value. So a word that an earlier job has left never satisfies a
// wait of this job.
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
  uint32_t extent_index;  // shows if paths are listed in another order
  uint32_t reserved;
  uint64_t epoch;  // 1 to 65535, one more than the last job's on this pool
  uint64_t token;  // random; differs from any other job's
  uint64_t total_bytes;
  uint64_t extent_bytes[kMaxExtents];
  uint64_t checksum;  // over everything before it
};
static_assert(sizeof(PoolHeader) == 576);
static_assert(std::is_trivially_copyable_v<PoolHeader>);

// Names the process that keeps an extent for its job. This process is the
// creator of the pool. The creator writes this struct before the header, so
// that two hosts never format the same memory.
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

// Identifies a rank. The rank's process writes this struct once, before the
// ranks meet.
struct alignas(kInterferenceBytes) RankInfo {
  uint64_t ready;  // a doorbell word: 1 once the rest is written
  ProcessIdentity process;
  int32_t process_index;  // jax.process_index()
  int32_t device_id;      // global id of the JAX device
};

// The reason why a rank gave up. Peers that wait for the rank see the reason,
// and give up too.
struct alignas(kInterferenceBytes) RankAbort {
  uint64_t raised;     // a doorbell word: 1 once the rest is written
  uint32_t code;       // jax_cxl::Code
  char reason[1012];   // zero-terminated
  char details[1024];  // lines name=value; zero-terminated
};

// Describes what a rank waits for while it has stalled
// (cc/comm/health/stall_detector.h).
struct alignas(kInterferenceBytes) RankStall {
  uint64_t version;  // a doorbell word: odd while the rank has stalled
  uint64_t started;  // collectives that it has started so far
  uint64_t waits_for[kMaxWorldSize / 64];  // one bit per rank
  // If a call waits because this rank has too little memory in the pool, the
  // size in bytes of a pool that would have enough. Otherwise 0.
  uint64_t needs_pool_bytes;
  // 1: the launch of its oldest call has failed, because of a host callback.
  uint64_t failed;
  char call[480];  // zero-terminated
};

// Reports that a rank has left the job and will start no more calls.
struct alignas(kInterferenceBytes) RankEnd {
  uint64_t raised;           // a doorbell word: 1 once the rest is written
  uint64_t started;          // collectives that it had started
  uint64_t program_goes_on;  // 1: it only shut jax_cxl down
  char reason[360];          // zero-terminated error; empty: none
};

// Counts the multi-process programs that have failed on a rank outside of
// collectives, for example in a host callback.
struct alignas(kInterferenceBytes) RankFailures {
  uint64_t count;    // a doorbell word
  char reason[504];  // of the last one; zero-terminated
};

// Names the memory of one rank in the channel of a group.
struct ChannelPlace {
  uint64_t group;    // hash of the member list
  uint64_t control;  // offset of the control block
  uint64_t first;    // the value from which words of the control block count
  uint32_t slot_bytes;
  uint16_t num_slots;
  uint16_t payload_bytes;     // the largest payload of a submission
  uint64_t slots[kMaxSlots];  // offsets
};

// A rank's directory of channels. An entry is open while a group uses the
// memory that the entry names.
struct alignas(kInterferenceBytes) ChannelEntry {
  // A doorbell word: how many times the entry was opened or closed. It is odd
  // while the entry is open.
  uint64_t version;
  ChannelPlace place;  // changes only while the entry is closed
};
static_assert(sizeof(ChannelEntry) == 2 * kInterferenceBytes);

// What a rank tells the others while the surviving ranks of a job form a group
// that continues in another pool (cc/comm/health/regroup.h).
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
