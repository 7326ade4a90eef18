#ifndef JAX_CXL_NCCL_LIBRARY_EXPORTED_H_
#define JAX_CXL_NCCL_LIBRARY_EXPORTED_H_

#include <atomic>

#include "cc/base/status.h"
#include "cc/nccl/communicator.h"
#include "cc/nccl/interface/abi.h"
#include "cc/nccl/interface/real_library.h"
#include "cc/nccl/interface/results.h"

// What the exported functions share.
namespace jax_cxl::nccl {

// Begins the definition of a function that is exported under its name and under
// the name that NVIDIA provides for profilers.
#define JAX_CXL_NCCL_API(result, name, parameters)                          \
  extern "C" __attribute__((visibility("default"))) result name parameters; \
  extern "C" __attribute__((visibility("default"))) decltype(name) p##name  \
      __attribute__((alias(#name)));                                        \
  result name parameters

// Defines such a function. If `communicator` goes through the pool, the
// function does what the body says for `ours`. Otherwise the real library
// executes it.
#define JAX_CXL_NCCL_FUNCTION(name, parameters, arguments, ...) \
  JAX_CXL_NCCL_API(int, name, parameters) {                     \
    if (Communicator* ours = Ours(communicator)) __VA_ARGS__    \
    static RealFunction function(#name);                        \
    return function.Call arguments;                             \
  }

// Returns the communicator if it goes through the pool. Otherwise returns null,
// and `communicator` is then the real library's.
inline Communicator* Ours(void*& communicator) {
  if (communicator == nullptr ||
      *static_cast<const uint64_t*>(communicator) != kCommunicatorMagic)
    return nullptr;
  auto* ours = static_cast<Communicator*>(communicator);
  if (ours->real() == nullptr) return ours;
  communicator = ours->real();
  return nullptr;
}

// If the thread is in a group, opens a group of the real library too. Call this
// before any function of that library.
void JoinRealGroup();

// A function of the real library. Objects of this class are static, and each
// looks its function up once.
class RealFunction {
 public:
  explicit constexpr RealFunction(const char* name) : name_(name) {}

  // Returns the function's result, or an error if there is no such function.
  template <typename... Arguments>
  NcclResult Call(Arguments... arguments) {
    void* function = function_.load(std::memory_order_acquire);
    if (function == nullptr) {
      const RealLibrary& library = RealLibrary::Loaded();
      if (!library.status().ok()) return Report(library.status());
      function = library.Find(name_);
      if (function == nullptr)
        return Report(Error(Code::kUnimplemented, "NCCL at ", library.path(),
                            " does not have ", name_,
                            ": install a newer NCCL"));
      function_.store(function, std::memory_order_release);
    }
    JoinRealGroup();
    return reinterpret_cast<NcclResult (*)(Arguments...)>(function)(
        arguments...);
  }

 private:
  const char* name_;
  std::atomic<void*> function_ = nullptr;
};

#define JAX_CXL_NCCL_FORWARD(name, ...) \
  ([&] {                                \
    static RealFunction function(name); \
    return function.Call(__VA_ARGS__);  \
  }())

}  // namespace jax_cxl::nccl

#endif  // JAX_CXL_NCCL_LIBRARY_EXPORTED_H_
