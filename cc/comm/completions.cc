#include "cc/comm/completions.h"

#include <utility>

namespace jax_cxl::comm {

void Completions::Run(std::function<void()> completion) {
  std::lock_guard lock(mutex_);
  queue_.push_back(std::move(completion));
  if (queue_.size() > idle_)
    threads_.emplace_back([this](const std::stop_token& stop) { Work(stop); });
  else
    wake_.notify_one();
}

void Completions::Work(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  for (;;) {
    ++idle_;
    const bool more =
        wake_.wait(lock, stop, [this] { return !queue_.empty(); });
    --idle_;
    if (!more) return;
    std::function<void()> completion = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    completion();
    completion = nullptr;
    lock.lock();
  }
}

}  // namespace jax_cxl::comm
