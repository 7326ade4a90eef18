#ifndef JAX_CXL_TESTING_POOL_FAKE_DAX_H_
#define JAX_CXL_TESTING_POOL_FAKE_DAX_H_

#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cc/base/status.h"
#include "cc/pool/coherence/cache.h"
#include "cc/pool/layout/layout.h"
#include "cc/pool/media/dax.h"
#include "cc/pool/media/medium.h"
#include "cc/testing/pool/scratch.h"

// Code that the tests of dax devices share.
namespace jax_cxl::pool {

// Returns the description of a pool on real dax devices.
inline PoolSpec DaxSpec(std::vector<std::string> paths) {
  PoolSpec spec;
  spec.medium = Medium::kDax;
  spec.paths = std::move(paths);
  spec.coherence =
      FlushSupported() ? CoherenceMode::kFlush : CoherenceMode::kCoherent;
  return spec;
}

// A machine whose dax devices are regular files. A new device contains
// arbitrary bytes, so each file begins with bytes 0xee.
class FakeDax {
 public:
  FakeDax()
      : system_{dir_ / "sys",
                [this](const struct stat&, const std::string& path)
                    -> Result<dev_t> { return numbers_.at(path); }} {}

  // Adds a device and describes it in the fake sysfs, under the device's
  // number. Without an `align`, it is like the sysfs of an old kernel. Returns
  // the device's path.
  std::string Add(const std::string& name, uint64_t size,
                  const std::string& align) {
    const std::string path = dir_ / name;
    std::ofstream(path) << std::string(3 * kMiB, '\xee');
    std::filesystem::resize_file(path, size);
    numbers_[path] = makedev(251, numbers_.size());
    Describe("dev/char/251:" + std::to_string(minor(numbers_[path])), size,
             align);
    return path;
  }

  void Describe(const std::string& folder, uint64_t size,
                const std::string& align) {
    const std::string in_sysfs = dir_ / ("sys/" + folder);
    std::filesystem::create_directories(in_sysfs);
    std::ofstream(in_sysfs + "/size") << size << "\n";
    if (!align.empty()) std::ofstream(in_sysfs + "/align") << align << "\n";
  }

  void Forget(const std::string& path) {
    std::filesystem::remove_all(
        dir_ / ("sys/dev/char/251:" + std::to_string(minor(numbers_[path]))));
  }

  // Returns the description of a pool on devices of this fake machine.
  PoolSpec Spec(std::vector<std::string> paths) const {
    PoolSpec spec = DaxSpec(std::move(paths));
    spec.dax = &system_;
    return spec;
  }

  std::string operator/(const std::string& name) const { return dir_ / name; }

  // Writes the fields of one of the two superblocks of a store that begins at
  // `offset` of a device.
  static void WriteSuperblock(const std::string& path, uint64_t offset,
                              size_t copy, const SuperblockFields& fields) {
    std::fstream file(path, std::ios::in | std::ios::out);
    file.seekp(static_cast<std::streamoff>(offset + kSuperblockOffsets[copy]));
    file.write(reinterpret_cast<const char*>(&fields), sizeof(fields));
  }

  // Writes the superblocks of a store, and returns their fields.
  static SuperblockFields WriteStore(const std::string& path, uint64_t offset,
                                     uint64_t bytes) {
    SuperblockFields fields = {.version = kStoreVersion, .device_bytes = bytes};
    std::copy_n(kStoreMagic, sizeof(fields.magic), fields.magic);
    for (const size_t copy : {0, 1})
      WriteSuperblock(path, offset, copy, fields);
    return fields;
  }

 private:
  TempDirectory dir_;
  std::map<std::string, dev_t> numbers_;
  const DaxSystem system_;
};

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_TESTING_POOL_FAKE_DAX_H_
