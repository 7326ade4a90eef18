#include "cc/pool/coherence/cache.h"

#include "cc/pool/coherence/flush.h"

namespace jax_cxl::pool {
namespace {

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
