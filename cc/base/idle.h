#ifndef JAX_CXL_BASE_IDLE_H_
#define JAX_CXL_BASE_IDLE_H_

#include <chrono>
#include <functional>
#include <thread>

namespace jax_cxl {

// Registers the thread that constructs it as one of the library's own, until it
// is destroyed. `Idle` ignores these threads, because their work says nothing
// about the user's program.
class OwnThread {
 public:
  OwnThread();
  ~OwnThread();
};

// Starts a thread with an OwnThread.
std::thread StartOwnThread(std::function<void()> body);

// Returns the processor time that the library's own threads of this process
// have used so far.
std::chrono::nanoseconds UsedByOwnThreads();

// Finds out whether the program in this process only waits: no thread of it
// computes, compiles, loads or copies.
//
// Not thread-safe.
class Idle {
 public:
  // Begins a measurement.
  void Start();
  // Returns true if no thread but the library's own runs now or waits for a
  // processor, and the other threads have used hardly any processor time since
  // Start. Costs one system call for each thread of the process, in all about a
  // millisecond.
  bool Check() const;

 private:
  std::chrono::nanoseconds used_{0};
  std::chrono::steady_clock::time_point since_;
};

}  // namespace jax_cxl

#endif  // JAX_CXL_BASE_IDLE_H_
