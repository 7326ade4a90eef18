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

// A layer between a process and the memory of a pool. It observes or disturbs
// every operation of the protocol. Only tests use an interposer (cc/testing).
// In a job, the process uses the memory directly.
class Interposer {
 public:
  virtual ~Interposer() = default;

  // Returns the memory that the process must use instead of the mapping.
  virtual std::byte* base() const = 0;
  // Returns the Coherence that the process must use. The interposer outlives
  // the Coherence.
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

// Makes an interposer for the memory that a process has mapped. The mapping
// outlives the interposer.
using MakeInterposer =
    std::function<Result<std::unique_ptr<Interposer>>(const MappedMemory&)>;

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_POOL_COHERENCE_INTERPOSER_H_
