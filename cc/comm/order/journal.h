#ifndef JAX_CXL_COMM_ORDER_JOURNAL_H_
#define JAX_CXL_COMM_ORDER_JOURNAL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cc/base/status.h"
#include "cc/comm/call/call.h"
#include "cc/engine/gpu_plan/channel_words.h"
#include "cc/pool/coherence/doorbell.h"
#include "cc/pool/layout/channel_layout.h"
#include "cc/pool/pool.h"

namespace jax_cxl::comm {

// The journals of a group of devices. The host of each member writes down the
// calls that it enqueues, and all hosts compare their journals. So if members
// disagree about a call, all of them find the same error, which describes both
// calls. (A device alone only finds out that a peer is in another call.) The
// *place* of a call is its index in the group, from 0.
//
// One thread at a time may call Write, and another thread the other functions.
class Journal {
 public:
  Journal(pool::Pool* pool, const Group& group,
          std::vector<cuda::DeviceControl*> controls);

  // Publishes the next call. The rank's Recorder must have recorded it.
  void Write(const Call& call, const pool::CallDescriptor& descriptor);

  // Compares those calls before place `written` that all members have enqueued.
  // Fails with kMismatch.
  Status Compare(uint64_t written);

  uint64_t compared_by_all() const { return compared_by_all_; }
  std::vector<int> Missing(uint64_t place) const;

 private:
  std::string Describe(int member, const cuda::JournalEntry& entry) const;

  const pool::Pool* pool_;
  Group group_;
  pool::Doorbells doorbells_;
  std::vector<cuda::DeviceControl*> controls_;
  uint64_t written_ = 0;
  uint64_t compared_ = 0;
  uint64_t compared_by_all_ = 0;
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_COMM_ORDER_JOURNAL_H_
