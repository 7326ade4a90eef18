#ifndef JAX_CXL_TESTING_MODELS_PROTOCOL_MODEL_SUBMISSIONS_H_
#define JAX_CXL_TESTING_MODELS_PROTOCOL_MODEL_SUBMISSIONS_H_

#include <vector>

#include "cc/testing/models/protocol_model_turn.h"

// Rings of submissions, and the words that count how many submissions were
// read. Models submissions.cc.
namespace jax_cxl::comm::model {

// Returns the word in the pool by which `reader` tells how many submissions of
// `writer` it has read. The word may be behind, because it is stored only after
// every `reads_per_word` submissions.
inline int ReadWord(const Turn& turn, int reader, int writer) {
  const int read = turn.state.rank[reader].read[writer];
  return read - read % turn.setup.reads_per_word;
}

// Returns the members that have yet to free the next entry of this rank's ring.
inline std::vector<int> RingHolders(const Turn& turn) {
  std::vector<int> holders;
  for (int m = 0; m < turn.setup.ranks; ++m)
    if (m != turn.self &&
        ReadWord(turn, m, turn.self) + turn.setup.submission_ring <=
            turn.me.sent)
      holders.push_back(m);
  return holders;
}

inline bool CanWrite(const Turn& turn) {
  return turn.Has(Fault::kSubmissionsReadWait) || RingHolders(turn).empty();
}

// Adds the next step by which this rank publishes a submission that it has
// stored: first it publishes the data, and then it rings the doorbell. Returns
// the state after the step if others can then see the submission, and null
// otherwise.
inline State* FinishWriting(Turn& turn) {
  const Rank& me = turn.me;
  if (me.sending == 1) {
    State& next = turn.Add("publishes a submission");
    turn.Mine(next).sending = 2;
    if (!turn.Has(Fault::kSubmissionPublish))
      next.submission[turn.self][me.sent % turn.setup.submission_ring] =
          me.sent + 1;
    return nullptr;
  }
  State& next = turn.Add("rings for a submission");
  turn.Mine(next).sending = 0;
  ++turn.Mine(next).sent;
  return &next;
}

// Returns true if `member` has submitted its call `index`, from 0.
inline bool IsHere(Turn& turn, int member, int index) {
  const int ring = turn.setup.submission_ring;
  const int ready = Newest(turn.state.rank[member].sent, index % ring, ring);
  if (ready <= index) return false;
  turn.Expect(ready, index + 1, "the doorbell of submission");
  return true;
}

// Checks what the reader finds in a submission. It has dropped the line before,
// unless the model has the fault kSubmissionAcquire.
inline void CheckSubmission(Turn& turn, int member, int index) {
  const int ring = turn.setup.submission_ring;
  const int found = turn.Has(Fault::kSubmissionAcquire)
                        ? index + 1 - ring
                        : turn.state.submission[member][index % ring];
  turn.Expect(found, index + 1, "submission");
}

// Adds the next step by which this rank reads the next submission of `member`,
// if there is one: it acquires the submission, and then reads it. Returns the
// state after the submission has been read, and null otherwise.
inline State* Read(Turn& turn, int member) {
  const int index = turn.me.read[member];
  if (!IsHere(turn, member, index)) return nullptr;
  CheckSubmission(turn, member, index);
  const bool acquired = turn.me.acquired[member] != 0;
  State& next =
      turn.Add(acquired ? "reads a submission" : "acquires a submission");
  turn.Mine(next).acquired[member] ^= 1;
  if (!acquired) return nullptr;
  ++turn.Mine(next).read[member];
  return &next;
}

}  // namespace jax_cxl::comm::model

#endif  // JAX_CXL_TESTING_MODELS_PROTOCOL_MODEL_SUBMISSIONS_H_
