#ifndef JAX_CXL_NCCL_INTERFACE_CONFIG_H_
#define JAX_CXL_NCCL_INTERFACE_CONFIG_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>

#include "cc/nccl/interface/abi.h"

namespace jax_cxl::nccl {

// A copy of a program's ncclConfig_t. In a group, the program may free the
// original before the communicator is made.
class Config {
 public:
  // `given` may be null.
  explicit Config(const NcclConfig* given) : given_(given != nullptr) {
    if (!given_) return;
    // Without the magic, the size is not known.
    const size_t size =
        given->magic == kConfigMagic ? given->size : sizeof(NcclConfig);
    std::memcpy(bytes_.data(), given, std::min(size, bytes_.size()));
  }

  // Returns null if the program gave none.
  const NcclConfig* get() const {
    return given_ ? reinterpret_cast<const NcclConfig*>(bytes_.data())
                  : nullptr;
  }
  // Returns false if the program asks for a communicator that never blocks.
  bool blocking() const {
    return !given_ || get()->magic != kConfigMagic || get()->blocking != 0;
  }
  // Makes the config ask for a blocking communicator, whatever the program asks
  // for.
  void MakeBlocking() {
    if (!blocking()) reinterpret_cast<NcclConfig*>(bytes_.data())->blocking = 1;
  }

 private:
  bool given_;
  // Larger than the structure of any version.
  alignas(NcclConfig) std::array<std::byte, 1024> bytes_ = {};
};

}  // namespace jax_cxl::nccl

#endif  // JAX_CXL_NCCL_INTERFACE_CONFIG_H_
