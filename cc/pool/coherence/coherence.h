#ifndef JAX_CXL_POOL_COHERENCE_COHERENCE_H_
#define JAX_CXL_POOL_COHERENCE_COHERENCE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <type_traits>

#include "cc/base/status.h"
#include "cc/pool/coherence/cache.h"
#include "cc/pool/layout/words.h"

namespace jax_cxl::pool {

// How stores become visible to the other hosts of a pool. It follows from the
// pool and from what its administrator asserts, never from the machine.
enum class CoherenceMode : uint8_t {
  kCoherent,  // one host, or CXL 3 with hardware coherence: ordering is enough
  kUncached,  // mapped uncacheable, asserted by the administrator
  kFlush,     // write-back mapping shared by hosts without coherence
};

std::string_view CoherenceModeName(CoherenceMode mode);
Result<CoherenceMode> ParseCoherenceMode(std::string_view name);

// kUnimplemented when this processor cannot do what `mode` needs.
Status CheckCoherenceSupported(CoherenceMode mode);

// A part of a payload that does not lie in one piece.
struct Part {
  const void* begin = nullptr;
  size_t bytes = 0;
};

// The four moves that every protocol in the pool is made of. Writer: store the
// payload, PublishPayload, StoreFlag. Reader: LoadFlag until it says so,
// AcquirePayload, load the payload.
//
// Stateless and safe to use from any thread.
class Coherence {
 public:
  // Works through `cache`, which has to outlive this object and its copies.
  // Null: in kFlush mode through this host's own, else without any.
  explicit Coherence(CoherenceMode mode, Cache* cache = nullptr)
      : mode_(mode),
        cache_(cache == nullptr && mode == CoherenceMode::kFlush
                   ? HardwareCache()
                   : cache) {}

  CoherenceMode mode() const { return mode_; }
  // Null where nothing is written back or dropped.
  Cache* cache() const { return cache_; }

  // Makes this thread's stores to the range visible before any later
  // StoreFlag. In kFlush mode writes back every line of the range.
  void PublishPayload(const void* begin, size_t bytes) const;

  // The same of parts that a device of this host has written, which has told
  // this thread so: its writes may have ended in this host's cache. In kFlush
  // mode a full fence keeps the write-backs behind the load of what it told.
  void PublishDeviceParts(std::span<const Part> parts) const;

  // One aligned 8-byte store, visible promptly and after everything published.
  void StoreFlag(uint64_t* flag, uint64_t value) const;

  // PublishPayload of what else was stored in the flag's 64-byte line, then
  // StoreFlag. In kCoherent mode the store itself is enough.
  void StoreLine(uint64_t* flag, uint64_t value) const;

  // Loads a flag as the pool holds it now, not as this host's cache does.
  uint64_t LoadFlag(const uint64_t* flag) const;

  // After LoadFlag: later loads of the range see what was published before
  // the flag. In kFlush mode drops every line of the range.
  void AcquirePayload(const void* begin, size_t bytes) const;
  void AcquireParts(std::span<const Part> parts) const;

  // AcquirePayload, and a private copy, so that what is used is what was
  // checked, whatever another process writes there meanwhile.
  template <typename T>
  T AcquireCopy(const T& payload) const {
    static_assert(std::is_trivially_copyable_v<T>);
    AcquirePayload(&payload, sizeof(T));
    T copy;
    std::memcpy(&copy, &payload, sizeof(T));
    // From here on the compiler may not load a field from the pool instead.
    std::atomic_signal_fence(std::memory_order_seq_cst);
    return copy;
  }

  // The same of what its writer may be changing (cc/pool/layout/words.h).
  template <typename T>
  T AcquireWords(const T& payload) const {
    AcquirePayload(&payload, sizeof(T));
    const T copy = LoadWords(payload);
    // Whoever reads the version or number afterwards reads it after this.
    std::atomic_thread_fence(std::memory_order_acquire);
    return copy;
  }

 private:
  CoherenceMode mode_;
  Cache* cache_;  // null: nothing to write back or to drop
};

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_POOL_COHERENCE_COHERENCE_H_
