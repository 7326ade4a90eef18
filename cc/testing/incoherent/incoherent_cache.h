#ifndef JAX_CXL_TESTING_INCOHERENT_INCOHERENT_CACHE_H_
#define JAX_CXL_TESTING_INCOHERENT_INCOHERENT_CACHE_H_

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cc/pool/coherence/cache.h"
#include "cc/pool/coherence/interposer.h"
#include "cc/testing/incoherent/omission.h"
#include "cc/testing/incoherent/shadow.h"

namespace jax_cxl::pool {

// The cache of one host, emulated as badly as the architecture allows, for a
// process that works on a Shadow in place of the pool:
//
// - what is stored stays here until it is written back, what was loaded stays
//   as it was until it is dropped;
// - write-backs and drops happen at once or only at the next fence, in any
//   order; a drop that no full fence keeps behind the load of a flag may happen
//   before it;
// - an adversary, chance from `seed`, writes back dirty lines and refreshes
//   clean ones at any time, more often where the protocol is at work, and holds
//   threads up; sooner or later it comes to every line.
//
// - what a device of the host writes lands in this cache, or past it in the
//   memory; what a device reads may come from this cache, as stale as it is; a
//   write-back that no full fence keeps behind a device's write may happen
//   before it.
//
// An omission makes one of the protocol's moves do nothing.
class IncoherentCache final : public Interposer, public Cache {
 public:
  static Result<std::unique_ptr<Interposer>> Make(
      const MappedMemory& memory, uint64_t seed,
      std::optional<Omission> omission);
  ~IncoherentCache() override;

  std::byte* base() const override { return shadow_->base(); }
  Coherence coherence() override {
    return Coherence(CoherenceMode::kFlush, this);
  }
  // From now on each line has one writer.
  void Opened() override { shadow_->Seal(); }

  // Copies of a device of this host, from and to the process's view of the
  // pool.
  void DeviceWrite(std::byte* to, const std::byte* from, uint64_t bytes);
  void DeviceRead(std::byte* to, const std::byte* from, uint64_t bytes);
  // From now on no device's write stays in this cache.
  void DevicesWriteMemory() { devices_write_memory_ = true; }

  void WriteBack(const void* begin, size_t bytes) override;
  void Invalidate(const void* begin, size_t bytes) override;
  void StoreFence() override;
  void FullFence() override;
  uint64_t Load(const uint64_t* flag) override;
  void Store(uint64_t* flag, uint64_t value) override;

 private:
  struct Range {
    uint64_t offset = 0;
    uint64_t bytes = 0;
    Region region = Region::kOther;
  };
  struct Pending {
    Range range;
    bool drop = false;
  };
  // splitmix64.
  struct Random {
    uint64_t state;
    uint64_t operator()();
    bool OneIn(uint64_t n) { return (*this)() % n == 0; }
  };
  // What one thread has started and not fenced.
  struct Thread {
    std::mutex mutex;  // the adversary completes what is pending
    std::vector<Pending> pending;
    Random random;
    Range last;  // written back or dropped
    bool last_was_drop = false;
    bool fence_due = false;  // a full fence whose range is known at the drop
    bool fetches = false;    // the line last dropped, when it is loaded
    bool loaded = false;     // a flag, since the last full fence
    uint64_t fenced = 0;     // writes of devices before the last full fence
    std::vector<Range> dropped_early;
  };

  IncoherentCache(std::unique_ptr<Shadow> shadow, uint64_t seed,
                  std::optional<Omission> omission);

  Thread& Self();
  Range RangeOf(const void* begin, size_t bytes) const;
  bool Omits(Omission::Operation operation, Region region) const {
    return omission_ == Omission{operation, region};
  }
  void Start(Thread& thread, const Range& range, bool drop);
  void Complete(Thread& thread, bool drops);
  void CompleteFullFence(Thread& thread);
  void Exchange(const Pending& pending);
  // What a flag says to a rank that waits for nobody.
  uint64_t Satisfied() const;

  // The adversary.
  void EvictAndPrefetch();
  void Disturb(Random& random);
  void Touch(Random& random, uint64_t offset, uint64_t bytes);
  void Note(const Range& range);
  Range PickNoted(Random& random, bool flags);
  static void HoldUp(Random& random);

  const uint64_t id_;  // tells caches apart in what a thread remembers
  std::unique_ptr<Shadow> shadow_;
  const uint64_t seed_;
  std::atomic<bool> devices_write_memory_{false};
  std::atomic<uint64_t> salt_{0};  // makes hosts of one seed differ
  const std::optional<Omission> omission_;

  std::mutex threads_mutex_;
  std::vector<std::unique_ptr<Thread>> threads_;

  // Where the protocol was lately at work: payloads, flags.
  struct Noted {
    std::array<Range, 64> ranges;
    size_t count = 0;
  };
  std::mutex noted_mutex_;
  std::array<Noted, 2> noted_;

  std::mutex stop_mutex_;
  std::condition_variable stop_changed_;
  bool stop_ = false;
  std::thread adversary_;
};

// Each pool that is opened with the result is seen through the cache of another
// host; the first host's seed is `seed`, and each has one more than the host
// before it. `leave_out`: an Omission's name, or "" for none.
MakeInterposer IncoherentHosts(uint64_t seed, const std::string& leave_out);

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_TESTING_INCOHERENT_INCOHERENT_CACHE_H_
