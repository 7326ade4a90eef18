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

// Makes a fault happen to one rank. It intercepts the operations by which the
// rank's process uses its pool, so the library needs no code for faults. It
// finds out from the address of an operation, and from the rank's flight
// recorder, at which point of the protocol the rank is.
//
// The process must have no other ranks. Thread-safe.
class Injector {
 public:
  // The fault happens once, right after `observer` has run in the same thread.
  Injector(const Fault& fault, std::function<void()> observer);
  ~Injector();

  // Changes the spec of the rank's pool, so that all operations on the pool go
  // through this object. Call it before the pool is opened. This object must
  // outlive the pool.
  void ApplyTo(pool::PoolSpec* spec);

  // Returns how often the rank has passed `point` since it submitted the call
  // of its fault. A fault in another run of the same job may have any `pass` up
  // to this count.
  uint64_t passes(Point point) const;

 private:
  class Memory;

  // Called when the rank comes to `point`. `word` is the doorbell, if there is
  // one.
  void Pass(Point point, uint64_t* word = nullptr);
  void Act(Point point, uint64_t* word) const;

  const Fault fault_;
  const std::function<void()> observer_;
  mutable std::mutex mutex_;
  uint64_t call_ = 0;  // the last call that the rank has submitted
  std::array<uint64_t, kNumPoints> passes_{};
  bool happened_ = false;
};

}  // namespace jax_cxl::fault

#endif  // JAX_CXL_TESTING_FAULTS_FAULTY_MEMORY_H_
