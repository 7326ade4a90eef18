#include "cc/nccl/group.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <iterator>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <tuple>
#include <utility>
#include <variant>

#include "cc/nccl/communicator_pool.h"
#include "cc/nccl/interface/settings.h"

namespace jax_cxl::nccl {
namespace {

constexpr auto kPollInterval = std::chrono::microseconds(50);

// What a communicator launches at once: a collective, or a batch of sends and
// receives.
using Call = std::variant<std::pair<Collective, Stream>, std::vector<Transfer>>;

// One communicator's part of a group that runs.
struct Running {
  Communicator* communicator;
  std::vector<Call> calls;
  std::unique_lock<std::mutex> lock;

  Comparison* comparison() const { return communicator->comparison(); }
};

template <typename Visit>
Status ForEachPair(const Running& running, const Visit& visit) {
  for (const Call& call : running.calls) {
    const auto* batch = std::get_if<std::vector<Transfer>>(&call);
    if (batch == nullptr) continue;
    for (const Transfer& transfer : *batch)
      if (!transfer.local())
        CXL_RETURN_IF_ERROR(visit(transfer.source, transfer.destination));
  }
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

Status Enqueue(Device* device, const Call& call) {
  if (const auto* batch = std::get_if<std::vector<Transfer>>(&call))
    return device->SendAndReceive(*batch);
  const auto& [collective, stream] = std::get<0>(call);
  return device->Enqueue(collective, stream);
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

// Has NVIDIA's library repeat the call whose comparison has begun, and compares
// the results. It may wait for the device, whose calls now have all ranks.
Status Repeat(std::span<Running> parts) {
  if (std::ranges::none_of(parts, [](const Running& part) {
        return part.comparison()->begun();
      }))
    return OkStatus();
  CXL_RETURN_IF_ERROR(parts[0].comparison()->StartGroup());
  const Status repeated = ForAll(
      parts, [](const Running& part) { return part.comparison()->Repeat(); });
  const Status ended = parts[0].comparison()->EndGroup();
  return ForAll(parts, [&](const Running& part) -> Status {
    CXL_RETURN_IF_ERROR(repeated);
    CXL_RETURN_IF_ERROR(ended);
    return part.comparison()->End();
  });
}

// Launches the calls of the ranks of one communicator that this thread serves:
// the first ones of all ranks, then the second ones, and so on. CUDA can make a
// launch wait for earlier kernels, which wait for other ranks.
Status LaunchCalls(std::span<Running> parts) {
  const bool compares = parts[0].comparison() != nullptr;
  size_t most = 0;
  for (const Running& part : parts) most = std::max(most, part.calls.size());
  for (size_t index = 0; index < most; ++index) {
    const auto for_calls = [&](const auto& step) {
      return ForAll(parts, [&](const Running& part) {
        return index < part.calls.size() ? step(part, part.calls[index])
                                         : OkStatus();
      });
    };
    if (compares)
      CXL_RETURN_IF_ERROR(for_calls([](const Running& part, const Call& call) {
        return std::visit(
            [&](const auto& each) { return part.comparison()->Begin(each); },
            call);
      }));
    CXL_RETURN_IF_ERROR(for_calls([](const Running& part, const Call& call) {
      return Enqueue(part.communicator->device(), call);
    }));
    if (compares) CXL_RETURN_IF_ERROR(Repeat(parts));
  }
  return OkStatus();
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
    CXL_RETURN_IF_ERROR(communicator->CheckReady(NameOf(operation.verb)));
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
    std::vector<Call> calls;
    std::ranges::move(each.collectives, std::back_inserter(calls));
    std::ranges::move(batches, std::back_inserter(calls));
    parts.push_back({communicator, std::move(calls),
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
