#include "cc/simulator/paper.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace jax_cxl::sim {
namespace {

using plan::Op;
using plan::Request;

// A block that a rank reads: block number `block` of those that `owner`
// publishes.
struct Source {
  int owner = 0;
  int block = 0;
};

class Paper {
 public:
  Paper(const Request& request, const Machine& machine, const Costs& costs,
        const PaperOptions& options)
      : request_(request),
        machine_(machine),
        costs_(costs),
        options_(options),
        resources_(machine),
        n_(request.num_ranks),
        block_(static_cast<double>(request.count) * request.element_bytes),
        chunks_(options.variant == Variant::kAll ? options.chunks : 1) {}

  TaskGraph Run() {
    TaskGraph graph;
    graph.start = costs_.start;
    graph.doorbell_seconds = costs_.doorbell;
    for (int rank = 0; rank < n_; ++rank) {
      tasks_.clear();
      Publish(rank);
      Retrieve(rank);
      graph.ranks.push_back(std::move(tasks_));
    }
    return graph;
  }

 private:
  bool overlaps() const { return options_.variant == Variant::kAll; }

  bool rooted() const { return plan::HasRoot(request_.op); }

  // Returns how many blocks a rank publishes.
  int Published(int rank) const {
    const plan::Traits& traits = plan::TraitsOf(request_.op);
    const bool source = traits.root == plan::Root::kSource;
    if (rooted() && source != (rank == request_.root)) return 0;
    // If each peer gets a block of its own, block 0 is for the rank's
    // successor.
    return traits.input == plan::Blocks::kEach ? n_ - 1 : 1;
  }

  // Returns the blocks that a rank retrieves, in the order of retrieval.
  std::vector<Source> Sources(int rank) const {
    std::vector<Source> sources;
    for (int i = 1; i < n_; ++i) {
      const int peer = (rank + i) % n_;
      const int from_peer =
          (rank - peer + n_) % n_;  // the index of this rank among its peers
      if (Published(peer) == 0) continue;
      if (rooted() && Published(rank) > 0) continue;
      sources.push_back({peer, Published(peer) > 1 ? from_peer - 1 : 0});
    }
    if (!overlaps()) {
      std::sort(sources.begin(), sources.end(),
                [](Source a, Source b) { return a.owner < b.owner; });
    }
    return sources;
  }

  int Card(int owner, int block, int chunk) const {
    const int cards = machine_.cards;
    switch (options_.variant) {
      case Variant::kNaive:
        return 0;
      case Variant::kAggregate:
        return (owner * std::max(1, Published(owner)) + block) % cards;
      case Variant::kAll:
        break;
    }
    if (rooted()) {
      // If a rank publishes several blocks, the first chunks of these blocks
      // lie on consecutive cards. If each rank publishes one block, the first
      // chunks of consecutive ranks' blocks do.
      return (Published(owner) > 1 ? block + chunk : owner + chunk) % cards;
    }
    const int first =
        static_cast<int>(static_cast<int64_t>(owner) * cards / n_);
    const int end =
        static_cast<int>(static_cast<int64_t>(owner + 1) * cards / n_);
    return first + (block + chunk) % std::max(1, end - first);
  }

  void Publish(int rank) {
    const int blocks = Published(rank);
    for (int block = 0; block < blocks; ++block) {
      for (int chunk = 0; chunk < chunks_; ++chunk) {
        const int card = Card(rank, block, chunk);
        Task& task = tasks_.emplace_back();
        task.stream = Stream::kOut;
        task.bytes = block_ / chunks_;
        task.setup = costs_.put_setup;
        task.uses = {{resources_.GpuOut(rank), 1},
                     {resources_.UplinkOut(rank), 1},
                     {resources_.CardIn(card), 1},
                     {resources_.CardBoth(card), 1}};
        const bool last = block == blocks - 1 && chunk == chunks_ - 1;
        if (!overlaps() && !last) continue;
        task.rings = Doorbell::kPublished;
        task.rung = block * chunks_ + chunk + 1;
      }
    }
  }

  void Retrieve(int rank) {
    const std::vector<Source> sources = Sources(rank);
    if (sources.empty()) return;
    if (!overlaps()) AwaitEverybody(rank);
    if (options_.order == ReaderOrder::kStaggered) AwaitTurn(rank);
    for (const Source& source : sources) {
      const int start = StartChunk(rank);
      for (int i = 0; i < chunks_; ++i) {
        const int chunk = (start + i) % chunks_;
        const int card = Card(source.owner, source.block, chunk);
        Task& task = tasks_.emplace_back();
        task.stream = Stream::kIn;
        task.bytes = block_ / chunks_;
        task.setup = costs_.get_setup;
        task.uses = {{resources_.GpuIn(rank), 1},
                     {resources_.UplinkIn(rank), 1},
                     {resources_.CardOut(card), 1},
                     {resources_.CardBoth(card), 1}};
        if (overlaps()) {
          task.await = Doorbell::kPublished;
          task.first = source.owner;
          task.last = source.owner + 1;
          task.value = source.block * chunks_ + chunk + 1;
        }
        if (plan::Reduces(request_.op)) AddReduction(rank);
      }
    }
  }

  // Returns by how many chunks the position of `rank` in a broadcast differs
  // from the position of the first reader. Returns 0 for other operations.
  int Distance(int rank) const {
    if (request_.op != Op::kBroadcast || !overlaps()) return 0;
    const int reader = (rank - request_.root + n_) % n_ - 1;
    return reader % std::min(chunks_, machine_.cards);
  }

  // Returns the chunk that a rank reads first.
  int StartChunk(int rank) const {
    return options_.order == ReaderOrder::kRotated ? Distance(rank) : 0;
  }

  void AwaitTurn(int rank) {
    Task task;
    task.stream = Stream::kIn;
    task.await = Doorbell::kPublished;
    task.first = request_.root;
    task.last = request_.root + 1;
    task.value = static_cast<uint64_t>(Distance(rank)) + 1;
    if (Distance(rank) > 0) tasks_.push_back(std::move(task));
  }

  void AwaitEverybody(int rank) {
    for (int peer = 0; peer < n_; ++peer) {
      if (peer != rank && Published(peer) == 0) continue;
      Task task;
      task.stream = Stream::kIn;
      if (peer == rank) {
        // A rank also waits until its own data are published.
        task.after = static_cast<int>(tasks_.size()) - 1;
        if (Published(rank) == 0) continue;
        while (tasks_[task.after].stream != Stream::kOut) --task.after;
      } else {
        task.await = Doorbell::kPublished;
        task.first = peer;
        task.last = peer + 1;
        task.value = static_cast<uint64_t>(Published(peer));
      }
      tasks_.push_back(std::move(task));
    }
  }

  // Adds a task that accumulates the data of the previous copy, while later
  // copies run.
  void AddReduction(int rank) {
    Task task;
    task.stream = Stream::kLocal;
    task.setup = costs_.reduce_setup;
    task.bytes = block_ / chunks_;
    task.uses = {{resources_.Memory(rank), 3}};  // two reads and one write
    task.after = static_cast<int>(tasks_.size()) - 1;
    tasks_.push_back(std::move(task));
  }

  const Request& request_;
  const Machine& machine_;
  const Costs& costs_;
  const PaperOptions& options_;
  const Resources resources_;
  const int n_;
  const double block_;
  const int chunks_;
  std::vector<Task> tasks_;
};

}  // namespace

Result<TaskGraph> PaperTasks(const Request& request, const Machine& machine,
                             const Costs& costs, const PaperOptions& options) {
  switch (request.op) {
    case Op::kAllGather:
    case Op::kAllReduce:
    case Op::kReduceScatter:
    case Op::kAllToAll:
    case Op::kBroadcast:
    case Op::kReduce:
    case Op::kGather:
    case Op::kScatter:
      break;
    default:
      return Error(Code::kUnimplemented, "the paper has no ",
                   plan::OpName(request.op),
                   "; choose an operation of the paper");
  }
  if (request.num_ranks != machine.ranks() || request.num_ranks < 2) {
    return Error(Code::kInvalidArgument, "the operation has ",
                 request.num_ranks, " ranks, but the machine has ",
                 machine.ranks(),
                 "; make the two numbers equal, and at least 2");
  }
  if (options.chunks < 1) {
    return Error(Code::kInvalidArgument, "chunks is ", options.chunks,
                 ", but must be at least 1");
  }
  return Paper(request, machine, costs, options).Run();
}

}  // namespace jax_cxl::sim
