#ifndef JAX_CXL_COMM_COMPLETIONS_H_
#define JAX_CXL_COMM_COMPLETIONS_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace jax_cxl::comm {

// Runs completions, each on a thread that it may keep for as long as it likes.
//
// Completing a call resumes the XLA program that waits for it on the thread
// that completes it, up to and including a native collective that blocks until
// other devices, whose calls are still to be completed, join it. So no
// completion ever waits behind another one: a thread is added whenever all are
// taken.
//
// All methods may be called from any thread.
class Completions {
 public:
  ~Completions();

  void Run(std::function<void()> completion);

 private:
  void Work();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> queue_;
  size_t idle_ = 0;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_COMPLETIONS_H_
