#ifndef JAX_CXL_POOL_JOB_RECORD_H_
#define JAX_CXL_POOL_JOB_RECORD_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cc/base/status.h"
#include "cc/pool/coherence/doorbell.h"
#include "cc/pool/layout/layout.h"
#include "cc/pool/layout/recorder_layout.h"

namespace jax_cxl::pool {

// A private copy of a pool's control pages, made while the ranks live or after
// they have ended. It contains the identity of each rank, and the last calls of
// each rank. No other process can change the copy. But other processes have
// written its contents, so the contents must be checked before use.
class JobRecord {
 public:
  // Copies the control pages of the pool that starts at `offset` of `fd`. `fd`
  // is the descriptor of a pool's file, of a saved job record or of a dax
  // device. `name` is the name that messages give it. Fails with kDataLoss if
  // there is no complete pool of this layout version.
  static Result<JobRecord> Read(int fd, uint64_t offset,
                                const std::string& name);

  const PoolHeader& header() const { return *At<PoolHeader>(0); }
  int world_size() const { return static_cast<int>(header().world_size); }
  const RankPage& rank_page(int rank) const;
  const Recorder& recorder(int rank) const;
  Doorbells doorbells() const;

  // The bytes of the copy. Saved to a file, they are valid input for Read.
  const std::byte* data() const { return lines_.data()->bytes; }
  uint64_t size() const { return lines_.size() * sizeof(Line); }

 private:
  struct alignas(kInterferenceBytes) Line {
    std::byte bytes[kInterferenceBytes];
  };

  JobRecord() = default;
  Status Copy(int fd, uint64_t offset, uint64_t bytes, const std::string& name);

  template <typename T>
  const T* At(uint64_t offset) const {
    return reinterpret_cast<const T*>(data() + offset);
  }

  std::vector<Line> lines_;
};

}  // namespace jax_cxl::pool

#endif  // JAX_CXL_POOL_JOB_RECORD_H_
