#ifndef JAX_CXL_FFI_PROGRAM_COPIES_H_
#define JAX_CXL_FFI_PROGRAM_COPIES_H_

#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>

namespace jax_cxl::ffi {

// Numbers the call sites with equal attributes that XLA makes when it loads a
// program, in the order in which it makes them.
//
// Programs are told apart by their names, because attributes have to be the
// same on all ranks, whatever else each of them compiles. A name may recur: a
// rank may compile a program again, or another one of that name. Numbers start
// over whenever JAX says that a load is complete.
//
// Two programs of one name must not be loaded at the same time, by different
// threads of a process: their calls would not match those of other ranks and
// time out.
//
// All methods may be called from any thread.
class ProgramCopies {
 public:
  // The process's: sites are made by XLA, which knows no other.
  static ProgramCopies& Get();

  uint32_t Next(const std::string& program, int32_t site);

  // All sites of the program that is being loaded have been made.
  void Complete(const std::string& program);

 private:
  std::mutex mutex_;
  // How many sites were made of each site number of each program.
  std::unordered_map<std::string, std::unordered_map<int32_t, uint32_t>> made_;
};

}  // namespace jax_cxl::ffi

#endif  // JAX_CXL_FFI_PROGRAM_COPIES_H_
