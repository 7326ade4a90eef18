#ifndef JAX_CXL_FFI_CALL_PROGRAM_SITES_H_
#define JAX_CXL_FFI_CALL_PROGRAM_SITES_H_

#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace jax_cxl::ffi {

// Numbers the call sites that XLA makes when it loads a program, in the order
// in which XLA makes them. This order depends only on the compiled program, so
// ranks that run the same program agree on it.
//
// Programs are identified by their names, because attributes must be the same
// on all ranks, whatever else each rank compiles. A name may recur: a rank may
// compile a program again, or another program with the same name. Numbers start
// again whenever JAX reports that a load is complete.
//
// Two threads of a process must not load two programs of one name at the same
// time. Their calls would not match those of other ranks, and would time out.
//
// The object also keeps the source lines of a program's calls, if the lowering
// rules have noted them in this process.
//
// Thread-safe.
class ProgramSites {
 public:
  // Returns the instance of this module, because XLA makes sites without any
  // other context.
  static ProgramSites& Get();
  // From now on, makes Get return the instance of another module. This is
  // needed because lowering rules note lines in jax_cxl._core, but XLA makes
  // call sites for GPUs in jax_cxl._cuda.
  static void Use(ProgramSites* sites);

  // Returns the number of the site that XLA is making.
  uint64_t Next(const std::string& program);

  // Call it when all sites of the loaded program have been made.
  void Complete(const std::string& program);

  // Notes `line` as the source line of the program's calls that `key`
  // describes.
  void NoteLine(const std::string& program, const std::string& key,
                const std::string& line);
  // Returns a text like "a.py:3 (f)", with "or" between several lines, or "".
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

#endif  // JAX_CXL_FFI_CALL_PROGRAM_SITES_H_
