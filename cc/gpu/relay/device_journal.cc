#include "cc/gpu/relay/device_journal.h"

#include <cstring>
#include <utility>

namespace jax_cxl::comm {

using cuda::JournalEntry;
using cuda::kJournal;

DeviceJournal::DeviceJournal(const pool::Doorbells& doorbells,
                             const JournalEntry* written, JournalEntry* in_pool,
                             RelayedCall common)
    : doorbells_(doorbells),
      written_(written),
      in_pool_(in_pool),
      next_(std::move(common)) {}

uint32_t DeviceJournal::Add(RelayPlan plan, uint64_t descriptor_hash) {
  std::lock_guard lock(mutex_);
  kinds_.push_back(
      {std::make_shared<const RelayPlan>(std::move(plan)), descriptor_hash});
  return static_cast<uint32_t>(kinds_.size());
}

// In a group of several members, the device cannot be so far ahead that it
// overwrites an entry that the relay has not read. Long before that, it waits
// for a slot, which a peer has to release through the relay.
std::optional<RelayedCall> DeviceJournal::Next() {
  const JournalEntry& entry = written_[next_.call % kJournal];
  const uint64_t word = __atomic_load_n(&entry.ready, __ATOMIC_ACQUIRE);
  if (doorbells_.Value(word) != next_.call + 1) return std::nullopt;
  Kind kind;
  {
    std::lock_guard lock(mutex_);
    kind = kinds_.at(entry.site - 1);
  }
  JournalEntry& published = in_pool_[next_.call % kJournal];
  published.descriptor = entry.descriptor;
  published.site = 0;  // unknown
  std::memcpy(published.name, entry.name, sizeof(published.name));
  doorbells_.coherence().PublishPayload(&published, sizeof(published));
  doorbells_.Ring(&published.ready, next_.call + 1);

  next_.hash = cuda::ChainHash(next_.hash, kind.descriptor_hash);
  RelayedCall call = next_;
  call.plan = std::move(kind.plan);
  next_.base_round += call.plan->rounds;
  ++next_.call;
  return call;
}

}  // namespace jax_cxl::comm
