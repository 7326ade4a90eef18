#ifndef JAX_CXL_FFI_CALL_PROGRAM_SITES_H_
#define JAX_CXL_FFI_CALL_PROGRAM_SITES_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace jax_cxl::ffi {

// A program that JAX has loaded. Its call sites share this object. The members
// have their values once `complete` is true, which is before XLA runs the
// program.
struct LoadedProgram {
  // Returns the number of the first launch of equal programs of which this
  // process has executed a call. `launch` is the number of a launch that
  // executes one now.
  uint32_t FirstLaunch(uint32_t launch) const;

  std::shared_ptr<const std::string> name;
  std::atomic<bool> complete = false;
  // A hash of the program before XLA has optimized it, and of the generation.
  // It is equal on all ranks, and differs between programs that have the same
  // name.
  uint64_t hash = 0;
  int generation = 0;
  // XLA's RunId of the n-th launch is `run_ids_from` + n, plus a number that
  // depends only on the devices of the program. XLA counts all launches of
  // equal programs together, even if a process loads such a program again.
  uint32_t run_ids_from = 0;
  // -1 before the first launch.
  std::shared_ptr<std::atomic<int64_t>> first_launch;
  // The process has loaded an equal program whose launches XLA counts apart. So
  // the launches of this program have no certain numbers.
  bool counted_apart = false;
  // The source lines of calls that the compiler hook has numbered, by number.
  std::unordered_map<int64_t, std::string> lines;
};

// Numbers the call sites (CallSite) that XLA makes when it loads a program, in
// the order in which XLA makes them. This order depends only on the compiled
// program, so ranks that run the same program agree on the numbers.
//
// A call names its program by an attribute. The attribute must be the same on
// all ranks, whatever other programs each rank compiles. So the attribute is
// the name of the program, although a name may recur: a rank may compile a
// program again, or another program with the same name. The caller of Begin and
// Complete makes sure that one thread at a time loads programs of a name.
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

  // XLA will now make the call sites of a program with this name.
  void Begin(const std::string& program);

  // Returns the number of the call site that XLA is making for `program`.
  uint64_t Next(const std::string& program);
  // Returns the program for which XLA is making call sites. They belong to this
  // generation of the runtime.
  std::shared_ptr<const LoadedProgram> Loading(const std::string& program,
                                               int generation);

  // Returns true if XLA has made a call site of the program since Begin.
  bool HasSites(const std::string& program);
  // Sets the members of the LoadedProgram. Call it when XLA has made all sites
  // of the program.
  void Complete(const std::string& program, uint64_t hash,
                uint32_t run_ids_from);
  // Notes the source line of a call that has a number, until Complete.
  void NoteNumberedLine(const std::string& program, int64_t number,
                        const std::string& line);

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
  // A program whose call sites XLA is making.
  struct Load {
    uint64_t numbered = 0;
    std::shared_ptr<LoadedProgram> program;  // null before the first site
    std::unordered_map<int64_t, std::string> lines;
  };
  std::unordered_map<std::string, Load> loads_;
  // Two members of every program that was loaded, by hash.
  struct Count {
    uint32_t run_ids_from;
    std::shared_ptr<std::atomic<int64_t>> first_launch;
  };
  std::unordered_map<uint64_t, Count> counts_;
  // The noted source lines, by program and key.
  std::unordered_map<std::string,
                     std::unordered_map<std::string, std::vector<std::string>>>
      lines_;
};

}  // namespace jax_cxl::ffi

#endif  // JAX_CXL_FFI_CALL_PROGRAM_SITES_H_
