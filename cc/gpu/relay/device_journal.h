#ifndef JAX_CXL_GPU_RELAY_DEVICE_JOURNAL_H_
#define JAX_CXL_GPU_RELAY_DEVICE_JOURNAL_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "cc/engine/gpu_plan/channel_words.h"
#include "cc/gpu/relay/relay_plan.h"
#include "cc/pool/coherence/doorbell.h"

namespace jax_cxl::comm {

// The calls of a channel whose device numbers them (CountedChannel), as a relay
// needs them. The host does not know when the device executes a call, because a
// graph may execute it. So the device writes each call that it begins into a
// journal, in memory that it shares with its host.
class DeviceJournal {
 public:
  // `written` are the cuda::kJournal entries that the device writes, and
  // `in_pool` is the member's journal in the pool, which peers read. `common`
  // has the fields that are equal in all calls.
  DeviceJournal(const pool::Doorbells& doorbells,
                const cuda::JournalEntry* written, cuda::JournalEntry* in_pool,
                RelayedCall common);

  // Adds a kind of call. Returns what the device has to write as
  // JournalEntry::site when it begins such a call. Any thread may call this.
  uint32_t Add(RelayPlan plan, uint64_t descriptor_hash);

  // If the device has begun another call, copies its entry to the pool, and
  // returns the call. Only one thread may call this.
  std::optional<RelayedCall> Next();

 private:
  struct Kind {
    std::shared_ptr<const RelayPlan> plan;
    uint64_t descriptor_hash = 0;
  };

  const pool::Doorbells doorbells_;
  const cuda::JournalEntry* const written_;
  cuda::JournalEntry* const in_pool_;
  RelayedCall next_;

  std::mutex mutex_;
  std::vector<Kind> kinds_;
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_GPU_RELAY_DEVICE_JOURNAL_H_
