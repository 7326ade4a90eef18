#include "cc/simulator/lower.h"

#include <algorithm>
#include <utility>

#include "cc/plan/gpu_geometry.h"
#include "cc/plan/planners/make_plan.h"
#include "cc/simulator/placement.h"

namespace jax_cxl::sim {
namespace {

using plan::Step;
using plan::StepKind;

// Converts the plan of one rank to its tasks.
class Lowering {
 public:
  Lowering(const plan::Request& request, const plan::Geometry& geometry,
           const Machine& machine, const Costs& costs, bool flagged,
           const Placement& placement, const Resources& resources)
      : request_(request),
        geometry_(geometry),
        machine_(machine),
        costs_(costs),
        flagged_(flagged),
        expansion_(flagged ? plan::kFlaggedExpansion : 1),
        placement_(placement),
        resources_(resources),
        cards_read_(machine.cards),
        cards_written_(machine.cards) {}

  std::vector<Task> Run(const plan::Plan& plan) && {
    for (const Step& step : plan.steps) Add(step);
    FlushGets();
    return std::move(tasks_);
  }

 private:
  // Values of the doorbell kPublished in a flagged call. A rank rings kBegun
  // once its first lines are written, and kComplete once all its lines are
  // written.
  static constexpr uint64_t kBegun = 1, kComplete = 2;
  // How many bytes the threads of a warp write at once. Peers can read these
  // bytes before the warp writes the next ones.
  static constexpr double kLinesAtOnce = 256;

  int rank() const { return request_.rank; }

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
        AddRing(
            Doorbell::kPublished, step.round,
            slot_writer_round_ == step.round + 1 ? slot_writer_ : last_out_);
        break;
      case StepKind::kRelease:
        AddRing(Doorbell::kReleased, step.round, last_in_);
        break;
      case StepKind::kGet:
        Gather(step);
        break;
      case StepKind::kReduce:
      case StepKind::kReduceToSlot:
        AddReduce(step);
        break;
    }
  }

  void AddLocal(const Step& step) {
    Task& task = tasks_.emplace_back();
    task.stream = Stream::kLocal;
    task.bytes = static_cast<double>(step.bytes);
    const bool copies = step.kind == StepKind::kCopy;
    task.uses = {{resources_.Memory(rank()), copies ? 2. : 1.}};
  }

  // Returns true if the put `step` becomes a part of the previous put's task.
  // This requires that both puts write to the same round, that no task lies
  // between them, and that the call has no flags.
  bool JoinsPut(const Step& step) const {
    return step.kind == StepKind::kPut && put_round_ == step.round + 1 &&
           !tasks_.empty() && last_out_ == LastIndex() && !flagged_;
  }

  void AddPut(const Step& step) {
    unpublished_ += static_cast<double>(step.bytes);
    if (JoinsPut(step)) {
      Task& task = tasks_.back();
      task.bytes += static_cast<double>(step.bytes);
      placement_.Add(rank(), step.round, step.to, step.bytes, cards_written_);
      task.uses = UsesOut(static_cast<uint64_t>(task.bytes), 1);
      return;
    }
    Task task;
    task.stream = Stream::kOut;
    task.bytes = expansion_ * static_cast<double>(step.bytes);
    StartWriting(step.round, step.to, step.bytes);
    task.uses = UsesOut(step.bytes, 1);
    put_round_ = step.kind == StepKind::kPut ? step.round + 1 : 0;
    AwaitSlot(task, step.round);
    if (step.kind == StepKind::kPutOutput) task.after = WriterOf(step);
    if (flagged_ && !begun_) {
      // The first lines are a task of their own, because peers begin to read
      // once these lines have arrived.
      begun_ = true;
      Task& lines = tasks_.emplace_back(task);
      lines.bytes = std::min(task.bytes, kLinesAtOnce);
      lines.rings = Doorbell::kPublished;
      lines.rung = kBegun;
      task.bytes -= lines.bytes;
    }
    tasks_.push_back(std::move(task));
    last_out_ = LastIndex();
  }

  void AddRing(Doorbell doorbell, uint64_t round, int after) {
    Task& task = tasks_.emplace_back();
    task.stream =
        doorbell == Doorbell::kPublished ? Stream::kPublish : Stream::kRelease;
    task.after = after;
    if (!flagged_) task.setup = costs_.ring;
    if (doorbell == Doorbell::kPublished) {
      task.setup +=
          FlushTime(std::exchange(unpublished_, 0), costs_.write_back_rate);
    }
    task.rings = doorbell;
    task.rung = flagged_ ? kComplete : round + 1;
  }

  // Returns true if `step` is a get of the same round as the gets before it.
  // Consecutive gets of one round become one task.
  bool Joins(const Step& step) const {
    return step.kind == StepKind::kGet && step.round == gathered_.round;
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
    placement_.Add(step.peer, step.round, step.from, step.bytes, cards_read_);
  }

  void FlushGets() {
    if (gathered_.peers == 0) return;
    Task task = Incoming(gathered_.peers, gathered_.bytes);
    task.first = gathered_.first;
    task.last = gathered_.last;
    task.value = gathered_.round + 1;
    AddIncoming(std::move(task));
    written_.push_back({gathered_.to, gathered_.end, LastIndex()});
    gathered_ = {};
  }

  void AddReduce(const Step& step) {
    std::fill(cards_read_.begin(), cards_read_.end(), 0);
    int peers = 0;
    for (int source = step.first; source < step.last; ++source) {
      if (source == rank()) continue;
      placement_.Add(source, step.round, step.from, step.bytes, cards_read_);
      ++peers;
    }
    Task task = Incoming(peers, static_cast<double>(step.bytes) * peers);
    task.first = step.first;
    task.last = step.last;
    task.value = step.round + 1;
    if (step.kind == StepKind::kReduceToSlot) {
      // The task reads and writes at the same time, so the slower direction
      // determines its rate.
      unpublished_ += static_cast<double>(step.bytes);
      StartWriting(step.to_round, step.to, step.bytes);
      put_round_ = 0;
      for (const Use& use : UsesOut(step.bytes, 1. / peers)) {
        task.uses.push_back(use);
      }
      AwaitSlot(task, step.to_round);
      AddIncoming(std::move(task));
      slot_writer_ = LastIndex();
      slot_writer_round_ = step.to_round + 1;
    } else {
      AddIncoming(std::move(task));
      written_.push_back({step.to, step.to + step.bytes, LastIndex()});
    }
  }

  // Adds a task that reads data of peers. In a flagged call it becomes two
  // tasks. The first one reads all lines but the last ones, while the peers
  // still write. The second one reads the last lines, once all lines are
  // written.
  void AddIncoming(Task task) {
    if (flagged_) {
      const double last = std::min(task.bytes, kLinesAtOnce);
      Task& lines = tasks_.emplace_back(task);
      lines.bytes -= last;
      lines.value = kBegun;
      task.bytes = last;
      task.value = kComplete;
    }
    tasks_.push_back(std::move(task));
    last_in_ = LastIndex();
  }

  // Returns a task that reads `bytes` bytes from `peers` peers in all. The
  // bytes are distributed over the cards like cards_read_.
  Task Incoming(int peers, double bytes) const {
    Task task;
    task.stream = Stream::kIn;
    task.await = Doorbell::kPublished;
    task.bytes = bytes * expansion_;
    if (!flagged_) task.latency = PollTime(peers);
    task.latency += FlushTime(bytes, costs_.drop_rate);
    if (bytes == 0) return task;
    if (!flagged_) task.latency += costs_.get_latency;
    task.uses = {{resources_.GpuIn(rank()), 1},
                 {resources_.UplinkIn(rank()), 1}};
    for (int card = 0; card < machine_.cards; ++card) {
      if (cards_read_[card] == 0) continue;
      const double share = static_cast<double>(cards_read_[card]) / bytes;
      task.uses.push_back({resources_.CardOut(card), share});
      task.uses.push_back({resources_.CardBoth(card), share});
    }
    return task;
  }

  void StartWriting(uint64_t round, uint64_t at, uint64_t bytes) {
    std::fill(cards_written_.begin(), cards_written_.end(), 0);
    placement_.Add(rank(), round, at, bytes, cards_written_);
  }

  // Returns the uses of a task that writes to the pool. The task writes `bytes`
  // bytes in all, and `share` bytes for each byte that it moves. The written
  // bytes are distributed over the cards like cards_written_.
  std::vector<Use> UsesOut(uint64_t bytes, double share) const {
    std::vector<Use> uses = {{resources_.GpuOut(rank()), share},
                             {resources_.UplinkOut(rank()), share}};
    for (int card = 0; card < machine_.cards; ++card) {
      if (cards_written_[card] == 0) continue;
      const double part = share * static_cast<double>(cards_written_[card]) /
                          static_cast<double>(bytes);
      uses.push_back({resources_.CardIn(card), part});
      uses.push_back({resources_.CardBoth(card), part});
    }
    return uses;
  }

  void AwaitSlot(Task& task, uint64_t round) const {
    const uint64_t slots = geometry_.num_slots;
    if (round < slots) return;
    task.released = round - slots + 1;
    task.latency += PollTime(request_.num_ranks - 1);
  }

  // The time to poll all peers' doorbells at once. Each doorbell is a cache
  // line that crosses the link.
  double PollTime(int peers) const {
    return costs_.poll + peers * costs_.doorbell_bytes / machine_.gpu_in;
  }

  static double FlushTime(double bytes, double rate) {
    return rate > 0 ? bytes / rate : 0;
  }

  // Returns the index of the last task that wrote any of the output bytes that
  // the step puts, or -1 if there is none.
  int WriterOf(const Step& step) const {
    for (auto range = written_.rbegin(); range != written_.rend(); ++range) {
      if (range->begin < step.from + step.bytes && step.from < range->end) {
        return range->task;
      }
    }
    return -1;
  }

  int LastIndex() const { return static_cast<int>(tasks_.size()) - 1; }

  struct Gathered {
    uint64_t round = 0;
    uint64_t to = 0, end = 0;  // in the output
    int peers = 0;
    int first = 1 << 30, last = 0;
    double bytes = 0;
  };
  struct Written {
    uint64_t begin, end;  // in the output
    int task;
  };

  const plan::Request& request_;
  const plan::Geometry& geometry_;
  const Machine& machine_;
  const Costs& costs_;
  const bool flagged_;
  bool begun_ = false;  // a flagged call has done its first put
  const double expansion_;
  const Placement& placement_;
  const Resources& resources_;
  std::vector<Task> tasks_;
  int last_out_ = -1, last_in_ = -1;  // the last copies of those streams
  Gathered gathered_;
  std::vector<uint64_t> cards_read_;     // scratch: bytes by card
  std::vector<uint64_t> cards_written_;  // bytes of the last put, by card
  uint64_t put_round_ = 0;               // round of the last put + 1
  double unpublished_ = 0;               // bytes since the last doorbell
  std::vector<Written> written_;
  int slot_writer_ = -1;            // the last task that reduced into a slot
  uint64_t slot_writer_round_ = 0;  // round of that task + 1
};

}  // namespace

Result<TaskGraph> Lower(plan::Request request, const plan::Geometry& geometry,
                        const Machine& machine, const Costs& costs,
                        const LowerOptions& options) {
  if (request.num_ranks != machine.ranks()) {
    return Error(Code::kInvalidArgument, "a call of ", request.num_ranks,
                 " ranks does not fill a machine of ", machine.ranks(),
                 " ranks; change the number of ranks");
  }
  const Resources resources(machine);
  const bool flagged = options.flags && plan::OutputBytes(request) > 0 &&
                       plan::IsFlagged(request, plan::kFlaggedAt20GBps) &&
                       request.num_ranks * plan::kSlotAlignment <=
                           plan::kFlaggedBytes;  // more have larger slots
  const plan::Geometry ring =
      flagged ? plan::FlaggedGeometry(request.num_ranks) : geometry;
  const Placement placement(ring, flagged ? plan::Stripes() : options.stripes,
                            request.num_ranks, machine.cards);
  TaskGraph graph;
  graph.start = costs.start;
  graph.doorbell_seconds = costs.doorbell;
  // The load that sees a flag also returns the data beside the flag. So the
  // latency of a get is paid only once, as a part of the doorbell's time, and
  // not for each get.
  if (flagged) graph.doorbell_seconds += costs.get_latency;
  for (request.rank = 0; request.rank < request.num_ranks; ++request.rank) {
    CXL_ASSIGN_OR_RETURN(const plan::Plan plan, plan::MakePlan(request, ring));
    graph.ranks.push_back(
        Lowering(request, ring, machine, costs, flagged, placement, resources)
            .Run(plan));
  }
  return graph;
}

}  // namespace jax_cxl::sim
