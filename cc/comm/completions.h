#ifndef JAX_CXL_COMM_COMPLETIONS_H_
#define JAX_CXL_COMM_COMPLETIONS_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <stop_token>
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
  void Run(std::function<void()> completion);

 private:
  void Work(const std::stop_token& stop);

  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::deque<std::function<void()>> queue_;
  size_t idle_ = 0;
  std::vector<std::jthread> threads_;
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_COMPLETIONS_H_
