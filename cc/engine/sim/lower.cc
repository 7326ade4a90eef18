#include "cc/engine/sim/lower.h"

#include <algorithm>
#include <utility>

namespace jax_cxl::sim {
namespace {

using plan::Step;
using plan::StepKind;

// Turns the plan of one rank into its ops.
class Lowering {
 public:
  Lowering(const plan::Request& request, const plan::Geometry& geometry,
           const Machine& machine, const Costs& costs,
           const LowerOptions& options, const Resources& resources)
      : request_(request),
        geometry_(geometry),
        machine_(machine),
        costs_(costs),
        coarse_(options.coarse),
        inline_(std::max(plan::InputBytes(request),
                         plan::OutputBytes(request)) <= options.inline_bytes),
        expansion_(inline_ ? options.inline_expansion : 1),
        resources_(resources),
        cards_read_(machine.cards) {}

  std::vector<Op> Run(const plan::Plan& plan) && {
    for (const Step& step : plan.steps) Add(step);
    FlushGets();
    return std::move(ops_);
  }

 private:
  int rank() const { return request_.rank; }

  int Card(int owner, uint64_t round) const {
    const int home = static_cast<int>(static_cast<int64_t>(owner) *
                                      machine_.cards / request_.num_ranks);
    return static_cast<int>((home + round % geometry_.num_slots) %
                            machine_.cards);
  }

  void Add(const Step& step) {
    const bool gets = step.kind == StepKind::kGet;
    if (gathered_.peers > 0 && (!gets || step.round != gathered_.round)) {
      FlushGets();
    }
    switch (step.kind) {
      case StepKind::kCopy:
      case StepKind::kZero:
        AddLocal(step);
        break;
      case StepKind::kPut:
      case StepKind::kPutOutput:
        AddPut(step);
        break;
      case StepKind::kPublish:
        AddRing(Lane::kOut, Bell::kPublished, step.round);
        ops_.back().setup = inline_ ? 0 : costs_.ring;
        if (slot_writer_round_ == step.round + 1) {
          ops_.back().after = slot_writer_;
        }
        break;
      case StepKind::kRelease:
        AddRing(Lane::kIn, Bell::kReleased, step.round);
        break;
      case StepKind::kGet:
        AddGet(step);
        break;
      case StepKind::kReduce:
      case StepKind::kReduceToSlot:
        AddReduce(step);
        break;
    }
  }

  void AddLocal(const Step& step) {
    Op& op = ops_.emplace_back();
    op.lane = Lane::kLocal;
    op.bytes = static_cast<double>(step.bytes);
    const bool copies = step.kind == StepKind::kCopy;
    op.uses = {{resources_.Memory(rank()), copies ? 2. : 1.}};
  }

  void AddPut(const Step& step) {
    Op op;
    op.lane = Lane::kOut;
    op.bytes = expansion_ * static_cast<double>(step.bytes);
    op.setup = costs_.put_setup + FlushTime(step.bytes, costs_.put_flush_rate);
    op.uses = UsesOut(Card(rank(), step.round), 1);
    AwaitSlot(op, step.round);
    if (step.kind == StepKind::kPutOutput) op.after = WriterOf(step);
    ops_.push_back(std::move(op));
  }

  void AddRing(Lane lane, Bell bell, uint64_t round) {
    Op& op = ops_.emplace_back();
    op.lane = lane;
    op.rings = bell;
    op.rung = round + 1;
  }

  void AddGet(const Step& step) {
    if (!coarse_ || step.bytes == 0) {
      Gather(step);
      FlushGets();
      return;
    }
    Gather(step);
  }

  void Gather(const Step& step) {
    if (gathered_.peers == 0) {
      gathered_ = {.round = step.round, .to = step.to, .end = step.to};
      std::fill(cards_read_.begin(), cards_read_.end(), 0);
    }
    ++gathered_.peers;
    gathered_.first = std::min(gathered_.first, step.peer);
    gathered_.last = std::max(gathered_.last, step.peer + 1);
    gathered_.bytes += static_cast<double>(step.bytes);
    gathered_.to = std::min(gathered_.to, step.to);
    gathered_.end = std::max(gathered_.end, step.to + step.bytes);
    cards_read_[Card(step.peer, step.round)] +=
        static_cast<double>(step.bytes);
  }

  void FlushGets() {
    if (gathered_.peers == 0) return;
    Op op = Incoming(gathered_.peers, gathered_.bytes);
    op.first = gathered_.first;
    op.last = gathered_.last;
    op.value = gathered_.round + 1;
    op.setup *= gathered_.peers;
    written_.push_back({gathered_.to, gathered_.end, NextIndex()});
    ops_.push_back(std::move(op));
    gathered_ = {};
  }

  void AddReduce(const Step& step) {
    std::fill(cards_read_.begin(), cards_read_.end(), 0);
    int peers = 0;
    for (int source = step.first; source < step.last; ++source) {
      if (source == rank()) continue;
      cards_read_[Card(source, step.round)] += static_cast<double>(step.bytes);
      ++peers;
    }
    Op op = Incoming(peers, static_cast<double>(step.bytes) * peers);
    op.first = step.first;
    op.last = step.last;
    op.value = step.round + 1;
    if (step.kind == StepKind::kReduceToSlot) {
      // In and out at once, at the pace of the slower.
      for (const Use& use : UsesOut(Card(rank(), step.to_round), 1. / peers)) {
        op.uses.push_back(use);
      }
      AddSlotWait(step.to_round);
      op.after = NextIndex() - 1;
      slot_writer_ = NextIndex();
      slot_writer_round_ = step.to_round + 1;
    } else {
      written_.push_back({step.to, step.to + step.bytes, NextIndex()});
    }
    ops_.push_back(std::move(op));
  }

  // An op of no bytes that waits for a slot of mine in the outgoing lane.
  void AddSlotWait(uint64_t round) {
    Op op;
    op.lane = Lane::kOut;
    AwaitSlot(op, round);
    ops_.push_back(std::move(op));
  }

  // Reads `bytes` as spread over cards_read_, from `peers` peers.
  Op Incoming(int peers, double bytes) const {
    Op op;
    op.lane = Lane::kIn;
    op.await = Bell::kPublished;
    op.bytes = bytes * expansion_;
    op.setup = costs_.get_setup +
               FlushTime(static_cast<uint64_t>(bytes), costs_.get_flush_rate);
    op.latency = (inline_ || bytes == 0 ? 0 : costs_.get_latency) +
                 PollTime(peers);
    if (bytes == 0) return op;
    op.uses = {{resources_.GpuIn(rank()), 1}, {resources_.UplinkIn(rank()), 1}};
    for (int card = 0; card < machine_.cards; ++card) {
      if (cards_read_[card] == 0) continue;
      const double share = cards_read_[card] / bytes;
      op.uses.push_back({resources_.CardOut(card), share});
      op.uses.push_back({resources_.CardBoth(card), share});
    }
    return op;
  }

  std::vector<Use> UsesOut(int card, double share) const {
    return {{resources_.GpuOut(rank()), share},
            {resources_.UplinkOut(rank()), share},
            {resources_.CardIn(card), share},
            {resources_.CardBoth(card), share}};
  }

  void AwaitSlot(Op& op, uint64_t round) const {
    const uint64_t slots = geometry_.num_slots;
    if (round < slots) return;
    op.await = Bell::kReleased;
    op.last = request_.num_ranks;
    op.value = round - slots + 1;
    op.latency = PollTime(request_.num_ranks - 1);
  }

  // Every peer's doorbell is a line that crosses the link.
  double PollTime(int peers) const {
    return peers * costs_.doorbell_bytes / machine_.gpu_in;
  }

  static double FlushTime(uint64_t bytes, double rate) {
    return rate > 0 ? static_cast<double>(bytes) / rate : 0;
  }

  // The last op that wrote output which the step puts, -1 for none.
  int WriterOf(const Step& step) const {
    for (auto range = written_.rbegin(); range != written_.rend(); ++range) {
      if (range->begin < step.from + step.bytes && step.from < range->end) {
        return range->op;
      }
    }
    return -1;
  }

  int NextIndex() const { return static_cast<int>(ops_.size()); }

  struct Gathered {
    uint64_t round = 0;
    uint64_t to = 0, end = 0;  // output
    int peers = 0;
    int first = 1 << 30, last = 0;
    double bytes = 0;
  };
  struct Written {
    uint64_t begin, end;  // output
    int op;
  };

  const plan::Request& request_;
  const plan::Geometry& geometry_;
  const Machine& machine_;
  const Costs& costs_;
  const bool coarse_;
  const bool inline_;
  const double expansion_;
  const Resources& resources_;
  std::vector<Op> ops_;
  Gathered gathered_;
  std::vector<double> cards_read_;  // scratch: bytes by card
  std::vector<Written> written_;
  int slot_writer_ = -1;             // the last op that reduced into a slot
  uint64_t slot_writer_round_ = 0;  // its round, plus 1
};

}  // namespace

Result<Program> Lower(plan::Request request, const plan::Geometry& geometry,
                      const Machine& machine, const Costs& costs,
                      const LowerOptions& options) {
  if (request.num_ranks != machine.ranks()) {
    return Error(Code::kInvalidArgument, "a plan for ", request.num_ranks,
                 " ranks on a machine of ", machine.ranks());
  }
  const Resources resources(machine);
  Program program;
  program.start = costs.start;
  program.doorbell = costs.doorbell;
  for (request.rank = 0; request.rank < request.num_ranks; ++request.rank) {
    CXL_ASSIGN_OR_RETURN(const plan::Plan plan,
                         plan::MakePlan(request, geometry));
    program.ranks.push_back(Lowering(request, geometry, machine, costs, options,
                                     resources)
                                .Run(plan));
  }
  return program;
}

}  // namespace jax_cxl::sim
