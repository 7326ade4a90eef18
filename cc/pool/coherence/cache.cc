#include "cc/pool/coherence/cache.h"

#include <initializer_list>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace jax_cxl::pool {
namespace {

#if defined(__x86_64__)

constexpr uintptr_t kLineBytes = 64;

// Returns a set of bits: bit i is 1 if the processor has FlushInstruction i.
unsigned ReadInstructions() {
  const auto bit = [](FlushInstruction instruction, unsigned has) {
    return (has & 1) << static_cast<int>(instruction);
  };
  unsigned found = bit(FlushInstruction::kNone, 1);
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d))
    found |= bit(FlushInstruction::kClflush, d >> 19);
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d))
    found |= bit(FlushInstruction::kClflushopt, b >> 23) |
             bit(FlushInstruction::kClwb, b >> 24);
  return found;
}

#endif

class Hardware final : public Cache {
 public:
  void WriteBack(const void* begin, size_t bytes) override {
    FlushLines(write_back_, begin, bytes);
  }
  void Invalidate(const void* begin, size_t bytes) override {
    FlushLines(invalidate_, begin, bytes);
  }

 private:
  const FlushInstruction write_back_ = WriteBackInstruction();
  const FlushInstruction invalidate_ = InvalidateInstruction();
};

}  // namespace

bool FlushSupported() {
  return WriteBackInstruction() != FlushInstruction::kNone;
}

FlushInstruction WriteBackInstruction() {
  return HasInstruction(FlushInstruction::kClwb) ? FlushInstruction::kClwb
                                                 : InvalidateInstruction();
}

FlushInstruction InvalidateInstruction() {
  for (const auto best :
       {FlushInstruction::kClflushopt, FlushInstruction::kClflush})
    if (HasInstruction(best)) return best;
  return FlushInstruction::kNone;
}

#if defined(__x86_64__)

bool HasInstruction(FlushInstruction instruction) {
  static const unsigned found = ReadInstructions();
  return found >> static_cast<int>(instruction) & 1;
}

// The "memory" clobbers keep the compiler from moving stores to the range past
// this point.
void FlushLines(FlushInstruction instruction, const void* begin, size_t bytes) {
  if (bytes == 0) return;
  const auto address = reinterpret_cast<uintptr_t>(begin);
  const uintptr_t end = address + bytes;
  for (uintptr_t at = address / kLineBytes * kLineBytes; at < end;
       at += kLineBytes) {
    auto& line = *reinterpret_cast<volatile char*>(at);
    switch (instruction) {
      case FlushInstruction::kNone:
        return;
      case FlushInstruction::kClflush:
        asm volatile("clflush %0" : "+m"(line)::"memory");
        break;
      case FlushInstruction::kClflushopt:
        asm volatile("clflushopt %0" : "+m"(line)::"memory");
        break;
      case FlushInstruction::kClwb:
        asm volatile("clwb %0" : "+m"(line)::"memory");
        break;
    }
  }
}

void StoreFence() { __builtin_ia32_sfence(); }
void FullFence() { __builtin_ia32_mfence(); }

#else

bool HasInstruction(FlushInstruction instruction) {
  return instruction == FlushInstruction::kNone;
}

void FlushLines(FlushInstruction, const void*, size_t) {}
void StoreFence() {}
void FullFence() {}

#endif

void Cache::StoreFence() { pool::StoreFence(); }

void Cache::FullFence() { pool::FullFence(); }

uint64_t Cache::Load(const uint64_t* flag) {
  return __atomic_load_n(flag, __ATOMIC_ACQUIRE);
}

void Cache::Store(uint64_t* flag, uint64_t value) {
  __atomic_store_n(flag, value, __ATOMIC_RELEASE);
}

Cache* HardwareCache() {
  static Hardware cache;
  return &cache;
}

}  // namespace jax_cxl::pool
