#ifndef JAX_CXL_TESTING_NCCL_MODEL_INNER_H_
#define JAX_CXL_TESTING_NCCL_MODEL_INNER_H_

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "cc/base/status.h"
#include "cc/nccl/calls/operation.h"
#include "cc/nccl/interface/abi.h"
#include "cc/nccl/levels/inner.h"

namespace jax_cxl::nccl {

// The state that the ModelInners of one communicator share on a host.
class ModelHost {
 public:
  explicit ModelHost(int size) : size_(size) {}

  // Notes that a rank has ended its group number `groups`, and waits until all
  // ranks have ended this group. NCCL may wait like this in ncclGroupEnd, to
  // connect GPUs.
  Status EndGroup(int groups) {
    std::unique_lock lock(mutex_);
    ++ended_[groups];
    changed_.notify_all();
    if (!changed_.wait_for(lock, std::chrono::seconds(10),
                           [&] { return ended_[groups] >= size_; }))
      return Error(Code::kDeadlineExceeded, "NCCL would hang in ncclGroupEnd");
    return OkStatus();
  }
  void EndAlso(int groups) {
    std::lock_guard lock(mutex_);
    ++ended_[groups];
  }

  // Called by each rank for its operation `number`. Waits until all ranks have
  // called it for this operation. The last rank to call it executes the
  // operation.
  Status Run(int number, int rank, const Operation& operation) {
    std::unique_lock lock(mutex_);
    std::vector<Operation>& ranks = operations_[number];
    ranks.resize(size_);
    ranks[rank] = operation;
    if (++come_[number] == size_) {
      Execute(ranks);
      changed_.notify_all();
    } else if (!changed_.wait_for(lock, std::chrono::seconds(10),
                                  [&] { return come_[number] == size_; })) {
      return Error(Code::kDeadlineExceeded, "NCCL's kernel would hang");
    }
    return OkStatus();
  }

 private:
  static uint64_t BytesOf(const Operation& operation) {
    return operation.count * (operation.type == 1 ? 1 : sizeof(int32_t));
  }

  template <typename T>
  static void Combine(int reduction, std::vector<std::byte>& sum,
                      const std::byte* input) {
    auto* left = reinterpret_cast<T*>(sum.data());
    const auto* right = reinterpret_cast<const T*>(input);
    for (size_t i = 0; i < sum.size() / sizeof(T); ++i)
      left[i] = reduction == kSum    ? left[i] + right[i]
                : reduction == kProd ? left[i] * right[i]
                : reduction == kMax  ? std::max(left[i], right[i])
                                     : std::min(left[i], right[i]);
  }

  // Returns the reduction of bytes [offset, offset + bytes) of all inputs.
  std::vector<std::byte> Reduced(const std::vector<Operation>& ranks,
                                 uint64_t offset, uint64_t bytes) const {
    const auto input = [&](int rank) {
      return static_cast<const std::byte*>(ranks[rank].input) + offset;
    };
    std::vector<std::byte> sum(input(0), input(0) + bytes);
    for (int rank = 1; rank < size_; ++rank)
      ranks[0].type == 7
          ? Combine<float>(ranks[0].reduction, sum, input(rank))
          : Combine<int32_t>(ranks[0].reduction, sum, input(rank));
    return sum;
  }

  // Reads all inputs before it writes any output, because a rank's output may
  // be its input.
  void Execute(const std::vector<Operation>& ranks) const {
    const uint64_t bytes = BytesOf(ranks[0]);
    const int root = ranks[0].root;
    std::vector<std::vector<std::byte>> outputs(size_);
    for (int rank = 0; rank < size_; ++rank) switch (ranks[0].verb) {
        case Verb::kReduceScatter:
          outputs[rank] = Reduced(ranks, rank * bytes, bytes);
          break;
        case Verb::kReduce:
          if (rank == root) outputs[rank] = Reduced(ranks, 0, bytes);
          break;
        case Verb::kBroadcast: {
          const auto* input = static_cast<const std::byte*>(ranks[root].input);
          outputs[rank].assign(input, input + bytes);
          break;
        }
        default:
          for (const Operation& each : ranks) {
            const auto* input = static_cast<const std::byte*>(each.input);
            outputs[rank].insert(outputs[rank].end(), input, input + bytes);
          }
      }
    for (int rank = 0; rank < size_; ++rank)
      if (!outputs[rank].empty())
        std::memcpy(ranks[rank].output, outputs[rank].data(),
                    outputs[rank].size());
  }

  const int size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int, int> ended_, come_;
  std::map<int, std::vector<Operation>> operations_;
};

// Models a rank of the real NCCL. `push` enqueues a step, for example for the
// thread of a ModelDevice.
class ModelInner final : public Inner {
 public:
  ModelInner(ModelHost* host, int rank,
             std::function<void(std::function<Status()>)> push)
      : host_(host), rank_(rank), push_(std::move(push)) {}

  Status StartGroup() override {
    TheGroup().open = true;
    return OkStatus();
  }
  Status EndGroup() override {
    GroupOfThread group = std::exchange(TheGroup(), {});
    for (ModelInner* each : group.ranks)
      if (each != group.ranks.back()) host_->EndAlso(++each->groups_);
    if (!group.ranks.empty())
      CXL_RETURN_IF_ERROR(host_->EndGroup(++group.ranks.back()->groups_));
    for (const auto& start : group.starts) start();
    return OkStatus();
  }
  Status Add(const Operation& operation) override {
    GroupOfThread& group = TheGroup();
    if (!group.open)
      return Error(Code::kInternal, "NCCL would wait for the other ranks");
    if (std::ranges::find(group.ranks, this) == group.ranks.end())
      group.ranks.push_back(this);
    group.starts.push_back([this, operation, number = operations_++] {
      push_([this, operation, number] {
        return host_->Run(number, rank_, operation);
      });
    });
    return OkStatus();
  }
  Status Check() override { return OkStatus(); }
  void Abort() override {}

 private:
  struct GroupOfThread {
    bool open = false;
    std::vector<ModelInner*> ranks;
    std::vector<std::function<void()>> starts;
  };
  static GroupOfThread& TheGroup() {
    thread_local GroupOfThread group;
    return group;
  }

  ModelHost* host_;
  const int rank_;
  const std::function<void(std::function<Status()>)> push_;
  int operations_ = 0;
  int groups_ = 0;
};

}  // namespace jax_cxl::nccl

#endif  // JAX_CXL_TESTING_NCCL_MODEL_INNER_H_
