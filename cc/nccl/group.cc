#include "cc/nccl/group.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <tuple>
#include <utility>

#include "cc/nccl/calls/batches.h"
#include "cc/nccl/communicator_pool.h"
#include "cc/nccl/interface/settings.h"

namespace jax_cxl::nccl {
namespace {

constexpr auto kPollInterval = std::chrono::microseconds(50);

// One communicator's part of a group that runs.
struct Running {
  Communicator* communicator;
  std::vector<std::pair<Collective, Stream>> collectives;
  Batches batches;
  std::unique_lock<std::mutex> lock;
};

template <typename Visit>
Status ForEachPair(const Running& running, const Visit& visit) {
  for (const std::vector<Transfer>& batch : running.batches)
    for (const Transfer& transfer : batch)
      if (!transfer.local())
        CXL_RETURN_IF_ERROR(visit(transfer.source, transfer.destination));
  return OkStatus();
}

Status OpenPairs(const Running& running) {
  Device* device = running.communicator->device();
  return ForEachPair(running, [&](int source, int destination) {
    return device->OpenPair(source, destination);
  });
}

Status ConnectPairs(const Running& running) {
  Device* device = running.communicator->device();
  const auto deadline =
      comm::Clock::now() +
      std::chrono::duration_cast<comm::Clock::duration>(
          std::chrono::duration<double>(TheSettings().timeout_s));
  return ForEachPair(running, [&](int source, int destination) -> Status {
    for (;;) {
      CXL_ASSIGN_OR_RETURN(const bool connected,
                           device->TryConnectPair(source, destination));
      if (connected) return OkStatus();
      CXL_RETURN_IF_ERROR(running.communicator->status());
      if (comm::Clock::now() > deadline)
        return Error(
            Code::kDeadlineExceeded, "rank ", source, " sends to rank ",
            destination,
            ", but one of them has not made this call "
            "within ",
            TheSettings().timeout_s,
            " s; look at what both ranks do, or raise JAX_CXL_TIMEOUT");
      std::this_thread::sleep_for(kPollInterval);
    }
  });
}

Status Enqueue(Device* device, const std::pair<Collective, Stream>& call) {
  return device->Enqueue(call.first, call.second);
}
Status Enqueue(Device* device, const std::vector<Transfer>& batch) {
  return device->SendAndReceive(batch);
}

// Runs a step of all parts. A part that fails ends its communicator, so that
// the other ranks do not wait for it.
template <typename Step>
Status ForAll(std::span<Running> parts, const Step& step) {
  Status first;
  for (Running& part : parts) {
    Status status = part.communicator->status();
    if (status.ok()) {
      status = step(part);
      if (!status.ok()) part.communicator->Fail(status);
    }
    if (first.ok()) first = status;
  }
  return first;
}

// Launches a collective or a batch of the ranks of one communicator that this
// thread serves. `begin` begins its comparison.
template <typename BeginStep, typename EnqueueStep>
Status Launch(std::span<Running> parts, const BeginStep& begin,
              const EnqueueStep& enqueue) {
  const auto comparison = [](const Running& part) {
    return part.communicator->comparison();
  };
  if (comparison(parts[0]) == nullptr) return ForAll(parts, enqueue);
  CXL_RETURN_IF_ERROR(ForAll(parts, begin));
  CXL_RETURN_IF_ERROR(ForAll(parts, enqueue));
  if (std::ranges::none_of(parts, [&](const Running& part) {
        return comparison(part)->begun();
      }))
    return OkStatus();
  // NVIDIA's library may wait for the device, whose calls now have all ranks.
  CXL_RETURN_IF_ERROR(comparison(parts[0])->StartGroup());
  const Status repeated = ForAll(
      parts, [&](const Running& part) { return comparison(part)->Repeat(); });
  const Status ended = comparison(parts[0])->EndGroup();
  return ForAll(parts, [&](const Running& part) -> Status {
    CXL_RETURN_IF_ERROR(repeated);
    CXL_RETURN_IF_ERROR(ended);
    return comparison(part)->End();
  });
}

// Launches the collectives or the batches, which `calls_of` returns, of the
// ranks of one communicator that this thread serves: the first ones of all
// ranks, then the second ones, and so on. CUDA can make a launch wait for
// earlier kernels, which wait for other ranks.
template <typename CallsOf>
Status LaunchAll(std::span<Running> parts, const CallsOf& calls_of) {
  size_t most = 0;
  for (const Running& part : parts)
    most = std::max(most, calls_of(part).size());
  for (size_t index = 0; index < most; ++index) {
    const auto for_call = [&](const auto& step) {
      return [&, step](const Running& part) -> Status {
        const auto& calls = calls_of(part);
        return index < calls.size() ? step(part.communicator, calls[index])
                                    : OkStatus();
      };
    };
    CXL_RETURN_IF_ERROR(
        Launch(parts, for_call([](Communicator* communicator, auto& call) {
                 return communicator->comparison()->Begin(call);
               }),
               for_call([](Communicator* communicator, auto& call) {
                 return Enqueue(communicator->device(), call);
               })));
  }
  return OkStatus();
}

Status LaunchCalls(std::span<Running> parts) {
  CXL_RETURN_IF_ERROR(LaunchAll(parts, [](const Running& part) -> const auto& {
    return part.collectives;
  }));
  return LaunchAll(
      parts, [](const Running& part) -> const auto& { return part.batches; });
}

}  // namespace

Group& Group::OfThisThread() {
  thread_local Group group;
  return group;
}

Group::Work& Group::WorkOf(Communicator* communicator) {
  for (Work& work : work_)
    if (work.communicator == communicator) return work;
  work_.emplace_back().communicator = communicator;
  return work_.back();
}

Status Group::Add(Communicator* communicator, const Operation& operation) {
  const auto add = [&]() -> Status {
    CXL_RETURN_IF_ERROR(communicator->CheckReady());
    const int rank = communicator->rank(), size = communicator->size();
    if (operation.verb == Verb::kSend || operation.verb == Verb::kRecv) {
      CXL_ASSIGN_OR_RETURN(const Transfer transfer,
                           MakeTransfer(operation, rank, size));
      WorkOf(communicator).transfers.push_back(transfer);
      return OkStatus();
    }
    CXL_ASSIGN_OR_RETURN(
        Collective collective,
        MakeCollective(operation, rank, size, communicator->reductions()));
    if (operation.count == 0) return OkStatus();
    WorkOf(communicator)
        .collectives.emplace_back(std::move(collective), operation.stream);
    return OkStatus();
  };
  const Status status = add();
  if (!open()) {
    if (!status.ok()) {
      work_.clear();
      return status;
    }
    return Run();
  }
  if (error_.ok()) error_ = status;
  return status;
}

Status Group::AddOpening(std::function<Status()> open_one) {
  if (!open()) return open_one();
  openings_.push_back(std::move(open_one));
  return OkStatus();
}

Status Group::End() {
  if (!open())
    return Error(
        Code::kFailedPrecondition,
        "ncclGroupEnd without ncclGroupStart; call ncclGroupStart first");
  if (--depth_ > 0) return OkStatus();
  Status error = std::exchange(error_, OkStatus());
  std::vector<Status> statuses(openings_.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < openings_.size(); ++i)
    threads.emplace_back(
        [this, i, &statuses] { statuses[i] = openings_[i](); });
  for (std::thread& thread : threads) thread.join();
  openings_.clear();
  for (const Status& status : statuses)
    if (error.ok()) error = status;
  if (!error.ok()) {
    work_.clear();
    return error;
  }
  return Run();
}

bool Group::Discard() {
  const bool empty = work_.empty() && openings_.empty();
  if (depth_ > 0) --depth_;
  work_.clear();
  openings_.clear();
  error_ = OkStatus();
  return empty;
}

void Group::Forget(const Communicator* communicator) {
  std::erase_if(work_, [&](const Work& work) {
    return work.communicator == communicator;
  });
}

Status Group::Run() {
  std::vector<Work> work = std::exchange(work_, {});
  // All ranks launch the calls of different communicators in the same order,
  // and threads lock communicators in one order.
  std::ranges::sort(work, std::less(), [](const Work& each) {
    const PoolToken& token = each.communicator->token();
    return std::tuple(token.high, token.low, each.communicator->rank());
  });
  std::vector<Running> parts;
  for (Work& each : work) {
    Communicator* communicator = each.communicator;
    CXL_ASSIGN_OR_RETURN(
        Batches batches,
        MakeBatches(each.transfers, communicator->rank(), communicator->size(),
                    communicator->device()->most_transfers()));
    parts.push_back({communicator, std::move(each.collectives),
                     std::move(batches),
                     std::unique_lock(communicator->mutex())});
  }
  // If a communicator fails, the peers of the others still get their calls.
  Status first = ForAll(parts, [](const Running& part) {
    CXL_RETURN_IF_ERROR(TakeMemory(*part.communicator->job()->pool()));
    return part.communicator->device()->MakeRoom();
  });
  for (const Status& status :
       {ForAll(parts, OpenPairs), ForAll(parts, ConnectPairs)})
    if (first.ok()) first = status;
  for (size_t begin = 0, end = 0; begin < parts.size(); begin = end) {
    const PoolToken& token = parts[begin].communicator->token();
    while (end < parts.size() && parts[end].communicator->token() == token)
      ++end;
    const std::span ranks = std::span(parts).subspan(begin, end - begin);
    const Status status = LaunchCalls(ranks);
    if (first.ok()) first = status;
  }
  return first;
}

}  // namespace jax_cxl::nccl
