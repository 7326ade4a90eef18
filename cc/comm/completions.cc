#include "cc/comm/completions.h"

#include <utility>

namespace jax_cxl::comm {

Completions::~Completions() {
  // While the threads end, they still run completions, which may add new
  // threads. So repeat until no threads are left.
  for (std::vector<std::jthread> ending;; ending.clear()) {
    const std::lock_guard lock(mutex_);
    if (threads_.empty()) return;
    stop_ = true;
    wake_.notify_all();
    ending.swap(threads_);
  }
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
