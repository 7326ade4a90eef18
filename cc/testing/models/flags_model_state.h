#ifndef JAX_CXL_TESTING_MODELS_FLAGS_MODEL_STATE_H_
#define JAX_CXL_TESTING_MODELS_FLAGS_MODEL_STATE_H_

#include <cstdint>
#include <string_view>
#include <vector>

// How large a model of the flags is, what can be left out, and its state.
namespace jax_cxl::comm::flags_model {

inline constexpr int kMaxRanks = 3;
inline constexpr int kMaxWords = 2;
inline constexpr int kRing = 2;  // of slots

// What a broken variant of the model leaves out.
enum class Fault : uint8_t {
  kNone,
  kReleasedWait,         // before a slot is written again
  kReleaseAfterReading,  // released while there is something to read
  kLeastReleased,        // noted is what one peer has released, not what all
  kFlag,                 // a word is taken for the round's without a look
  kCallWait,             // nor is the call
  kCallBehindSlot,       // the call is said before its slot is free
  kWipe,                 // before flags begin anew
  kWipeWait,             // for peers to have read what is wiped
  kMeeting,              // for peers to have wiped theirs
};

inline constexpr std::string_view kFaultNames[] = {
    "Nothing",  "ReleasedWait", "ReleaseAfterReading", "LeastReleased",
    "Flag",     "CallWait",     "CallBehindSlot",      "Wipe",
    "WipeWait", "Meeting"};
inline std::string_view FaultName(Fault fault) {
  return kFaultNames[static_cast<int>(fault)];
}

struct FlagsCall {
  int words;              // that each writer puts, and all others get
  uint8_t writers;        // a bit each
  std::vector<int> kind;  // what each rank calls; none: the same
};

struct Configuration {
  int ranks = 2;
  std::vector<FlagsCall> calls;
  int flags = 32;  // that there are, and one of them says: wiped
  int crashes = 1;
  int timeouts = 0;
  Fault fault = Fault::kNone;
};

enum Life : uint8_t { kLive, kGaveUp, kDead };

struct Rank {
  uint8_t life;
  uint8_t round;  // under way
  uint8_t wiped;  // 1 stored, 2 there
  uint8_t said;   // 1: which call it is in
  uint8_t put;    // words of the round, a bit each
  uint8_t got[kMaxRanks];
  uint8_t seen;      // who is in the same call
  uint8_t released;  // the word in the pool
  uint8_t noted;     // rounds that all peers are known to have released
};

// A word of data is the round that it belongs to, counted from 1, of which its
// flag is a part; 0: nothing.
struct Word {
  uint8_t in_pool;
  uint8_t on_its_way;  // stored and yet to arrive: the same + 1
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
