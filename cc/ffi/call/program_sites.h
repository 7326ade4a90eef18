#ifndef JAX_CXL_FFI_CALL_PROGRAM_SITES_H_
#define JAX_CXL_FFI_CALL_PROGRAM_SITES_H_

#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace jax_cxl::ffi {

// Numbers the call sites (CallSite) that XLA makes when it loads a program, in
// the order in which XLA makes them. This order depends only on the compiled
// program, so ranks that run the same program agree on the numbers.
//
// A call names its program by an attribute. The attribute must be the same on
// all ranks, whatever other programs each rank compiles. So the attribute is
// the name of the program, although a name may recur: a rank may compile a
// program again, or another program with the same name. The numbers of a name
// start again whenever JAX reports that a load is complete.
//
// Two threads of a process must not load two programs with the same name at the
// same time. The calls of both would be numbered together. They would then not
// match the calls of other ranks, and would time out.
//
// The object also keeps the source lines of a program's calls, if the lowering
// rules have noted them in this process.
//
// Thread-safe.
class ProgramSites {
 public:
  // Returns the instance of this extension module. It is global, because XLA
  // passes no context when it makes a site.
  static ProgramSites& Get();
  // From now on, makes Get return `sites`, the instance of another extension
  // module. This is needed because lowering rules note lines in jax_cxl._core,
  // but XLA makes call sites for GPUs in jax_cxl._cuda.
  static void Use(ProgramSites* sites);

  // Returns the number of the call site that XLA is making for `program`.
  uint64_t Next(const std::string& program);

  // Lets the numbers of `program` start again. Call it when XLA has made all
  // sites of the program that it was loading.
  void Complete(const std::string& program);

  // Notes `line` as a source line of those calls of the program that have the
  // key `key` (CallSite::LineKey).
  void NoteLine(const std::string& program, const std::string& key,
                const std::string& line);
  // Returns the source lines noted for `key`: "", a text like "a.py:3 (f)", or
  // several such texts with "or" between them.
  std::string LinesOf(const std::string& program, const std::string& key);
  void ForgetLines(const std::string& program);

 private:
  std::mutex mutex_;
  std::unordered_map<std::string, uint64_t> made_;
  // The noted source lines, by program and key.
  std::unordered_map<std::string,
                     std::unordered_map<std::string, std::vector<std::string>>>
      lines_;
};

}  // namespace jax_cxl::ffi

#endif  // JAX_CXL_FFI_CALL_PROGRAM_SITES_H_
