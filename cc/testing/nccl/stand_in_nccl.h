#ifndef JAX_CXL_TESTING_NCCL_STAND_IN_NCCL_H_
#define JAX_CXL_TESTING_NCCL_STAND_IN_NCCL_H_

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace jax_cxl::nccl {

constexpr int kSize = 3;
constexpr int kNcclUint8 = 1, kNcclInt32 = 2, kNcclFloat32 = 7;

// Stands for NVIDIA's library: one communicator of kSize ranks of this thread.
// Its calls run at the end of a group. Only sends have other types than those
// of four bytes.
class StandInNccl {
 public:
  struct Call {
    std::string name;
    int rank;
    const void* input;
    void* output;
    size_t count;
    int type = 0, op = 0, root = 0;  // or the peer
  };

  static StandInNccl& The() {
    static auto& the = *new StandInNccl;
    return the;
  }
  static void* Shadow(int rank) {
    static int ranks[kSize] = {0, 1, 2};
    return &ranks[rank];
  }
  static void* Find(const char* name);

  void Reset() { *this = StandInNccl(); }
  void Add(const Call& call) { calls_.push_back(call); }
  bool EndGroup();

  // Called before the calls run: waits for the devices. Returns false if the
  // calls cannot run.
  std::function<bool()> wait;
  // Has the call with this name have a wrong byte at `at` of its output.
  std::string fault;
  size_t at = 0;
  std::map<std::string, int> counts;  // of calls of all ranks
  int destroyed = 0, aborted = 0;
  std::map<int, float> factors;  // of premultiplied sums, by rank

 private:
  void Run();
  void Collective(const std::vector<Call>& ranks);
  void Done(const Call& call, size_t bytes);

  std::deque<Call> calls_;
};

}  // namespace jax_cxl::nccl

#endif  // JAX_CXL_TESTING_NCCL_STAND_IN_NCCL_H_
