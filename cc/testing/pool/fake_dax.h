#ifndef JAX_CXL_TESTING_POOL_FAKE_DAX_H_
#define JAX_CXL_TESTING_POOL_FAKE_DAX_H_

#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cc/base/status.h"
#include "cc/pool/coherence/flush.h"
#include "cc/pool/open/dax.h"
#include "cc/pool/pool.h"
#include "cc/testing/pool/scratch.h"

// Shared by the tests of dax devices.
namespace jax_cxl::pool {

// A machine whose dax devices are regular files. At first all their bytes are
// 0xee, because a new device contains arbitrary bytes too.
class FakeDax {
 public:
  FakeDax() {
    system_.sysfs = dir_ / "sys";
    system_.device_number = [this](const struct stat&,
                                   const std::string& path) -> Result<dev_t> {
      return numbers_.at(path);
    };
  }

  // Adds a device that sysfs describes under its number.
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
    std::filesystem::create_directories(system_.sysfs + "/" + folder);
    std::ofstream(system_.sysfs + "/" + folder + "/size") << size << "\n";
    std::ofstream(system_.sysfs + "/" + folder + "/align") << align << "\n";
  }

  void Forget(const std::string& path) {
    std::filesystem::remove_all(system_.sysfs + "/dev/char/251:" +
                                std::to_string(minor(numbers_[path])));
  }

  const DaxSystem& system() const { return system_; }
  std::string operator/(const std::string& name) const { return dir_ / name; }

 private:
  TempDirectory dir_;
  DaxSystem system_;
  std::map<std::string, dev_t> numbers_;
};

inline PoolSpec DaxSpec(std::vector<std::string> paths) {
  PoolSpec spec;
  spec.kind = PoolKind::kDax;
  spec.paths = std::move(paths);
  spec.coherence =
      FlushSupported() ? CoherenceMode::kFlush : CoherenceMode::kCoherent;
  return spec;
}

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_TESTING_POOL_FAKE_DAX_H_
