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
// the pool and from what its administrator asserts. The code never guesses it
// from the machine.
enum class CoherenceMode : uint8_t {
  kCoherent,  // one host, or CXL 3 with hardware coherence: ordering is enough
  kUncached,  // mapped uncacheable, asserted by the administrator
  kFlush,     // write-back mapping shared by hosts without coherence
};

std::string_view CoherenceModeName(CoherenceMode mode);
Result<CoherenceMode> ParseCoherenceMode(std::string_view name);

// Fails with kUnimplemented if this processor lacks instructions that `mode`
// needs.
Status CheckCoherenceSupported(CoherenceMode mode);

// One piece of a payload that consists of several pieces.
struct Part {
  const void* begin = nullptr;
  size_t bytes = 0;
};

// The four operations of which every protocol in the pool consists. A writer
// stores the payload and calls PublishPayload, then StoreFlag. A reader calls
// LoadFlag until the flag has the expected value, then AcquirePayload, and
// loads the payload.
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

  // Returns a Coherence for reading memory when this host's cache may still
  // hold old lines of it, whatever mode its users have. It flushes if the
  // processor can.
  static Coherence ForReading() {
    return Coherence(CheckCoherenceSupported(CoherenceMode::kFlush).ok()
                         ? CoherenceMode::kFlush
                         : CoherenceMode::kCoherent);
  }

  CoherenceMode mode() const { return mode_; }
  // Null if nothing needs to be written back or dropped.
  Cache* cache() const { return cache_; }

  // Makes this thread's earlier stores to the range visible before any later
  // StoreFlag. In kFlush mode it writes back every cache line of the range.
  void PublishPayload(const void* begin, size_t bytes) const;

  // Like PublishPayload, but for parts that a device of this host has written.
  // The caller must have loaded a word by which the device reports that it
  // wrote them. The device's writes may be in this host's cache. In kFlush
  // mode, a full fence orders the write-backs after that load.
  void PublishDeviceParts(std::span<const Part> parts) const;

  // Stores one aligned 8-byte word. The store becomes visible soon, and after
  // everything published before.
  void StoreFlag(uint64_t* flag, uint64_t value) const;

  // Publishes the other stores to the flag's 64-byte cache line, then stores
  // the flag. In kCoherent mode StoreFlag alone does both.
  void StoreLine(uint64_t* flag, uint64_t value) const;

  // Loads the flag from the pool, never an old value from this host's cache.
  uint64_t LoadFlag(const uint64_t* flag) const;

  // Call it after LoadFlag. Later loads of the range see all stores that were
  // published before the flag. In kFlush mode it drops every cache line of the
  // range.
  void AcquirePayload(const void* begin, size_t bytes) const;
  void AcquireParts(std::span<const Part> parts) const;

  // Calls AcquirePayload and returns a private copy of the payload. Check and
  // use the copy, because no other process can change it between the check and
  // the use.
  template <typename T>
  T AcquireCopy(const T& payload) const {
    static_assert(std::is_trivially_copyable_v<T>);
    AcquirePayload(&payload, sizeof(T));
    T copy;
    std::memcpy(&copy, &payload, sizeof(T));
    // The compiler must not load a field from the pool again after this.
    std::atomic_signal_fence(std::memory_order_seq_cst);
    return copy;
  }

  // Like AcquireCopy, for a payload that its writer may be changing at the same
  // time (cc/pool/layout/words.h).
  template <typename T>
  T AcquireWords(const T& payload) const {
    AcquirePayload(&payload, sizeof(T));
    const T copy = LoadWords(payload);
    // A later load of the payload's version or number comes after these loads.
    std::atomic_thread_fence(std::memory_order_acquire);
    return copy;
  }

 private:
  CoherenceMode mode_;
  Cache* cache_;  // null: no cache to write back or drop
};

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_POOL_COHERENCE_COHERENCE_H_
