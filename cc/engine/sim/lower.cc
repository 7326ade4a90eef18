#include "cc/engine/sim/lower.h"

#include <algorithm>
#include <utility>

namespace jax_cxl::sim {
namespace {

using plan::Step;
using plan::StepKind;

// Turns the plan of one rank into its tasks.
class Lowering {
 public:
  Lowering(const plan::Request& request, const plan::Geometry& geometry,
           const Machine& machine, const Costs& costs,
           const LowerOptions& options, const Resources& resources)
      : request_(request),
        geometry_(geometry),
        machine_(machine),
        costs_(costs),
        batches_(options.batch_gets),
        inline_(std::max(plan::InputBytes(request),
                         plan::OutputBytes(request)) <= options.inline_bytes),
        expansion_(inline_ ? options.inline_expansion : 1),
        resources_(resources),
        cards_read_(machine.cards) {}

  std::vector<Task> Run(const plan::Plan& plan) && {
    for (const Step& step : plan.steps) Add(step);
    FlushGets();
    return std::move(tasks_);
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
    if (gathered_.peers > 0 && !Joins(step)) FlushGets();
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
        if (slot_writer_round_ == step.round + 1) {
          tasks_.back().after = slot_writer_;
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
    Task& task = tasks_.emplace_back();
    task.lane = Lane::kLocal;
    task.bytes = static_cast<double>(step.bytes);
    const bool copies = step.kind == StepKind::kCopy;
    task.uses = {{resources_.Memory(rank()), copies ? 2. : 1.}};
  }

  void AddPut(const Step& step) {
    Task task;
    task.lane = Lane::kOut;
    task.bytes = expansion_ * static_cast<double>(step.bytes);
    task.setup =
        costs_.put_setup + FlushTime(step.bytes, costs_.put_flush_rate);
    task.uses = UsesOut(Card(rank(), step.round), 1);
    AwaitSlot(task, step.round);
    if (step.kind == StepKind::kPutOutput) task.after = WriterOf(step);
    tasks_.push_back(std::move(task));
  }

  void AddRing(Lane lane, Bell bell, uint64_t round) {
    Task& task = tasks_.emplace_back();
    task.lane = lane;
    task.setup = inline_ ? 0 : costs_.ring;
    task.rings = bell;
    task.rung = round + 1;
  }

  void AddGet(const Step& step) {
    Gather(step);
    if (!batches_ || step.bytes == 0) FlushGets();
  }

  // Whether a step may run together with the gets before it: another peer's
  // slot of the same round, or an earlier round of the same peer, so that it
  // waits for nothing more.
  bool Joins(const Step& step) const {
    if (step.kind != StepKind::kGet || step.bytes == 0) return false;
    const bool same_peer =
        gathered_.first == step.peer && gathered_.last == step.peer + 1;
    return step.round == gathered_.round ||
           (same_peer && step.round < gathered_.round);
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
    cards_read_[Card(step.peer, step.round)] += static_cast<double>(step.bytes);
  }

  void FlushGets() {
    if (gathered_.peers == 0) return;
    Task task = Incoming(gathered_.peers, gathered_.bytes);
    task.first = gathered_.first;
    task.last = gathered_.last;
    task.value = gathered_.round + 1;
    task.setup *= gathered_.peers;
    written_.push_back({gathered_.to, gathered_.end, NextIndex()});
    tasks_.push_back(std::move(task));
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
    Task task = Incoming(peers, static_cast<double>(step.bytes) * peers);
    task.first = step.first;
    task.last = step.last;
    task.value = step.round + 1;
    if (step.kind == StepKind::kReduceToSlot) {
      // In and out at once, at the pace of the slower.
      for (const Use& use : UsesOut(Card(rank(), step.to_round), 1. / peers)) {
        task.uses.push_back(use);
      }
      AwaitSlot(task, step.to_round);
      slot_writer_ = NextIndex();
      slot_writer_round_ = step.to_round + 1;
    } else {
      written_.push_back({step.to, step.to + step.bytes, NextIndex()});
    }
    tasks_.push_back(std::move(task));
  }

  // Reads `bytes` as spread over cards_read_, from `peers` peers.
  Task Incoming(int peers, double bytes) const {
    Task task;
    task.lane = Lane::kIn;
    task.await = Bell::kPublished;
    task.bytes = bytes * expansion_;
    task.setup = costs_.get_setup +
                 FlushTime(static_cast<uint64_t>(bytes), costs_.get_flush_rate);
    task.latency =
        PollTime(peers) + (inline_ || bytes == 0 ? 0 : costs_.get_latency);
    if (bytes == 0) return task;
    task.uses = {{resources_.GpuIn(rank()), 1},
                 {resources_.UplinkIn(rank()), 1}};
    for (int card = 0; card < machine_.cards; ++card) {
      if (cards_read_[card] == 0) continue;
      const double share = cards_read_[card] / bytes;
      task.uses.push_back({resources_.CardOut(card), share});
      task.uses.push_back({resources_.CardBoth(card), share});
    }
    return task;
  }

  std::vector<Use> UsesOut(int card, double share) const {
    return {{resources_.GpuOut(rank()), share},
            {resources_.UplinkOut(rank()), share},
            {resources_.CardIn(card), share},
            {resources_.CardBoth(card), share}};
  }

  void AwaitSlot(Task& task, uint64_t round) const {
    const uint64_t slots = geometry_.num_slots;
    if (round < slots) return;
    task.released = round - slots + 1;
    task.latency += PollTime(request_.num_ranks - 1);
  }

  // All peers' doorbells at once; each is a line that crosses the link.
  double PollTime(int peers) const {
    return (inline_ ? 0 : costs_.poll) +
           peers * costs_.doorbell_bytes / machine_.gpu_in;
  }

  static double FlushTime(uint64_t bytes, double rate) {
    return rate > 0 ? static_cast<double>(bytes) / rate : 0;
  }

  // The last task that wrote output which the step puts, -1 for none.
  int WriterOf(const Step& step) const {
    for (auto range = written_.rbegin(); range != written_.rend(); ++range) {
      if (range->begin < step.from + step.bytes && step.from < range->end) {
        return range->task;
      }
    }
    return -1;
  }

  int NextIndex() const { return static_cast<int>(tasks_.size()); }

  struct Gathered {
    uint64_t round = 0;
    uint64_t to = 0, end = 0;  // output
    int peers = 0;
    int first = 1 << 30, last = 0;
    double bytes = 0;
  };
  struct Written {
    uint64_t begin, end;  // output
    int task;
  };

  const plan::Request& request_;
  const plan::Geometry& geometry_;
  const Machine& machine_;
  const Costs& costs_;
  const bool batches_;
  const bool inline_;
  const double expansion_;
  const Resources& resources_;
  std::vector<Task> tasks_;
  Gathered gathered_;
  std::vector<double> cards_read_;  // scratch: bytes by card
  std::vector<Written> written_;
  int slot_writer_ = -1;            // the last task that reduced into a slot
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
    program.ranks.push_back(
        Lowering(request, geometry, machine, costs, options, resources)
            .Run(plan));
  }
  return program;
}

}  // namespace jax_cxl::sim
