#ifndef JAX_CXL_NCCL_INTERFACE_SETTINGS_H_
#define JAX_CXL_NCCL_INTERFACE_SETTINGS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "cc/base/status.h"
#include "cc/pool/media/uri.h"

namespace jax_cxl::nccl {

// What counts as a host. A communicator with ranks on several hosts uses the
// pool. Any other uses the real NCCL.
enum class Hosts {
  kMachines,
  kProcesses,
  kAll,  // each GPU: every communicator goes through the pool
};

// The settings of this library. They come from the environment, because a
// program that calls NCCL does not know them.
struct Settings {
  Hosts hosts = Hosts::kMachines;  // JAX_CXL_NCCL_HOSTS
  std::string library;             // JAX_CXL_NCCL_LIBRARY: the real NCCL
  std::string interfaces;          // NCCL_SOCKET_IFNAME
  // JAX_CXL_NCCL_POOL, if it names memory that machines share; it has one path.
  // For a device, the spec is the part of the device in which pools lie.
  // Without JAX_CXL_NCCL_POOL, pools lie in /dev/shm.
  std::optional<pool::PoolUri> shared_memory;
  // JAX_CXL_NCCL_COMMUNICATOR_BYTES: how much of a shared device a communicator
  // takes, however many ranks it has. Two pools then never overlap in a part,
  // which creators on different machines could not detect.
  uint64_t communicator_bytes = uint64_t{2} << 30;
  // JAX_CXL_NCCL_RANK_BYTES: how much of its pool a rank of a communicator
  // uses, if the pool is large enough.
  uint64_t rank_bytes = uint64_t{64} << 20;
  // JAX_CXL_TIMEOUT. The default is longer than jax_cxl's, because programs
  // make ranks wait for checkpoints, and watch NCCL themselves.
  double timeout_s = 1800;
  double warn_after_s = 10;  // JAX_CXL_WARN_AFTER
  // JAX_CXL_NCCL_COMPARE: every n-th call of a communicator is compared with
  // the real library's. 0: none is.
  uint64_t compare = 0;
  // `warns` is true if NCCL_DEBUG is WARN, INFO or TRACE, and `informs` if it
  // is INFO or TRACE.
  bool warns = false;
  bool informs = false;
  Status status;  // why the environment makes no sense, or OK

  // Returns true if the real library makes all communicators. /dev/shm does not
  // connect machines.
  bool forwards_all() const {
    return status.ok() && hosts == Hosts::kMachines && !shared_memory;
  }
};

// The least that a rank needs.
inline constexpr uint64_t kLeastRankBytes = uint64_t{24} << 20;

// `variable` returns a variable of the environment, or an empty text.
Settings ReadSettings(const std::function<std::string(const char*)>& variable);

// The settings of this process, read once.
const Settings& TheSettings();

}  // namespace jax_cxl::nccl

#endif  // JAX_CXL_NCCL_INTERFACE_SETTINGS_H_
