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

// How stores become visible to the other hosts of a pool. The mode follows from
// the kind of the pool and from what its administrator states. The code never
// guesses it from the machine.
enum class CoherenceMode : uint8_t {
  kCoherent,  // one host, or CXL 3 with hardware coherence: ordering is enough
  kUncached,  // mapped uncacheable, as the administrator states
  kFlush,     // mapped write-back, by hosts without coherence
};

std::string_view CoherenceModeName(CoherenceMode mode);
Result<CoherenceMode> ParseCoherenceMode(std::string_view name);

// Fails with kUnimplemented if this processor lacks instructions that `mode`
// needs.
Status CheckCoherenceSupported(CoherenceMode mode);

// One range of bytes of a payload that consists of several ranges.
struct Part {
  const void* begin = nullptr;
  size_t bytes = 0;
};

// Every protocol in the pool consists of these four operations. A writer stores
// the payload, and then calls PublishPayload and StoreFlag. A reader calls
// LoadFlag until the flag has the expected value, then calls AcquirePayload,
// and loads the payload.
//
//   writer: *payload = 7; coherence.PublishPayload(payload, sizeof(*payload));
//           coherence.StoreFlag(flag, 1);
//   reader: while (coherence.LoadFlag(flag) != 1) {}
//           coherence.AcquirePayload(payload, sizeof(*payload)); use(*payload);
//
// Stateless and thread-safe.
class Coherence {
 public:
  // Uses `cache`, which must outlive this object and its copies. If `cache` is
  // null, kFlush mode uses the cache of this host, and the other modes use
  // none.
  explicit Coherence(CoherenceMode mode, Cache* cache = nullptr)
      : mode_(mode),
        cache_(cache == nullptr && mode == CoherenceMode::kFlush
                   ? HardwareCache()
                   : cache) {}

  // Returns a Coherence for reading memory whose mode is not known. Old lines
  // of the memory may still be in this host's cache, so the object has mode
  // kFlush if the processor supports that.
  static Coherence ForReading() {
    return Coherence(CheckCoherenceSupported(CoherenceMode::kFlush).ok()
                         ? CoherenceMode::kFlush
                         : CoherenceMode::kCoherent);
  }

  CoherenceMode mode() const { return mode_; }
  // Null if this mode never needs to write back or drop cache lines.
  Cache* cache() const { return cache_; }

  // Makes this thread's earlier stores to the range visible before any later
  // StoreFlag. In kFlush mode it writes back every cache line of the range.
  void PublishPayload(const void* begin, size_t bytes) const;

  // Like PublishPayload, but for parts that a device of this host has written.
  // First load the word by which the device reports that the parts are written.
  // In kFlush mode, the parts may still be in this host's cache. This function
  // then writes them back, after a full fence, so that no write-back runs
  // before the load.
  void PublishDeviceParts(std::span<const Part> parts) const;

  // Stores one aligned 8-byte word. The store soon becomes visible to other
  // hosts. Everything that was published before the store becomes visible
  // first.
  void StoreFlag(uint64_t* flag, uint64_t value) const;

  // Publishes this thread's other stores to the flag's 64-byte cache line, then
  // stores the flag. In kCoherent mode, StoreFlag alone does both.
  void StoreLine(uint64_t* flag, uint64_t value) const;

  // Loads the flag from the pool. Never returns an old value from this host's
  // cache.
  uint64_t LoadFlag(const uint64_t* flag) const;

  // Call it after LoadFlag has returned the expected value. Later loads of the
  // range then see all stores that were published before the flag was stored.
  // In kFlush mode it drops every cache line of the range.
  void AcquirePayload(const void* begin, size_t bytes) const;
  void AcquireParts(std::span<const Part> parts) const;

  // Calls AcquirePayload and returns a private copy of the payload. Check the
  // copy, and then use the copy and not the payload: other processes may change
  // the payload between the check and the use.
  template <typename T>
  T AcquireCopy(const T& payload) const {
    static_assert(std::is_trivially_copyable_v<T>);
    AcquirePayload(&payload, sizeof(T));
    T copy;
    std::memcpy(&copy, &payload, sizeof(T));
    // After this, the compiler must use the copy, and not load a field from the
    // pool again.
    std::atomic_signal_fence(std::memory_order_seq_cst);
    return copy;
  }

  // Like AcquireCopy, for a payload that its writer may be changing at the same
  // time (cc/pool/layout/words.h).
  template <typename T>
  T AcquireWords(const T& payload) const {
    AcquirePayload(&payload, sizeof(T));
    const T copy = LoadWords(payload);
    // If the caller now loads the payload's version or number again, that load
    // must come after the loads above.
    std::atomic_thread_fence(std::memory_order_acquire);
    return copy;
  }

 private:
  CoherenceMode mode_;
  Cache* cache_;  // null: no cache to write back or drop
};

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_POOL_COHERENCE_COHERENCE_H_
