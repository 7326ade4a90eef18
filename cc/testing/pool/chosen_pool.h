#ifndef JAX_CXL_TESTING_POOL_CHOSEN_POOL_H_
#define JAX_CXL_TESTING_POOL_CHOSEN_POOL_H_

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <string>

#include "cc/pool/pool.h"
#include "cc/testing/incoherent/incoherent_cache.h"

// Environment variables choose the kind of pool for tests that do not choose
// one themselves. tests/conftest.py reads the same variables.
//
//   JAX_CXL_TEST_POOL=incoherent|flush|uncached|coherent (the default)
//   JAX_CXL_TEST_SEED=N  the random seed of incoherent pools (0)
//   JAX_CXL_TEST_LEAVE_OUT=slot.write_back  an operation of the protocol that
//                        incoherent pools leave out (omission.h)
namespace jax_cxl::pool {

struct Incoherence {
  uint64_t seed = 0;
  std::string leave_out;
  bool adversary = true;

  // Returns the incoherence that the variables choose, or nothing unless
  // JAX_CXL_TEST_POOL is "incoherent".
  static std::optional<Incoherence> FromEnvironment() {
    auto read = [](const char* name) {
      const char* value = std::getenv(name);
      return std::string(value == nullptr ? "" : value);
    };
    if (read("JAX_CXL_TEST_POOL") != "incoherent") return std::nullopt;
    return Incoherence{
        std::strtoull(read("JAX_CXL_TEST_SEED").c_str(), nullptr, 10),
        read("JAX_CXL_TEST_LEAVE_OUT")};
  }

  // Makes the pools of `spec` incoherent. Requires a spec of medium Shm.
  void ApplyTo(PoolSpec* spec) const {
    spec->make_interposer = IncoherentHosts(seed, leave_out, adversary);
  }
};

// Returns the coherence mode that JAX_CXL_TEST_POOL chooses. For an incoherent
// pool returns kCoherent, because the mode has no effect there.
inline CoherenceMode ChosenCoherence() {
  const char* chosen = std::getenv("JAX_CXL_TEST_POOL");
  if (chosen == nullptr || Incoherence::FromEnvironment())
    return CoherenceMode::kCoherent;
  const auto mode = ParseCoherenceMode(chosen);
  if (mode.ok()) return *mode;
  std::cerr << "JAX_CXL_TEST_POOL: " << mode.status().message() << std::endl;
  std::abort();
}

// Changes `spec` to the kind of pool that the variables choose. Requires a spec
// of medium Shm.
inline void ApplyChoice(PoolSpec* spec) {
  spec->coherence = ChosenCoherence();
  if (const auto incoherence = Incoherence::FromEnvironment())
    incoherence->ApplyTo(spec);
}

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_TESTING_POOL_CHOSEN_POOL_H_
