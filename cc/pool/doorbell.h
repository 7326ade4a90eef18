#ifndef JAX_CXL_POOL_DOORBELL_H_
#define JAX_CXL_POOL_DOORBELL_H_

#include <cstdint>

#include "cc/pool/coherence.h"

namespace jax_cxl::pool {

// Rings and reads the monotone words of one job: the upper 16 bits of a word
// hold the job's epoch, so that what an earlier job left in the pool reads as
// 0. Stateless; safe to use from any thread. Each word has one writer.
class Doorbells {
 public:
  Doorbells(const Coherence& coherence, uint64_t epoch)
      : coherence_(coherence), tag_(epoch << kValueBits) {}

  const Coherence& coherence() const { return coherence_; }

  void Ring(uint64_t* word, uint64_t value) const {
    coherence_.StoreFlag(word, tag_ | (value & kValueMask));
  }

  // The last value rung in this job, 0 before the first.
  uint64_t Read(const uint64_t* word) const {
    const uint64_t value = coherence_.LoadFlag(word);
    return (value & ~kValueMask) == tag_ ? value & kValueMask : 0;
  }

 private:
  static constexpr int kValueBits = 48;
  static constexpr uint64_t kValueMask = (uint64_t{1} << kValueBits) - 1;

  Coherence coherence_;
  uint64_t tag_;
};

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_POOL_DOORBELL_H_
