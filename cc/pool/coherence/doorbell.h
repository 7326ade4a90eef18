#ifndef JAX_CXL_POOL_COHERENCE_DOORBELL_H_
#define JAX_CXL_POOL_COHERENCE_DOORBELL_H_

#include <cstdint>

#include "cc/pool/coherence/coherence.h"
#include "cc/pool/layout/layout.h"
#include "cc/pool/mapping/mapping_guard.h"

namespace jax_cxl::pool {

// Rings and reads doorbells of one job. A doorbell is a 64-bit word whose
// value, the lower 48 bits, only grows. The upper 16 bits hold the job's epoch,
// so that a word that an earlier job has left reads as 0. Each word has one
// writer.
//
// Stateless and thread-safe.
class Doorbells {
 public:
  // If `guard` is not null, Ring does nothing once the mapping has lost memory.
  // From then on, data that this process has written may not have reached the
  // pool, so other processes must not be told of the data.
  Doorbells(const Coherence& coherence, uint64_t epoch,
            const MappingGuard* guard = nullptr)
      : coherence_(coherence), tag_(epoch << kValueBits), guard_(guard) {}

  const Coherence& coherence() const { return coherence_; }

  // Returns doorbells for memory that has a new owner. When the owner took the
  // memory, no word in the memory had a value above `first`. Values are
  // therefore counted from `first`, so that a word that the owner has not rung
  // yet reads as 0.
  Doorbells From(uint64_t first) const {
    Doorbells from = *this;
    from.first_ = first;
    return from;
  }

  void Ring(uint64_t* word, uint64_t value) const {
    if (guard_ != nullptr && !guard_->intact()) return;
    coherence_.StoreFlag(word, Word(value));
  }

  // Like Ring, but first publishes this thread's other stores to the word's
  // 64-byte cache line.
  void RingLine(uint64_t* word, uint64_t value) const {
    if (guard_ != nullptr && !guard_->intact()) return;
    coherence_.StoreLine(word, Word(value));
  }

  // Returns the last value that was rung in this job, or 0 if none was.
  uint64_t Read(const uint64_t* word) const {
    return Value(coherence_.LoadFlag(word));
  }

  // Encode and decode words that travel inside a payload.
  uint64_t Word(uint64_t value) const {
    return tag_ | ((first_ + value) & kValueMask);
  }
  uint64_t Value(uint64_t word) const {
    const uint64_t value = word & kValueMask;
    return (word & ~kValueMask) == tag_ && value > first_ ? value - first_ : 0;
  }

 private:
  Coherence coherence_;
  uint64_t tag_;
  uint64_t first_ = 0;
  const MappingGuard* guard_;
};

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_POOL_COHERENCE_DOORBELL_H_
