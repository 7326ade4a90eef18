#ifndef JAX_CXL_TESTING_DEVICES_DEVICE_SOAK_H_
#define JAX_CXL_TESTING_DEVICES_DEVICE_SOAK_H_

#include <cstdint>
#include <optional>
#include <string>

#include "cc/testing/pool/chosen_pool.h"

// Random collectives of modeled devices, checked against plain loops. The
// devices' hosts relay doorbells, and write back and drop lines
// (cc/gpu/relay).
namespace jax_cxl::comm::soak {

struct DeviceSoakReport {
  uint64_t calls = 0;
  uint64_t worlds = 0;
  std::string first_failure;  // empty if there is none
};

// Runs random collectives until `seconds` have passed, or until the first
// problem. Without `incoherence`, it uses a pool with coherence=flush in
// /dev/shm. A batch of calls that takes longer than `timeout_s` counts as hung.
DeviceSoakReport DeviceSoak(uint64_t seed, double seconds,
                            const std::optional<pool::Incoherence>& incoherence,
                            double timeout_s);

}  // namespace jax_cxl::comm::soak

#endif  // JAX_CXL_TESTING_DEVICES_DEVICE_SOAK_H_
