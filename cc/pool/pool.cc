#include "cc/pool/pool.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "cc/base/idle.h"
#include "cc/base/process_identity.h"
#include "cc/pool/layout/header.h"
#include "cc/pool/mapping/map.h"
#include "cc/pool/open/reserve.h"
#include "cc/pool/open/shm.h"
#include "cc/pool/unused_memory.h"

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
  if (spec.medium == Medium::kFile) {
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
  if (creating && !spec_.on_devices()) CXL_RETURN_IF_ERROR(ReserveFiles());
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
  if (creating && !spec_.shared()) {
    CXL_ASSIGN_OR_RETURN(name_guard_, ClaimShmName(spec_.paths[0]));
  }
  for (const std::string& given : spec_.paths) {
    const std::string path = spec_.shared() ? given : ShmPath(given);
    for (const PoolFile& file : files_)
      CXL_RETURN_IF_ERROR(CheckNamedOnce(file, path));
    Result<PoolFile> file = OpenPath(spec_, path, creating);
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
  CXL_RETURN_IF_ERROR(Reserve(0, total_bytes_));
  reserved_ = true;
  return OkStatus();
}

Status Pool::Reserve(uint64_t offset, uint64_t bytes) {
  if (reserved_) return OkStatus();
  return ReserveSpace(fd(), files_[0].path(), offset, bytes,
                      /*restore_size=*/false);
}

Status Pool::Measure(bool creating) {
  std::vector<uint64_t> sizes;
  CXL_ASSIGN_OR_RETURN(spec_.bytes,
                       PathBytes(spec_, files_, world_size_, creating));
  for (PoolFile& file : files_) {
    CXL_ASSIGN_OR_RETURN(const MapPiece piece, TakePart(file, spec_, creating));
    const uint64_t end = piece.offset + piece.bytes;
    if (!creating && piece.file_bytes < end) {
      return Error(Code::kDataLoss, file.path(), " is too short: it has ",
                   FormatBytes(piece.file_bytes), ", but the pool needs ",
                   FormatBytes(end),
                   "; use the same pool URI everywhere, and leave the file "
                   "alone while a job runs");
    }
    pieces_.push_back(piece);
    sizes.push_back(piece.bytes);
  }
  extents_ = SplitExtents(sizes, spec_.devices_per_path);
  return CheckCapacity(extents_, world_size_);
}

Status Pool::Map() {
  CXL_ASSIGN_OR_RETURN(mapped_, MapContiguous(pieces_));
  base_ = mapped_.get();
  uint64_t unit = FilePageBytes();
  for (const MapPiece& piece : pieces_) {
    total_bytes_ += piece.bytes;
    unit = std::max(unit, piece.align);
  }
  guard_ = std::make_unique<MappingGuard>(base_, total_bytes_, unit);
  return OkStatus();
}

Status Pool::Interpose() {
  if (!spec_.make_interposer) return OkStatus();
  const MappedMemory memory = {base_,       total_bytes_,    extents_,
                               world_size_, spec_.coherence, &StartOwnThread};
  CXL_ASSIGN_OR_RETURN(interposer_, spec_.make_interposer(memory));
  base_ = interposer_->base();
  coherence_ = interposer_->coherence();
  return OkStatus();
}

Status Pool::TakeMemory(uint64_t token) {
  if (!spec_.shared()) return OkStatus();  // The name is taken.
  std::vector<const PoolFile*> files;
  for (const PoolFile& file : files_) files.push_back(&file);
  CXL_ASSIGN_OR_RETURN(
      const std::vector<OldHeader> old,
      CheckUnused(pieces_, files, Purpose::kPool, spec_.dead_after_s));
  std::vector<HeaderPage*> pages;
  for (int e = 0; e < num_extents(); ++e) pages.push_back(header_page(e));
  CXL_ASSIGN_OR_RETURN(claim_, Claim::Take(std::move(pages), coherence_,
                                           *guard_, token, files_[0].path()));
  // Clear the headers of dead jobs. Otherwise the creator of a pool in another
  // part of the device could mistake them for headers of living jobs.
  for (const OldHeader& header : old) {
    std::byte* page = base_ + extents_[header.part].offset + header.offset;
    std::memset(page, 0, sizeof(HeaderPage));
    coherence_.PublishPayload(page, sizeof(HeaderPage));
  }
  return OkStatus();
}

HeaderPage* Pool::header_page(int extent) const {
  return reinterpret_cast<HeaderPage*>(base_ + extents_[extent].offset);
}

void Pool::Format(uint64_t token) {
  // The new epoch is one more than the largest epoch in old headers, so that no
  // old doorbell satisfies a wait.
  uint64_t previous = 0;
  for (int e = 0; e < num_extents(); ++e)
    previous = std::max(previous, EpochOf(HeaderOf(e)));
  for (int e = 0; e < num_extents(); ++e) {
    HeaderPage* page = header_page(e);
    if (!claim_) {
      // Mark the file as an unfinished pool before the header is cleared.
      // Otherwise, if the creator died in between, nobody would recognize the
      // file as a pool.
      BeginKeeper(page->keeper);
      page->keeper.claim = 0;
      page->keeper.released = 0;
      page->keeper.process = ThisProcess();
    }
    if (!reserved_) continue;  // the file is new, and all zeros
    // Clear the header before the rest. Processes of an earlier job then notice
    // that they have lost the pool.
    page->header = {};
    coherence_.PublishPayload(&page->header, sizeof(page->header));
    auto* control = reinterpret_cast<std::byte*>(page);
    const uint64_t bytes = ControlBytes(e, world_size_);
    std::memset(control + sizeof(HeaderPage), 0, bytes - sizeof(HeaderPage));
    coherence_.PublishPayload(control, bytes);
  }
  const PoolHeader header = MakeHeader(world_size_, extents_, total_bytes_,
                                       NextEpoch(previous), token);
  // Write the header of the first extent last, because it marks the whole pool
  // as complete.
  for (int e = num_extents() - 1; e >= 0; --e) {
    const PoolHeader own = ForExtent(header, e);
    std::memcpy(&header_page(e)->header, &own, sizeof(own));
    coherence_.PublishPayload(&header_page(e)->header, sizeof(own));
  }
}

Status Pool::Verify(uint64_t token) {
  // This also drops cache lines that hold rank pages of an earlier job.
  coherence_.AcquirePayload(base_, RecorderOffset(0, world_size_));
  CXL_RETURN_IF_ERROR(CheckIntact());
  const PoolHeader expected =
      MakeHeader(world_size_, extents_, total_bytes_, /*epoch=*/1, token);
  for (int e = 0; e < num_extents(); ++e) {
    const PoolHeader found = HeaderOf(e);
    CXL_RETURN_IF_ERROR(CheckIntact());
    const PoolFile& file = files_[e / spec_.devices_per_path];
    CXL_RETURN_IF_ERROR(
        CheckHeader(found, ForExtent(expected, e), file.path()));
    if (e == 0) epoch_ = found.epoch;
  }
  token_ = token;
  if (interposer_ != nullptr) interposer_->Opened();
  return OkStatus();
}

PoolHeader Pool::HeaderOf(int extent) const {
  return coherence_.AcquireCopy(header_page(extent)->header);
}

bool Pool::StillOurs() const {
  for (int e = 0; e < num_extents(); ++e) {
    const PoolHeader& header = header_page(e)->header;
    if (coherence_.LoadFlag(&header.token) != token_ ||
        coherence_.LoadFlag(&header.epoch) != epoch_)
      return false;
  }
  return true;
}

Status Pool::CheckIntact() const {
  if (guard_->intact()) {
    // Before Verify, token_ is 0, and the headers cannot be compared with it.
    if (!spec_.shared() || token_ == 0 || StillOurs()) return OkStatus();
    std::lock_guard lock(formatted_mutex_);
    if (guard_->intact()) {
      const PoolKeeper keeper = coherence_.AcquireCopy(header_page(0)->keeper);
      formatted_by_ = keeper.claim != token_ && IsClaimed(keeper)
                          ? "another job, of " + DescribeProcess(keeper.process)
                          : "another program";
      guard_->Abandon();
    }
  }
  std::lock_guard lock(formatted_mutex_);
  if (!formatted_by_.empty())
    return Error(
        Code::kDataLoss, "the pool at ", files_[0].path(), " was formatted by ",
        formatted_by_,
        ", while this job used it: this job's heartbeats did not arrive in "
        "time (this host was stopped, or jobs name parts that overlap); "
        "restart this job, and give each job a pool of its own");
  return Error(Code::kDataLoss, "memory of the pool at ", files_[0].path(),
               files_.size() > 1 ? " and others" : "",
               " is gone (SIGBUS): somebody cut the file short, or the memory "
               "failed (see the kernel's log); restart the job, and leave its "
               "files alone while it runs");
}

RankPage* Pool::rank_page(int rank) const {
  return reinterpret_cast<RankPage*>(
      base_ + kPageBytes + static_cast<uint64_t>(rank) * kRankPageBytes);
}

Recorder* Pool::recorder(int rank) const {
  return reinterpret_cast<Recorder*>(base_ + RecorderOffset(rank, world_size_));
}

Pool::Range Pool::arena(int extent, int rank) const {
  return ArenaOf(extents_, extent, rank, world_size_);
}

std::byte* Pool::At(uint64_t offset, uint64_t bytes) const {
  if (offset > total_bytes_ || bytes > total_bytes_ - offset) return nullptr;
  for (const Range& extent : extents_) {
    if (offset < extent.offset + kPageBytes && offset + bytes > extent.offset) {
      return nullptr;
    }
  }
  return base_ + offset;
}

}  // namespace jax_cxl::pool
