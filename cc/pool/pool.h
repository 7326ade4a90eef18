#ifndef JAX_CXL_POOL_POOL_H_
#define JAX_CXL_POOL_POOL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cc/base/status.h"
#include "cc/pool/claim.h"
#include "cc/pool/coherence/coherence.h"
#include "cc/pool/coherence/doorbell.h"
#include "cc/pool/coherence/interposer.h"
#include "cc/pool/layout/geometry.h"
#include "cc/pool/layout/layout.h"
#include "cc/pool/layout/recorder_layout.h"
#include "cc/pool/mapping/map.h"
#include "cc/pool/mapping/mapping_guard.h"
#include "cc/pool/media/medium.h"
#include "cc/pool/open/file.h"
#include "cc/pool/open/unique_fd.h"

namespace jax_cxl::pool {

// A mapped pool: one contiguous range of addresses over all extents.
//
// Exactly one process of a job creates (formats) the pool. It hands `token()`
// to the other processes, which attach. Every process holds a shared lock on
// each path while it lives. So other jobs can tell a pool in use from the
// leftovers of a dead job.
//
// Locks keep out only processes of the same kernel, but processes on other
// hosts may map every medium except Shm. Therefore, for media other than Shm,
// creators also check the heartbeats of older jobs, and the members of a job
// notice when another job formats their pool.
//
// After `Unlink`, files that the job created have no names. The kernel frees
// them when the last process of the job ends, however that process ends. The
// name of a Shm pool stays reserved until its creator ends, so that two jobs
// never share a pool by accident.
//
// Thread-safe, except for Unlink and KeepNames.
class Pool {
 public:
  // Creates a pool for `world_size` ranks in new files, or in existing files or
  // devices that no living job uses. Reserves all of its space, and writes the
  // header. For Shm, and for paths of File that do not exist, creates files of
  // mode 0600.
  //
  // With PoolSpec::idle_arena_bytes, the rest of the arenas and of the
  // recorders are zeros that nobody may access before Reserve: without space,
  // an access raises SIGBUS. Channels may be opened, but not used: what
  // DeviceConnection::Open writes, it reserves.
  //
  // Errors: kResourceExhausted (the message names how many bytes are needed and
  // how many are free), kNotFound, kPermissionDenied, kAlreadyExists (another
  // living job uses the pool; the message names one of its processes),
  // kInvalidArgument (wrong or misaligned arguments), kDataLoss (an existing
  // file is not a jax_cxl pool), and kUnimplemented (this processor lacks
  // instructions that the coherence mode needs).
  static Result<std::unique_ptr<Pool>> Create(const PoolSpec& spec,
                                              int world_size);

  // Maps a pool that another process of the job has created. The errors are
  // those of Create, and kDataLoss if the header does not match the arguments.
  static Result<std::unique_ptr<Pool>> Attach(const PoolSpec& spec,
                                              int world_size, uint64_t token);

  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // Removes the names of the files that this process created or, for Shm, took
  // over. Idempotent. The destructor calls it, too.
  void Unlink();
  // Makes Unlink and the destructor keep the names from now on. Used after a
  // failure, so that `python -m jax_cxl status` finds the pool. Has no effect
  // after Unlink.
  void KeepNames();

  // Reserves the space that Create has left out. Every process of the job calls
  // it before it accesses that space, and waits for no other. Fails with
  // kResourceExhausted. Idempotent.
  Status Reserve();
  // Reserves a part of that space.
  Status Reserve(uint64_t offset, uint64_t bytes);
  // Returns true if this process knows that all space is reserved.
  bool reserved() const { return reserved_; }

  std::byte* base() const { return base_; }
  uint64_t total_bytes() const { return total_bytes_; }
  // Copies of values in the header, made when the pool was opened. Later
  // changes of the header do not affect them.
  uint64_t token() const { return token_; }
  uint64_t epoch() const { return epoch_; }
  int world_size() const { return world_size_; }
  int num_extents() const { return static_cast<int>(extents_.size()); }
  const Coherence& coherence() const { return coherence_; }
  // Returns doorbells that ring and read the words of this job.
  Doorbells doorbells() const { return {coherence_, epoch_}; }
  const PoolSpec& spec() const { return spec_; }
  // The open file of the first path. The pool's control pages start at
  // spec().offset of this file.
  int fd() const { return files_.front().fd(); }

  RankPage* rank_page(int rank) const;
  Recorder* recorder(int rank) const;

  // Returns the arena of `rank` in an extent. Only `rank` writes to its arena.
  // The arena starts on a page boundary. It may hold old data, so the allocator
  // clears what must be zero.
  using Range = ByteRange;
  Range arena(int extent, int rank) const;

  // Fails with kDataLoss once this process has lost memory of its mapping. That
  // happens if a file was cut short, the memory failed, or another job
  // formatted the pool. After that, data read from the pool are invalid, and
  // stores of this process may fail to reach the others.
  Status CheckIntact() const;
  const MappingGuard& guard() const { return *guard_; }

  // Returns the address of [offset, offset + bytes). Returns null if the range
  // leaves the mapping or overlaps a header, because an offset that was read
  // from the pool may be wrong.
  std::byte* At(uint64_t offset, uint64_t bytes) const;

 private:
  Pool(const PoolSpec& spec, int world_size)
      : spec_(spec),
        world_size_(world_size),
        reserved_(spec.idle_arena_bytes == 0),
        coherence_(spec.coherence) {}

  static Result<std::unique_ptr<Pool>> TryCreate(const PoolSpec& spec,
                                                 int world_size, bool* swept);
  // Checks the arguments, and opens and maps the files. If `creating` is true,
  // also reserves space.
  Status Open(bool creating);
  Status OpenFiles(bool creating);
  // Finds the part of each file that the pool occupies.
  Status Measure(bool creating);
  // Checks that the pool may take its part of each file, and reserves the
  // space.
  Status ReserveFiles();
  Status ReserveIdle();
  Status Map();
  // Puts the interposer, if there is one, between the process and the mapping.
  Status Interpose();
  // Takes the memory for this job, if jobs share the medium. Fails with
  // kAlreadyExists if a living job uses the memory.
  Status TakeMemory(uint64_t token);
  // Clears the control pages and writes the headers.
  void Format(uint64_t token);
  HeaderPage* header_page(int extent) const;
  // Returns true if every header still has this job's token and epoch.
  bool StillOurs() const;
  PoolHeader HeaderOf(int extent) const;
  // Checks every header against the values that this process expects, and then
  // sets token_ and epoch_.
  Status Verify(uint64_t token);

  PoolSpec spec_;
  int world_size_ = 0;
  std::atomic<bool> reserved_;
  uint64_t token_ = 0;
  uint64_t epoch_ = 0;
  Mapping mapped_;             // Destroyed after the members that use it.
  std::byte* base_ = nullptr;  // mapped_, or the interposer's
  uint64_t total_bytes_ = 0;
  std::unique_ptr<MappingGuard> guard_;
  std::vector<MapPiece> pieces_;  // one per file
  std::vector<Range> extents_;
  UniqueFd name_guard_;
  std::vector<PoolFile> files_;
  std::unique_ptr<Interposer> interposer_;  // null except in tests
  Coherence coherence_;
  std::unique_ptr<Claim>
      claim_;  // only in the creator, and only if hosts share the medium
  mutable std::mutex formatted_mutex_;
  mutable std::string formatted_by_;  // another job's process; empty: nobody
};

// Removes the pools that dead jobs have left in /dev/shm, and returns their
// paths. These are files `jax_cxl.*` that belong to this user, that no process
// has locked, and that are pools or all zeros. (A pool is all zeros before it
// has a header.)
std::vector<std::string> SweepLeftovers();

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_POOL_POOL_H_
