#include "cc/pool/job_record.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "cc/pool/layout/geometry.h"
#include "cc/pool/layout/header.h"
#include "cc/pool/open/dax.h"
#include "cc/pool/open/file_error.h"

namespace jax_cxl::pool {
namespace {

Status CutShort(const std::string& name) {
  return Error(Code::kDataLoss, name,
               " ends before the pool's control pages do; it is not a pool, "
               "or was cut short; name another file");
}

// Devices support mmap, but not read.
Status CopyFromDevice(int fd, uint64_t offset, uint64_t bytes,
                      const std::string& name, std::byte* to) {
  CXL_ASSIGN_OR_RETURN(const DaxLimits limits,
                       ReadDaxLimits(fd, name, DaxSystem::Machine()));
  if (limits.align == 0 || offset % limits.align != 0 || offset > limits.size ||
      bytes > limits.size - offset)
    return CutShort(name);
  const uint64_t length = RoundUp(bytes, limits.align);
  void* mapped = mmap(nullptr, length, PROT_READ, MAP_SHARED, fd,
                      static_cast<off_t>(offset));
  if (mapped == MAP_FAILED) return FileError(errno, "map", name);
  // This host's cache may hold older lines than other hosts have written.
  Coherence(CheckCoherenceSupported(CoherenceMode::kFlush).ok()
                ? CoherenceMode::kFlush
                : CoherenceMode::kCoherent)
      .AcquirePayload(mapped, bytes);
  std::memcpy(to, mapped, bytes);
  munmap(mapped, length);
  return OkStatus();
}

Status CopyFromFile(int fd, uint64_t offset, uint64_t bytes,
                    const std::string& name, std::byte* to) {
  for (uint64_t done = 0; done < bytes;) {
    const ssize_t got =
        pread(fd, to + done, bytes - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return FileError(errno, "read", name);
    if (got == 0) return CutShort(name);
    done += got;
  }
  return OkStatus();
}

}  // namespace

Status JobRecord::Copy(int fd, uint64_t offset, uint64_t bytes,
                       const std::string& name) {
  lines_.resize((bytes + sizeof(Line) - 1) / sizeof(Line));
  std::byte* to = lines_.data()->bytes;
  struct stat info;
  if (fstat(fd, &info) != 0) return FileError(errno, "inspect", name);
  return S_ISCHR(info.st_mode) ? CopyFromDevice(fd, offset, bytes, name, to)
                               : CopyFromFile(fd, offset, bytes, name, to);
}

Result<JobRecord> JobRecord::Read(int fd, uint64_t offset,
                                  const std::string& name) {
  JobRecord job_record;
  CXL_RETURN_IF_ERROR(job_record.Copy(fd, offset, kPageBytes, name));
  CXL_RETURN_IF_ERROR(CheckReadable(job_record.header(), name));
  const PoolHeader header = job_record.header();
  CXL_RETURN_IF_ERROR(job_record.Copy(
      fd, offset, ControlBytes(0, job_record.world_size()), name));
  // The size of the second copy depends on the world size from the first copy.
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
