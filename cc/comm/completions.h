#ifndef JAX_CXL_COMM_COMPLETIONS_H_
#define JAX_CXL_COMM_COMPLETIONS_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace jax_cxl::comm {

// Runs completions. Each completion gets a thread that it may keep for as long
// as it likes.
//
// Completing a call resumes the XLA program that waits for the call, on the
// same thread. The program may then block in another collective until other
// devices join it, and calls of those devices may still need to be completed.
// So no completion may wait for another one: Run adds a thread whenever all are
// busy.
//
// Thread-safe.
class Completions {
 public:
  // Waits until all completions have run. During this wait, a completion may
  // still call Run.
  ~Completions();

  void Run(std::function<void()> completion);

 private:
  void Work();

  std::mutex mutex_;
  // This is not a condition_variable_any, because that class has a mutex of its
  // own, which Run would lock when it notifies a thread. The thread that wakes
  // up would have to wait until Run has unlocked this mutex.
  std::condition_variable wake_;
  std::deque<std::function<void()>> queue_;
  size_t idle_ = 0;
  bool stop_ = false;
  std::vector<std::jthread> threads_;
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_COMPLETIONS_H_
