#include "cc/pool/coherence/flush.h"

#include <atomic>

#if defined(__x86_64__) || defined(__i386__)
#define JAX_CXL_X86 1
#include <cpuid.h>
#include <immintrin.h>
#else
#define JAX_CXL_X86 0
#endif

namespace jax_cxl::pool {
namespace {

#if JAX_CXL_X86

struct CpuFeatures {
  bool clflush = false;
  bool clflushopt = false;
  bool clwb = false;
  uintptr_t line_bytes = 64;
};

CpuFeatures ReadCpuFeatures() {
  CpuFeatures features;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d)) {
    features.clflush = (d >> 19) & 1;
    const uintptr_t line = ((b >> 8) & 0xff) * 8;
    if (line != 0) features.line_bytes = line;
  }
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
    features.clflushopt = (b >> 23) & 1;
    features.clwb = (b >> 24) & 1;
  }
  return features;
}

const CpuFeatures& Cpu() {
  static const CpuFeatures features = ReadCpuFeatures();
  return features;
}

void Clflush(uintptr_t line, uintptr_t end, uintptr_t step) {
  for (; line < end; line += step) {
    _mm_clflush(reinterpret_cast<const void*>(line));
  }
}

__attribute__((target("clflushopt"))) void Clflushopt(uintptr_t line,
                                                      uintptr_t end,
                                                      uintptr_t step) {
  for (; line < end; line += step) {
    _mm_clflushopt(reinterpret_cast<void*>(line));
  }
}

__attribute__((target("clwb"))) void Clwb(uintptr_t line, uintptr_t end,
                                          uintptr_t step) {
  for (; line < end; line += step) _mm_clwb(reinterpret_cast<void*>(line));
}

#endif  // JAX_CXL_X86

}  // namespace

std::string_view FlushInstructionName(FlushInstruction instruction) {
  switch (instruction) {
    case FlushInstruction::kNone:
      return "none";
    case FlushInstruction::kClflush:
      return "clflush";
    case FlushInstruction::kClflushopt:
      return "clflushopt";
    case FlushInstruction::kClwb:
      return "clwb";
  }
  return "unknown";
}

bool FlushSupported() {
  return WriteBackInstruction() != FlushInstruction::kNone;
}

FlushInstruction WriteBackInstruction() {
  if (HasInstruction(FlushInstruction::kClwb)) return FlushInstruction::kClwb;
  return InvalidateInstruction();
}

FlushInstruction InvalidateInstruction() {
  if (HasInstruction(FlushInstruction::kClflushopt)) {
    return FlushInstruction::kClflushopt;
  }
  if (HasInstruction(FlushInstruction::kClflush)) {
    return FlushInstruction::kClflush;
  }
  return FlushInstruction::kNone;
}

#if JAX_CXL_X86

bool HasInstruction(FlushInstruction instruction) {
  switch (instruction) {
    case FlushInstruction::kNone:
      return true;
    case FlushInstruction::kClflush:
      return Cpu().clflush;
    case FlushInstruction::kClflushopt:
      return Cpu().clflushopt;
    case FlushInstruction::kClwb:
      return Cpu().clwb;
  }
  return false;
}

void FlushLines(FlushInstruction instruction, const void* begin, size_t bytes) {
  if (bytes == 0) return;
  // Keeps the compiler from moving stores to the range past this point, even in
  // link-time optimization.
  std::atomic_signal_fence(std::memory_order_seq_cst);
  const uintptr_t step = Cpu().line_bytes;
  const uintptr_t first = reinterpret_cast<uintptr_t>(begin) / step * step;
  const uintptr_t end = reinterpret_cast<uintptr_t>(begin) + bytes;
  switch (instruction) {
    case FlushInstruction::kNone:
      break;
    case FlushInstruction::kClflush:
      Clflush(first, end, step);
      break;
    case FlushInstruction::kClflushopt:
      Clflushopt(first, end, step);
      break;
    case FlushInstruction::kClwb:
      Clwb(first, end, step);
      break;
  }
}

void StoreFence() { _mm_sfence(); }
void FullFence() { _mm_mfence(); }

#else

bool HasInstruction(FlushInstruction instruction) {
  return instruction == FlushInstruction::kNone;
}

void FlushLines(FlushInstruction, const void*, size_t) {}
void StoreFence() {}
void FullFence() {}

#endif  // JAX_CXL_X86

}  // namespace jax_cxl::pool
