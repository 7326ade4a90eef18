#ifndef JAX_CXL_TESTING_POOL_RANDOM_TEST_LENGTH_H_
#define JAX_CXL_TESTING_POOL_RANDOM_TEST_LENGTH_H_

#include <cstdlib>

// How long tests with random inputs run. JAX_CXL_TEST_SECONDS lengthens all of
// them: CI runs a short slice with a new seed each time.
namespace jax_cxl {

inline constexpr double kRandomTestSeconds = 2;

inline double RandomTestSeconds() {
  const char* seconds = std::getenv("JAX_CXL_TEST_SECONDS");
  return seconds == nullptr ? kRandomTestSeconds : std::atof(seconds);
}

// Returns `count`, multiplied by how many times longer the test should run.
inline int RandomTestCount(int count) {
  return static_cast<int>(count * RandomTestSeconds() / kRandomTestSeconds);
}

}  // namespace jax_cxl

#endif  // JAX_CXL_TESTING_POOL_RANDOM_TEST_LENGTH_H_
