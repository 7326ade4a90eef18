#ifndef JAX_CXL_COMM_ORDER_SUBMISSIONS_H_
#define JAX_CXL_COMM_ORDER_SUBMISSIONS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cc/base/status.h"
#include "cc/comm/call/call.h"
#include "cc/pool/coherence/doorbell.h"
#include "cc/pool/layout/channel_layout.h"

namespace jax_cxl::comm {

// What the members of a group tell each other of the calls that they start: a
// ring of submissions each, written by the member and read by all others.
//
// Whoever reads a submission takes it over into its own memory or acts on it at
// once, so that an entry is free again when all have read it, whatever becomes
// of the call. How far a reader has come it says only every few submissions:
// what is said late only makes a writer wait that is a whole ring ahead.
//
// Not thread-safe.
class Submissions {
 public:
  // `blocks[m]` is the control block of the group's member m, whose submissions
  // can carry `payload_bytes`.
  Submissions(const pool::Doorbells& doorbells,
              std::vector<pool::ControlBlock*> blocks, const Group& group,
              uint64_t payload_bytes);

  // True if the next entry of my ring is free. Errors: kDataLoss.
  Result<bool> CanWrite();
  // The members that have yet to read what the next entry held.
  std::vector<int> RingHolders() const;
  // Where its payload goes, before Write.
  std::byte* payload() { return At(group_.self, written_)->payload(); }
  // Returns the number of the call's name, as others read it.
  uint32_t Write(uint64_t identity, const Call& call,
                 const pool::CallDescriptor& descriptor,
                 uint32_t payload_bytes);

  // A submission as it was read; its payload is still in the pool.
  struct Entry {
    uint64_t identity;
    pool::CallDescriptor descriptor;
    uint32_t name;
    uint32_t payload_bytes;
    const std::byte* payload;  // valid until Pop
  };

  // Reads the next submission of `member` into `entry`; false if it is yet to
  // come. Errors: kDataLoss.
  Result<bool> Peek(int member, Entry* entry);
  void Pop(int member);

  // What `member` calls, for its user: "psum: all_reduce sum of 8 float32 at
  // train.py:33".
  std::string Describe(int member, const pool::CallDescriptor& descriptor,
                       uint32_t name) const;

  // kDataLoss: what `member` wrote makes no sense.
  Status Corrupt(int member, const char* what) const;

 private:
  // How many submissions are read between two words about it.
  static constexpr uint64_t kReadsPerWord = pool::kCallRing / 4;

  int size() const { return static_cast<int>(blocks_.size()); }
  pool::Submission* At(int member, uint64_t index) const {
    return pool::SubmissionAt(blocks_[member], payload_bytes_, index);
  }
  uint32_t NameOf(const Call& call);

  pool::Doorbells doorbells_;
  std::vector<pool::ControlBlock*> blocks_;
  Group group_;
  uint64_t payload_bytes_;
  uint64_t written_ = 0;
  uint64_t free_until_ = pool::kCallRing;  // entries known to be free
  std::vector<uint64_t> read_;             // of each member's submissions
  // The names that are in the pool, and the one used last.
  struct Name {
    std::string name;
    std::string site;
  };
  std::vector<Name> names_;
  size_t last_name_ = 0;
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_ORDER_SUBMISSIONS_H_
