#ifndef JAX_CXL_POOL_COHERENCE_FLUSH_H_
#define JAX_CXL_POOL_COHERENCE_FLUSH_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

// Cache line instructions, chosen once from what CPUID reports. On processors
// other than x86, these functions do nothing and `FlushSupported` returns
// false.
namespace jax_cxl::pool {

enum class FlushInstruction : uint8_t { kNone, kClflush, kClflushopt, kClwb };

std::string_view FlushInstructionName(FlushInstruction instruction);

bool FlushSupported();
bool HasInstruction(FlushInstruction instruction);

// Returns the best instruction of this processor that writes a cache line back:
// clwb, which may keep the line in the cache, or otherwise
// InvalidateInstruction().
FlushInstruction WriteBackInstruction();

// Returns the best instruction that drops a cache line: clflushopt, or
// otherwise clflush.
FlushInstruction InvalidateInstruction();

// Runs `instruction` on each cache line that [begin, begin + bytes) touches.
// The caller adds the fences. The processor must have the instruction.
void FlushLines(FlushInstruction instruction, const void* begin, size_t bytes);

void StoreFence();  // sfence: earlier stores and flushes before later stores
void FullFence();   // mfence: also holds back later loads

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_POOL_COHERENCE_FLUSH_H_
