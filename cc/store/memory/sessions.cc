#include "cc/store/memory/sessions.h"

#include <time.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <iterator>
#include <limits>
#include <utility>

#include "cc/base/idle.h"
#include "cc/pool/layout/header.h"

namespace jax_cxl::pool {
namespace {

// How long a process waits after it has stored its identity in a slot, before
// it checks that no other process has taken the slot as well. This is usually
// longer than the time between another process's look at the slot and its
// store.
constexpr auto kSettle = std::chrono::milliseconds(5);
constexpr auto kPoll = std::chrono::microseconds(200);

using SessionWords = std::array<uint64_t, sizeof(SessionSlot) / 8>;

// Indices of words of a SessionSlot.
constexpr size_t kIdentity = offsetof(SessionSlot, identity) / 8;
constexpr size_t kHeartbeat = offsetof(SessionSlot, heartbeat) / 8;
constexpr size_t kChoosing = offsetof(SessionSlot, choosing) / 8;
constexpr size_t kTicket = offsetof(SessionSlot, ticket) / 8;
constexpr size_t kLeases = offsetof(SessionSlot, leases) / 8;

// Tickets are small: they grow only while processes wait for the lock.
constexpr uint64_t kTickets = uint64_t{1} << 32;

std::chrono::nanoseconds SinceBoot() {
  timespec now;
  clock_gettime(CLOCK_BOOTTIME, &now);
  return std::chrono::seconds(now.tv_sec) +
         std::chrono::nanoseconds(now.tv_nsec);
}

// Makes this thread's earlier stores come before its later loads. Otherwise the
// processor may execute a load before an earlier store to another word. If two
// processes each store a word and then load the other's word, neither might
// then see the other's store.
void StoresBeforeLoads() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

// Counts the leases that this process makes, to number them. A child process
// continues the count of its parent. So no new lease of the child has the
// number of a lease that was copied from the parent.
std::atomic<uint64_t> leases_made = 0;

}  // namespace

Sessions::Sessions(const PersistentMemory& memory, std::vector<int> devices,
                   uint64_t offset, Clock::duration expiry)
    : memory_(memory),
      devices_(std::move(devices)),
      offset_(offset),
      expiry_(expiry) {}

Sessions::~Sessions() {
  if (getpid() != creator_) {
    (void)beating_.release();
    return;
  }
  StopBeating();
  if (slot_ < 0) return;
  if (LoadMax(slot_, kIdentity) != identity_) return;
  for (int i = 0; i < kMaxLeases; ++i)
    if (leased_[i] != 0) (void)Store(slot_, kLeases + i, 0);
  (void)Store(slot_, kIdentity, 0);
}

uint64_t Sessions::OffsetOf(int slot, size_t word) const {
  return offset_ + slot * sizeof(SessionSlot) + word * sizeof(uint64_t);
}

Status Sessions::Store(int slot, size_t word, uint64_t value) const {
  Status status;
  bool stored = false;
  for (int device : devices_) {
    Status here = memory_.StoreWord(device, OffsetOf(slot, word), value);
    stored |= here.ok();
    if (!here.ok()) status = std::move(here);
  }
  StoresBeforeLoads();
  return stored ? OkStatus() : status;  // A lost device is left out.
}

std::vector<uint64_t> Sessions::Load(int slot, size_t word) const {
  std::vector<uint64_t> words;
  for (int device : devices_) {
    const Result<uint64_t> found =
        memory_.LoadWord(device, OffsetOf(slot, word));
    if (found.ok()) words.push_back(*found);
  }
  return words;
}

uint64_t Sessions::LoadMax(int slot, size_t word) const {
  const std::vector<uint64_t> words = Load(slot, word);
  return words.empty() ? 0 : *std::max_element(words.begin(), words.end());
}

// Loads a slot, word by word, because the slot's owner may be changing it.
Result<SessionSlot> Sessions::ReadSlot(int device, int slot) const {
  SessionWords words;
  for (size_t i = 0; i < words.size(); ++i) {
    CXL_ASSIGN_OR_RETURN(words[i], memory_.LoadWord(device, OffsetOf(slot, i)));
  }
  return std::bit_cast<SessionSlot>(words);
}

Result<SessionSlot> Sessions::ReadSlot(int slot) const {
  Result<SessionSlot> read =
      Error(Code::kDataLoss,
            "no device has a table of sessions; repair the memory "
            "(python -m jax_cxl store repair)");
  for (int device : devices_)
    if ((read = ReadSlot(device, slot)).ok()) break;
  return read;
}

// Each word is judged alone, because the slot's owner may be changing the slot,
// or may have been killed while it did.
bool Sessions::IsDamaged(int device, int slot) const {
  const Result<SessionSlot> read = ReadSlot(device, slot);
  if (!read.ok()) return false;  // A lost device is left out.
  if (read->choosing > 1 || read->ticket >= kTickets) return true;
  const ProcessIdentity& process = read->process;
  const auto printable = [](char c) {
    return c == 0 || (c >= ' ' && c <= '~');
  };
  return process.pid < 0 || process.pid > std::numeric_limits<int32_t>::max() ||
         !std::ranges::all_of(process.boot_id, printable) ||
         std::end(process.boot_id)[-1] != 0 || std::end(process.host)[-1] != 0;
}

std::vector<std::pair<int, uint64_t>> Sessions::Damaged() const {
  std::vector<std::pair<int, uint64_t>> found;
  for (int slot = 0; slot < kMaxSessions; ++slot)
    for (int device : devices_)
      if (IsDamaged(device, slot))
        found.emplace_back(device, OffsetOf(slot, 0));
  if (found.empty()) return found;
  // Look again: a repair may be clearing the table.
  std::this_thread::sleep_for(kSettle);
  std::erase_if(found, [&](const auto& at) {
    const uint64_t slot = (at.second - offset_) / sizeof(SessionSlot);
    return !IsDamaged(at.first, static_cast<int>(slot));
  });
  return found;
}

Status Sessions::CheckDamage() const {
  const auto found = Damaged();
  if (found.empty()) return OkStatus();
  const auto [device, offset] = found[0];
  return Error(Code::kDataLoss,
               "the table of sessions of this store is damaged (", found.size(),
               " slots, the first at offset ", offset, " of device ", device,
               "). End all programs that use the store, then repair it by "
               "`python -m jax_cxl store repair`");
}

bool Sessions::IsLiving(int slot, const SessionSlot& read) {
  if (read.identity == 0) return false;
  if (PidMeansTheSame(read.process) && HasEnded(read.process)) return false;
  const uint64_t heartbeat = LoadMax(slot, kHeartbeat);
  const Clock::time_point now = Clock::now();
  std::lock_guard lock(seen_mutex_);
  Seen& seen = seen_[slot];
  if (seen.identity != read.identity || seen.heartbeat != heartbeat)
    seen = {read.identity, heartbeat, now};
  return now - seen.since < expiry_;
}

Result<bool> Sessions::TryToTake(int slot, uint64_t identity) {
  CXL_ASSIGN_OR_RETURN(const SessionSlot found, ReadSlot(slot));
  if (IsLiving(slot, found)) return false;
  for (int device : devices_)
    if (IsDamaged(device, slot)) return false;
  CXL_RETURN_IF_ERROR(Store(slot, kIdentity, identity));
  std::this_thread::sleep_for(kSettle);
  for (uint64_t word : Load(slot, kIdentity))
    if (word != identity) return false;  // Another process took it as well.
  SessionSlot fresh = {};
  fresh.process = ThisProcess();
  const auto words = std::bit_cast<SessionWords>(fresh);
  for (size_t i = 1; i < words.size(); ++i)
    CXL_RETURN_IF_ERROR(Store(slot, i, words[i]));
  return true;
}

Result<Sessions::Own> Sessions::Enter() {
  std::lock_guard entering(enter_mutex_);
  {
    std::lock_guard lock(mutex_);
    if (slot_ >= 0) return Own{slot_, identity_};
  }
  StopBeating();
  CXL_ASSIGN_OR_RETURN(const uint64_t identity, RandomToken());
  for (int i = 0; i < kMaxSessions; ++i) {
    const int slot = static_cast<int>((identity / 2 + i) % kMaxSessions);
    CXL_ASSIGN_OR_RETURN(const bool taken, TryToTake(slot, identity));
    if (!taken) continue;
    std::lock_guard lock(mutex_);
    slot_ = slot;
    identity_ = identity;
    last_beat_ = SinceBoot();
    leased_.fill(0);
    numbers_.fill(0);
    stopping_ = false;
    beating_->thread = StartOwnThread([this] { Beat(); });
    return Own{slot_, identity_};
  }
  CXL_RETURN_IF_ERROR(CheckDamage());
  return Error(Code::kResourceExhausted, "all ", kMaxSessions,
               " sessions of this memory are in use: close some of the "
               "programs that read it");
}

bool Sessions::StoodStill() const {
  return SinceBoot() - last_beat_ > expiry_ / 2;
}

void Sessions::Beat() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (StoodStill()) ++epoch_;
    memory_.CheckFiles();
    if (LoadMax(slot_, kIdentity) != identity_) {
      // Another process took the slot, because it saw no heartbeats. So all
      // leases are lost. The next call of Enter takes another slot.
      ++epoch_;
      slot_ = -1;
      return;
    }
    (void)Store(slot_, kHeartbeat, ++heartbeat_);
    last_beat_ = SinceBoot();
    beating_->stop.wait_for(lock, kBeat, [this] { return stopping_; });
  }
}

void Sessions::StopBeating() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  beating_->stop.notify_all();
  if (beating_->thread.joinable()) beating_->thread.join();
}

Result<Sessions::Lease> Sessions::AddLease(uint64_t what) {
  std::unique_lock lock(mutex_);
  while (slot_ < 0) {  // Another process may take the slot again and again.
    lock.unlock();
    CXL_RETURN_IF_ERROR(Enter().status());
    lock.lock();
  }
  const auto free = std::find(leased_.begin(), leased_.end(), 0);
  if (free == leased_.end())
    return Error(Code::kResourceExhausted, "this process already reads ",
                 kMaxLeases,
                 " versions of this memory: close views that it no longer "
                 "needs, and drop their arrays");
  const int index = static_cast<int>(free - leased_.begin());
  if (StoodStill()) ++epoch_;
  CXL_RETURN_IF_ERROR(Store(slot_, kLeases + index, what));
  leased_[index] = what;
  numbers_[index] = ++leases_made;
  return Lease{index, epoch_, numbers_[index]};
}

void Sessions::RemoveLease(const Lease& lease) {
  if (getpid() != creator_) return;  // It is the parent's.
  std::lock_guard lock(mutex_);
  if (slot_ < 0 || numbers_[lease.index] != lease.number) return;
  (void)Store(slot_, kLeases + lease.index, 0);
  leased_[lease.index] = numbers_[lease.index] = 0;
}

bool Sessions::Holds(const Lease& lease) {
  if (getpid() != creator_) return false;
  std::lock_guard lock(mutex_);
  return slot_ >= 0 && numbers_[lease.index] == lease.number &&
         epoch_ == lease.epoch && !StoodStill();
}

Result<std::vector<std::string>> Sessions::HoldersOf(uint64_t what) {
  StoresBeforeLoads();
  std::vector<std::string> holders;
  for (int slot = 0; slot < kMaxSessions; ++slot) {
    if (LoadMax(slot, kIdentity) == 0) continue;
    for (int device : devices_) {
      const Result<SessionSlot> read = ReadSlot(device, slot);
      if (!read.ok() || std::ranges::count(read->leases, what) == 0) continue;
      if (IsLiving(slot, *read))
        holders.push_back(DescribeProcess(read->process));
      break;
    }
  }
  return holders;
}

Result<std::optional<std::string>> Sessions::Living(int slot,
                                                    uint64_t identity) {
  std::optional<std::string> who;
  if (slot < 0 || slot >= kMaxSessions) return who;
  CXL_ASSIGN_OR_RETURN(const SessionSlot read, ReadSlot(slot));
  if (read.identity == identity && IsLiving(slot, read))
    who = DescribeProcess(read.process);
  return who;
}

Status Sessions::Lock(double timeout_s) {
  lock_mutex_.lock();
  locking_ = std::this_thread::get_id();
  const std::chrono::duration<double> timeout(timeout_s);
  const auto deadline =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(timeout);
  Status status = [&]() -> Status {
    CXL_ASSIGN_OR_RETURN(const Own own, Enter());
    CXL_RETURN_IF_ERROR(CheckDamage());
    {
      std::lock_guard lock(mutex_);
      locked_epoch_ = epoch_;
    }
    CXL_RETURN_IF_ERROR(Store(own.slot, kChoosing, 1));
    uint64_t ticket = 0;
    for (int slot = 0; slot < kMaxSessions; ++slot)
      ticket = std::max(ticket, LoadMax(slot, kTicket));
    ++ticket;
    CXL_RETURN_IF_ERROR(Store(own.slot, kTicket, ticket));
    CXL_RETURN_IF_ERROR(Store(own.slot, kChoosing, 0));
    for (int slot = 0; slot < kMaxSessions; ++slot)
      if (slot != own.slot)
        CXL_RETURN_IF_ERROR(WaitFor(slot, own.slot, ticket, deadline));
    return OkStatus();
  }();
  if (!status.ok()) Unlock();
  return status;
}

Status Sessions::WaitFor(int slot, int own, uint64_t ticket,
                         Clock::time_point deadline) {
  while (true) {
    const uint64_t theirs = LoadMax(slot, kTicket);
    const bool first =
        theirs == 0 || theirs > ticket || (theirs == ticket && slot > own);
    if (first && LoadMax(slot, kChoosing) == 0) {
      // The other process may have taken a new ticket between these two loads.
      // Then look again.
      if (LoadMax(slot, kTicket) == theirs) return OkStatus();
      continue;
    }
    CXL_ASSIGN_OR_RETURN(const SessionSlot read, ReadSlot(slot));
    if (!IsLiving(slot, read)) return OkStatus();
    if (Clock::now() > deadline)
      return Error(
          Code::kDeadlineExceeded, DescribeProcess(read.process),
          " has not released the lock of this memory, which processes take "
          "to add or delete a name; try again, or end that process");
    std::this_thread::sleep_for(kPoll);
  }
}

void Sessions::Unlock() {
  if (locking_.load() != std::this_thread::get_id()) return;
  {
    std::lock_guard lock(mutex_);
    if (slot_ >= 0) {
      (void)Store(slot_, kChoosing, 0);
      (void)Store(slot_, kTicket, 0);
    }
  }
  locking_ = std::thread::id();
  lock_mutex_.unlock();
}

Status Sessions::CheckLocked() {
  std::lock_guard lock(mutex_);
  if (slot_ >= 0 && epoch_ == locked_epoch_ && !StoodStill()) return OkStatus();
  return Error(Code::kFailedPrecondition,
               "this process stood still while it held the lock of this "
               "memory, so another process may have taken the lock; try again");
}

}  // namespace jax_cxl::pool
