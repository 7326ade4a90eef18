#ifndef JAX_CXL_BASE_IDLE_H_
#define JAX_CXL_BASE_IDLE_H_

#include <chrono>
#include <functional>
#include <thread>

namespace jax_cxl {

// Registers the thread that constructs this object as one of the library's own
// threads, until the object is destroyed. `Idle` ignores these threads, because
// their work says nothing about the user's program.
class OwnThread {
 public:
  OwnThread();
  ~OwnThread();
};

// Starts a thread that is registered as an OwnThread and runs `body`.
std::thread StartOwnThread(std::function<void()> body);

// Returns the processor time that the library's own threads of this process
// have used so far.
std::chrono::nanoseconds UsedByOwnThreads();

// Finds out whether the user's program in this process only waits, which means
// that none of its threads computes, compiles, loads or copies.
//
// Not thread-safe.
class Idle {
 public:
  void Start();
  // Returns true if the program's threads (all except the library's own) have
  // used hardly any processor time since Start, and none of them now runs or
  // waits for a processor or a disk. Reads a file for each thread of the
  // process, in all about a millisecond.
  bool Check() const;

 private:
  std::chrono::nanoseconds used_{0};
  std::chrono::steady_clock::time_point since_;
};

}  // namespace jax_cxl

#endif  // JAX_CXL_BASE_IDLE_H_
