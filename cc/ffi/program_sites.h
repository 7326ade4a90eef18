#ifndef JAX_CXL_FFI_PROGRAM_SITES_H_
#define JAX_CXL_FFI_PROGRAM_SITES_H_

#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace jax_cxl::ffi {

// Numbers the call sites that XLA makes when it loads a program, in the order
// in which it makes them. The compiled program alone decides this order, so
// ranks that run the same program agree on it.
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
// Beside the numbers it keeps where in the user's code the calls of a program
// stand, as far as the lowering rules have noted it in this process.
//
// All methods may be called from any thread.
class ProgramSites {
 public:
  // The process's: sites are made by XLA, which knows no other.
  static ProgramSites& Get();

  // The number of the site that is being made.
  uint64_t Next(const std::string& program);

  // All sites of the program that is being loaded have been made.
  void Complete(const std::string& program);

  // Notes that calls of the program that `key` describes stand at `line`.
  void NoteLine(const std::string& program, const std::string& key,
                const std::string& line);
  // "a.py:3 (f)", several with "or" in between, or empty.
  std::string LinesOf(const std::string& program, const std::string& key);
  void ForgetLines(const std::string& program);

 private:
  std::mutex mutex_;
  std::unordered_map<std::string, uint64_t> made_;
  // By program and key.
  std::unordered_map<std::string,
                     std::unordered_map<std::string, std::vector<std::string>>>
      lines_;
};

}  // namespace jax_cxl::ffi

#endif  // JAX_CXL_FFI_PROGRAM_SITES_H_
