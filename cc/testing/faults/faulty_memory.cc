#include "cc/testing/faults/faulty_memory.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "cc/pool/coherence/cache.h"
#include "cc/pool/coherence/doorbell.h"
#include "cc/pool/layout/layout.h"
#include "cc/pool/layout/recorder_layout.h"
#include "cc/testing/incoherent/region.h"

namespace jax_cxl::fault {
namespace {

using pool::Region;

constexpr int kExitStatus = 70;
// The data of a doorbell start next to the doorbell, and have at least this
// many words.
constexpr uint64_t kScribbledWords = 4;

// Returns a value that differs from `value`. Equal arguments give equal
// results.
uint64_t Scramble(uint64_t value) {
  value = (value ^ 0x9e3779b97f4a7c15) * 0xbf58476d1ce4e5b9;
  return value ^ value >> 29 ^ value << 41;
}

void Corrupt(Point point, uint64_t* word) {
  if (word == nullptr) return;
  if (point == Point::kRung) {
    std::atomic_ref(*word).store(Scramble(*word));
    return;
  }
  for (uint64_t i = 1; i <= kScribbledWords; ++i)
    std::atomic_ref(word[i]).store(Scramble(word[i] + i));
}

// Returns true for flags of a channel. Only these are points for faults,
// because other threads of the process ring the other flags.
bool InChannel(Region flag) { return flag >= Region::kDirectoryReady; }

// Returns true if the region carries data of calls.
bool IsPayload(Region region) {
  return region == Region::kSlot || region == Region::kSubmission;
}

}  // namespace

// Passes every operation on to the rank's memory, and tells the injector when
// an operation is at a point for faults.
class Injector::Memory final : public pool::Interposer, public pool::Cache {
 public:
  Memory(const pool::MappedMemory& memory, Injector* injector,
         std::unique_ptr<pool::Interposer> behind)
      : injector_(injector),
        behind_(std::move(behind)),
        base_(behind_ == nullptr ? memory.base : behind_->base()),
        mode_(behind_ == nullptr ? memory.mode : behind_->coherence().mode()),
        regions_(base_, memory.extents, memory.world_size),
        recorder_(reinterpret_cast<pool::Recorder*>(
            base_ +
            pool::RecorderOffset(injector->fault_.rank, memory.world_size))) {
    if (behind_ != nullptr)
      cache_ = behind_->coherence().cache();
    else if (mode_ == pool::CoherenceMode::kFlush)
      cache_ = pool::HardwareCache();
  }

  std::byte* base() const override { return base_; }
  pool::Coherence coherence() override { return pool::Coherence(mode_, this); }
  void Opened() override {
    if (behind_ != nullptr) behind_->Opened();
    open_ = true;
  }

  void WriteBack(const void* begin, size_t bytes) override {
    ReadRecorder();
    if (IsPayload(RegionOf(begin, bytes))) injector_->Pass(Point::kStep);
    cache_->WriteBack(begin, bytes);
  }
  void Invalidate(const void* begin, size_t bytes) override {
    ReadRecorder();
    if (IsPayload(RegionOf(begin, bytes))) injector_->Pass(Point::kStep);
    cache_->Invalidate(begin, bytes);
  }
  void StoreFence() override {
    cache_->StoreFence();
    // A doorbell has rung once the fence after its store is done.
    if (uint64_t* flag = std::exchange(stored_, nullptr))
      injector_->Pass(Point::kRung, flag);
  }
  void FullFence() override { cache_->FullFence(); }
  uint64_t Load(const uint64_t* flag) override {
    ReadRecorder();
    if (InChannel(RegionOf(flag, sizeof(*flag)))) injector_->Pass(Point::kWait);
    return cache_->Load(flag);
  }
  void Store(uint64_t* flag, uint64_t value) override {
    ReadRecorder();
    if (!InChannel(RegionOf(flag, sizeof(*flag))))
      return cache_->Store(flag, value);
    injector_->Pass(Point::kRing, flag);
    cache_->Store(flag, value);
    stored_ = flag;
  }

 private:
  // Coherent or uncached memory: nothing needs to be written back or dropped.
  class Uncached final : public pool::Cache {
   public:
    void WriteBack(const void*, size_t) override {}
    void Invalidate(const void*, size_t) override {}
  };

  Region RegionOf(const void* begin, size_t bytes) const {
    if (!open_ || bytes == 0) return Region::kOther;
    return regions_.Find(static_cast<const std::byte*>(begin) - base_, bytes);
  }

  // Reads what the rank has recorded since its last operation, and passes the
  // points kSubmit, kStart and kFinish accordingly.
  void ReadRecorder() {
    if (!open_) return;
    std::lock_guard lock(mutex_);
    const uint64_t submitted = ValueOf(recorder_->submitted_calls.word);
    for (; seen_ < submitted; ++seen_) {
      {
        std::lock_guard calls(injector_->mutex_);
        injector_->call_ = seen_ + 1;
      }
      under_way_.push_back({seen_ + 1, false});
      injector_->Pass(Point::kSubmit);
    }
    for (size_t i = 0; i < under_way_.size();) {
      Call& call = under_way_[i];
      pool::CallRecord& record =
          recorder_->calls[call.number % pool::kRecordedCalls];
      if (!call.started && std::atomic_ref(record.started).load() != 0) {
        call.started = true;
        injector_->Pass(Point::kStart);
      }
      if (std::atomic_ref(record.finished).load() == 0) {
        ++i;
        continue;
      }
      under_way_.erase(under_way_.begin() + i);
      injector_->Pass(Point::kFinish);
    }
  }

  // Returns the value of a word that only this process writes.
  static uint64_t ValueOf(uint64_t& word) {
    return std::atomic_ref(word).load() & pool::kValueMask;
  }

  struct Call {
    uint64_t number;
    bool started;
  };

  Injector* const injector_;
  const std::unique_ptr<pool::Interposer> behind_;
  std::byte* const base_;
  const pool::CoherenceMode mode_;
  const pool::RegionMap regions_;
  pool::Recorder* const recorder_;
  Uncached uncached_;
  pool::Cache* cache_ = &uncached_;
  std::atomic<bool> open_{false};
  static inline thread_local uint64_t* stored_ = nullptr;

  std::mutex mutex_;
  uint64_t seen_ = 0;  // number of calls
  std::vector<Call> under_way_;
};

Injector::Injector(const Fault& fault, std::function<void()> observer)
    : fault_(fault), observer_(std::move(observer)) {}

Injector::~Injector() = default;

void Injector::ApplyTo(pool::PoolSpec* spec) {
  spec->make_interposer = [this, make = std::move(spec->make_interposer)](
                              const pool::MappedMemory& memory)
      -> Result<std::unique_ptr<pool::Interposer>> {
    std::unique_ptr<pool::Interposer> behind;
    if (make) {
      CXL_ASSIGN_OR_RETURN(behind, make(memory));
    }
    return std::unique_ptr<pool::Interposer>(
        std::make_unique<Memory>(memory, this, std::move(behind)));
  };
}

uint64_t Injector::passes(Point point) const {
  std::lock_guard lock(mutex_);
  return passes_[static_cast<int>(point)];
}

void Injector::Pass(Point point, uint64_t* word) {
  {
    std::lock_guard lock(mutex_);
    if (call_ < fault_.call) return;
    const uint64_t pass = ++passes_[static_cast<int>(point)];
    if (happened_ || point != fault_.point || pass != fault_.pass) return;
    happened_ = true;
  }
  if (observer_) observer_();
  Act(point, word);
}

void Injector::Act(Point point, uint64_t* word) const {
  switch (fault_.action) {
    case Action::kKill:
      kill(getpid(), SIGKILL);
      break;
    case Action::kStop:
      kill(getpid(), SIGSTOP);
      break;
    case Action::kExit:
      _exit(kExitStatus);
    case Action::kDelay:
      std::this_thread::sleep_for(
          std::chrono::duration<double>(fault_.seconds));
      break;
    case Action::kCorrupt:
      Corrupt(point, word);
      break;
  }
}

}  // namespace jax_cxl::fault
