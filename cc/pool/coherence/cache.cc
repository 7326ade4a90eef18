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
  void StoreFence() override { pool::StoreFence(); }
  void FullFence() override { pool::FullFence(); }
  uint64_t Load(const uint64_t* flag) override {
    return __atomic_load_n(flag, __ATOMIC_ACQUIRE);
  }
  void Store(uint64_t* flag, uint64_t value) override {
    __atomic_store_n(flag, value, __ATOMIC_RELEASE);
  }

 private:
  const FlushInstruction write_back_ = WriteBackInstruction();
  const FlushInstruction invalidate_ = InvalidateInstruction();
};

}  // namespace

Cache* HardwareCache() {
  static Hardware cache;
  return &cache;
}

}  // namespace jax_cxl::pool
