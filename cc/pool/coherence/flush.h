#ifndef JAX_CXL_POOL_COHERENCE_FLUSH_H_
#define JAX_CXL_POOL_COHERENCE_FLUSH_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

// Cache line instructions, chosen once from what CPUID reports. On processors
// without them (not x86) everything here does nothing and `FlushSupported` is
// false.
namespace jax_cxl::pool {

enum class FlushInstruction : uint8_t { kNone, kClflush, kClflushopt, kClwb };

std::string_view FlushInstructionName(FlushInstruction instruction);

bool FlushSupported();
bool HasInstruction(FlushInstruction instruction);

// The best that this processor has to write a line back: clwb, which may keep
// the line, else as `InvalidateInstruction`.
FlushInstruction WriteBackInstruction();

// The best that drops a line: clflushopt, else clflush.
FlushInstruction InvalidateInstruction();

// Runs `instruction` on each line that [begin, begin + bytes) touches. Fences
// are the caller's business. The processor must have the instruction.
void FlushLines(FlushInstruction instruction, const void* begin, size_t bytes);

void StoreFence();  // sfence: earlier stores and flushes before later stores
void FullFence();   // mfence: also holds back later loads

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_POOL_COHERENCE_FLUSH_H_
