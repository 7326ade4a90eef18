#ifndef JAX_CXL_STORE_MEMORY_REGISTRY_H_
#define JAX_CXL_STORE_MEMORY_REGISTRY_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace jax_cxl::pool {

// The opened objects of one type, columns of tables or rings, by the names that
// programs have for them. While a call uses an object, it holds the object's
// lock `in_use` in shared mode, and `closed` must be false.
//
// Thread-safe.
template <typename T>
class Registry {
 public:
  // The identity of a table and the number of a column, or the number of a ring
  // and its device's ordinal in XLA.
  using Name = std::pair<int64_t, int32_t>;

  static Registry& Get() {
    // Never destroyed: XLA's threads may use it while the process exits.
    static auto& registry = *new Registry;
    return registry;
  }

  // A process may open an object several times, and adds it each time.
  void Add(const Name& name, std::shared_ptr<T> object) {
    std::lock_guard lock(mutex_);
    objects_[name].push_back(std::move(object));
  }

  // Removes an object that Add has added, and waits until no call uses it.
  // Afterwards the memory of the object may be unmapped.
  void Remove(const Name& name, const std::shared_ptr<T>& object) {
    {
      std::lock_guard lock(mutex_);
      auto& opened = objects_[name];
      const auto at = std::ranges::find(opened, object);
      if (at != opened.end()) opened.erase(at);
      if (opened.empty()) objects_.erase(name);
    }
    // No further call finds the object. Wait for the calls that have found it.
    std::lock_guard last(object->in_use);
    object->closed = true;
  }

  // Returns the object that was opened last, or null if there is none.
  std::shared_ptr<T> Find(const Name& name) const {
    std::lock_guard lock(mutex_);
    const auto found = objects_.find(name);
    return found == objects_.end() ? nullptr : found->second.back();
  }

 private:
  mutable std::mutex mutex_;
  std::map<Name, std::vector<std::shared_ptr<T>>> objects_;
};

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_STORE_MEMORY_REGISTRY_H_
