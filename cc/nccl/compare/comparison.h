#ifndef JAX_CXL_NCCL_COMPARE_COMPARISON_H_
#define JAX_CXL_NCCL_COMPARE_COMPARISON_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cc/base/status.h"
#include "cc/nccl/calls/operation.h"
#include "cc/nccl/compare/rule.h"
#include "cc/nccl/interface/results.h"

namespace jax_cxl::nccl {

// Two results of one call.
struct Results {
  uint64_t number = 0;                // of the call, from 1
  const std::string* text = nullptr;  // of the call, for the host
  Rule rule;
  int element_bytes = 1;
  uint64_t count = 0;  // of elements
  const void* ours = nullptr;
  const void* theirs = nullptr;
  const void* weights = nullptr;  // null if the rule has none
};

// What comparisons have found.
struct Found {
  // Each replay of a graph counts.
  uint64_t compared = 0;          // results
  uint64_t begun = 0, ended = 0;  // comparisons
  // The first call with a difference (number 0: none), and its first element
  // that differs.
  Results results;
  uint64_t element = 0;
  uint64_t ours = 0;
  uint64_t theirs = 0;
};

// The device of a rank, as it compares results: a GPU, or a model in tests.
// One comparison runs after another, whatever their streams are.
//
// One thread at a time calls the functions, except found.
class Comparer {
 public:
  virtual ~Comparer() = default;

  // Begins a comparison on the first of the streams, after the work of all of
  // them.
  virtual Status Begin(std::span<const Stream> streams) = 0;
  // Returns memory for this comparison, which later ones use again.
  virtual Result<std::byte*> Take(uint64_t bytes) = 0;
  // These functions enqueue work on the first stream. Weigh writes this rank's
  // part of the weights of `count` elements.
  virtual Status Copy(void* to, const void* from, uint64_t bytes) = 0;
  virtual Status Weigh(const Rule& rule, const void* input, uint64_t count,
                       const std::optional<comm::Factor>& factor,
                       void* weights) = 0;
  virtual Status Compare(const Results& results) = 0;
  // The later work of all streams waits for the comparison.
  virtual Status End() = 0;

  // Waits for the comparisons that have begun.
  virtual Status Drain() = 0;
  virtual Found found() const = 0;
};

// Returns a GPU, as it compares results (cuda/cuda_comparer.cu). `ordinal` is
// the number of the device in this process.
Result<std::unique_ptr<Comparer>> MakeCudaComparer(int ordinal);

// Has every n-th call of a communicator repeated by NVIDIA's library, and
// compares the results on the device. The ranks have the same n (Facts), and
// number their calls alike: collectives in their order, and sends in the order
// of each pair of ranks.
//
// A call has these steps: Begin before the call is enqueued, then Repeat, which
// is inside of a group of NVIDIA's library, and End. A captured call is
// compared each time that its graph runs.
//
// One thread at a time calls the functions, except Check, compared, under_way
// and Abort.
class Comparison {
 public:
  // Returns a function of NVIDIA's library, or null.
  using Find = std::function<void*(const char*)>;

  // `shadow` is NVIDIA's communicator of the same ranks. This object ends it.
  Comparison(Find find, void* shadow, std::unique_ptr<Comparer> comparer,
             int rank, int size, uint64_t every);
  // Waits for the comparisons that have begun, unless Abort was called before.
  ~Comparison();
  Comparison(const Comparison&) = delete;
  Comparison& operator=(const Comparison&) = delete;

  // A communicator enqueues a collective at a time, or the sends and receives
  // of a batch. If it is the turn of none of these, the comparison has not
  // begun, and the other steps do nothing.
  Status Begin(const std::pair<Collective, Stream>& call);
  Status Begin(std::span<const Transfer> batch);
  bool begun() const { return begun_; }
  Status Repeat();
  Status End();

  // ncclGroupStart and ncclGroupEnd of NVIDIA's library.
  Status StartGroup() { return Call("ncclGroupStart"); }
  Status EndGroup() { return Call("ncclGroupEnd"); }

  // Returns the first difference as an error.
  Status Check() const;
  // Waits for the comparisons that have begun, and returns Check.
  Status Drain();
  // Ends NVIDIA's communicator at once.
  void Abort();
  // How many results have been compared.
  uint64_t compared() const { return comparer_->found().compared; }
  // Returns true while this rank may wait for others in NVIDIA's library.
  bool under_way() const {
    const Found found = comparer_->found();
    return begun_ || found.begun != found.ended;
  }

 private:
  Status BeginOn(std::span<const Stream> streams);
  // These functions repeat a call.
  Status Reduce(const Collective& collective, const void* from, void* to);
  Status Reduce(const plan::Request& request, const void* from, void* to,
                int type, int op);
  Status Move(const comm::Call& call, const std::byte* from, std::byte* to);
  // Calls a function of NVIDIA's library.
  template <typename... Arguments>
  Status Call(const char* name, Arguments... arguments) {
    void* function = find_(name);
    if (function == nullptr)
      return Error(Code::kUnimplemented, "NVIDIA's library does not have ",
                   name, ", with which JAX_CXL_NCCL_COMPARE compares");
    return StatusOf(
        reinterpret_cast<NcclResult (*)(Arguments...)>(function)(arguments...),
        name);
  }

  const Find find_;
  std::atomic<void*> shadow_;
  const std::unique_ptr<Comparer> comparer_;
  const int rank_;
  const int size_;
  const uint64_t every_;
  uint64_t collectives_ = 0;
  std::map<std::pair<int, int>, uint64_t> transfers_;  // of pairs of ranks
  std::set<std::string> texts_;

  // From Begin to End.
  std::atomic<bool> begun_ = false;
  Stream stream_ = nullptr;
  std::vector<std::function<Status()>> repeats_;
  std::vector<Results> results_;
};

}  // namespace jax_cxl::nccl

#endif  // JAX_CXL_NCCL_COMPARE_COMPARISON_H_
