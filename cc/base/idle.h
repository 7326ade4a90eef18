#ifndef JAX_CXL_BASE_IDLE_H_
#define JAX_CXL_BASE_IDLE_H_

#include <chrono>
#include <functional>
#include <thread>

namespace jax_cxl {

// Marks the thread that makes it as one of the library's own for as long as it
// lives: what it does says nothing about the program that calls us.
class OwnThread {
 public:
  OwnThread();
  ~OwnThread();
};

// Starts a thread of the library's own.
std::thread StartOwnThread(std::function<void()> body);

// Processor time that the library's own threads have used so far, in this
// process.
std::chrono::nanoseconds UsedByOwnThreads();

// Tells whether the program in this process does nothing but wait: computes,
// compiles, loads and copies nothing.
//
// Not thread-safe.
class Idle {
 public:
  // Starts to watch, or starts over.
  void Start();
  // Whether no thread but our own runs or wants to, and hardly one has since
  // Start. Costs a system call a thread of the process, about a millisecond.
  bool Check() const;

 private:
  std::chrono::nanoseconds used_{0};
  std::chrono::steady_clock::time_point since_;
};

}  // namespace jax_cxl

#endif  // JAX_CXL_BASE_IDLE_H_
