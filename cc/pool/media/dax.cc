#include "cc/pool/media/dax.h"

#include <sys/sysmacros.h>

#include <bit>
#include <cerrno>
#include <fstream>
#include <optional>
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

// Reads a number from the file `name` of the first folder that has it.
std::optional<uint64_t> ReadNumber(const std::vector<std::string>& folders,
                                   const std::string& name) {
  for (const std::string& folder : folders) {
    uint64_t value = 0;
    if (std::ifstream(folder + "/" + name) >> value) return value;
  }
  return std::nullopt;
}

}  // namespace

const DaxSystem& DaxSystem::Machine() {
  // Never destroyed: pools may still be opened while the process exits.
  static const auto& machine =
      *new DaxSystem{.device_number = CharacterDeviceNumber};
  return machine;
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
  const auto size = ReadNumber({by_number, by_name}, "size");
  const auto align = ReadNumber({by_number, by_name}, "align");
  if (!size || !align) {
    return Error(
        Code::kInvalidArgument, path, " is not a dax device: ", by_number,
        " and ", by_name, " do not state its ",
        size ? "alignment (the file `align` exists from Linux 5.10 on; "
               "jax_cxl needs 5.14)"
             : "size",
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

}  // namespace jax_cxl::pool
