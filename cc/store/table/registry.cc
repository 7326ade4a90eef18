#include "cc/store/table/registry.h"

#include <algorithm>

namespace jax_cxl::table {

Registry& Registry::Get() {
  // Never destroyed: XLA's threads may take rows while the process exits.
  static auto& registry = *new Registry;
  return registry;
}

void Registry::Add(const Name& name, std::shared_ptr<Column> column) {
  std::lock_guard lock(mutex_);
  columns_[name].push_back(std::move(column));
}

void Registry::Remove(const Name& name, const Column* column) {
  std::shared_ptr<Column> removed;
  {
    std::lock_guard lock(mutex_);
    const auto found = columns_.find(name);
    if (found == columns_.end()) return;
    auto& opened = found->second;
    const auto at = std::ranges::find(
        opened, column, [](const auto& each) { return each.get(); });
    if (at == opened.end()) return;
    removed = std::move(*at);
    opened.erase(at);
    if (opened.empty()) columns_.erase(found);
  }
  // No further call finds the column. Wait for the calls that have found it.
  std::lock_guard last(removed->in_use);
  removed->closed = true;
}

std::shared_ptr<const Column> Registry::Find(const Name& name) const {
  std::lock_guard lock(mutex_);
  const auto found = columns_.find(name);
  return found == columns_.end() ? nullptr : found->second.back();
}

std::atomic<uint64_t>* Registry::Taken(int64_t table) {
  std::lock_guard lock(mutex_);
  return &taken_[table];
}

}  // namespace jax_cxl::table
