#ifndef JAX_CXL_COMM_CALL_STATS_H_
#define JAX_CXL_COMM_CALL_STATS_H_

#include <cstdint>

namespace jax_cxl::comm {

// Sums over all collectives since the start.
struct Stats {
  uint64_t calls = 0;
  uint64_t bytes_published = 0;  // written to the pool
  uint64_t bytes_retrieved = 0;  // read from the pool
  double seconds = 0;            // while at least one call was under way

  Stats& operator+=(const Stats& other) {
    calls += other.calls;
    bytes_published += other.bytes_published;
    bytes_retrieved += other.bytes_retrieved;
    seconds += other.seconds;
    return *this;
  }
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_CALL_STATS_H_
