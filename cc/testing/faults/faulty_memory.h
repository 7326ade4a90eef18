#ifndef JAX_CXL_TESTING_FAULTS_FAULTY_MEMORY_H_
#define JAX_CXL_TESTING_FAULTS_FAULTY_MEMORY_H_

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

#include "cc/pool/coherence/interposer.h"
#include "cc/pool/pool.h"
#include "cc/testing/faults/fault.h"

namespace jax_cxl::fault {

// Makes a fault happen to one rank: in the moves by which the rank's process
// works on its pool, so that the library knows nothing of faults. What the rank
// does follows from where a move goes, and from the rank's flight recorder.
//
// The process has no other ranks. Any thread.
class Injector {
 public:
  // The fault happens once, just after `observer` has run in the same thread.
  Injector(const Fault& fault, std::function<void()> observer);
  ~Injector();

  // For the spec of the rank's pool, before the pool is opened. This object
  // outlives the pool.
  void ApplyTo(pool::PoolSpec* spec);

  // How often the rank has passed a point since the call of its fault: what
  // `pass` can be.
  uint64_t passes(Point point) const;

 private:
  class Memory;

  // The rank has come to `point`; `word`: the doorbell.
  void Pass(Point point, uint64_t* word = nullptr);
  void Act(Point point, uint64_t* word) const;

  const Fault fault_;
  const std::function<void()> observer_;
  mutable std::mutex mutex_;
  uint64_t call_ = 0;  // that the rank has submitted last
  std::array<uint64_t, kNumPoints> passes_{};
  bool happened_ = false;
};

}  // namespace jax_cxl::fault

#endif  // JAX_CXL_TESTING_FAULTS_FAULTY_MEMORY_H_
