#ifndef JAX_CXL_COMM_CALL_OPTIONS_H_
#define JAX_CXL_COMM_CALL_OPTIONS_H_

#include <cstdint>

#include "cc/comm/call/tuning.h"

namespace jax_cxl::comm {

// How long a rank waits for others before it warns, and before it gives up.
struct WaitTimes {
  double warn_after_s = 10;
  double timeout_s = 300;
};

// Settings of a job. They must be the same in all of its processes.
struct Options : WaitTimes {
  uint64_t slot_bytes = 0;  // 0: follows from the pool's size
  int num_slots = 0;        // 0: follows from the number of pool devices
  Tuning tuning;
  double heartbeat_timeout_s = 5;
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_CALL_OPTIONS_H_
