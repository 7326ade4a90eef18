#include "cc/pool/media/file.h"
#include "cc/pool/open/shm_name.h"

namespace jax_cxl::pool {
namespace {

// The medium of files in /dev/shm. A job reserves the name of its file, so no
// other job opens the file.
class ShmMedium final : public FileMedium {
 public:
  std::string_view name() const override { return "shm"; }
  bool shared() const override { return false; }

  Status Check(const PoolSpec& spec) const override {
    if (spec.paths.size() == 1) return CheckShmName(spec.paths[0]);
    return Error(Code::kInvalidArgument, "a shm pool has one name, not ",
                 spec.paths.size(), "; write for example shm:my_job");
  }

  Result<UniqueFd> ReserveNames(const PoolSpec& spec) const override {
    return ClaimShmName(spec.paths[0]);
  }

  std::string PathOf(const std::string& given) const override {
    return ShmPath(given);
  }
};

}  // namespace

const Medium& Medium::Shm() {
  // Never destroyed: pools may still be opened while the process exits.
  static const auto& medium = *new ShmMedium;
  return medium;
}

}  // namespace jax_cxl::pool
