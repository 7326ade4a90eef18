#ifndef JAX_CXL_BENCH_BACKENDS_H_
#define JAX_CXL_BENCH_BACKENDS_H_

#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "cc/bench/problem.h"
#include "cc/bench/team.h"
#include "cc/comm/call/backoff.h"
#include "cc/comm/call/tuning.h"
#include "cc/comm/completions.h"
#include "cc/comm/endpoint.h"
#include "cc/comm/health/peers.h"
#include "cc/engine/cpu/executor.h"
#include "cc/plan/plan.h"
#include "cc/plan/planners/make_plan.h"
#include "cc/pool/pool.h"
#include "cc/testing/world/world.h"

// The ways to execute a collective. engine_benchmark.cc compares them.
namespace jax_cxl::comm {

// One way to execute the collective of a problem. `Call` executes it once, and
// returns when it is done.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual const char* name() const = 0;
  virtual void Prepare(const Problem&) {}
  virtual void Call(Problem* problem) = 0;
  // Whether `Call` gives the right results.
  virtual bool IsRight() const { return true; }
};

inline constexpr Tuning kSlots;  // the default slots of a rank

// Executes plans in the calling thread, without an Endpoint. All ranks must
// make their calls in the same order.
class EngineBackend : public Backend {
 public:
  EngineBackend(pool::Pool* pool, const Team& team)
      : EngineBackend(team, Views(pool, team.size())) {}

  // How many bytes this backend uses at the end of each rank's arena. An
  // Endpoint uses the arena from its beginning.
  static constexpr uint64_t kBytes =
      2 * sizeof(pool::Doorbell) + kSlots.num_slots * kSlots.slot_bytes;

  static std::byte* Memory(pool::Pool* pool, int rank) {
    const pool::Pool::Range arena = pool->arena(0, rank);
    const uint64_t offset = arena.offset + arena.bytes - kBytes;
    return pool->At(
        offset / pool::kInterferenceBytes * pool::kInterferenceBytes, kBytes);
  }

  const char* name() const override { return "engine"; }

  void Prepare(const Problem& problem) override {
    plan::Geometry geometry;
    geometry.slot_bytes = kSlots.slot_bytes;
    geometry.num_slots = kSlots.num_slots;
    plan_ = std::make_shared<const plan::Plan>(
        OrDie(plan::MakePlan(problem.request, geometry)));
  }

  void Call(Problem* problem) override {
    cpu::Execution execution(
        plan_, &rings_, rounds_, DType::kFloat32, ReduceOp::kSum,
        reinterpret_cast<const std::byte*>(problem->input.data()),
        reinterpret_cast<std::byte*>(problem->output.data()),
        Tuning().past_caches_bytes);
    backoff_.Reset();
    // The result of Advance is not checked, because only plans that move rows
    // can fail.
    for (size_t steps = 0; !*execution.Advance(&traffic_);) {
      if (execution.steps_done() != steps)
        backoff_.Reset();
      else
        backoff_.Pause();
      steps = execution.steps_done();
    }
    rounds_ += plan_->rounds;
  }

 protected:
  EngineBackend(const Team& team, std::vector<cpu::RingView> views)
      : rings_(std::move(views), team.rank(), kSlots.num_slots) {}

  static std::vector<cpu::RingView> Views(pool::Pool* pool, int size) {
    const pool::Doorbells doorbells(pool->coherence(), pool->epoch());
    std::vector<cpu::RingView> views(size,
                                     cpu::RingView{.doorbells = doorbells});
    for (int rank = 0; rank < size; ++rank) {
      auto* words = reinterpret_cast<pool::Doorbell*>(Memory(pool, rank));
      views[rank].published = &words[0].word;
      views[rank].released = &words[1].word;
      auto* slots = reinterpret_cast<std::byte*>(words + 2);
      for (uint64_t slot = 0; slot < kSlots.num_slots; ++slot)
        views[rank].slots[slot] = slots + slot * kSlots.slot_bytes;
    }
    return views;
  }

 private:
  cpu::Rings rings_;
  std::shared_ptr<const plan::Plan> plan_;
  uint64_t rounds_ = 0;
  cpu::Traffic traffic_;
  Backoff backoff_;
};

// Makes the same copies and additions as EngineBackend, at the same addresses
// and in the same order, but never waits: each doorbell that it reads has
// already rung for all rounds. So its results are wrong, and its time is that
// of an engine that never has to wait.
class CopiesBackend : public EngineBackend {
 public:
  CopiesBackend(pool::Pool* pool, const Team& team)
      : EngineBackend(team, Rung(pool, team)) {}

  const char* name() const override { return "copies"; }
  bool IsRight() const override { return false; }

 private:
  static std::vector<cpu::RingView> Rung(pool::Pool* pool, const Team& team) {
    constexpr uint64_t kRounds = uint64_t{1} << 40;  // more than any wait needs
    static pool::Doorbell own, rung;
    rung.word = pool::Doorbells(pool->coherence(), pool->epoch()).Word(kRounds);
    std::vector<cpu::RingView> views = Views(pool, team.size());
    for (int member = 0; member < team.size(); ++member) {
      pool::Doorbell& doorbell = member == team.rank() ? own : rung;
      views[member].published = views[member].released = &doorbell.word;
    }
    return views;
  }
};

inline void Check(const Status& status) {
  if (status.ok()) return;
  std::cerr << status.message() << std::endl;
  _exit(1);  // exit() might try to join this thread.
}

// What a process needs to make calls through an Endpoint, as in comm::Runtime.
class Job {
 public:
  Job(pool::Pool* pool, const Team& team)
      : peers_(OrDie(
            Peers::Start(pool, {team.rank()}, Options().heartbeat_timeout_s))),
        endpoint_(pool, peers_.get(), &completions_, Options(), team.rank()),
        members_(team.size()) {
    std::iota(members_.begin(), members_.end(), 0);
  }

  Endpoint& endpoint() { return endpoint_; }
  const std::vector<int32_t>& members() const { return members_; }

 private:
  std::unique_ptr<Peers> peers_;
  Completions completions_;
  Endpoint endpoint_;
  std::vector<int32_t> members_;
};

inline void Fill(const Problem& problem, comm::Call* call) {
  call->request = problem.request;
  call->dtype = DType::kFloat32;
  call->input = reinterpret_cast<const std::byte*>(problem.input.data());
  call->output =
      reinterpret_cast<std::byte*>(const_cast<float*>(problem.output.data()));
  call->name = "benchmark";
}

class EndpointBackend : public Backend {
 public:
  explicit EndpointBackend(Job* job) : job_(job) {}

  const char* name() const override { return "endpoint"; }

  void Call(Problem* problem) override {
    auto call = std::make_unique<comm::Call>();
    Fill(*problem, call.get());
    call->identity = ++identity_;
    done_ = 0;
    call->done = [this](const Status& status) {
      Check(status);
      done_ = 1;
      done_.notify_one();
    };
    if (std::optional<Status> status =
            job_->endpoint().StartCall(job_->members(), std::move(call)))
      Check(*status);
    else
      done_.wait(0);
  }

 private:
  Job* job_;
  uint64_t identity_ = 0;
  std::atomic<int> done_{0};
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_BENCH_BACKENDS_H_
