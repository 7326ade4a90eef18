#include "cc/store/ring/registry.h"

#include <memory>
#include <mutex>
#include <utility>

namespace jax_cxl::tier {

Registry& Registry::Get() {
  // Never destroyed: XLA's threads may use rings while the process exits.
  static auto& registry = *new Registry;
  return registry;
}

void Registry::Add(const Name& name, std::shared_ptr<MemoryRing> ring) {
  std::lock_guard lock(mutex_);
  rings_[name] = std::move(ring);
}

void Registry::Remove(const Name& name) {
  std::shared_ptr<MemoryRing> removed;
  {
    std::lock_guard lock(mutex_);
    const auto found = rings_.find(name);
    if (found == rings_.end()) return;
    removed = std::move(found->second);
    rings_.erase(found);
  }
  std::lock_guard last(removed->in_use);
  removed->closed = true;
}

std::shared_ptr<MemoryRing> Registry::Find(const Name& name) const {
  std::lock_guard lock(mutex_);
  const auto found = rings_.find(name);
  return found == rings_.end() ? nullptr : found->second;
}

}  // namespace jax_cxl::tier
