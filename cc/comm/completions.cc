#include "cc/comm/completions.h"

#include <utility>

namespace jax_cxl::comm {

Completions::~Completions() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Completions::Run(std::function<void()> completion) {
  std::lock_guard lock(mutex_);
  queue_.push_back(std::move(completion));
  if (queue_.size() > idle_)
    threads_.emplace_back([this] { Work(); });
  else
    wake_.notify_one();
}

void Completions::Work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    ++idle_;
    wake_.wait(lock, [this] { return stop_ || !queue_.empty(); });
    --idle_;
    if (queue_.empty()) return;
    std::function<void()> completion = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    completion();
    completion = nullptr;
    lock.lock();
  }
}

}  // namespace jax_cxl::comm
