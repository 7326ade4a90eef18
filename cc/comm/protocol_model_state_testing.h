#ifndef JAX_CXL_COMM_PROTOCOL_MODEL_STATE_TESTING_H_
#define JAX_CXL_COMM_PROTOCOL_MODEL_STATE_TESTING_H_

#include <cstdint>
#include <cstring>
#include <string_view>
#include <type_traits>
#include <vector>

#include "cc/plan/plan.h"

// What the model of the protocol is about: its variants, its size, its state.
namespace jax_cxl::comm::model {

inline constexpr int kMaxRanks = 3;
inline constexpr int kMaxCalls = 4;
inline constexpr int kMaxRing = 2;
inline constexpr int kMaxSlots = 3;

// What a broken variant leaves out.
enum class Fault : uint8_t {
  kNone,
  kSlotPublish,
  kSlotAcquire,
  kPublishedWait,
  kReleasedWait,
  kReleaseAfterReading,  // released as soon as the doorbell was seen
  kSubmissionPublish,
  kSubmissionAcquire,
  kSubmissionsReadWait,
  kAnnouncementPublish,
  kAnnouncementAcquire,
  kAnnouncementWait,
  kAbort,         // who gives up tells nobody
  kAbortPublish,  // nor why
  kBlame,         // who waits for a place in a ring does not know whom to watch
};
inline constexpr int kNumFaults = static_cast<int>(Fault::kBlame) + 1;

inline std::string_view FaultName(Fault fault) {
  constexpr std::string_view kNames[] = {"Nothing",
                                         "SlotPublish",
                                         "SlotAcquire",
                                         "PublishedWait",
                                         "ReleasedWait",
                                         "ReleaseAfterReading",
                                         "SubmissionPublish",
                                         "SubmissionAcquire",
                                         "SubmissionsReadWait",
                                         "AnnouncementPublish",
                                         "AnnouncementAcquire",
                                         "AnnouncementWait",
                                         "Abort",
                                         "AbortPublish",
                                         "Blame"};
  return kNames[static_cast<int>(fault)];
}

struct Configuration {
  int ranks = 2;
  // By call and rank; no steps: the call is eager.
  std::vector<std::vector<plan::Plan>> calls;
  // In which each rank starts the calls.
  std::vector<std::vector<int>> orders;
  int submission_ring = 2;
  int reads_per_word = 1;
  int announcement_ring = 1;
  int num_slots = 2;
  int crashes = 1;
  Fault fault = Fault::kNone;
};

enum Life : uint8_t { kLive, kGivingUp, kGaveUp, kDead };

// Plain bytes, so that states can be compared and hashed. What a rank has
// stored and what its flags say follow from its counters; what is in the pool
// of its payloads does not.
struct Rank {
  uint8_t life;
  uint8_t abort;  // 1 reason stored, 2 published, 3 raised
  uint8_t reason_in_pool;
  uint8_t sent;
  uint8_t sending;  // 1 stored, 2 published
  uint8_t read[kMaxRanks];
  uint8_t acquired[kMaxRanks];  // the submission to be read next
  uint8_t here[kMaxCalls];      // who has submitted the call, a bit each
  uint8_t done;                 // calls, a bit each
  uint8_t ordered;              // announcements made or followed
  uint8_t ordering;             // 1 stored or acquired, 2 published
  uint8_t current;              // call + 1
  uint8_t step;
  uint8_t part;  // 1 stored, or how many sources were acquired
  uint8_t put;   // rounds stored, published (the doorbell), released, finished
  uint8_t published;
  uint8_t released;
  uint8_t rounds;
};

struct State {
  Rank rank[kMaxRanks];
  uint8_t submission[kMaxRanks][kMaxRing];
  uint8_t announcement[kMaxRing];
  uint8_t slot[kMaxRanks][kMaxSlots];
  uint8_t order[kMaxCalls];  // of announcement, for those who know it
  uint8_t crashes;
};
static_assert(std::has_unique_object_representations_v<State>);

// The newest of `count` messages that go round a ring in its entry `index`,
// counted from 1; 0: none.
inline int Newest(int count, int index, int ring) {
  const int last = count - 1 - (count - 1 - index) % ring;
  return count <= index ? 0 : last + 1;
}

}  // namespace jax_cxl::comm::model

#endif  // JAX_CXL_COMM_PROTOCOL_MODEL_STATE_TESTING_H_
