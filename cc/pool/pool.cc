#include "cc/pool/pool.h"

#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>

#include "cc/pool/layout/header.h"
#include "cc/pool/mapping/map.h"

namespace jax_cxl::pool {
namespace {

// How often a creator starts again after a sweeper has removed its file.
constexpr int kCreateAttempts = 3;

Result<uint64_t> RandomToken() {
  uint64_t token = 0;
  while (token == 0) {  // 0 means "no token"
    const ssize_t got = getrandom(&token, sizeof(token), 0);
    if (got == sizeof(token) || (got < 0 && errno == EINTR)) continue;
    return Error(Code::kInternal,
                 "getrandom failed: ", std::generic_category().message(errno));
  }
  return token;
}

}  // namespace

Status Pool::CheckArguments(const PoolSpec& spec, int world_size) {
  if (world_size < 1 || world_size > kMaxWorldSize) {
    return Error(Code::kInvalidArgument, "world size ", world_size,
                 " is not between 1 and ", kMaxWorldSize,
                 "; use another number of devices");
  }
  return CheckSpec(spec);
}

Result<std::unique_ptr<Pool>> Pool::Create(const PoolSpec& spec,
                                           int world_size) {
  CXL_RETURN_IF_ERROR(CheckArguments(spec, world_size));
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
  std::unique_ptr<Pool> pool(new Pool());
  pool->spec_ = spec;
  pool->world_size_ = world_size;
  pool->coherence_ = Coherence(spec.coherence);
  CXL_RETURN_IF_ERROR(pool->OpenFiles(/*creating=*/true));
  CXL_ASSIGN_OR_RETURN(const auto pieces, pool->Measure(/*creating=*/true));
  if (spec.medium->allocates()) {
    CXL_RETURN_IF_ERROR(pool->ReserveFiles(pieces));
  }
  CXL_RETURN_IF_ERROR(pool->Map(pieces));
  CXL_RETURN_IF_ERROR(pool->Interpose());
  CXL_ASSIGN_OR_RETURN(const uint64_t token, RandomToken());
  CXL_RETURN_IF_ERROR(pool->TakeMemory(pieces, token));
  // Only now: Prefault may store to the pages. In /dev/shm, the reserved space
  // is memory already. To clear it here would delay the start of all ranks.
  if (spec.medium->allocates() && spec.medium->shared()) {
    CXL_RETURN_IF_ERROR(Prefault(pool->mapped_, pool->total_bytes_));
  }
  for (PoolFile& file : pool->files_) file.KeepSize();
  pool->Format(token);
  for (PoolFile& file : pool->files_) CXL_RETURN_IF_ERROR(file.ShareLock());
  for (PoolFile& file : pool->files_) *swept = *swept || !file.StillNamed();
  // Another creator may have locked the files while this one changed its locks.
  CXL_RETURN_IF_ERROR(pool->Verify(token));
  return pool;
}

Result<std::unique_ptr<Pool>> Pool::Attach(const PoolSpec& spec, int world_size,
                                           uint64_t token) {
  CXL_RETURN_IF_ERROR(CheckArguments(spec, world_size));
  std::unique_ptr<Pool> pool(new Pool());
  pool->spec_ = spec;
  pool->world_size_ = world_size;
  pool->coherence_ = Coherence(spec.coherence);
  CXL_RETURN_IF_ERROR(pool->OpenFiles(/*creating=*/false));
  CXL_ASSIGN_OR_RETURN(const auto pieces, pool->Measure(/*creating=*/false));
  CXL_RETURN_IF_ERROR(pool->Map(pieces));
  CXL_RETURN_IF_ERROR(pool->Interpose());
  CXL_RETURN_IF_ERROR(pool->Verify(token));
  return pool;
}

Pool::~Pool() {
  Unlink();
  claim_.reset();       // its thread uses the mapping
  interposer_.reset();  // its threads use the mapping
  guard_.reset();
  if (mapped_ != nullptr) munmap(mapped_, total_bytes_);
}

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
    Result<PoolFile> file = creating ? medium.OpenForCreate(path, spec_.offset)
                                     : medium.OpenForAttach(path);
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

Status Pool::ReserveFiles(const std::vector<MapPiece>& pieces) {
  // No file grows if one of them is refused.
  for (size_t i = 0; i < pieces.size(); ++i) {
    CXL_RETURN_IF_ERROR(files_[i].CheckMayTake(
        pieces[i].offset, pieces[i].bytes, files_[i].holds_pool()));
  }
  for (size_t i = 0; i < pieces.size(); ++i) {
    CXL_RETURN_IF_ERROR(files_[i].Reserve(pieces[i].offset, pieces[i].bytes));
  }
  return OkStatus();
}

}  // namespace jax_cxl::pool
