#include "cc/pool/coherence/coherence.h"

#include <iterator>

namespace jax_cxl::pool {
namespace {

// The names of the modes, in the order of CoherenceMode.
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
  // The fence is needed even in coherent mode. The copy kernels may have used
  // non-temporal stores, which a release store (StoreFlag) does not order.
  StoreFence();
}

void Coherence::PublishDeviceParts(std::span<const Part> parts) const {
  if (cache_ == nullptr) {
    StoreFence();
    return;
  }
  // The device made the stores, not this thread, so a store fence would not
  // order them. This full fence makes the write-backs run after the load in
  // which the caller saw the device's word.
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
  // Publish the rest of the line before the flag is stored. One write-back of
  // the line with the flag would not be enough: only aligned 8-byte words are
  // guaranteed to move between hosts as a whole, not cache lines.
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
  // The load below must not run before the flush. A store fence does not hold
  // back later loads, and a load fence does not order clflushopt.
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
  // Without this fence, the flushes could run before the caller's load of the
  // flag.
  cache_->FullFence();
  for (const Part& part : parts) cache_->Invalidate(part.begin, part.bytes);
  cache_->FullFence();
}

}  // namespace jax_cxl::pool
