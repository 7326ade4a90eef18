#ifndef JAX_CXL_POOL_POOL_H_
#define JAX_CXL_POOL_POOL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cc/base/status.h"
#include "cc/pool/claim.h"
#include "cc/pool/coherence/coherence.h"
#include "cc/pool/coherence/interposer.h"
#include "cc/pool/layout/geometry.h"
#include "cc/pool/layout/layout.h"
#include "cc/pool/layout/recorder_layout.h"
#include "cc/pool/mapping/map.h"
#include "cc/pool/mapping/mapping_guard.h"
#include "cc/pool/open/file.h"
#include "cc/pool/open/unique_fd.h"

namespace jax_cxl::pool {

struct DaxSystem;

enum class PoolKind : uint8_t {
  kShm,
  kFile,
  kDax,
};

// What a pool URI says (jax_cxl/_runtime/pool_uri.py parses it).
struct PoolSpec {
  PoolKind kind = PoolKind::kShm;
  // kShm: one name, without a slash. kFile, kDax: one path per pool device.
  std::vector<std::string> paths;
  // Per path. 0: kDax takes the rest of the device, kFile the rest of a file
  // that exists; anything else gets AutomaticPathBytes.
  uint64_t bytes = 0;
  int devices_per_path = 1;  // kShm, kFile: split into equal extents
  uint64_t offset = 0;       // where the pool starts in each path, in bytes
  CoherenceMode coherence = CoherenceMode::kCoherent;
  // Not kShm: for how long the heart of another job, which may run on another
  // host, has to stand still before its pool is taken.
  double dead_after_s = 5;
  // For tests: makes what stands between the process and the mapping.
  MakeInterposer make_interposer = nullptr;
};

// A mapped pool: one contiguous range of addresses over all extents.
//
// Exactly one process of a job creates (formats) the pool; it hands `token()`
// to the others, which attach. Every process holds a shared lock on each path
// for as long as it lives, so that a dead job's leftovers can be told from a
// live job's pool. Locks end at the kernel. Where another host may map the pool
// (all but kShm), creators also look for the heartbeats of older jobs, and the
// members of a job notice when another job formats their pool. A pool that was
// created by the job has no name once `Unlink` ran: the kernel frees it when
// the last process is gone, however that process ends. The name of a kShm pool
// stays taken until its creator is gone, so that two jobs never share it by
// accident.
//
// Thread-safe but for Unlink and KeepNames.
class Pool {
 public:
  // Creates or takes over the pool, reserves all of its space, writes the
  // header. For kShm and for a kFile path that does not exist: creates a file
  // of mode 0600. Errors: kResourceExhausted (says how many bytes are needed
  // and how many are free), kNotFound, kPermissionDenied, kAlreadyExists
  // (another live job uses it; names its process), kInvalidArgument
  // (misaligned), kDataLoss (an existing file that
  // is not a jax_cxl pool).
  static Result<std::unique_ptr<Pool>> Create(const PoolSpec& spec,
                                              int world_size);
  // For tests: with `dax` in place of this machine's devices.
  static Result<std::unique_ptr<Pool>> Create(const PoolSpec& spec,
                                              int world_size,
                                              const DaxSystem& dax);

  // Maps a pool that another process of the job created.
  // Errors: as Create, and kDataLoss if header and token disagree.
  static Result<std::unique_ptr<Pool>> Attach(const PoolSpec& spec,
                                              int world_size, uint64_t token);
  static Result<std::unique_ptr<Pool>> Attach(const PoolSpec& spec,
                                              int world_size, uint64_t token,
                                              const DaxSystem& dax);

  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // Removes the names of files that this process created. Idempotent; runs in
  // the destructor too.
  void Unlink();
  // From now on Unlink, and the destructor, leave the names: of a job that
  // failed, for `python -m jax_cxl status`. No effect after Unlink.
  void KeepNames();

  std::byte* base() const { return base_; }
  uint64_t total_bytes() const { return total_bytes_; }
  // Copies made when the pool was opened, whatever became of the header since.
  uint64_t token() const { return token_; }
  uint64_t epoch() const { return epoch_; }
  int world_size() const { return world_size_; }
  int num_extents() const { return static_cast<int>(extents_.size()); }
  const Coherence& coherence() const { return coherence_; }
  const PoolSpec& spec() const { return spec_; }
  // Of the first path, which has the control pages, from spec().offset on.
  int fd() const { return files_.front().fd(); }

  RankPage* rank_page(int rank) const;
  Recorder* recorder(int rank) const;

  // The part of an extent that `rank` alone writes. Starts on a page, may hold
  // anything: whoever allocates from it clears what must be clear.
  using Range = ByteRange;
  Range arena(int extent, int rank) const;

  // kDataLoss once memory of this process's mapping went away: its file was cut
  // short, the memory failed, or another job formatted the pool. Nothing that
  // was read since is worth anything, and nothing that is stored from now on
  // reaches another process.
  Status CheckIntact() const;
  const MappingGuard& guard() const { return *guard_; }

  // Address of [offset, offset + bytes), or null when it leaves the mapping or
  // overlaps a header: nothing read from the pool is trusted.
  std::byte* At(uint64_t offset, uint64_t bytes) const;

 private:
  Pool() = default;

  // Opens nothing: checks what can be known from the arguments alone.
  static Status CheckArguments(const PoolSpec& spec, int world_size);
  static Result<std::unique_ptr<Pool>> TryCreate(const PoolSpec& spec,
                                                 int world_size,
                                                 const DaxSystem& dax,
                                                 bool* swept);
  Status OpenFiles(bool creating);
  // The part of each file that the pool takes.
  Result<std::vector<MapPiece>> Measure(bool creating, const DaxSystem& dax);
  Result<uint64_t> MeasureFiles(bool creating) const;
  Status Map(const std::vector<MapPiece>& pieces);
  // Puts the interposer, if there is one, before the mapping.
  Status Interpose();
  // Takes the memory for this job; kAlreadyExists if another job lives there.
  Status TakeMemory(const std::vector<MapPiece>& pieces, uint64_t token);
  // Clears the control pages and writes the headers.
  void Format(uint64_t token);
  HeaderPage* header_page(int extent) const;
  // Whether every header still is the one of this job.
  bool StillOurs() const;
  PoolHeader HeaderAt(const Range& extent) const;
  // Checks every header against what this process expects.
  Status Verify(uint64_t token);

  PoolSpec spec_;
  int world_size_ = 0;
  uint64_t token_ = 0;
  uint64_t epoch_ = 0;
  std::byte* mapped_ = nullptr;
  std::byte* base_ = nullptr;  // mapped_, or the interposer's
  uint64_t total_bytes_ = 0;
  std::unique_ptr<MappingGuard> guard_;
  std::vector<Range> extents_;
  UniqueFd name_guard_;
  std::vector<PoolFile> files_;
  std::unique_ptr<Interposer> interposer_;  // null but in tests
  Coherence coherence_{CoherenceMode::kCoherent};
  std::unique_ptr<Claim> claim_;  // of the creator, where hosts share the pool
  mutable std::mutex formatted_mutex_;
  mutable std::string formatted_by_;  // another job's process; empty: nobody
};

// Removes the pools of dead jobs: files `jax_cxl.*` in /dev/shm that belong to
// this user, that nobody has locked, and that are pools or all zeros, as a pool
// is before it has a header. Returns their paths.
std::vector<std::string> SweepLeftovers();

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_POOL_POOL_H_
