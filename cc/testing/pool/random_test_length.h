#ifndef JAX_CXL_TESTING_POOL_RANDOM_TEST_LENGTH_H_
#define JAX_CXL_TESTING_POOL_RANDOM_TEST_LENGTH_H_

#include <cstdlib>

// How long tests with random inputs run. By default this is two seconds, so
// that CI runs a short slice with a new seed each time. JAX_CXL_TEST_SECONDS
// makes all of them longer.
namespace jax_cxl {

inline constexpr double kRandomTestSeconds = 2;

inline double RandomTestSeconds() {
  const char* seconds = std::getenv("JAX_CXL_TEST_SECONDS");
  return seconds == nullptr ? kRandomTestSeconds : std::atof(seconds);
}

// Returns the number of cases for a test that has `count` cases by default. The
// number grows in proportion to JAX_CXL_TEST_SECONDS.
inline int RandomTestCount(int count) {
  return static_cast<int>(count * RandomTestSeconds() / kRandomTestSeconds);
}

}  // namespace jax_cxl

#endif  // JAX_CXL_TESTING_POOL_RANDOM_TEST_LENGTH_H_
