#ifndef JAX_CXL_PYTHON_SHARED_REGISTERED_H_
#define JAX_CXL_PYTHON_SHARED_REGISTERED_H_

#include <nanobind/nanobind.h>

#include <functional>
#include <memory>
#include <utility>

#include "cc/store/memory/registry.h"

namespace jax_cxl {

// A column of a table or a ring, which programs may use as long as this object
// lives. `last` runs once they no longer do.
template <typename T>
class Registered {
 public:
  using Name = typename pool::Registry<T>::Name;

  Registered(
      const Name& name, std::shared_ptr<T> object,
      std::function<void()> last = [] {})
      : name_(name), object_(std::move(object)), last_(std::move(last)) {
    pool::Registry<T>::Get().Add(name_, object_);
  }
  ~Registered() {
    nanobind::gil_scoped_release release;
    pool::Registry<T>::Get().Remove(name_, object_);
    last_();
  }
  Registered(const Registered&) = delete;
  Registered& operator=(const Registered&) = delete;

  const Name& name() const { return name_; }
  T* get() const { return object_.get(); }
  T* operator->() const { return get(); }

 private:
  const Name name_;
  const std::shared_ptr<T> object_;
  const std::function<void()> last_;
};

}  // namespace jax_cxl

#endif  // JAX_CXL_PYTHON_SHARED_REGISTERED_H_
