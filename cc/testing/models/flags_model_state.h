#ifndef JAX_CXL_TESTING_MODELS_FLAGS_MODEL_STATE_H_
#define JAX_CXL_TESTING_MODELS_FLAGS_MODEL_STATE_H_

#include <cstdint>
#include <string_view>
#include <vector>

// The types of flags_model.h: the configuration of a model, the faults that it
// may have, and its state.
namespace jax_cxl::comm::flags_model {

inline constexpr int kMaxRanks = 3;
inline constexpr int kMaxWords = 2;
inline constexpr int kRing = 2;  // number of slots

// The wait or check that a broken variant of the model leaves out.
enum class Fault : uint8_t {
  kNone,
  kReleasedWait,         // the wait before a slot is written again
  kReleaseAfterReading,  // a rank releases while it still has to read
  kLeastReleased,        // counts one peer's releases, not all peers'
  kThisRound,            // a rank that has heard from all counts this round too
  kHeardAll,             // a rank counts rounds, but has heard only from some
  kFlag,                 // the check of a word's flag
  kCallWait,             // the check of the peer's call
  kCallBehindSlot,       // the call is named before its slot is free
  kWipe,                 // the clearing before flags start again
  kWipeWait,             // the wait until peers have read the words to clear
  kMeeting,              // the wait until peers have cleared theirs
};

inline constexpr std::string_view kFaultNames[] = {
    "Nothing",       "ReleasedWait", "ReleaseAfterReading",
    "LeastReleased", "ThisRound",    "HeardAll",
    "Flag",          "CallWait",     "CallBehindSlot",
    "Wipe",          "WipeWait",     "Meeting"};
inline std::string_view FaultName(Fault fault) {
  return kFaultNames[static_cast<int>(fault)];
}

struct FlagsCall {
  int words;              // number that each writer puts and all others get
  uint8_t writers;        // one bit each
  std::vector<int> kind;  // of each rank's call; empty: all the same
};

struct Configuration {
  int ranks = 2;
  std::vector<FlagsCall> calls;
  int flags = 32;  // number of flags; one of them means: cleared
  int crashes = 1;
  int timeouts = 0;
  Fault fault = Fault::kNone;
};

enum Life : uint8_t { kLive, kGaveUp, kDead };

struct Rank {
  uint8_t life;
  uint8_t round;  // current round
  uint8_t wiped;  // 1 stored, 2 arrived
  uint8_t said;   // 1: it has named its call
  uint8_t put;    // words of the round, one bit each
  uint8_t got[kMaxRanks];
  uint8_t seen;      // members in the same call
  uint8_t released;  // the word in the pool
  uint8_t noted;     // rounds that all peers have certainly released
};

// A word of data, including its flag, is modeled as the number of its round.
// Rounds count from 1, and 0 means no data.
struct Word {
  uint8_t in_pool;
  uint8_t on_its_way;  // stored, not arrived: the same + 1
};

struct State {
  Rank rank[kMaxRanks];
  Word data[kMaxRanks][kRing][kMaxWords];
  Word call[kMaxRanks][kRing];
  uint8_t crashes;
  uint8_t timeouts;
};

}  // namespace jax_cxl::comm::flags_model

#endif  // JAX_CXL_TESTING_MODELS_FLAGS_MODEL_STATE_H_
