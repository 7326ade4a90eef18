#ifndef JAX_CXL_POOL_COHERENCE_DOORBELL_H_
#define JAX_CXL_POOL_COHERENCE_DOORBELL_H_

#include <cstdint>

#include "cc/pool/coherence/coherence.h"
#include "cc/pool/layout/layout.h"
#include "cc/pool/mapping/mapping_guard.h"

namespace jax_cxl::pool {

// Rings and reads the monotone words of one job: the upper 16 bits of a word
// hold the job's epoch, so that what an earlier job left in the pool reads as
// 0. Stateless; safe to use from any thread. Each word has one writer.
class Doorbells {
 public:
  // With a guard, nothing is rung any more once the mapping is not intact: what
  // this process wrote since is not what it says.
  Doorbells(const Coherence& coherence, uint64_t epoch,
            const MappingGuard* guard = nullptr)
      : coherence_(coherence), tag_(epoch << kValueBits), guard_(guard) {}

  const Coherence& coherence() const { return coherence_; }

  void Ring(uint64_t* word, uint64_t value) const {
    if (guard_ != nullptr && !guard_->intact()) return;
    coherence_.StoreFlag(word, Word(value));
  }

  // As Ring, together with what else the word's 64-byte line holds.
  void RingLine(uint64_t* word, uint64_t value) const {
    if (guard_ != nullptr && !guard_->intact()) return;
    coherence_.StoreLine(word, Word(value));
  }

  // The last value rung in this job, 0 before the first.
  uint64_t Read(const uint64_t* word) const {
    return Value(coherence_.LoadFlag(word));
  }

  // The same two for words that travel with a payload.
  uint64_t Word(uint64_t value) const { return tag_ | (value & kValueMask); }
  uint64_t Value(uint64_t word) const {
    return (word & ~kValueMask) == tag_ ? word & kValueMask : 0;
  }

 private:
  Coherence coherence_;
  uint64_t tag_;
  const MappingGuard* guard_;
};

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_POOL_COHERENCE_DOORBELL_H_
