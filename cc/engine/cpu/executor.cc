#include "cc/engine/cpu/executor.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "cc/engine/cpu/one_round.h"
#include "cc/engine/kernels/copy.h"
#include "cc/engine/kernels/kernels.h"

namespace jax_cxl::cpu {

using plan::Step;
using plan::StepKind;

namespace {

// For shorter rows, stores past the caches are not worthwhile.
constexpr uint64_t kLeastPastCaches = 1024;

// In levels, a step is executed in pieces of this size, so that a reduced piece
// is still in the second-level cache when it is copied.
constexpr uint64_t kPieceBytes = uint64_t{64} << 10;

Step PieceOf(Step step, uint64_t at, uint64_t bytes) {
  step.from += at;
  step.input_from += at;
  step.to += at;
  step.bytes = bytes;
  return step;
}

bool WritesPastCaches(const plan::Plan& plan, const TakenRows* rows,
                      uint64_t least) {
  if (rows != nullptr)
    return rows->copy_bytes() >= kLeastPastCaches &&
           rows->taken_bytes() >= least;
  uint64_t copied = 0;
  for (const Step& step : plan.steps)
    if (step.kind == StepKind::kCopy || step.kind == StepKind::kGet)
      copied += step.bytes;
  return copied >= least;
}

// Returns true if a rank also puts its own source of a reduction into its slot.
// That source then lies at the same offset in the rank's slot as the sources of
// the peers in their slots.
bool PutsOwnSource(const plan::Plan& plan) {
  const auto reduce =
      std::ranges::find(plan.steps, StepKind::kReduce, &Step::kind);
  return reduce != plan.steps.end() &&
         std::ranges::any_of(plan.steps, [&](const Step& step) {
           return step.kind == StepKind::kPut && step.round == reduce->round &&
                  step.from == reduce->input_from && step.to == reduce->from &&
                  step.bytes == reduce->bytes;
         });
}

// At any time, a rank has put the sources of some rounds, but not yet reduced
// them. Returns the largest number of such rounds.
uint64_t RoundsBetweenPutAndReduce(const plan::Plan& plan) {
  uint64_t put = 0, most = 0;
  for (const Step& step : plan.steps) {
    if (step.kind == StepKind::kPut) put = step.round + 1;
    if (step.kind == StepKind::kReduce) most = std::max(most, put - step.round);
  }
  return most;
}

}  // namespace

Rings::Rings(std::vector<RingView> members, int rank, int num_slots)
    : members_(std::move(members)),
      seen_(members_.size()),
      rank_(rank),
      num_slots_(num_slots) {}

void Rings::Replace(int member, const RingView& view) {
  members_[member] = view;
  seen_[member] = {};
}

int Rings::BehindPublishing(int member, uint64_t rounds) {
  if (member == rank_) return -1;
  const RingView& ring = members_[member];
  uint64_t& seen = seen_[member].published;
  if (seen < rounds) seen = ring.doorbells.Read(ring.published);
  return seen < rounds ? member : -1;
}

int Rings::BehindReleasing(uint64_t rounds) {
  for (int member = 0; member < size(); ++member) {
    if (member == rank_) continue;
    const RingView& ring = members_[member];
    uint64_t& seen = seen_[member].released;
    if (seen < rounds) seen = ring.doorbells.Read(ring.released);
    if (seen < rounds) return member;
  }
  return -1;
}

int Rings::BehindSlot(uint64_t round) {
  return round < num_slots_ ? -1 : BehindReleasing(round + 1 - num_slots_);
}

void Rings::Publish(uint64_t rounds) {
  const RingView& own = members_[rank_];
  own.doorbells.Ring(own.published, rounds);
}

void Rings::Release(uint64_t rounds) {
  const RingView& own = members_[rank_];
  own.doorbells.Ring(own.released, rounds);
}

std::byte* Rings::Scratch(uint64_t bytes) {
  if (scratch_.size() < bytes) scratch_.resize(bytes);
  return scratch_.data();
}

Execution::Execution(std::shared_ptr<const plan::Plan> plan, Rings* rings,
                     uint64_t base_round, DType dtype, ReduceOp reduce_op,
                     const std::byte* input, std::byte* output,
                     uint64_t past_caches_bytes, TakenRows* rows,
                     const MemberBuffers* buffers)
    : plan_(std::move(plan)),
      rings_(rings),
      base_round_(base_round),
      dtype_(dtype),
      reduce_op_(reduce_op),
      input_(input),
      output_(output),
      rows_(rows),
      buffers_(buffers),
      past_caches_(WritesPastCaches(*plan_, rows, past_caches_bytes)) {
  if (buffers == nullptr || !PutsOwnSource(*plan_)) return;
  source_rounds_ = RoundsBetweenPutAndReduce(*plan_);
  source_bytes_ = PayloadBytes(*plan_);
  kept_sources_ = rings->Scratch(source_rounds_ * source_bytes_);
}

Result<bool> Execution::Advance(Traffic* traffic) {
  for (; next_step_ < plan_->steps.size(); ++next_step_) {
    const Step& step = plan_->steps[next_step_];
    if (!Ready(step)) return false;
    if (rows_ != nullptr) CXL_RETURN_IF_ERROR(rows_->ReadyFor(step));
    if (buffers_ == nullptr) {
      Run(step, traffic);
      continue;
    }
    uint64_t at = 0;
    do {
      const uint64_t bytes = std::min(kPieceBytes, step.bytes - at);
      RunInLevels(PieceOf(step, at, bytes), traffic);
      at += bytes;
    } while (at < step.bytes);
  }
  return true;
}

void Execution::Publish(const std::byte* slot, uint64_t bytes,
                        Traffic* traffic) {
  rings_->coherence().PublishPayload(slot, bytes);
  traffic->bytes_published += bytes;
}

const std::byte* Execution::Acquire(int peer, const Step& step,
                                    Traffic* traffic) {
  const std::byte* slot =
      rings_->Slot(peer, base_round_ + step.round) + step.from;
  rings_->coherence().AcquirePayload(slot, step.bytes);
  traffic->bytes_retrieved += step.bytes;
  return slot;
}

bool Execution::Ready(const Step& step) {
  waiting_for_ = -1;
  switch (step.kind) {
    case StepKind::kPut:
    case StepKind::kPutOutput:
      waiting_for_ = rings_->BehindSlot(base_round_ + step.round);
      break;
    case StepKind::kGet:
      waiting_for_ =
          rings_->BehindPublishing(step.peer, base_round_ + step.round + 1);
      break;
    case StepKind::kReduceToSlot:
      waiting_for_ = rings_->BehindSlot(base_round_ + step.to_round);
      [[fallthrough]];
    case StepKind::kReduce:
      for (int r = step.first; waiting_for_ < 0 && r < step.last; ++r)
        waiting_for_ =
            rings_->BehindPublishing(r, base_round_ + step.round + 1);
      break;
    default:
      break;
  }
  return waiting_for_ < 0;
}

void Execution::Run(const Step& step, Traffic* traffic) {
  const uint64_t round = base_round_ + step.round;
  switch (step.kind) {
    case StepKind::kCopy:
      TakenRows::ForEachTaken(rows_, step, output_,
                              [&](uint64_t at, std::byte* to, uint64_t bytes) {
                                CopyToOutput(to, input_ + step.from + at,
                                             bytes);
                              });
      break;
    case StepKind::kZero:
      std::memset(output_ + step.to, 0, step.bytes);
      break;
    case StepKind::kPut:
      Put(step, input_ + step.from, traffic);
      break;
    case StepKind::kPutOutput:
      Put(step, output_ + step.from, traffic);
      break;
    case StepKind::kPublish:
      rings_->Publish(round + 1);
      break;
    case StepKind::kGet: {
      const std::byte* slot = rings_->Slot(step.peer, round) + step.from;
      TakenRows::ForEachTaken(rows_, step, output_,
                              [&](uint64_t at, std::byte* to, uint64_t bytes) {
                                rings_->coherence().AcquirePayload(slot + at,
                                                                   bytes);
                                CopyToOutput(to, slot + at, bytes);
                                traffic->bytes_retrieved += bytes;
                              });
      break;
    }
    case StepKind::kReduce:
      RunReduce(step, input_ + step.input_from, output_ + step.to, traffic);
      break;
    case StepKind::kReduceToSlot: {
      std::byte* slot = OwnSlot(step.to_round) + step.to;
      RunReduce(step, input_ + step.input_from, slot, traffic);
      Publish(slot, step.bytes, traffic);
      break;
    }
    case StepKind::kRelease:
      rings_->Release(round + 1);
      break;
  }
}

// A rank may need the sums of its process twice: in its slot, and for the sum
// over all processes. It then keeps a private copy of them (KeptSource). It
// does not read them back from the slot, because reading a slot in CXL memory
// is slow. It does not keep them in an output either: these bytes are not
// final, but the output's lines would be loaded into the caches and written
// back for them.
void Execution::RunInLevels(const Step& step, Traffic* traffic) {
  switch (step.kind) {
    case StepKind::kCopy:
      buffers_->Copy(step.from, step.to, step.bytes);
      break;
    case StepKind::kPut:
      if (kept_sources_ != nullptr) {
        std::byte* source = KeptSource(step.round, step.to);
        buffers_->Read(step.from, source, step.bytes);
        Put(step, source, traffic);
      } else {
        std::byte* slot = OwnSlot(step.round) + step.to;
        buffers_->Read(step.from, slot, step.bytes);
        Publish(slot, step.bytes, traffic);
      }
      break;
    case StepKind::kPutOutput:
      Put(step, buffers_->Own(step.from), traffic);
      break;
    case StepKind::kGet:
      buffers_->Write(step.to, Acquire(step.peer, step, traffic), step.bytes);
      break;
    case StepKind::kReduce: {
      if (kept_sources_ != nullptr) {
        std::byte* source = KeptSource(step.round, step.from);
        RunReduce(step, source, source, traffic);
        buffers_->Write(step.to, source, step.bytes);
        break;
      }
      std::byte* own = buffers_->Own(step.to);
      buffers_->Read(step.input_from, own, step.bytes);
      RunReduce(step, own, own, traffic);
      buffers_->WriteOthers(step.to, step.bytes);
      break;
    }
    default:  // touches no buffer
      Run(step, traffic);
      break;
  }
}

void Execution::Put(const Step& step, const std::byte* source,
                    Traffic* traffic) {
  std::byte* slot = OwnSlot(step.round) + step.to;
  TakenRows::ForEachPublished(
      rows_, step, source,
      [&](uint64_t at, const std::byte* from, uint64_t bytes) {
        CopyBytes(slot + at, from, bytes);
        Publish(slot + at, bytes, traffic);
      });
}

void Execution::CopyToOutput(std::byte* to, const std::byte* from,
                             uint64_t bytes) {
  if (past_caches_)
    CopyPastCaches(to, from, bytes);
  else
    CopyBytes(to, from, bytes);
}

void Execution::RunReduce(const Step& step, const std::byte* own, std::byte* to,
                          Traffic* traffic) {
  sources_.clear();
  for (int r = step.first; r < step.last; ++r)
    sources_.push_back(r == rings_->rank() ? own : Acquire(r, step, traffic));
  Reduce(dtype_, reduce_op_, sources_, to, step.bytes / DTypeBytes(dtype_));
}

}  // namespace jax_cxl::cpu
