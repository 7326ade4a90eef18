#ifndef JAX_CXL_ENGINE_CPU_MEMBER_BUFFERS_H_
#define JAX_CXL_ENGINE_CPU_MEMBER_BUFFERS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "cc/base/dtype.h"
#include "cc/engine/kernels/copy.h"
#include "cc/plan/plan.h"

namespace jax_cxl::cpu {

// How the ranks of a group are spread over processes. Each process has the same
// number of ranks.
struct Grid {
  int processes = 0;
  int per_process = 0;
  // Rank i of process p has place at[p * per_process + i] in the group.
  std::vector<int32_t> at;

  int At(int process, int i) const { return at[process * per_process + i]; }
  // Returns the process of the rank with this place, and its index there.
  std::pair<int, int> Find(int place) const {
    const auto found = std::ranges::find(at, place) - at.begin();
    return {static_cast<int>(found / per_process),
            static_cast<int>(found % per_process)};
  }
};

// The buffers of the ranks of one process in a collective in levels.
struct ProcessBuffers {
  plan::Request request;  // of the whole group; its `rank` is not used
  DType dtype = DType::kUint8;
  ReduceOp reduce_op = ReduceOp::kSum;
  Grid grid;
  std::vector<const std::byte*> inputs;  // of each rank of the process
  std::vector<std::byte*> outputs;
};

bool HasLevels(plan::Op op);

// Presents a collective in levels as a collective between processes.
//
// Rank i of each process forms a group with the ranks i of all other processes.
// This group executes the collective that RequestOf returns, with an ordinary
// plan. The plan knows one input and one output of each member. MemberBuffers
// takes the place of both: it reads the inputs of all ranks of the process, and
// reduces them if the operation reduces. It writes the outputs of all ranks
// that need the bytes. So there are no extra copies between the steps inside a
// process and the steps through the pool. In this table, (*, i) stands for the
// ranks i of all processes:
//
//   op              member i of process p reads     and writes
//   all_reduce      part i, reduced over the ranks  part i, for all ranks
//   broadcast       part i of the root              part i, for all ranks
//   reduce_scatter  the blocks of ranks (*, i),     its block
//                   reduced over the ranks
//   all_gather      its block                       the blocks of ranks (*, i),
//                                                   for all ranks
//   all_to_all      for each process, the blocks    its blocks
//                   that all ranks have for (*, i)
//
// Immutable. Members write different bytes, so they may run at the same time.
class MemberBuffers {
 public:
  // Outputs of at least `past_caches_bytes` are written past the caches.
  MemberBuffers(std::shared_ptr<const ProcessBuffers> process, int member,
                uint64_t past_caches_bytes);

  // Returns the collective that the member calls between the processes, as rank
  // `process`. The count of the request is 0 if the member's part is empty.
  plan::Request RequestOf(int process) const;

  // Returns true if each byte of the input is the reduction of several ranks'
  // bytes.
  bool reduces() const { return plan::Reduces(op_); }

  // Copies bytes [from, from + bytes) of the input.
  void Read(uint64_t from, std::byte* to, uint64_t bytes) const;
  // Writes bytes [to, to + bytes) of the output.
  void Write(uint64_t to, const std::byte* from, uint64_t bytes) const;
  // Copies `bytes` bytes of the input at `from` to the output at `to`.
  void Copy(uint64_t from, uint64_t to, uint64_t bytes) const;
  // For operations that reduce. Returns where byte `to` of the output is in the
  // member's own buffer. After the member has stored bytes there, WriteOthers
  // copies them to the outputs of the other ranks.
  std::byte* Own(uint64_t to) const;
  void WriteOthers(uint64_t to, uint64_t bytes) const;

 private:
  // Consecutive bytes in the buffer of one rank of the process. If `rank` is
  // kAll, they are in the buffers of all ranks of the process, at the same
  // offset.
  static constexpr int kAll = -1;
  struct Run {
    int rank = kAll;
    uint64_t offset = 0;
    uint64_t bytes = ~uint64_t{0};  // that follow `offset`
  };
  Run InputRun(uint64_t from) const;
  Run OutputRun(uint64_t to) const;
  // Returns the bytes from `at` to the end of a block, in the buffer of `rank`.
  // The block is number `place` in that buffer. All blocks have the same size.
  Run BlockRun(int rank, uint64_t place, uint64_t at) const {
    return {rank, place * block_ + at % block_, block_ - at % block_};
  }
  uint64_t PartBegin(int member) const;

  std::shared_ptr<const ProcessBuffers> process_;
  int member_;
  plan::Op op_;
  uint64_t block_;  // bytes of a rank's block
  void (*copy_)(std::byte*, const std::byte*, size_t);
};

}  // namespace jax_cxl::cpu

#endif  // JAX_CXL_ENGINE_CPU_MEMBER_BUFFERS_H_
