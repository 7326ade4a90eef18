#ifndef JAX_CXL_STORE_MEMORY_SESSIONS_H_
#define JAX_CXL_STORE_MEMORY_SESSIONS_H_

#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cc/base/process_identity.h"
#include "cc/base/status.h"
#include "cc/store/memory/persistent_memory.h"

namespace jax_cxl::pool {

inline constexpr int kMaxSessions = 512;
inline constexpr int kMaxLeases = 40;

// The slot in which a process that uses the memory describes itself. Only that
// process writes its slot, and other processes read it.
struct SessionSlot {
  uint64_t identity;  // random; 0 while the slot is free
  uint64_t heartbeat;
  uint64_t choosing;  // 1 while the process takes a ticket
  uint64_t ticket;    // for the lock; 0 if the process does not want it
  uint64_t unused[4];
  ProcessIdentity process;
  uint64_t leases[kMaxLeases];  // what must stay as it is; 0: nothing
};
static_assert(sizeof(SessionSlot) == 512);

// Keeps track of the processes that use persistent memory: which of them are
// alive, and which data they lease. Writers must not reuse leased data. There
// is also a lock for rare changes. All of this works between hosts whose caches
// are not coherent and that have no common atomic operations, because each word
// has only one writer.
//
// The session of a process ends when the process ends. Other processes also
// regard it as ended if its heartbeat stops for `kExpiry`. A process that was
// stopped for half of that time treats its own leases as lost, before others
// do.
//
// Thread-safe. A forked child process has no leases. To take part, it needs an
// object of its own.
class Sessions {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr auto kBeat = std::chrono::milliseconds(200);
  static constexpr auto kExpiry = std::chrono::seconds(10);
  // The size of the table of sessions.
  static constexpr uint64_t kBytes = kMaxSessions * sizeof(SessionSlot);

  struct Lease {
    int index;        // in the slot
    uint64_t epoch;   // how often this process had lost its leases
    uint64_t number;  // no other lease of this process has it
  };

  // Uses the tables of sessions at `offset` of each of `devices`. These tables
  // are copies of one another. `memory` must outlive this object. Takes no slot
  // yet.
  Sessions(const PersistentMemory& memory, std::vector<int> devices,
           uint64_t offset, Clock::duration expiry = kExpiry);
  // Gives the slot of this process back.
  ~Sessions();
  Sessions(const Sessions&) = delete;
  Sessions& operator=(const Sessions&) = delete;

  // Takes a slot and starts the heartbeat, if this process has no slot. Returns
  // the slot and the identity of its session. Fails with kResourceExhausted if
  // all slots are taken.
  struct Own {
    int slot;
    uint64_t identity;
  };
  Result<Own> Enter();

  // Adds a lease, which asks writers not to change the data `what` (a number
  // that is not 0). Afterward the caller must check that the data are still
  // there, because a writer may have removed them before it could see the
  // lease.
  Result<Lease> AddLease(uint64_t what);
  void RemoveLease(const Lease& lease);

  // Returns false if writers may have ignored the lease, because this process
  // was stopped for too long.
  bool Holds(const Lease& lease);

  // Returns which living processes lease `what`, such as "process 12 (python3)
  // on host a". The caller must have removed `what` from where readers find it,
  // so that no other session can begin to lease it.
  Result<std::vector<std::string>> HoldersOf(uint64_t what);

  // Returns a text that names the process of this session, or nothing if the
  // session has ended.
  Result<std::optional<std::string>> Living(int slot, uint64_t identity);

  // Waits until this process has the lock. Fails with kDeadlineExceeded after
  // `timeout_s`. Uses Lamport's bakery algorithm: each process takes a ticket,
  // and the process with the lowest ticket gets the lock.
  Status Lock(double timeout_s);
  // Releases the lock. Does nothing if this thread does not have it.
  void Unlock();
  // Fails if this process may have lost the lock because it was stopped.
  Status CheckLocked();

  // Returns devices and offsets of slots with words that no process stores. If
  // no process uses the memory, zeros repair them.
  std::vector<std::pair<int, uint64_t>> Damaged() const;

 private:
  struct Seen {
    uint64_t identity = 0;
    uint64_t heartbeat = 0;
    Clock::time_point since;
  };

  struct Beating {
    std::condition_variable stop;
    std::thread thread;
  };

  uint64_t OffsetOf(int slot, size_t word) const;
  Status Store(int slot, size_t word, uint64_t value) const;
  // Returns the value of a slot's word on each device that can be read.
  std::vector<uint64_t> Load(int slot, size_t word) const;
  uint64_t LoadMax(int slot, size_t word) const;
  Result<SessionSlot> ReadSlot(int device, int slot) const;
  // Reads a slot on the first device that can be read.
  Result<SessionSlot> ReadSlot(int slot) const;
  bool IsDamaged(int device, int slot) const;
  Status CheckDamage() const;  // kDataLoss if a slot is damaged
  bool IsLiving(int slot, const SessionSlot& read);
  Result<bool> TryToTake(int slot, uint64_t identity);
  Status WaitFor(int slot, int own, uint64_t ticket,
                 Clock::time_point deadline);
  void Beat();
  void StopBeating();
  bool StoodStill() const;  // requires mutex_

  const PersistentMemory& memory_;
  const std::vector<int> devices_;
  const uint64_t offset_;
  const Clock::duration expiry_;
  const pid_t creator_ = getpid();

  std::mutex enter_mutex_;
  std::mutex mutex_;
  // A pointer, because a forked child process must not destroy this object: the
  // thread does not exist there.
  std::unique_ptr<Beating> beating_ = std::make_unique<Beating>();
  bool stopping_ = false;
  int slot_ = -1;
  uint64_t identity_ = 0;
  uint64_t heartbeat_ = 0;
  std::chrono::nanoseconds last_beat_{0};  // also counts while the host sleeps
  uint64_t epoch_ = 0;
  std::array<uint64_t, kMaxLeases> leased_{};   // as in the slot
  std::array<uint64_t, kMaxLeases> numbers_{};  // of the leases

  std::mutex lock_mutex_;  // held while this process has the lock
  std::atomic<std::thread::id> locking_{};
  uint64_t locked_epoch_ = 0;

  std::mutex seen_mutex_;
  std::vector<Seen> seen_{kMaxSessions};
};

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_STORE_MEMORY_SESSIONS_H_
