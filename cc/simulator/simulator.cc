#include "cc/simulator/simulator.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <queue>
#include <utility>

namespace jax_cxl::sim {
namespace {

// Events that are less than this many seconds apart happen together. Otherwise
// rounding would make ranks that do the same thing drift apart, and for each
// separate event the rates of all flows have to be computed again.
constexpr double kTogether = 1e-9;

constexpr int kNone = -1;

struct StreamState {
  std::vector<int> tasks;  // indices of the rank's tasks, in order
  size_t next = 0;         // the first task that has not started
  int running = kNone;     // the running task
  // Task `next` waits until peers have rung. Those below rank `behind` have
  // rung the doorbell that the task awaits. Those below rank `behind_released`
  // have rung kReleased.
  int behind = 0;
  int behind_released = 0;
  bool ready = false;  // `next` no longer waits
  bool waits = false;  // `next` waits for its latency
};

struct RankState {
  std::array<StreamState, kNumStreams> streams;
  std::vector<bool> done;
};

struct Timer {
  enum Kind { kReady, kBegin, kHeard };

  double at = 0;
  uint64_t order = 0;  // timers of the same time fire in this order
  Kind kind = kReady;
  int rank = 0;
  int stream = 0;                       // kReady, kBegin
  Doorbell doorbell = Doorbell::kNone;  // kHeard
  uint64_t value = 0;                   // kHeard

  bool operator>(const Timer& other) const {
    return std::pair(at, order) > std::pair(other.at, other.order);
  }
};

struct Flow {
  int rank = 0;
  int stream = 0;
  const Task* task = nullptr;
  double left = 0;
};

class Simulator {
 public:
  Simulator(const Resources& resources, const TaskGraph& graph)
      : resources_(resources),
        graph_(graph),
        fair_share_(resources.rates()),
        ranks_(graph.ranks.size()) {
    const size_t n = graph.ranks.size();
    outcome_.moved.resize(resources.size());
    for (auto& heard : heard_) heard.resize(n);
    for (auto& waiting : waiting_) waiting.resize(n);
    for (size_t rank = 0; rank < n; ++rank) {
      const std::vector<Task>& tasks = graph.ranks[rank];
      for (size_t i = 0; i < tasks.size(); ++i) {
        ranks_[rank].streams[static_cast<int>(tasks[i].stream)].tasks.push_back(
            static_cast<int>(i));
      }
      ranks_[rank].done.resize(tasks.size());
      left_ += tasks.size();
    }
  }

  Result<Outcome> Run() {
    now_ = graph_.start;
    for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
      for (int stream = 0; stream < kNumStreams; ++stream) Watch(rank, stream);
    }
    while (left_ > 0) {
      if (stale_) Redistribute();
      double next = timers_.empty() ? kNever : timers_.top().at;
      for (size_t i = 0; i < flows_.size(); ++i) {
        next = std::min(next, now_ + flows_[i].left / rates_[i]);
      }
      if (next == kNever) {
        return Error(Code::kInternal, "the graph deadlocks with ", left_,
                     " operations left");
      }
      Advance(next);
    }
    outcome_.seconds = now_;
    for (int r = 0; r < resources_.size(); ++r) {
      const double busy = outcome_.moved[r] / resources_.rates()[r] / now_;
      if (busy <= outcome_.busy) continue;
      outcome_.busy = busy;
      outcome_.busiest = r;
    }
    return std::move(outcome_);
  }

 private:
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  const Task& TaskOf(int rank, int index) const {
    return graph_.ranks[rank][index];
  }

  void At(double at, Timer timer) {
    timer.at = at;
    timer.order = order_++;
    timers_.push(timer);
  }

  // Starts to check what the next task of a stream waits for. Its wait may end
  // while the previous task still runs.
  void Watch(int rank, int stream) {
    StreamState& state = ranks_[rank].streams[stream];
    state.ready = state.waits = false;
    if (state.next == state.tasks.size()) return;
    state.behind = TaskOf(rank, state.tasks[state.next]).first;
    state.behind_released = 0;
    CheckWaits(rank, stream);
  }

  void CheckWaits(int rank, int stream) {
    StreamState& state = ranks_[rank].streams[stream];
    if (state.ready || state.waits || state.next == state.tasks.size()) return;
    const Task& task = TaskOf(rank, state.tasks[state.next]);
    if (task.after != kNone && !ranks_[rank].done[task.after]) return;
    if (task.released > 0 &&
        !Heard(rank, stream, Doorbell::kReleased, task.released,
               static_cast<int>(ranks_.size()), state.behind_released)) {
      return;
    }
    if (task.await != Doorbell::kNone &&
        !Heard(rank, stream, task.await, task.value, task.last, state.behind)) {
      return;
    }
    if (task.latency > 0) {
      state.waits = true;
      At(now_ + task.latency,
         {.kind = Timer::kReady, .rank = rank, .stream = stream});
    } else {
      state.ready = true;
      Start(rank, stream);
    }
  }

  // Returns true if ranks [behind, last) except `rank` have rung `doorbell` up
  // to `value`. Otherwise sets `behind` to the first rank that has not, returns
  // false, and has the stream checked again when that rank rings.
  bool Heard(int rank, int stream, Doorbell doorbell, uint64_t value, int last,
             int& behind) {
    const int index = static_cast<int>(doorbell);
    for (; behind < last; ++behind) {
      if (behind == rank || heard_[index][behind] >= value) continue;
      waiting_[index][behind].push_back({rank, stream});
      return false;
    }
    return true;
  }

  void Start(int rank, int stream) {
    StreamState& state = ranks_[rank].streams[stream];
    if (!state.ready || state.running != kNone) return;
    state.running = state.tasks[state.next++];
    Watch(rank, stream);
    const Task& task = TaskOf(rank, state.running);
    if (task.setup > 0) {
      At(now_ + task.setup,
         {.kind = Timer::kBegin, .rank = rank, .stream = stream});
    } else {
      MoveBytes(rank, stream);
    }
  }

  void MoveBytes(int rank, int stream) {
    const Task& task = TaskOf(rank, ranks_[rank].streams[stream].running);
    if (task.bytes > 0) {
      flows_.push_back({rank, stream, &task, task.bytes});
      stale_ = true;
    } else {
      Finish(rank, stream);
    }
  }

  void Finish(int rank, int stream) {
    RankState& state = ranks_[rank];
    const int index = std::exchange(state.streams[stream].running, kNone);
    const Task& task = TaskOf(rank, index);
    state.done[index] = true;
    --left_;
    if (task.rings != Doorbell::kNone) {
      At(now_ + graph_.doorbell_seconds, {.kind = Timer::kHeard,
                                          .rank = rank,
                                          .doorbell = task.rings,
                                          .value = task.rung});
    }
    Start(rank, stream);
    for (int other = 0; other < kNumStreams; ++other) {
      CheckAfter(rank, other, index);
    }
  }

  // Called when task `index` of the rank is done. Checks the next task of the
  // stream if it waits for that task.
  void CheckAfter(int rank, int stream, int index) {
    StreamState& state = ranks_[rank].streams[stream];
    if (state.next == state.tasks.size()) return;
    if (TaskOf(rank, state.tasks[state.next]).after == index) {
      CheckWaits(rank, stream);
    }
  }

  void Hear(int rank, Doorbell doorbell, uint64_t value) {
    uint64_t& heard = heard_[static_cast<int>(doorbell)][rank];
    if (heard >= value) return;
    heard = value;
    auto waiting =
        std::exchange(waiting_[static_cast<int>(doorbell)][rank], {});
    for (auto [waiter, stream] : waiting) CheckWaits(waiter, stream);
  }

  void Redistribute() {
    uses_.clear();
    for (const Flow& flow : flows_) uses_.push_back(&flow.task->uses);
    fair_share_.Rates(uses_, rates_);
    stale_ = false;
  }

  void Advance(double next) {
    const double elapsed = next - now_;
    now_ = next;
    size_t kept = 0;
    finished_.clear();
    for (size_t i = 0; i < flows_.size(); ++i) {
      Flow& flow = flows_[i];
      flow.left -= elapsed * rates_[i];
      if (flow.left <= rates_[i] * kTogether) {
        finished_.push_back({flow.rank, flow.stream});
        for (const Use& use : flow.task->uses) {
          outcome_.moved[use.resource] += flow.task->bytes * use.share;
        }
      } else {
        rates_[kept] = rates_[i];
        flows_[kept++] = flow;
      }
    }
    if (kept < flows_.size()) stale_ = true;
    flows_.resize(kept);
    rates_.resize(kept);
    for (auto [rank, stream] : finished_) Finish(rank, stream);
    while (!timers_.empty() && timers_.top().at <= now_ + kTogether) {
      const Timer timer = timers_.top();
      timers_.pop();
      switch (timer.kind) {
        case Timer::kReady: {
          StreamState& state = ranks_[timer.rank].streams[timer.stream];
          state.waits = false;
          state.ready = true;
          Start(timer.rank, timer.stream);
          break;
        }
        case Timer::kBegin:
          MoveBytes(timer.rank, timer.stream);
          break;
        case Timer::kHeard:
          Hear(timer.rank, timer.doorbell, timer.value);
          break;
      }
    }
  }

  const Resources& resources_;
  const TaskGraph& graph_;
  FairShare fair_share_;
  std::vector<RankState> ranks_;
  double now_ = 0;
  size_t left_ = 0;  // unfinished tasks
  uint64_t order_ = 0;
  std::priority_queue<Timer, std::vector<Timer>, std::greater<>> timers_;
  // For each doorbell of each rank: the last value that the other ranks have
  // heard, and the streams that wait for a higher value.
  std::array<std::vector<uint64_t>, 3> heard_;
  std::array<std::vector<std::vector<std::pair<int, int>>>, 3> waiting_;
  std::vector<Flow> flows_;
  std::vector<double> rates_;
  bool stale_ = false;
  std::vector<const std::vector<Use>*> uses_;
  std::vector<std::pair<int, int>> finished_;
  Outcome outcome_;
};

}  // namespace

Result<Outcome> Simulate(const Resources& resources, const TaskGraph& graph) {
  return Simulator(resources, graph).Run();
}

}  // namespace jax_cxl::sim
