#include "cc/testing/incoherent/incoherent_cache.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <unordered_map>
#include <utility>

#include "cc/pool/layout/layout.h"

namespace jax_cxl::pool {
namespace {

using Operation = Omission::Operation;

// Ranges are split at multiples of this number of bytes, so that their parts
// can move in any order.
constexpr uint64_t kPart = 1024;
// How often the adversary's own thread acts, and on how many bytes of the pool.
// It moves on each time, and so reaches every line.
constexpr auto kSweepEvery = std::chrono::microseconds(500);
constexpr uint64_t kSweepBytes = 64 * Shadow::kLine;

uint64_t NextId() {
  static std::atomic<uint64_t> next{1};
  return next++;
}

}  // namespace

uint64_t IncoherentCache::Random::operator()() {
  uint64_t z = state += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

IncoherentCache::IncoherentCache(std::unique_ptr<Shadow> shadow, uint64_t seed,
                                 std::optional<Omission> omission,
                                 bool adversary)
    : id_(NextId()),
      shadow_(std::move(shadow)),
      seed_(seed),
      omission_(omission),
      has_adversary_(adversary) {}

Result<std::unique_ptr<Interposer>> IncoherentCache::Make(
    const MappedMemory& memory, uint64_t seed, std::optional<Omission> omission,
    bool adversary) {
  CXL_ASSIGN_OR_RETURN(std::unique_ptr<Shadow> shadow,
                       Shadow::Create(memory.base, memory.bytes, memory.extents,
                                      memory.world_size));
  std::unique_ptr<IncoherentCache> cache(
      new IncoherentCache(std::move(shadow), seed, omission, adversary));
  if (adversary)
    cache->adversary_ = memory.start_thread(
        [cache = cache.get()] { cache->EvictAndPrefetch(); });
  return std::unique_ptr<Interposer>(std::move(cache));
}

MakeInterposer IncoherentHosts(uint64_t seed, const std::string& leave_out,
                               bool adversary) {
  auto next = std::make_shared<std::atomic<uint64_t>>(seed);
  return
      [next, leave_out, adversary](
          const MappedMemory& memory) -> Result<std::unique_ptr<Interposer>> {
        CXL_ASSIGN_OR_RETURN(const std::optional<Omission> omission,
                             ParseOmission(leave_out));
        return IncoherentCache::Make(memory, (*next)++, omission, adversary);
      };
}

IncoherentCache::~IncoherentCache() {
  {
    std::lock_guard lock(stop_mutex_);
    stop_ = true;
  }
  stop_changed_.notify_all();
  if (adversary_.joinable()) adversary_.join();
}

IncoherentCache::Thread& IncoherentCache::Self() {
  thread_local std::unordered_map<uint64_t, Thread*> known;
  Thread*& thread = known[id_];
  if (thread == nullptr) {
    std::lock_guard lock(threads_mutex_);
    threads_.push_back(std::make_unique<Thread>());
    thread = threads_.back().get();
    thread->random.state = (seed_ * 1024 + salt_) * 1024 + threads_.size();
  }
  return *thread;
}

IncoherentCache::Range IncoherentCache::RangeOf(const void* begin,
                                                size_t bytes) const {
  Range range{shadow_->OffsetOf(begin), bytes, Region::kOther};
  range.region = shadow_->regions().Find(range.offset, bytes);
  return range;
}

void IncoherentCache::DeviceWrite(std::byte* to, const std::byte* from,
                                  uint64_t bytes) {
  Thread& self = Self();
  std::lock_guard lock(self.mutex);
  Random& random = self.random;
  const uint64_t begin = shadow_->OffsetOf(to);
  Note({begin, bytes, Region::kSlot});
  for (uint64_t at = 0; at < bytes;) {
    const uint64_t part = std::min(bytes - at, kPart - (begin + at) % kPart);
    shadow_->DeviceWrite(begin + at, from + at, part);
    if (devices_write_memory_ || (has_adversary_ && random.OneIn(4)))
      shadow_->WriteBack(begin + at, part);
    Disturb(random);
    at += part;
  }
}

void IncoherentCache::DeviceRead(std::byte* to, const std::byte* from,
                                 uint64_t bytes) {
  Thread& self = Self();
  std::lock_guard lock(self.mutex);
  Random& random = self.random;
  const uint64_t begin = shadow_->OffsetOf(from);
  for (uint64_t at = 0; at < bytes;) {
    const uint64_t part = std::min(bytes - at, kPart - (begin + at) % kPart);
    // A line may have left the cache, so that the device reads it from memory.
    if (has_adversary_ && random.OneIn(8)) shadow_->Refresh(begin + at, part);
    shadow_->DeviceRead(begin + at, to + at, part);
    Disturb(random);
    at += part;
  }
}

void IncoherentCache::WriteBack(const void* begin, size_t bytes) {
  if (bytes == 0) return;
  const Range range = RangeOf(begin, bytes);
  if (range.region == Region::kRankInfo)
    salt_ = shadow_->regions().OwnerOf(range.offset) + 1;
  Note(range);
  Thread& self = Self();
  std::lock_guard lock(self.mutex);
  if (std::exchange(self.fence_due, false) &&
      !Omits(Operation::kFenceBefore, range.region))
    CompleteFullFence(self);
  Disturb(self.random);
  self.last = range;
  self.last_was_drop = false;
  if (!Omits(Operation::kWriteBack, range.region)) Start(self, range, false);
}

void IncoherentCache::Invalidate(const void* begin, size_t bytes) {
  if (bytes == 0) return;
  const Range range = RangeOf(begin, bytes);
  Note(range);
  Thread& self = Self();
  std::lock_guard lock(self.mutex);
  if (std::exchange(self.fence_due, false) &&
      !Omits(Operation::kFenceBefore, range.region))
    CompleteFullFence(self);
  Disturb(self.random);
  self.last = range;
  self.last_was_drop = true;
  self.fetches = !Omits(Operation::kInvalidate, range.region) &&
                 !Omits(Operation::kFenceAfter, range.region);
  if (!Omits(Operation::kInvalidate, range.region)) Start(self, range, true);
}

void IncoherentCache::StoreFence() {
  Thread& self = Self();
  std::lock_guard lock(self.mutex);
  if (Omits(Operation::kStoreFence, self.last.region) && !self.last_was_drop)
    return;
  Complete(self, /*drops=*/false);
}

void IncoherentCache::FullFence() {
  Thread& self = Self();
  std::lock_guard lock(self.mutex);
  if (!std::exchange(self.last_was_drop, false)) {
    self.fence_due = true;
    return;
  }
  if (Omits(Operation::kFenceAfter, self.last.region)) return;
  CompleteFullFence(self);
}

uint64_t IncoherentCache::Load(const uint64_t* flag) {
  const Range range = RangeOf(flag, sizeof(*flag));
  if (Omits(Operation::kWait, range.region)) return Satisfied();
  Thread& self = Self();
  std::lock_guard lock(self.mutex);
  if (std::exchange(self.fence_due, false)) CompleteFullFence(self);
  Disturb(self.random);
  if (has_adversary_ && self.random.OneIn(8)) {
    // If no full fence comes between this load and a later drop, the drop may
    // happen before the load. So choose a range that the thread is likely to
    // drop next, and drop it now.
    Range early = PickNoted(self.random, /*flags=*/false);
    if (self.random.OneIn(2)) early = {range.offset, 512, range.region};
    if (early.bytes > 0 && self.dropped_early.size() < 16) {
      shadow_->Refresh(early.offset, early.bytes);
      self.dropped_early.push_back(early);
      std::this_thread::yield();
      HoldUp(self.random);
      // If the flag's line was dropped before this load, the load itself
      // fetches the line.
      if (self.fetches) shadow_->Refresh(range.offset, range.bytes);
    }
  }
  self.loaded = true;
  return __atomic_load_n(flag, __ATOMIC_ACQUIRE);
}

void IncoherentCache::Store(uint64_t* flag, uint64_t value) {
  __atomic_store_n(flag, value, __ATOMIC_RELEASE);
}

void IncoherentCache::Start(Thread& thread, const Range& range, bool drop) {
  const uint64_t end = range.offset + range.bytes;
  for (uint64_t at = range.offset; at < end;) {
    const uint64_t next = std::min(end, RoundDown(at, kPart) + kPart);
    const Pending part{{at, next - at, range.region}, drop};
    at = next;
    const bool overtook =
        drop && thread.loaded && !IsFlag(range.region) &&
        std::ranges::any_of(thread.dropped_early, [&](const Range& early) {
          return early.offset <= part.range.offset &&
                 part.range.offset + part.range.bytes <=
                     early.offset + early.bytes;
        });
    if (overtook) continue;
    if (!drop &&
        shadow_->LastDeviceWrite(part.range.offset, part.range.bytes) >
            thread.fenced &&
        thread.random.OneIn(2))
      continue;  // it has happened before the device's write
    if (thread.random.OneIn(2))
      Perform(part);
    else
      thread.pending.push_back(part);
  }
}

void IncoherentCache::Complete(Thread& thread, bool drops) {
  std::vector<Pending> left;
  std::vector<Pending>& all = thread.pending;
  for (size_t i = all.size(); i > 1; --i)
    std::swap(all[i - 1], all[thread.random() % i]);
  for (const Pending& pending : all) {
    if (pending.drop && !drops) {
      left.push_back(pending);
      continue;
    }
    Perform(pending);
    Disturb(thread.random);
  }
  all = std::move(left);
}

void IncoherentCache::CompleteFullFence(Thread& thread) {
  Complete(thread, /*drops=*/true);
  thread.loaded = false;
  thread.fenced = shadow_->device_writes();
  thread.dropped_early.clear();
}

void IncoherentCache::Perform(const Pending& pending) {
  const Range& range = pending.range;
  if (pending.drop)
    shadow_->Drop(range.offset, range.bytes);
  else
    shadow_->WriteBack(range.offset, range.bytes);
}

uint64_t IncoherentCache::Satisfied() const {
  const auto* header = reinterpret_cast<const PoolHeader*>(base());
  return header->epoch << kValueBits | ((uint64_t{1} << 40) - 1);
}

void IncoherentCache::EvictAndPrefetch() {
  Random random{seed_ ^ id_ << 32};
  uint64_t sweep = random() % shadow_->bytes();
  std::unique_lock lock(stop_mutex_);
  while (!stop_changed_.wait_for(lock, kSweepEvery, [this] { return stop_; })) {
    lock.unlock();
    for (int i = 0; i < 16; ++i) Disturb(random);
    sweep = RoundDown(sweep, Shadow::kLine);
    Touch(random, sweep, kSweepBytes);
    sweep = (sweep + kSweepBytes) % shadow_->bytes();
    // Sometimes complete the pending operations of a thread, so that none stays
    // pending forever.
    std::lock_guard threads(threads_mutex_);
    for (auto& thread : threads_) {
      if (!random.OneIn(4)) continue;
      std::unique_lock busy(thread->mutex, std::try_to_lock);
      if (busy.owns_lock()) Complete(*thread, /*drops=*/true);
    }
    lock.lock();
  }
}

// Sometimes writes back or refreshes a few lines, and delays the thread.
void IncoherentCache::Disturb(Random& random) {
  if (!has_adversary_ || !random.OneIn(8)) return;
  for (uint64_t left = random() % 4; left > 0; --left) {
    const Range range = PickNoted(random, random.OneIn(4));
    uint64_t at = random() % shadow_->bytes();
    // Usually choose a line of the range, or one of the lines before and after
    // it, because processors prefetch neighbors.
    if (range.bytes > 0 && !random.OneIn(8))
      at = range.offset + random() % (range.bytes + 2 * Shadow::kLine);
    at -= std::min(at, Shadow::kLine);
    Touch(random, RoundDown(at, Shadow::kLine), Shadow::kLine);
  }
  HoldUp(random);
}

void IncoherentCache::Touch(Random& random, uint64_t offset, uint64_t bytes) {
  if (random.OneIn(2))
    shadow_->WriteBack(offset, bytes);
  else
    shadow_->Refresh(offset, bytes);
}

void IncoherentCache::Note(const Range& range) {
  std::lock_guard lock(noted_mutex_);
  Noted& noted = noted_[IsFlag(range.region)];
  noted.ranges[noted.count++ % noted.ranges.size()] = range;
}

IncoherentCache::Range IncoherentCache::PickNoted(Random& random, bool flags) {
  std::lock_guard lock(noted_mutex_);
  return noted_[flags].ranges[random() % noted_[flags].ranges.size()];
}

void IncoherentCache::HoldUp(Random& random) {
  if (random.OneIn(16)) std::this_thread::yield();
  if (random.OneIn(256))
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 64));
}

}  // namespace jax_cxl::pool
