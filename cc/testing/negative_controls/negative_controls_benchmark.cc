// Measures how quickly the tests notice that an operation of the protocol is
// left out. Usage: negative_controls_benchmark [--seeds=N] [--seconds=T]
// [--only=MOVE] [--scenario=NAME]. Writes JSON to the standard output and a
// table in Markdown to the standard error. Exits with 1 if an omission goes
// unnoticed.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "cc/testing/negative_controls/negative_controls.h"

namespace {

using namespace jax_cxl::comm;

struct Tally {
  int caught = 0;
  std::vector<double> seconds;  // of the caught runs
};

Tally Run(const Control& control, int seeds, double limit) {
  Tally tally;
  for (int seed = 1; seed <= seeds; ++seed) {
    const Outcome outcome = RunControl(
        {static_cast<uint64_t>(seed), std::string(control.leaves_out)},
        control.caught_by, limit);
    if (!outcome.caught) continue;
    ++tally.caught;
    tally.seconds.push_back(outcome.seconds);
  }
  std::sort(tally.seconds.begin(), tally.seconds.end());
  return tally;
}

}  // namespace

int main(int argc, char** argv) {
  int seeds = 5;
  double limit = 5;
  std::string only, of_scenario;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const std::string value = argument.substr(argument.find('=') + 1);
    if (argument.starts_with("--seeds=")) {
      seeds = std::atoi(value.c_str());
    } else if (argument.starts_with("--seconds=")) {
      limit = std::atof(value.c_str());
    } else if (argument.starts_with("--only=")) {
      only = value;
    } else if (argument.starts_with("--scenario=")) {
      of_scenario = value;
    } else {
      std::fprintf(stderr,
                   "usage: %s [--seeds=N] [--seconds=T] [--only=MOVE] "
                   "[--scenario=NAME]\n",
                   argv[0]);
      return 2;
    }
  }
  bool all = true, first = true;
  std::fprintf(stderr,
               "| left out | caught by | seeds | median s | slowest s |\n"
               "|---|---|---|---|---|\n");
  std::printf("{\"seeds\": %d, \"limit_s\": %g, \"controls\": [", seeds, limit);
  for (const Control& control : kControls) {
    const std::string name(control.leaves_out);
    if (!only.empty() && only != name) continue;
    const std::string scenario(ScenarioName(control.caught_by));
    if (!of_scenario.empty() && of_scenario != scenario) continue;
    const Tally tally = Run(control, seeds, limit);
    all = all && tally.caught > 0;
    const double median =
        tally.caught > 0 ? tally.seconds[tally.caught / 2] : 0;
    const double slowest = tally.caught > 0 ? tally.seconds.back() : 0;
    std::printf(
        "%s\n  {\"leaves_out\": \"%s\", \"scenario\": \"%s\", \"caught\": %d, "
        "\"median_s\": %.2f, \"slowest_s\": %.2f}",
        first ? "" : ",", name.c_str(), scenario.c_str(), tally.caught, median,
        slowest);
    first = false;
    std::fprintf(stderr, "| `%s` | %s | %d of %d | %.2f | %.2f |\n",
                 name.c_str(), scenario.c_str(), tally.caught, seeds, median,
                 slowest);
  }
  std::printf("\n]}\n");
  return all ? 0 : 1;
}
