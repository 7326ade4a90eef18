#ifndef JAX_CXL_TESTING_FAULTS_FAULT_SWEEP_H_
#define JAX_CXL_TESTING_FAULTS_FAULT_SWEEP_H_

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cc/plan/plan.h"
#include "cc/testing/faults/fault_job.h"

// Lists all faults: every pass through every point, for every rank and every
// operation. Also defines the results that the other ranks must have.
namespace jax_cxl::comm::faults {

// A process counts as hung after this many seconds.
inline constexpr double kDeadline = 10;
// A survivor must report a dead peer within this many seconds.
inline constexpr double kPromptly = 1;
// A rank must give up within this many seconds after its timeout. The limit is
// generous, because the machine may be busy.
inline constexpr double kAfterTimeout = 3;

struct Tally {
  uint64_t cases = 0;
  uint64_t reached = 0;  // cases in which the fault happened
  uint64_t hangs = 0;
  uint64_t crashes = 0;
  uint64_t wrong = 0;  // number of wrong elements
  uint64_t misjudged =
      0;              // errors of the wrong kind, or that name the wrong rank
  uint64_t late = 0;  // survivors that took longer than kPromptly
  std::array<uint64_t, fault::kNumActions> by_action{};
  std::array<uint64_t, fault::kNumPoints> by_point{};
  uint64_t at_random_times = 0;
  uint64_t survivors_with_error = 0;
  uint64_t survivors_done =
      0;  // survivors that needed nothing more from the victim
  std::vector<double> detection_s;    // seconds, for each survivor of a death
  std::vector<std::string> failures;  // descriptions of the first few

  void Fail(uint64_t* count, const Case& item, const std::string& what) {
    ++*count;
    if (failures.size() < 20) failures.push_back(Text(item) + ": " + what);
  }

  void Add(const Tally& other) {
    auto add = [](auto& to, const auto& from) {
      for (size_t i = 0; i < to.size(); ++i) to[i] += from[i];
    };
    cases += other.cases;
    reached += other.reached;
    hangs += other.hangs;
    crashes += other.crashes;
    wrong += other.wrong;
    misjudged += other.misjudged;
    late += other.late;
    at_random_times += other.at_random_times;
    survivors_with_error += other.survivors_with_error;
    survivors_done += other.survivors_done;
    add(by_action, other.by_action);
    add(by_point, other.by_point);
    detection_s.insert(detection_s.end(), other.detection_s.begin(),
                       other.detection_s.end());
    for (const std::string& failure : other.failures)
      if (failures.size() < 20) failures.push_back(failure);
  }
  bool good() const { return failures.empty(); }
};

// Compares the results of the job's processes with the required results.
class Judge {
 public:
  Judge(const Case& item, const JobResult& result, Tally* tally)
      : item_(item), result_(result), tally_(*tally) {}

  void Run() {
    using fault::Action;
    ++tally_.cases;
    if (result_.fault_at != 0) {
      ++tally_.reached;
      ++tally_.by_action[static_cast<int>(item_.fault.action)];
      if (item_.at_s)
        ++tally_.at_random_times;
      else
        ++tally_.by_point[static_cast<int>(item_.fault.point)];
    }
    for (int rank = 0; rank < item_.ranks; ++rank) {
      const RankResult& seen = result_.ranks[rank];
      const bool victim = rank == item_.fault.rank && result_.fault_at != 0;
      if (seen.hung && !victim) Hang(rank);
      if (seen.wrong > 0) Wrong(rank);
      if (victim && (Deadly() || StaysStopped())) continue;
      if (seen.hung) continue;
      if (!WIFEXITED(seen.status) || WEXITSTATUS(seen.status) != 0 ||
          !seen.reported)
        Crash(rank);
      else
        JudgeError(rank, victim);
    }
  }

 private:
  bool Deadly() const {
    return item_.fault.action == fault::Action::kKill ||
           item_.fault.action == fault::Action::kExit;
  }
  bool StaysStopped() const {
    return item_.fault.action == fault::Action::kStop && !item_.resume_after_s;
  }

  void Hang(int rank) {
    tally_.Fail(&tally_.hangs, item_,
                "rank " + std::to_string(rank) + " hangs");
  }
  void Wrong(int rank) {
    const uint64_t count = result_.ranks[rank].wrong;
    tally_.Fail(&tally_.wrong, item_,
                "rank " + std::to_string(rank) + " has " +
                    std::to_string(count) + " wrong elements");
    tally_.wrong += count - 1;
  }
  void Crash(int rank) {
    tally_.Fail(&tally_.crashes, item_,
                "rank " + std::to_string(rank) + " crashed, wait status " +
                    std::to_string(result_.ranks[rank].status));
  }
  void Misjudged(int rank, const std::string& why) {
    tally_.Fail(&tally_.misjudged, item_,
                "rank " + std::to_string(rank) + " says " +
                    std::string(CodeName(result_.ranks[rank].code)) + ": " +
                    result_.ranks[rank].message + " (" + why + ")");
  }

  // Judges a rank that has ended normally: it must have the right error, or
  // none.
  void JudgeError(int rank, bool victim) {
    const RankResult& seen = result_.ranks[rank];
    if (seen.code == Code::kOk) {
      tally_.survivors_done += !victim;
      return;
    }
    tally_.survivors_with_error += !victim;
    if (result_.fault_at == 0)
      Misjudged(rank, "nothing happened");
    else if (Deadly())
      JudgeDeath(rank);
    else if (StaysStopped())
      JudgeAbsence(rank);
    else if (item_.fault.action != fault::Action::kCorrupt)
      Misjudged(rank, "the fault was none that anybody should notice");
    else if (seen.message[0] == '\0')
      Misjudged(rank, "an error without a word");
  }

  std::string VictimName() const {
    const int rank = item_.fault.rank;
    return "rank " + std::to_string(rank) + " (pid " +
           std::to_string(result_.ranks[rank].pid) + " on host ";
  }

  void JudgeDeath(int rank) {
    const RankResult& seen = result_.ranks[rank];
    const std::string message = seen.message;
    if (seen.code != Code::kPeerLost)
      return Misjudged(rank, "not the error for a lost peer");
    for (const std::string& part :
         {VictimName(), std::string("is gone: its process ended"),
          std::string("; it "), std::string("was waiting for it in soak: ")})
      if (message.find(part) == message.npos)
        return Misjudged(rank, "lacks '" + part + "'");
    const double took = seen.ended_at - result_.fault_at;
    tally_.detection_s.push_back(took);
    if (took > kPromptly)
      tally_.Fail(&tally_.late, item_,
                  "rank " + std::to_string(rank) + " took " +
                      std::to_string(took) + " s");
  }

  void JudgeAbsence(int rank) {
    const RankResult& seen = result_.ranks[rank];
    const std::string message = seen.message;
    if (seen.code != Code::kDeadlineExceeded)
      return Misjudged(rank, "not the error for an absent peer");
    if (message.find(VictimName()) == message.npos)
      return Misjudged(rank, "names another");
    if (result_.output.find("jax_cxl: warning: ") == std::string::npos ||
        result_.output.find(VictimName()) == std::string::npos)
      return Misjudged(rank, "no warning of it before");
    const double took = seen.ended_at - result_.fault_at - item_.timeout_s;
    if (took > kAfterTimeout)
      tally_.Fail(&tally_.late, item_,
                  "rank " + std::to_string(rank) + " gave up " +
                      std::to_string(took) + " s after the timeout");
  }

  const Case& item_;
  const JobResult& result_;
  Tally& tally_;
};

inline void RunCase(const Case& item, Tally* tally) {
  const JobResult result = Job(item, kDeadline).Run();
  Judge(item, result, tally).Run();
}

// Runs the job without a fault, and returns how often the victim passes each
// point.
inline std::array<uint64_t, fault::kNumPoints> CountPasses(Case item) {
  item.fault.call = 0;
  item.fault.pass = UINT64_MAX;
  item.fault.action = fault::Action::kKill;
  item.at_s.reset();
  return Job(item, kDeadline).Run().ranks[item.fault.rank].passes;
}

// Which faults CasesOf lists.
struct Coverage {
  bool every_pass = false;  // else one random pass
  bool all_actions = false;
  int random_times = 0;  // number of kills and stops at random times
};

// Returns the cases in which rank `victim` has the fault, in jobs of `ranks`
// ranks that call `op`.
inline std::vector<Case> CasesOf(plan::Op op, int ranks, int victim,
                                 const Coverage& coverage,
                                 soak::Random& random) {
  using fault::Action;
  using fault::Point;
  std::vector<Case> cases;
  Case base;
  base.op = op;
  base.ranks = ranks;
  base.seed = random();
  base.fault.rank = victim;
  base.fault.call = 0;
  const auto passes = CountPasses(base);
  auto add = [&](Point point, uint64_t pass, Action action) {
    Case item = base;
    item.fault.point = point;
    item.fault.pass = pass;
    item.fault.action = action;
    // In these cases no call may time out: a death must be reported within
    // kPromptly, and a delay is too short to be noticed.
    if (action == Action::kKill || action == Action::kExit ||
        action == Action::kDelay)
      item.timeout_s = 5;
    if (action == Action::kDelay) item.fault.seconds = 0.002;
    if (action == Action::kStop && random() % 4 == 0) {
      item.resume_after_s = 0.05;
      item.timeout_s = 3;
    }
    cases.push_back(item);
  };
  for (int p = 0; p < fault::kNumPoints; ++p) {
    const auto point = static_cast<Point>(p);
    // A rank does not wait equally often in every run. So a fault at one of the
    // last passes through kWait might never happen: use only the first two.
    const uint64_t count =
        point == Point::kWait ? std::min<uint64_t>(passes[p], 2) : passes[p];
    if (count == 0) continue;
    auto any = [&] { return 1 + random() % count; };
    if (coverage.every_pass)
      for (uint64_t pass = 1; pass <= count; ++pass)
        add(point, pass, Action::kKill);
    else
      add(point, any(), Action::kKill);
    if (!coverage.all_actions) continue;
    for (Action action : {Action::kStop, Action::kExit, Action::kDelay})
      add(point, any(), action);
    if (point == Point::kRing || point == Point::kRung)
      for (int i = 0; i < 4; ++i) add(point, any(), Action::kCorrupt);
  }
  for (int i = 0; i < coverage.random_times; ++i) {
    Case item = base;
    item.seed = random();
    item.at_s = 1e-6 * static_cast<double>(soak::Pick(random, 0, 2000));
    item.fault.action = i % 8 == 7 ? Action::kStop : Action::kKill;
    if (item.fault.action == Action::kKill) item.timeout_s = 5;
    cases.push_back(item);
  }
  return cases;
}

}  // namespace jax_cxl::comm::faults

#endif  // JAX_CXL_TESTING_FAULTS_FAULT_SWEEP_H_
