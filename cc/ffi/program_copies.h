#ifndef JAX_CXL_FFI_PROGRAM_COPIES_H_
#define JAX_CXL_FFI_PROGRAM_COPIES_H_

#include <cstdint>
#include <mutex>
#include <unordered_map>

namespace jax_cxl::ffi {

// Numbers the call sites with equal attributes that XLA makes when it loads a
// program, in the order in which it makes them.
//
// A program may be loaded more than once, on some ranks only: compiled again
// with other options, say. The first time tells how many copies of a site it
// has, and numbers start over with each following load. What is needed is to
// know when the first load is complete: when JAX says so, at the latest when
// the program runs.
//
// All methods may be called from any thread.
class ProgramCopies {
 public:
  // The process's: sites are made by XLA, which knows no other.
  static ProgramCopies& Get();

  // `program` is the number of a lowering, of this process alone; `site` is
  // one of its calls.
  uint32_t Next(int32_t program, int32_t site);

  // All sites of the program's first load have been made.
  void Complete(int32_t program);

 private:
  struct Copies {
    uint32_t made = 0;
    uint32_t per_load = 0;  // 0 until the first load is complete
  };

  std::mutex mutex_;
  std::unordered_map<int32_t, std::unordered_map<int32_t, Copies>> programs_;
};

}  // namespace jax_cxl::ffi

#endif  // JAX_CXL_FFI_PROGRAM_COPIES_H_
