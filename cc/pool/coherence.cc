#include "cc/pool/coherence.h"

#include "cc/pool/flush.h"

namespace jax_cxl::pool {

std::string_view CoherenceModeName(CoherenceMode mode) {
  switch (mode) {
    case CoherenceMode::kCoherent:
      return "coherent";
    case CoherenceMode::kUncached:
      return "uncached";
    case CoherenceMode::kFlush:
      return "flush";
  }
  return "unknown";
}

Result<CoherenceMode> ParseCoherenceMode(std::string_view name) {
  for (CoherenceMode mode : {CoherenceMode::kCoherent, CoherenceMode::kUncached,
                             CoherenceMode::kFlush}) {
    if (name == CoherenceModeName(mode)) return mode;
  }
  return Error(Code::kInvalidArgument, "unknown coherence mode '", name,
               "'; use coherent, uncached or flush");
}

Status CheckCoherenceSupported(CoherenceMode mode) {
  if (mode == CoherenceMode::kCoherent || FlushSupported()) return OkStatus();
  return Error(Code::kUnimplemented, "coherence mode '",
               CoherenceModeName(mode),
               "' needs the cache line instructions of an x86 processor, which "
               "this machine lacks; use coherence=coherent if the pool is "
               "local memory or its hardware is coherent");
}

Coherence::Coherence(CoherenceMode mode) : mode_(mode) {}

void Coherence::PublishPayload(const void* begin, size_t bytes) const {
  if (mode_ == CoherenceMode::kFlush) {
    static const FlushInstruction write_back = WriteBackInstruction();
    FlushLines(write_back, begin, bytes);
  }
  // Also in coherent mode: the copy kernels may have used non-temporal stores,
  // which a release store does not order.
  StoreFence();
}

void Coherence::StoreFlag(uint64_t* flag, uint64_t value) const {
  __atomic_store_n(flag, value, __ATOMIC_RELEASE);
  if (mode_ == CoherenceMode::kCoherent) return;
  if (mode_ == CoherenceMode::kFlush) {
    static const FlushInstruction write_back = WriteBackInstruction();
    FlushLines(write_back, flag, sizeof(*flag));
  }
  StoreFence();  // now, not when a write-combining buffer fills up
}

uint64_t Coherence::LoadFlag(const uint64_t* flag) const {
  if (mode_ == CoherenceMode::kFlush) {
    static const FlushInstruction invalidate = InvalidateInstruction();
    FlushLines(invalidate, flag, sizeof(*flag));
    // sfence would let the load run ahead of the flush, lfence does not order
    // clflushopt.
    FullFence();
  }
  return __atomic_load_n(flag, __ATOMIC_ACQUIRE);
}

void Coherence::AcquirePayload(const void* begin, size_t bytes) const {
  if (mode_ == CoherenceMode::kCoherent) return;  // LoadFlag acquired
  FullFence();
  if (mode_ == CoherenceMode::kUncached) return;
  // Nothing but the fence above keeps the flushes behind the load of the flag.
  static const FlushInstruction invalidate = InvalidateInstruction();
  FlushLines(invalidate, begin, bytes);
  FullFence();
}

}  // namespace jax_cxl::pool
