#include "cc/pool/pool.h"

#include "cc/pool/layout/header.h"
#include "cc/pool/mapping/map.h"
#include "cc/pool/open/reserve.h"

namespace jax_cxl::pool {
namespace {

// How many times a creator tries to create a pool, if a sweeper removes its
// file each time.
constexpr int kCreateAttempts = 3;

}  // namespace

Result<std::unique_ptr<Pool>> Pool::Create(const PoolSpec& spec,
                                           int world_size) {
  for (int attempt = 0; attempt < kCreateAttempts; ++attempt) {
    bool swept = false;
    auto pool = TryCreate(spec, world_size, &swept);
    if (!swept) return pool;
  }
  return Error(Code::kAlreadyExists,
               "another process keeps removing the files of this pool; give "
               "this job a pool of its own");
}

Result<std::unique_ptr<Pool>> Pool::TryCreate(const PoolSpec& spec,
                                              int world_size, bool* swept) {
  std::unique_ptr<Pool> pool(new Pool(spec, world_size));
  CXL_RETURN_IF_ERROR(pool->Open(/*creating=*/true));
  uint64_t token = spec.token;
  if (token == 0) {
    CXL_ASSIGN_OR_RETURN(token, RandomToken());
  }
  CXL_RETURN_IF_ERROR(pool->TakeMemory(token));
  // Prefault may store to the pages, so it must not run before TakeMemory. It
  // does not run for /dev/shm: space that is reserved there is memory already,
  // and making its pages present here would delay all ranks.
  if (spec.medium->allocates() && spec.medium->shared()) {
    CXL_RETURN_IF_ERROR(Prefault(pool->mapped_.get(), pool->total_bytes_));
  }
  for (PoolFile& file : pool->files_) file.KeepSize();
  pool->Format(token);
  for (PoolFile& file : pool->files_) CXL_RETURN_IF_ERROR(file.ShareLock());
  for (PoolFile& file : pool->files_) *swept = *swept || !file.StillNamed();
  // Check that the pool is still this job's. Another creator may have locked
  // and formatted the files while this creator replaced its exclusive locks
  // with shared ones.
  CXL_RETURN_IF_ERROR(pool->Verify(token));
  return pool;
}

Result<std::unique_ptr<Pool>> Pool::Attach(const PoolSpec& spec, int world_size,
                                           uint64_t token) {
  std::unique_ptr<Pool> pool(new Pool(spec, world_size));
  CXL_RETURN_IF_ERROR(pool->Open(/*creating=*/false));
  CXL_RETURN_IF_ERROR(pool->Verify(token));
  return pool;
}

Status Pool::Open(bool creating) {
  if (world_size_ < 1 || world_size_ > kMaxWorldSize) {
    return Error(Code::kInvalidArgument, "world size ", world_size_,
                 " is not between 1 and ", kMaxWorldSize,
                 "; use another number of devices");
  }
  CXL_RETURN_IF_ERROR(CheckSpec(spec_));
  CXL_RETURN_IF_ERROR(OpenFiles(creating));
  CXL_RETURN_IF_ERROR(Measure(creating));
  if (creating && spec_.medium->allocates())
    CXL_RETURN_IF_ERROR(ReserveFiles());
  CXL_RETURN_IF_ERROR(Map());
  return Interpose();
}

Pool::~Pool() { Unlink(); }

void Pool::Unlink() {
  for (PoolFile& file : files_) file.RemoveName();
}

void Pool::KeepNames() {
  for (PoolFile& file : files_) file.KeepName();
}

Status Pool::OpenFiles(bool creating) {
  const Medium& medium = *spec_.medium;
  if (creating) {
    CXL_ASSIGN_OR_RETURN(name_guard_, medium.ReserveNames(spec_));
  }
  for (const std::string& given : spec_.paths) {
    const std::string path = medium.PathOf(given);
    for (const PoolFile& file : files_)
      CXL_RETURN_IF_ERROR(CheckNamedOnce(file, path));
    Result<PoolFile> file = medium.Open(path, spec_.offset, creating);
    if (!creating && file.status().code() == Code::kNotFound) {
      return Error(Code::kNotFound, "there is no pool at ", path,
                   ". The process that created it has ended or has removed "
                   "its name, or runs elsewhere. Containers of one host have "
                   "to share /dev/shm; processes of several hosts need a "
                   "pool that all of them map (dax: or file:)");
    }
    if (!file.ok()) return file.status();
    files_.push_back(*std::move(file));
  }
  return OkStatus();
}

Status Pool::ReserveFiles() {
  // Check all files before any of them grows.
  for (size_t i = 0; i < pieces_.size(); ++i)
    CXL_RETURN_IF_ERROR(
        files_[i].CheckMayTake(pieces_[i].offset, pieces_[i].bytes));
  if (!reserved_ && CanFillHoles(fd())) return ReserveIdle();
  reserved_ = true;
  for (size_t i = 0; i < pieces_.size(); ++i)
    CXL_RETURN_IF_ERROR(files_[i].Reserve(pieces_[i].offset, pieces_[i].bytes));
  return OkStatus();
}

Status Pool::ReserveIdle() {
  CXL_RETURN_IF_ERROR(files_[0].MakeHole(pieces_[0].bytes));
  const auto reserve = [&](uint64_t offset, uint64_t bytes) {
    return ReserveSpace(fd(), files_[0].path(), offset, bytes,
                        /*restore_size=*/false);
  };
  CXL_RETURN_IF_ERROR(reserve(0, RecorderOffset(0, world_size_)));
  for (int rank = 0; rank < world_size_; ++rank) {
    CXL_RETURN_IF_ERROR(reserve(RecorderOffset(rank, world_size_),
                                offsetof(Recorder, operations)));
    CXL_RETURN_IF_ERROR(reserve(arena(0, rank).offset, spec_.idle_arena_bytes));
  }
  return OkStatus();
}

Status Pool::Reserve() {
  if (reserved_) return OkStatus();
  CXL_RETURN_IF_ERROR(ReserveSpace(fd(), files_[0].path(), 0, total_bytes_,
                                   /*restore_size=*/false));
  reserved_ = true;
  return OkStatus();
}

}  // namespace jax_cxl::pool
