#include "cc/nccl/interface/config.h"

#include <algorithm>
#include <cstring>

namespace jax_cxl::nccl {

Config::Config(const NcclConfig* given) : given_(given != nullptr) {
  if (!given_) return;
  // Without the magic, the size is not known.
  const size_t size =
      given->magic == kConfigMagic ? given->size : sizeof(NcclConfig);
  std::memcpy(bytes_.data(), given, std::min(size, bytes_.size()));
}

}  // namespace jax_cxl::nccl
