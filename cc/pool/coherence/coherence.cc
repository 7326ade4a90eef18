#include "cc/pool/coherence/coherence.h"

#include <iterator>

namespace jax_cxl::pool {
namespace {

// In the order of CoherenceMode.
constexpr std::string_view kModeNames[] = {"coherent", "uncached", "flush"};

}  // namespace

std::string_view CoherenceModeName(CoherenceMode mode) {
  return kModeNames[static_cast<int>(mode)];
}

Result<CoherenceMode> ParseCoherenceMode(std::string_view name) {
  for (size_t mode = 0; mode < std::size(kModeNames); ++mode)
    if (name == kModeNames[mode]) return static_cast<CoherenceMode>(mode);
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

void Coherence::PublishPayload(const void* begin, size_t bytes) const {
  if (cache_ != nullptr) {
    cache_->WriteBack(begin, bytes);
    cache_->StoreFence();
    return;
  }
  // This holds in coherent mode too: the copy kernels may have used
  // non-temporal stores, which a release store does not order.
  StoreFence();
}

void Coherence::PublishDeviceParts(std::span<const Part> parts) const {
  if (cache_ == nullptr) {
    StoreFence();
    return;
  }
  // The stores were made by the device, not by this thread, so a store fence
  // would not order them. This full fence orders the write-backs after the load
  // in which this thread saw the device's word.
  cache_->FullFence();
  for (const Part& part : parts) cache_->WriteBack(part.begin, part.bytes);
  cache_->StoreFence();
}

void Coherence::StoreFlag(uint64_t* flag, uint64_t value) const {
  if (cache_ != nullptr) {
    cache_->Store(flag, value);
    cache_->WriteBack(flag, sizeof(*flag));
    cache_->StoreFence();
    return;
  }
  __atomic_store_n(flag, value, __ATOMIC_RELEASE);
  if (mode_ == CoherenceMode::kCoherent) return;
  StoreFence();  // otherwise the store may stay in a write-combining buffer
}

void Coherence::StoreLine(uint64_t* flag, uint64_t value) const {
  // If cache lines moved between hosts as a whole, one write-back of the line
  // would be enough. Only aligned 8-byte words are guaranteed to move as a
  // whole.
  constexpr uintptr_t kLine = 64;
  if (mode_ != CoherenceMode::kCoherent) {
    const auto address = reinterpret_cast<uintptr_t>(flag);
    PublishPayload(reinterpret_cast<const void*>(address / kLine * kLine),
                   kLine);
  }
  StoreFlag(flag, value);
}

uint64_t Coherence::LoadFlag(const uint64_t* flag) const {
  if (cache_ == nullptr) return __atomic_load_n(flag, __ATOMIC_ACQUIRE);
  cache_->Invalidate(flag, sizeof(*flag));
  // A store fence would let the load run ahead of the flush. A load fence does
  // not order clflushopt.
  cache_->FullFence();
  return cache_->Load(flag);
}

void Coherence::AcquirePayload(const void* begin, size_t bytes) const {
  const Part part = {begin, bytes};
  AcquireParts({&part, 1});
}

void Coherence::AcquireParts(std::span<const Part> parts) const {
  if (cache_ == nullptr) {
    if (mode_ != CoherenceMode::kCoherent) FullFence();
    return;  // LoadFlag has acquire ordering.
  }
  // Without this fence, the flushes could run before the load of the flag.
  cache_->FullFence();
  for (const Part& part : parts) cache_->Invalidate(part.begin, part.bytes);
  cache_->FullFence();
}

}  // namespace jax_cxl::pool
