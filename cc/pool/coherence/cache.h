#ifndef JAX_CXL_POOL_COHERENCE_CACHE_H_
#define JAX_CXL_POOL_COHERENCE_CACHE_H_

#include <cstddef>
#include <cstdint>

namespace jax_cxl::pool {

// The instructions that write back or drop a cache line. On processors other
// than x86, the following functions do nothing, and `FlushSupported` returns
// false.
enum class FlushInstruction : uint8_t { kNone, kClflush, kClflushopt, kClwb };

bool FlushSupported();
bool HasInstruction(FlushInstruction instruction);

// Returns the best instruction of this processor that writes a cache line back.
// That is clwb, which may keep the line in the cache. Without clwb, it is
// InvalidateInstruction().
FlushInstruction WriteBackInstruction();

// Returns the best instruction of this processor that drops a cache line:
// clflushopt, or clflush on processors that lack it.
FlushInstruction InvalidateInstruction();

// Runs `instruction` on each cache line that [begin, begin + bytes) touches.
// The caller has to add the fences. The processor must have the instruction.
void FlushLines(FlushInstruction instruction, const void* begin, size_t bytes);

void StoreFence();  // sfence: earlier stores and flushes before later stores
void FullFence();   // mfence: also holds back later loads

// The cache between a process and a pool that is not coherent. `Coherence` uses
// the cache of this host (HardwareCache), or a cache that tests emulate. The
// default implementations of fences and flags use the processor's instructions.
//
// Thread-safe.
class Cache {
 public:
  virtual ~Cache() = default;

  // Starts to write back, or to drop, each cache line that the range touches. A
  // line that contains new stores is written back before it is dropped. The
  // operation is complete only after the next fence of this thread.
  virtual void WriteBack(const void* begin, size_t bytes) = 0;
  virtual void Invalidate(const void* begin, size_t bytes) = 0;

  // Orders this thread's earlier stores and write-backs before its later ones.
  virtual void StoreFence();
  // Orders all earlier operations of this thread before all later ones.
  virtual void FullFence();

  virtual uint64_t Load(const uint64_t* flag);
  virtual void Store(uint64_t* flag, uint64_t value);
};

// Returns the object that stands for the cache of this host. It uses the
// processor's cache line instructions.
Cache* HardwareCache();

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_POOL_COHERENCE_CACHE_H_
