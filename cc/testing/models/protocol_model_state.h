#ifndef JAX_CXL_TESTING_MODELS_PROTOCOL_MODEL_STATE_H_
#define JAX_CXL_TESTING_MODELS_PROTOCOL_MODEL_STATE_H_

#include <cstdint>
#include <vector>

#include "cc/plan/plan.h"
#include "cc/testing/models/protocol_model_faults.h"

// The configuration of a model of the protocol, and its state.
namespace jax_cxl::comm::model {

inline constexpr int kMaxRanks = 3;
inline constexpr int kMaxCalls = 6;
inline constexpr int kMaxRing = 4;
inline constexpr int kMaxSlots = 3;
inline constexpr int kMaxParts = 3;

struct ModelCall {
  // The plan of each rank. If the plans have no steps, the call is eager.
  std::vector<plan::Plan> plans;
};

struct Configuration {
  int ranks = 2;
  std::vector<ModelCall> calls;
  // The order in which each rank starts the calls.
  std::vector<std::vector<int>> orders;
  // kinds[r][c] is the kind of call c on rank r. Ranks with different kinds
  // disagree about the call. Empty: all ranks agree.
  std::vector<std::vector<int>> kinds;
  // If true, every rank starts inside the first call: all ranks have submitted
  // it, and have read the leader's announcement.
  bool announced = false;
  int submission_ring = 2;
  int reads_per_word = 1;
  int announcement_ring = 1;
  int num_slots = 2;
  // The number of parts of a slot, each of kSlotAlignment bytes, which are put
  // one by one. 1: a slot is put as a whole.
  int parts = 1;
  int crashes = 1;
  int timeouts = 0;  // ranks that may give up without a known reason
  Fault fault = Fault::kNone;
};

enum Life : uint8_t { kLive, kGivingUp, kGaveUp, kDead };

// All fields are bytes, so that states can be compared and hashed. The counters
// of a rank determine what it has stored and the values of its flags. They do
// not determine the payloads in the pool, because a store reaches the pool
// later. So State has the payloads.
struct Rank {
  uint8_t life;
  uint8_t abort;  // 1 reason stored, 2 published, 3 raised
  uint8_t reason_in_pool;
  uint8_t sent;
  uint8_t sending;  // 1 stored, 2 published
  uint8_t read[kMaxRanks];
  uint8_t acquired[kMaxRanks];  // for the submission to read next
  uint8_t
      here[kMaxCalls];  // members that have submitted the call, one bit each
  uint8_t suspects;     // member + 1: looked in vain for its message
  uint8_t done;         // finished calls, one bit each
  uint8_t ordered;      // announcements made or followed
  uint8_t ordering;     // 1 stored or acquired, 2 published
  uint8_t current;      // call + 1
  uint8_t step;
  uint8_t part;  // 1 stored, or number of acquired sources
  uint8_t stored[kMaxSlots][kMaxParts];  // round in each part, from 1
  uint8_t published;                     // the doorbell
  uint8_t released;
  uint8_t rounds;  // of finished calls
};

struct State {
  Rank rank[kMaxRanks];
  uint8_t submission[kMaxRanks][kMaxRing];
  uint8_t announcement[kMaxRing];
  uint8_t slot[kMaxRanks][kMaxSlots][kMaxParts];
  uint8_t order[kMaxCalls];  // order of announcements
  uint8_t crashes;
  uint8_t timeouts;
};

// Returns the newest message in entry `index` of a ring of `ring` entries,
// after a rank has written messages 1 to `count` to it. Returns 0 if the entry
// is empty.
inline int Newest(int count, int index, int ring) {
  const int last = count - 1 - (count - 1 - index) % ring;
  return count <= index ? 0 : last + 1;
}

}  // namespace jax_cxl::comm::model

#endif  // JAX_CXL_TESTING_MODELS_PROTOCOL_MODEL_STATE_H_
