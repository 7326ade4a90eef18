#ifndef JAX_CXL_TESTING_NEGATIVE_CONTROLS_NEGATIVE_CONTROLS_H_
#define JAX_CXL_TESTING_NEGATIVE_CONTROLS_NEGATIVE_CONTROLS_H_

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cc/testing/devices/device_soak.h"
#include "cc/testing/incoherent/handover.h"
#include "cc/testing/soak/soak.h"
#include "cc/testing/world/world.h"

// Runs tests of the protocol on an incoherent pool whose cache leaves out one
// operation. The tests must fail.
namespace jax_cxl::comm {

enum class Scenario : uint8_t {
  kSoak,         // random collectives, checked against plain loops
  kTalk,         // texts that ranks pass on: identities, mismatches, reasons
  kHandOver,     // the promises of Coherence, without the protocol
  kDevices,      // random collectives of modeled GPUs
  kNoAdversary,  // the same, and no line moves unless the protocol moves it
};

struct Control {
  std::string_view leaves_out;  // see cc/testing/incoherent/omission.h
  Scenario caught_by;
};

inline std::string_view ScenarioName(Scenario scenario) {
  constexpr std::string_view kNames[] = {"soak", "talk", "hand-over", "devices",
                                         "devices, no adversary"};
  return kNames[static_cast<int>(scenario)];
}

// The operations to leave out, and the scenario that catches each. The flushes
// and fences of a flag only make the flag arrive soon. If they are left out, a
// rank waits longer, but gets the right result. So only a test of how soon
// flags arrive notices the omission. Short messages of devices carry a flag in
// every word, so the flushes and fences of these messages, too, only make the
// words arrive soon. Scenario kNoAdversary notices if one of them is left out:
// in this scenario no cache line moves by itself, so a rank waits forever.
inline constexpr Control kControls[] = {
    {"slot.write_back", Scenario::kSoak},
    {"slot.store_fence", Scenario::kSoak},
    {"slot.invalidate", Scenario::kSoak},
    {"slot.fence_after", Scenario::kSoak},
    {"slot.fence_before", Scenario::kHandOver},
    {"published.wait", Scenario::kSoak},
    {"released.wait", Scenario::kSoak},
    {"submission.write_back", Scenario::kSoak},
    {"submission.store_fence", Scenario::kSoak},
    {"submission.invalidate", Scenario::kSoak},
    {"submission.fence_after", Scenario::kSoak},
    {"submission.fence_before", Scenario::kHandOver},
    {"submission_ready.wait", Scenario::kSoak},
    {"announcement.write_back", Scenario::kSoak},
    {"announcement.store_fence", Scenario::kSoak},
    {"announcement.invalidate", Scenario::kSoak},
    {"announcement.fence_after", Scenario::kSoak},
    {"announcement.fence_before", Scenario::kHandOver},
    {"announcement_ready.wait", Scenario::kSoak},
    {"name.write_back", Scenario::kTalk},
    {"name.store_fence", Scenario::kHandOver},
    {"name.invalidate", Scenario::kTalk},
    {"name.fence_before", Scenario::kHandOver},
    {"name.fence_after", Scenario::kTalk},
    {"directory.write_back", Scenario::kTalk},
    {"directory.store_fence", Scenario::kTalk},
    {"directory.invalidate", Scenario::kTalk},
    {"directory.fence_after", Scenario::kTalk},
    {"directory.fence_before", Scenario::kHandOver},
    {"directory_ready.wait", Scenario::kTalk},
    {"abort.write_back", Scenario::kTalk},
    {"abort.invalidate", Scenario::kTalk},
    {"abort.fence_after", Scenario::kTalk},
    {"abort.store_fence", Scenario::kHandOver},
    {"abort.fence_before", Scenario::kHandOver},
    {"abort_raised.wait", Scenario::kTalk},
    {"rank_info.write_back", Scenario::kHandOver},
    {"rank_info.store_fence", Scenario::kHandOver},
    {"rank_info.invalidate", Scenario::kHandOver},
    {"rank_info.fence_before", Scenario::kHandOver},
    {"rank_info.fence_after", Scenario::kHandOver},
    {"rank_ready.invalidate", Scenario::kTalk},
    {"published.write_back", Scenario::kHandOver},
    {"published.store_fence", Scenario::kHandOver},
    {"published.invalidate", Scenario::kHandOver},
    {"published.fence_after", Scenario::kHandOver},
    {"released.write_back", Scenario::kHandOver},
    {"released.store_fence", Scenario::kHandOver},
    {"released.invalidate", Scenario::kHandOver},
    {"released.fence_after", Scenario::kHandOver},
    {"submission_ready.write_back", Scenario::kHandOver},
    {"submission_ready.store_fence", Scenario::kHandOver},
    {"submission_ready.invalidate", Scenario::kHandOver},
    {"submission_ready.fence_after", Scenario::kHandOver},
    {"announcement_ready.write_back", Scenario::kHandOver},
    {"announcement_ready.store_fence", Scenario::kHandOver},
    {"announcement_ready.invalidate", Scenario::kHandOver},
    {"announcement_ready.fence_after", Scenario::kHandOver},
    {"name_ready.write_back", Scenario::kHandOver},
    {"name_ready.store_fence", Scenario::kHandOver},
    {"name_ready.invalidate", Scenario::kHandOver},
    {"name_ready.fence_after", Scenario::kHandOver},
    {"finished.wait", Scenario::kSoak},
    {"finished.write_back", Scenario::kHandOver},
    {"finished.store_fence", Scenario::kHandOver},
    {"finished.invalidate", Scenario::kHandOver},
    {"finished.fence_after", Scenario::kHandOver},
    {"submissions_read.write_back", Scenario::kHandOver},
    {"submissions_read.store_fence", Scenario::kHandOver},
    {"submissions_read.invalidate", Scenario::kHandOver},
    {"submissions_read.fence_after", Scenario::kHandOver},
    {"directory_ready.write_back", Scenario::kHandOver},
    {"directory_ready.store_fence", Scenario::kHandOver},
    {"directory_ready.invalidate", Scenario::kHandOver},
    {"directory_ready.fence_after", Scenario::kHandOver},
    {"abort_raised.write_back", Scenario::kHandOver},
    {"abort_raised.store_fence", Scenario::kHandOver},
    {"abort_raised.invalidate", Scenario::kHandOver},
    {"abort_raised.fence_after", Scenario::kHandOver},
    {"rank_ready.write_back", Scenario::kHandOver},
    {"rank_ready.store_fence", Scenario::kHandOver},
    {"rank_ready.fence_after", Scenario::kHandOver},
    {"heartbeat.write_back", Scenario::kHandOver},
    {"heartbeat.store_fence", Scenario::kHandOver},
    {"heartbeat.invalidate", Scenario::kHandOver},
    {"heartbeat.fence_after", Scenario::kHandOver},
    {"slot.write_back", Scenario::kDevices},
    {"slot.store_fence", Scenario::kDevices},
    {"slot.invalidate", Scenario::kDevices},
    {"slot.fence_before", Scenario::kDevices},
    {"slot.fence_after", Scenario::kDevices},
    {"published.wait", Scenario::kDevices},
    {"released.wait", Scenario::kDevices},
    {"ended.wait", Scenario::kDevices},
    {"flagged.write_back", Scenario::kNoAdversary},
    {"flagged.invalidate", Scenario::kNoAdversary},
    {"flagged.fence_before", Scenario::kNoAdversary},
    {"flagged_words.write_back", Scenario::kNoAdversary},
    {"flagged_words.invalidate", Scenario::kNoAdversary},
    {"call_word.write_back", Scenario::kHandOver},
    {"call_word.store_fence", Scenario::kHandOver},
    {"call_word.invalidate", Scenario::kHandOver},
    {"call_word.fence_after", Scenario::kHandOver},
    {"ended.write_back", Scenario::kHandOver},
    {"ended.store_fence", Scenario::kHandOver},
    {"ended.invalidate", Scenario::kHandOver},
    {"ended.fence_after", Scenario::kHandOver},
};

namespace negative_controls {

// Returns the timeout of a rank's waits. If an operation is left out, this is
// `if_left_out` seconds, so that the omission is noticed soon. If nothing is
// left out, it is long, because the machine may be busy.
inline double Timeout(const Incoherence& incoherence, double if_left_out) {
  return incoherence.leave_out.empty() ? 60 : if_left_out;
}

inline std::string RunSoak(const Incoherence& incoherence, double seconds) {
  const soak::Report report =
      soak::Soak(std::numeric_limits<uint64_t>::max(), incoherence.seed,
                 seconds, incoherence, Timeout(incoherence, 1));
  return report.first_failure;
}

inline std::string RunDevices(const Incoherence& incoherence, double seconds) {
  return soak::DeviceSoak(incoherence.seed, seconds, incoherence,
                          Timeout(incoherence, incoherence.adversary ? 10 : 3))
      .first_failure;
}

// Checks that the error of a rank's call has the code `code`, and `text` in its
// message. Returns the problem, or "" if there is none.
inline std::string ExpectText(const Status& status, Code code,
                              const std::string& text) {
  if (status.code() == code && status.message().find(text) != std::string::npos)
    return "";
  return "an error says '" + status.message() + "', not '" + text + "'";
}

inline std::unique_ptr<Call> Barrier(uint64_t identity, int ranks, int rank) {
  auto call = std::make_unique<Call>();
  call->identity = identity;
  call->request.op = plan::Op::kBarrier;
  call->request.num_ranks = ranks;
  call->request.rank = rank;
  call->request.element_bytes = 4;
  call->dtype = DType::kInt32;
  call->name = "talk";
  return call;
}

// Runs a world in which rank 2 calls another operation than the others
// (`disagree`) or gives up. Checks the texts that the other ranks get. Returns
// the problem, or "" if there is none.
inline std::string TalkOnce(const Incoherence& incoherence, bool disagree) {
  constexpr int kRanks = 3;
  constexpr int kSite = 80;  // more than a cache line
  const std::vector<int32_t> everyone = {0, 1, 2};
  Options options;
  options.timeout_s = Timeout(incoherence, 1);
  // Declared before the world, so that the countdowns outlive it: the world's
  // destructor finishes all calls, and each call counts down.
  std::vector<std::unique_ptr<Countdown>> countdowns;
  World world(kRanks, options, 16 << 20, 1, pool::CoherenceMode::kCoherent,
              incoherence);
  const std::string pid = std::to_string(getpid());
  for (int rank = 0; rank < kRanks; ++rank) {
    for (int peer = 0; peer < kRanks; ++peer) {
      const std::string want =
          "rank " + std::to_string(peer) + " (pid " + pid + " on host ";
      const std::string name = world.peers(rank).Name(peer);
      if (!name.starts_with(want))
        return "a peer is called '" + name + "', not '" + want + "...'";
    }
  }
  const std::string reason(400, disagree ? 'd' : 'g');
  int32_t nothing = 0;
  for (int rank = 0; rank < kRanks; ++rank) {
    countdowns.push_back(std::make_unique<Countdown>(1));
    auto call = Barrier(1, kRanks, rank);
    call->site = std::string(kSite, static_cast<char>('a' + rank));
    call->input = reinterpret_cast<std::byte*>(&nothing);
    call->output = reinterpret_cast<std::byte*>(&nothing);
    if (disagree && rank == 2) call->request.op = plan::Op::kAllReduce;
    if (!disagree && rank == 2)
      world.peers(rank).GiveUp(rank, Error(Code::kDataLoss, reason));
    else
      countdowns[rank]->StartCall(world.endpoint(rank), everyone,
                                  std::move(call));
  }
  for (int rank = 0; rank < kRanks; ++rank) {
    if (!disagree && rank == 2) continue;
    const Status status = countdowns[rank]->Wait();
    std::string wrong =
        disagree ? ExpectText(status, Code::kMismatch, std::string(kSite, 'c'))
                 : ExpectText(status, Code::kDataLoss, reason);
    // The message also has the source line of rank 0 or rank 1, whichever
    // submitted its call first.
    if (wrong.empty() && disagree &&
        !ExpectText(status, Code::kMismatch, std::string(kSite, 'b')).empty())
      wrong = ExpectText(status, Code::kMismatch, std::string(kSite, 'a'));
    if (!wrong.empty()) return wrong;
  }
  return "";
}

inline std::string RunTalk(Incoherence incoherence, double seconds) {
  const Clock::time_point end =
      Clock::now() + std::chrono::milliseconds(int(1000 * seconds));
  for (bool disagree = false; Clock::now() < end; disagree = !disagree) {
    std::string wrong = TalkOnce(incoherence, disagree);
    if (!wrong.empty()) return wrong;
    incoherence.seed += 1000;
  }
  return "";
}

inline std::string RunHandOver(Incoherence incoherence, double seconds) {
  const Clock::time_point end =
      Clock::now() + std::chrono::milliseconds(int(1000 * seconds));
  while (Clock::now() < end) {
    pool::PoolSpec spec;
    spec.paths = {"handover." + std::to_string(getpid()) + "." +
                  std::to_string(incoherence.seed)};
    spec.bytes = 8 << 20;
    incoherence.ApplyTo(&spec);
    auto a = OrDie(pool::Pool::Create(spec, 2));
    auto b = OrDie(pool::Pool::Attach(spec, 2, a->token()));
    a->Unlink();
    std::string wrong = pool::HandOver(a.get(), b.get()).Run(100);
    if (!wrong.empty()) return wrong;
    incoherence.seed += 1000;
  }
  return "";
}

}  // namespace negative_controls

struct Outcome {
  bool caught = false;
  double seconds = 0;
  std::string how;
};

// Runs the scenario for at most `seconds` in a child process, because it may
// crash or hang. The calling process must have no other threads.
inline Outcome RunControl(Incoherence incoherence, Scenario scenario,
                          double seconds) {
  incoherence.adversary = scenario != Scenario::kNoAdversary;
  int ends[2];
  if (pipe(ends) != 0) std::abort();
  const Clock::time_point start = Clock::now();
  std::fflush(nullptr);  // otherwise the child would write it again
  const pid_t pid = fork();
  if (pid == 0) {
    dup2(ends[1], STDERR_FILENO);  // messages of a child that aborts
    namespace controls = negative_controls;
    std::string wrong =
        scenario == Scenario::kSoak   ? controls::RunSoak(incoherence, seconds)
        : scenario == Scenario::kTalk ? controls::RunTalk(incoherence, seconds)
        : scenario == Scenario::kDevices || scenario == Scenario::kNoAdversary
            ? controls::RunDevices(incoherence, seconds)
            : controls::RunHandOver(incoherence, seconds);
    wrong.resize(std::min<size_t>(wrong.size(), 4000));
    if (write(STDERR_FILENO, wrong.data(), wrong.size()) < 0) _exit(2);
    _exit(wrong.empty() ? 0 : 1);
  }
  close(ends[1]);
  Outcome outcome;
  pollfd ready = {ends[0], POLLIN, 0};
  const double timeout =
      seconds + 10 + negative_controls::Timeout(incoherence, 0);
  auto passed = [&] {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  bool hangs = false;
  for (char text[4096];;) {
    const int left = static_cast<int>(1000 * (timeout - passed()));
    if (left <= 0 || poll(&ready, 1, left) == 0) {
      hangs = true;
      kill(pid, SIGKILL);
      break;
    }
    const ssize_t got = read(ends[0], text, sizeof(text));
    if (got <= 0) break;
    outcome.how.append(text, got);
  }
  close(ends[0]);
  int status = 0;
  waitpid(pid, &status, 0);
  outcome.seconds = passed();
  outcome.caught = !WIFEXITED(status) || WEXITSTATUS(status) != 0;
  if (hangs) outcome.how = "hangs: " + outcome.how;
  return outcome;
}

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_TESTING_NEGATIVE_CONTROLS_NEGATIVE_CONTROLS_H_
