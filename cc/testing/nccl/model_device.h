#ifndef JAX_CXL_TESTING_NCCL_MODEL_DEVICE_H_
#define JAX_CXL_TESTING_NCCL_MODEL_DEVICE_H_

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include "cc/base/status.h"
#include "cc/comm/call/call.h"
#include "cc/nccl/device.h"
#include "cc/nccl/job.h"

namespace jax_cxl::nccl {

// A model of a GPU for tests of cc/nccl. The CPU engine executes its calls one
// after another, on host memory.
class ModelDevice : public Device {
 public:
  explicit ModelDevice(Job* job) : job_(job) {
    worker_ = std::thread([this] { Work(); });
  }
  ~ModelDevice() override {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    worker_.join();
  }

  Status OpenPair(int, int) override { return OkStatus(); }
  Result<bool> TryConnectPair(int, int) override { return true; }
  int most_transfers() const override { return 2; }

  Status Enqueue(const Collective& collective, Stream) override {
    std::vector<int32_t> members(job_->size());
    std::iota(members.begin(), members.end(), 0);
    PushCollective(std::move(members), collective);
    return OkStatus();
  }
  Status SendAndReceive(std::span<const Transfer> transfers) override {
    Calls calls;
    for (const Transfer& transfer : transfers) {
      if (transfer.local()) {
        std::memcpy(transfer.output, transfer.input, transfer.bytes);
        continue;
      }
      comm::Call call = CallOf(transfer, job_->rank());
      if (call.output == nullptr) {
        sent_.emplace_back(transfer.bytes);
        call.output = sent_.back().data();
      }
      calls.push_back({{transfer.source, transfer.destination}, call});
    }
    Push([this, calls] { return Run(calls); });
    return OkStatus();
  }
  Status Drain() override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return steps_.empty() && !working_; });
    return status_;
  }
  Status Check(comm::Clock::time_point) override {
    std::lock_guard lock(mutex_);
    return status_;
  }
  void Abort() override {}

 private:
  // Calls that run at the same time, each with its members.
  using Calls = std::vector<std::pair<std::vector<int32_t>, comm::Call>>;

  void PushCollective(std::vector<int32_t> members,
                      const Collective& collective) {
    Calls calls = {{std::move(members), collective.call}};
    if (collective.factor) calls[0].second.input = Multiplied(collective);
    Push([this, calls, divisor = collective.divisor] {
      const Status status = Run(calls);
      const comm::Call& call = calls[0].second;
      const bool reduced = call.request.op != plan::Op::kReduce ||
                           call.request.rank == call.request.root;
      if (divisor > 0 && reduced) Divide(call, divisor);
      return status;
    });
  }

  // Returns the products of the input's elements (float32) and the factor.
  const std::byte* Multiplied(const Collective& collective) {
    float factor = 0;
    std::memcpy(&factor, &collective.factor->bits, sizeof(factor));
    std::vector<std::byte>& bytes =
        sent_.emplace_back(plan::InputBytes(collective.call.request));
    std::memcpy(bytes.data(), collective.call.input, bytes.size());
    auto* values = reinterpret_cast<float*>(bytes.data());
    for (size_t i = 0; i < bytes.size() / sizeof(float); ++i)
      values[i] *= factor;
    return bytes.data();
  }

  static void Divide(const comm::Call& call, uint32_t divisor) {
    if (call.dtype != DType::kFloat32) std::abort();
    auto* values = reinterpret_cast<float*>(call.output);
    for (uint64_t i = 0; i < call.request.count; ++i)
      values[i] /= static_cast<float>(divisor);
  }

  void Push(std::function<Status()> step) {
    std::lock_guard lock(mutex_);
    steps_.push_back(std::move(step));
    changed_.notify_all();
  }

  void Work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return stop_ || !steps_.empty(); });
      if (steps_.empty()) return;
      const std::function<Status()> step = std::move(steps_.front());
      steps_.pop_front();
      working_ = true;
      lock.unlock();
      const Status status = step();
      lock.lock();
      working_ = false;
      if (status_.ok()) status_ = status;
      changed_.notify_all();
    }
  }

  Status Run(const Calls& calls) {
    std::mutex mutex;
    std::condition_variable done;
    size_t left = calls.size();
    Status first;
    const auto end = [&](const Status& status) {
      std::lock_guard lock(mutex);
      if (first.ok()) first = status;
      if (--left == 0) done.notify_all();
    };
    for (const auto& [members, call] : calls) {
      auto copy = std::make_unique<comm::Call>(call);
      copy->identity = (uint64_t{1} << 32) + ++calls_[members];
      copy->done = end;
      if (auto status = job_->endpoint()->StartCall(members, std::move(copy)))
        end(*status);
    }
    std::unique_lock lock(mutex);
    done.wait(lock, [&] { return left == 0; });
    return first;
  }

  Job* job_;
  std::map<std::vector<int32_t>, uint64_t> calls_;
  std::deque<std::vector<std::byte>> sent_;  // also products
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<Status()>> steps_;
  bool working_ = false;
  bool stop_ = false;
  Status status_;
  std::thread worker_;
};

inline Result<std::unique_ptr<Device>> MakeModel(Job* job,
                                                 const std::atomic<bool>&) {
  return std::unique_ptr<Device>(std::make_unique<ModelDevice>(job));
}

}  // namespace jax_cxl::nccl

#endif  // JAX_CXL_TESTING_NCCL_MODEL_DEVICE_H_
