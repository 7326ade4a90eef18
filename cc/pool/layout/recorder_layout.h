#ifndef JAX_CXL_POOL_LAYOUT_RECORDER_LAYOUT_H_
#define JAX_CXL_POOL_LAYOUT_RECORDER_LAYOUT_H_

#include <cstdint>
#include <type_traits>

#include "cc/pool/layout/channel_layout.h"
#include "cc/pool/layout/layout.h"

// The flight recorder holds the last calls of a rank, and how far each call
// got. Only the rank itself writes it. Peers read it after the rank is lost,
// and tools read it after all ranks have ended. Collectives do not depend on
// it.
namespace jax_cxl::pool {

inline constexpr uint64_t kRecordedCalls = 4096;
inline constexpr uint64_t kRecordedSites = 256;
inline constexpr uint64_t kRecordedOperations = 32;

// One call of a rank, at index `number % kRecordedCalls` of Recorder::calls.
// `number` is 0 while a later call replaces an earlier one.
struct alignas(kInterferenceBytes) CallRecord {
  uint64_t number;    // a doorbell word: which call of the rank this is, from 1
  uint64_t identity;  // the same on all ranks for one call
  uint64_t group;     // hash of the member list
  CallDescriptor descriptor;
  // Times in ticks (cc/base/ticks.h), or 0 before the event.
  uint64_t submitted;
  uint64_t started;  // when all ranks had submitted it
  uint64_t finished;
  uint32_t code;        // jax_cxl::Code, once finished
  int32_t waiting_for;  // the last rank that it waited for; -1: none
  uint32_t site;        // number of its SiteRecord; 0: unknown
  uint32_t operation;   // index of its OperationRecord
  char name[40];        // the function that the user called; zero-terminated
};
static_assert(sizeof(CallRecord) == kInterferenceBytes);

// A line of the user's program that makes calls, at index `number %
// kRecordedSites` of Recorder::sites. `number` is 0 while the text changes.
struct alignas(kInterferenceBytes) SiteRecord {
  uint64_t number;  // a doorbell word: which site of the rank this is, from 1
  char text[120];   // "train.py:33 (step)", zero-terminated
};
static_assert(sizeof(SiteRecord) == kInterferenceBytes);

// Sums over all calls of one name since the start of the job. A rank has
// kRecordedOperations records. The last one also counts the calls of all names
// that have no record of their own.
struct alignas(kInterferenceBytes) OperationRecord {
  char name[40];  // zero-terminated; empty: not used
  uint64_t calls;
  uint64_t bytes;   // of their operands
  uint64_t waited;  // for other ranks, in ticks
  uint64_t worked;  // after all ranks had submitted them, in ticks
  uint64_t failed;  // calls
};
static_assert(sizeof(OperationRecord) == kInterferenceBytes);

// The values of the rank's clocks at one moment.
struct ClockReading {
  uint64_t steady_ns;
  uint64_t ticks;
  uint64_t realtime_ns;  // since 1970
};

// Two readings of a rank's clocks, from which ticks can be converted to time.
// The later reading (`last`) is also the last time at which the rank was known
// to be alive.
struct alignas(kInterferenceBytes) RecorderClock {
  ClockReading first;
  ClockReading last;
  uint64_t published_calls;  // how many calls are known to precede `last`
};

// The ranks of a group, one bit for each. Recorder::groups[i] is the group of
// entry i of the rank's directory (RankPage::channels).
struct alignas(kInterferenceBytes) GroupMembers {
  uint64_t bits[kMaxWorldSize / 64];
};
static_assert(sizeof(GroupMembers) == kInterferenceBytes);

struct Recorder {
  RecorderClock clock;
  Doorbell submitted_calls;  // number of the newest record
  GroupMembers groups[kMaxChannels];
  OperationRecord operations[kRecordedOperations];
  SiteRecord sites[kRecordedSites];
  CallRecord calls[kRecordedCalls];
};
inline constexpr uint64_t kRecorderBytes =
    (sizeof(Recorder) + kPageBytes - 1) / kPageBytes * kPageBytes;
static_assert(kRecorderBytes == 577536);
static_assert(std::is_trivially_copyable_v<Recorder>);

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_POOL_LAYOUT_RECORDER_LAYOUT_H_
