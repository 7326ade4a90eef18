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
// process that uses a Shadow in place of the pool:
//
// - A stored word stays in the cache until it is written back. A loaded word
//   keeps its value until its line is dropped.
// - Write-backs and drops happen at once, or at the next fence, in any order.
//   If no full fence comes between the load of a flag and a drop, the drop may
//   happen before the load.
// - An adversary, random from `seed`, writes back dirty lines and refreshes
//   clean lines at any time, more often where the protocol is active. It also
//   delays threads. Sooner or later it reaches every line.
// - Data written by a device of the host may stay in this cache, or bypass it
//   and go to the memory. A device may read old data from this cache. If no
//   full fence comes between a device's write and a write-back, the write-back
//   may happen before the write.
//
// An Omission makes one operation of the protocol do nothing.
//
// Without the adversary, a line moves only if the protocol moves it. So a rank
// waits forever for a line that the protocol forgets to move.
//
// Thread-safe.
class IncoherentCache final : public Interposer, public Cache {
 public:
  static Result<std::unique_ptr<Interposer>> Make(
      const MappedMemory& memory, uint64_t seed,
      std::optional<Omission> omission, bool adversary);
  ~IncoherentCache() override;

  std::byte* base() const override { return shadow_->base(); }
  Coherence coherence() override {
    return Coherence(CoherenceMode::kFlush, this);
  }
  // Called once the pool is open: from then on each line has one writer.
  void Opened() override { shadow_->Seal(); }

  // Copies by a device of this host, to and from the process's view of the
  // pool.
  void DeviceWrite(std::byte* to, const std::byte* from, uint64_t bytes);
  void DeviceRead(std::byte* to, const std::byte* from, uint64_t bytes);
  // From now on, writes of devices never stay in this cache.
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
  // The random number generator splitmix64.
  struct Random {
    uint64_t state;
    uint64_t operator()();
    bool OneIn(uint64_t n) { return (*this)() % n == 0; }
  };
  // The write-backs and drops that one thread has started, and that no fence
  // has completed yet.
  struct Thread {
    std::mutex mutex;  // the adversary completes pending operations
    std::vector<Pending> pending;
    Random random;
    Range last;  // last range written back or dropped
    bool last_was_drop = false;
    bool fence_due = false;  // a full fence whose range the next drop tells
    bool fetches = false;    // loads of the last dropped line fetch it
    bool loaded = false;  // true if a flag was loaded since the last full fence
    uint64_t fenced = 0;  // number of device writes before the last full fence
    std::vector<Range> dropped_early;
  };

  IncoherentCache(std::unique_ptr<Shadow> shadow, uint64_t seed,
                  std::optional<Omission> omission, bool adversary);

  Thread& Self();
  Range RangeOf(const void* begin, size_t bytes) const;
  bool Omits(Omission::Operation operation, Region region) const {
    return omission_ == Omission{operation, region};
  }
  void Start(Thread& thread, const Range& range, bool drop);
  void Complete(Thread& thread, bool drops);
  void CompleteFullFence(Thread& thread);
  void Perform(const Pending& pending);
  // Returns a value so large that it ends every wait for a flag.
  uint64_t Satisfied() const;

  // The adversary's actions.
  void EvictAndPrefetch();
  void Disturb(Random& random);
  void Touch(Random& random, uint64_t offset, uint64_t bytes);
  void Note(const Range& range);
  Range PickNoted(Random& random, bool flags);
  static void HoldUp(Random& random);

  const uint64_t id_;  // identifies the cache in thread-local data
  std::unique_ptr<Shadow> shadow_;
  const uint64_t seed_;
  std::atomic<bool> devices_write_memory_{false};
  std::atomic<uint64_t> salt_{0};  // different for hosts of one seed
  const std::optional<Omission> omission_;
  const bool has_adversary_;

  std::mutex threads_mutex_;
  std::vector<std::unique_ptr<Thread>> threads_;

  // Ranges of payloads and flags that the protocol has used lately.
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

// Makes the interposers of a job. Each pool that is opened with the result gets
// the cache of a new host. The first host's seed is `seed`, and each further
// host's seed is one larger. `leave_out` is an Omission's name, or "" for none.
MakeInterposer IncoherentHosts(uint64_t seed, const std::string& leave_out,
                               bool adversary = true);

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_TESTING_INCOHERENT_INCOHERENT_CACHE_H_
