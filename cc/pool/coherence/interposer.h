#ifndef JAX_CXL_POOL_COHERENCE_INTERPOSER_H_
#define JAX_CXL_POOL_COHERENCE_INTERPOSER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "cc/base/status.h"
#include "cc/pool/coherence/coherence.h"
#include "cc/pool/layout/geometry.h"

namespace jax_cxl::pool {

// A layer between a process and the memory of a pool, which observes or
// disturbs every operation of the protocol. Only tests use an interposer
// (cc/testing). A job uses the memory directly.
class Interposer {
 public:
  virtual ~Interposer() = default;

  // The memory that the process uses instead of the mapping.
  virtual std::byte* base() const = 0;
  // The operations that the process uses. The interposer outlives the result.
  virtual Coherence coherence() = 0;
  // Called once the pool is formatted and the process has checked its headers.
  virtual void Opened() {}
};

// The memory that a pool has mapped.
struct MappedMemory {
  std::byte* base = nullptr;
  uint64_t bytes = 0;
  std::vector<ByteRange> extents;
  int world_size = 0;
  CoherenceMode mode = CoherenceMode::kCoherent;
  // Starts a thread that counts as one of the library's own (cc/base/idle.h).
  std::thread (*start_thread)(std::function<void()> body) = nullptr;
};

// The mapping outlives the interposer.
using MakeInterposer =
    std::function<Result<std::unique_ptr<Interposer>>(const MappedMemory&)>;

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_POOL_COHERENCE_INTERPOSER_H_
