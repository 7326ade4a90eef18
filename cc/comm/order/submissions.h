#ifndef JAX_CXL_COMM_ORDER_SUBMISSIONS_H_
#define JAX_CXL_COMM_ORDER_SUBMISSIONS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cc/base/status.h"
#include "cc/comm/call/call.h"
#include "cc/comm/connect/directory.h"
#include "cc/pool/coherence/doorbell.h"
#include "cc/pool/layout/channel_layout.h"

namespace jax_cxl::comm {

// The submissions of a group. Each member has a ring of submissions, which the
// member writes and all others read.
//
// A reader copies a submission, or acts on it at once. So an entry is free as
// soon as all members have read it, whatever happens to the call. A reader
// publishes how far it has read only every few submissions. A late publication
// delays only a writer that is a whole ring ahead.
//
// Not thread-safe.
class Submissions {
 public:
  // `blocks[m]` is the control block of the group's member m. The vector must
  // live as long as this object. A submission carries at most `payload_bytes`.
  Submissions(const std::vector<MemberBlock>& blocks, const Group& group,
              uint64_t payload_bytes);

  // Call it when this member's control block has moved. Writes the words that
  // other members poll into the new block. Requires that all members have read
  // all submissions.
  void Move();
  // The largest value that this object has given to a word of the block.
  uint64_t most() const;

  // Returns true if the next entry of this member's ring is free. Fails with
  // kDataLoss.
  Result<bool> CanWrite();
  // Returns the members that keep the next entry of this member's ring in use,
  // because they have not yet read the old submission in it.
  std::vector<int> RingHolders() const;
  // Where the caller puts the payload of the next submission, before Write.
  std::byte* payload() { return At(group_.self, written_)->payload(); }
  // Publishes the next submission. Returns the number by which other members
  // find the call's name.
  uint32_t Write(uint64_t identity, const Call& call,
                 const pool::CallDescriptor& descriptor,
                 uint32_t payload_bytes);

  // A submission that was read. Its payload is still in the pool.
  struct Entry {
    uint64_t identity;
    pool::CallDescriptor descriptor;
    uint32_t name;
    uint32_t payload_bytes;
    const std::byte* payload;  // valid until Pop
  };

  // Reads the next submission of `member` into `entry`. Returns false if there
  // is none yet. Fails with kDataLoss.
  Result<bool> Peek(int member, Entry* entry);
  void Pop(int member);

  // Describes a call of `member` for the user: "psum: all_reduce sum of 8
  // float32 at train.py:33".
  std::string Describe(int member, const pool::CallDescriptor& descriptor,
                       uint32_t name) const;

  // Returns the error kDataLoss: the pool contains invalid data of `member`.
  // `what` describes these data.
  Status Corrupt(int member, const char* what) const;

 private:
  // After this many submissions, a member publishes how far it has read.
  static constexpr uint64_t kReadsPerWord = pool::kCallRing / 4;

  int size() const { return static_cast<int>(blocks_.size()); }
  pool::Submission* At(int member, uint64_t index) const {
    return pool::SubmissionAt(blocks_[member].control, payload_bytes_, index);
  }
  pool::Doorbell* ReadBy(int member) const {
    return pool::SubmissionsRead(blocks_[member].control, payload_bytes_);
  }
  uint64_t ReadOfMine(int member) const {
    return blocks_[member].doorbells.Read(&ReadBy(member)[group_.self].word);
  }
  uint32_t NameOf(const Call& call);

  const std::vector<MemberBlock>& blocks_;
  Group group_;
  uint64_t payload_bytes_;
  uint64_t written_ = 0;
  uint64_t free_until_ = pool::kCallRing;  // entries known to be free
  std::vector<uint64_t> read_;             // of each member's submissions
  // The names that are in the pool, and the one that was used last.
  struct Name {
    std::string name;
    std::string site;
  };
  std::vector<Name> names_;
  size_t last_name_ = 0;
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_ORDER_SUBMISSIONS_H_
