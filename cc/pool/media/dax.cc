#include "cc/pool/media/dax.h"

#include "cc/pool/layout/layout.h"
#include "cc/pool/media/file.h"

namespace jax_cxl::pool {

const Medium& Medium::Dax() {
  // Never destroyed: pools may still be opened while the process exits.
  static const auto& medium = *new DaxMedium(DaxSystem::Machine());
  return medium;
}

// A device has its own, larger alignment, which Take checks.
uint64_t DaxMedium::unit_bytes() const { return kPageBytes; }

Status DaxMedium::Check(const PoolSpec& spec) const {
  CXL_RETURN_IF_ERROR(CheckPathList(spec.paths));
  if (spec.devices_per_path == 1) return OkStatus();
  return Error(Code::kInvalidArgument,
               "a dax path is one device and cannot be split into ",
               spec.devices_per_path, "; leave devices= out");
}

Result<PoolFile> DaxMedium::OpenForCreate(const std::string& path,
                                          uint64_t /*offset*/) const {
  return PoolFile::OpenDevice(path);
}

Result<PoolFile> DaxMedium::OpenForAttach(const std::string& path) const {
  return PoolFile::OpenDevice(path);
}

Result<uint64_t> DaxMedium::PathBytes(const PoolSpec& spec,
                                      const std::vector<PoolFile>& /*files*/,
                                      int /*world_size*/,
                                      bool /*creating*/) const {
  return spec.bytes;  // devices may differ in size
}

Result<MapPiece> DaxMedium::Take(PoolFile& file, const PoolSpec& spec,
                                 bool creating) const {
  CXL_ASSIGN_OR_RETURN(
      const DaxPart part,
      TakeDaxPart(&file, spec.offset, spec.bytes, creating, system_));
  return MapPiece{file.fd(), spec.offset, part.bytes, part.limits.align,
                  part.limits.size};
}

// Write back all cache lines, even if hardware keeps the caches coherent: a
// host may die with lines in its cache.
CoherenceMode DaxMedium::DurableMode(CoherenceMode mode) const {
  return mode == CoherenceMode::kCoherent ? CoherenceMode::kFlush : mode;
}

}  // namespace jax_cxl::pool
