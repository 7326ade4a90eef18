#ifndef JAX_CXL_BENCH_TEAM_H_
#define JAX_CXL_BENCH_TEAM_H_

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>

namespace jax_cxl::comm {

// Memory that all ranks of a benchmark share, in addition to the pool.
struct Meeting {
  static constexpr int kMaxRanks = 64;

  struct alignas(128) Rank {
    std::atomic<uint64_t> arrived;
    double value;
  };
  uint64_t token;
  Rank ranks[kMaxRanks];
};

// One rank of a benchmark. The ranks are forked processes that share a Meeting.
class Team {
 public:
  Team(Meeting* meeting, int rank, int size)
      : meeting_(meeting), rank_(rank), size_(size) {}

  int rank() const { return rank_; }
  int size() const { return size_; }

  void Barrier() {
    const uint64_t arrival = ++meeting_->ranks[rank_].arrived;
    for (int other = 0; other < size_; ++other)
      for (int polls = 0; meeting_->ranks[other].arrived < arrival; ++polls)
        if (polls > 200) sched_yield();
  }

  double Max(double value) {
    return Fold(value, [](double a, double b) { return std::max(a, b); });
  }
  double Sum(double value) { return Fold(value, std::plus<double>()); }

 private:
  double Fold(double value, const std::function<double(double, double)>& fold) {
    meeting_->ranks[rank_].value = value;
    Barrier();
    double result = meeting_->ranks[0].value;
    for (int other = 1; other < size_; ++other)
      result = fold(result, meeting_->ranks[other].value);
    Barrier();
    return result;
  }

  Meeting* meeting_;
  int rank_;
  int size_;
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_BENCH_TEAM_H_
