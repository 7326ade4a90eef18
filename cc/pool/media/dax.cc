#include "cc/pool/media/dax.h"

#include <sys/sysmacros.h>

#include <bit>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <optional>
#include <utility>
#include <vector>

#include "cc/pool/layout/geometry.h"
#include "cc/pool/layout/layout.h"
#include "cc/pool/open/file_error.h"

namespace jax_cxl::pool {
namespace {

Result<dev_t> CharacterDeviceNumber(const struct stat& info,
                                    const std::string& path) {
  if (S_ISCHR(info.st_mode)) return info.st_rdev;
  return Error(Code::kInvalidArgument, path,
               " is not a character device; name a device like /dev/dax0.0, "
               "or write file:",
               path, " for a file");
}

// Reads a number from a file. It is decimal, or hexadecimal if it begins with
// 0x.
std::optional<uint64_t> ReadNumber(const std::string& path) {
  std::ifstream file(path);
  std::string text;
  if (!(file >> text)) return std::nullopt;
  std::string_view digits = text;
  int base = 10;
  if (digits.starts_with("0x")) {
    digits.remove_prefix(2);
    base = 16;
  }
  uint64_t value = 0;
  const auto end = digits.data() + digits.size();
  const auto [last, error] = std::from_chars(digits.data(), end, value, base);
  if (error != std::errc() || last != end) return std::nullopt;
  return value;
}

std::optional<uint64_t> FirstNumber(const std::vector<std::string>& folders,
                                    const std::string& name) {
  for (const std::string& folder : folders) {
    if (auto value = ReadNumber(folder + "/" + name)) return value;
  }
  return std::nullopt;
}

// Checks the part of the device that begins at `offset` and has `bytes` bytes.
// If `bytes` is 0, it is the rest of the device. Returns the size of the part.
Result<uint64_t> ResolveDaxBytes(const DaxLimits& limits, uint64_t offset,
                                 uint64_t bytes, const std::string& path) {
  if (offset % limits.align != 0 || bytes % limits.align != 0) {
    return Error(Code::kInvalidArgument, "offset ", offset, " and size ", bytes,
                 " must be multiples of the alignment of ", path, ", ",
                 FormatBytes(limits.align), "; change offset= and size=");
  }
  if (offset > limits.size || bytes > limits.size - offset) {
    return Error(Code::kInvalidArgument, "offset ", offset, " and size ", bytes,
                 " exceed ", path, ", which has ", FormatBytes(limits.size),
                 "; change offset= and size=");
  }
  if (bytes != 0) return bytes;
  const uint64_t rest = RoundDown(limits.size - offset, limits.align);
  if (rest == 0) {
    return Error(Code::kInvalidArgument, path, " has nothing left at offset ",
                 offset, ": its size is ", FormatBytes(limits.size),
                 "; use a smaller offset=");
  }
  return rest;
}

class DaxMedium final : public Medium {
 public:
  explicit DaxMedium(DaxSystem system) : system_(std::move(system)) {}

  std::string_view name() const override { return "dax"; }
  bool shared() const override { return true; }
  bool allocates() const override { return false; }

  Status Check(const PoolSpec& spec) const override {
    if (spec.devices_per_path == 1) return OkStatus();
    return Error(Code::kInvalidArgument,
                 "a dax path is one device and cannot be split into ",
                 spec.devices_per_path, "; leave devices= out");
  }

  Result<PoolFile> Open(const std::string& path, uint64_t /*offset*/,
                        bool /*creating*/) const override {
    return PoolFile::OpenDevice(path);
  }

  Result<uint64_t> PathBytes(const PoolSpec& spec,
                             const std::vector<PoolFile>& /*files*/,
                             int /*world_size*/,
                             bool /*creating*/) const override {
    return spec.bytes;  // devices may differ in size
  }

  Result<MapPiece> Take(PoolFile& file, const PoolSpec& spec,
                        bool creating) const override {
    CXL_ASSIGN_OR_RETURN(const DaxLimits limits,
                         ReadDaxLimits(file.fd(), file.path(), system_));
    CXL_ASSIGN_OR_RETURN(
        const uint64_t bytes,
        ResolveDaxBytes(limits, spec.offset, spec.bytes, file.path()));
    CXL_RETURN_IF_ERROR(
        file.LockRange(spec.offset, bytes, limits.align, creating));
    return MapPiece{file.fd(), spec.offset, bytes, limits.align, limits.size};
  }

  Result<std::optional<DevicePart>> PartOf(
      const PoolSpec& spec) const override {
    CXL_ASSIGN_OR_RETURN(const PoolFile file,
                         PoolFile::OpenDevice(spec.paths[0]));
    CXL_ASSIGN_OR_RETURN(const DaxLimits limits,
                         ReadDaxLimits(file.fd(), file.path(), system_));
    CXL_ASSIGN_OR_RETURN(
        const uint64_t bytes,
        ResolveDaxBytes(limits, spec.offset, spec.bytes, file.path()));
    return std::optional(DevicePart{spec.offset, bytes, limits.align});
  }

  // Replaces kCoherent by kFlush. Cache lines must be written back even if
  // hardware keeps the caches coherent, because a host may die with lines in
  // its cache.
  CoherenceMode DurableMode(CoherenceMode mode) const override {
    return mode == CoherenceMode::kCoherent ? CoherenceMode::kFlush : mode;
  }

 private:
  DaxSystem system_;
};

}  // namespace

DaxSystem DaxSystem::Machine() {
  DaxSystem system;
  system.device_number = CharacterDeviceNumber;
  return system;
}

Result<DaxLimits> ReadDaxLimits(int fd, const std::string& path,
                                const DaxSystem& system) {
  struct stat info;
  if (fstat(fd, &info) != 0) return FileError(errno, "inspect", path);
  CXL_ASSIGN_OR_RETURN(const dev_t number, system.device_number(info, path));
  // Look in sysfs by the device number first. The name may be unknown there,
  // because the path may be another node of the device, made with mknod.
  const std::string by_number = system.sysfs + "/dev/char/" +
                                std::to_string(major(number)) + ":" +
                                std::to_string(minor(number));
  const std::string by_name = system.sysfs + "/bus/dax/devices/" +
                              path.substr(path.find_last_of('/') + 1);
  const auto size = FirstNumber({by_number, by_name}, "size");
  // Kernels before 5.10 give the alignment only in the folder of the device's
  // region.
  const auto align = FirstNumber(
      {by_number, by_name, by_number + "/device", by_number + "/dax_region",
       by_number + "/device/dax_region", by_name + "/dax_region"},
      "align");
  if (!size || !align) {
    return Error(Code::kInvalidArgument, path,
                 " is not a dax device: ", by_number, " and ", by_name,
                 " do not state its ", size ? "alignment" : "size",
                 "; name a device that `daxctl list` shows in devdax mode, and "
                 "mount sysfs in containers");
  }
  if (!std::has_single_bit(*align) || *align < kPageBytes) {
    return Error(Code::kInvalidArgument, path, " states an alignment of ",
                 *align,
                 " bytes, but an alignment is a power of two, and at least ",
                 kPageBytes, " bytes; check the device with daxctl");
  }
  return DaxLimits{*align, *size};
}

std::unique_ptr<const Medium> MakeDaxMedium(DaxSystem system) {
  return std::make_unique<DaxMedium>(std::move(system));
}

const Medium& Medium::Dax() {
  // Never destroyed: pools may still be opened while the process exits.
  static const auto& medium = *MakeDaxMedium(DaxSystem::Machine()).release();
  return medium;
}

}  // namespace jax_cxl::pool
