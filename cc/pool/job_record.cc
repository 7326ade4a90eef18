#include "cc/pool/job_record.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "cc/pool/layout/geometry.h"
#include "cc/pool/layout/header.h"
#include "cc/pool/media/dax.h"
#include "cc/pool/open/contents.h"
#include "cc/pool/open/file_error.h"

namespace jax_cxl::pool {
namespace {

Status CutShort(const std::string& name) {
  return Error(Code::kDataLoss, name,
               " is too short to hold a pool: it is not one, or was cut short; "
               "name another file");
}

}  // namespace

Status JobRecord::Copy(int fd, uint64_t offset, uint64_t bytes,
                       const std::string& name) {
  lines_.resize((bytes + sizeof(Line) - 1) / sizeof(Line));
  struct stat info;
  if (fstat(fd, &info) != 0) return FileError(errno, "inspect", name);
  DaxLimits limits;
  if (S_ISCHR(info.st_mode)) {
    CXL_ASSIGN_OR_RETURN(limits, ReadDaxLimits(fd, name, DaxSystem::Machine()));
    if (offset % limits.align != 0 || offset > limits.size ||
        bytes > limits.size - offset)
      return CutShort(name);
  }
  CXL_ASSIGN_OR_RETURN(
      const uint64_t got,
      ReadAt(fd, name, limits.align, offset, {lines_.data()->bytes, bytes}));
  return got == bytes ? OkStatus() : CutShort(name);
}

Result<JobRecord> JobRecord::Read(int fd, uint64_t offset,
                                  const std::string& name) {
  JobRecord job_record;
  CXL_RETURN_IF_ERROR(job_record.Copy(fd, offset, kPageBytes, name));
  CXL_RETURN_IF_ERROR(CheckReadable(job_record.header(), name));
  const PoolHeader header = job_record.header();
  CXL_RETURN_IF_ERROR(job_record.Copy(
      fd, offset, ControlBytes(0, job_record.world_size()), name));
  // Both copies must have the same header, because the size of the second copy
  // was computed from the world size in the first.
  if (std::memcmp(&header, &job_record.header(), sizeof(header)) != 0)
    return Error(Code::kDataLoss, name,
                 " is being taken over by another job; try again");
  return job_record;
}

const RankPage& JobRecord::rank_page(int rank) const {
  return *At<RankPage>(kPageBytes +
                       static_cast<uint64_t>(rank) * kRankPageBytes);
}

const Recorder& JobRecord::recorder(int rank) const {
  return *At<Recorder>(RecorderOffset(rank, world_size()));
}

Doorbells JobRecord::doorbells() const {
  return Doorbells(Coherence(CoherenceMode::kCoherent), header().epoch);
}

}  // namespace jax_cxl::pool
