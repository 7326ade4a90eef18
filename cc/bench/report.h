#ifndef JAX_CXL_BENCH_REPORT_H_
#define JAX_CXL_BENCH_REPORT_H_

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "cc/bench/problem.h"
#include "cc/plan/plan.h"

namespace jax_cxl::comm {

inline double BusFactor(plan::Op op, int ranks) {
  if (op == plan::Op::kBroadcast || op == plan::Op::kReduce) return 1;
  return (op == plan::Op::kAllReduce ? 2.0 : 1.0) * (ranks - 1) / ranks;
}

inline double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 ? values[half]
                           : (values[half - 1] + values[half]) / 2;
}

// Prints the table and writes the results file, with the same columns and in
// the same format as `python -m jax_cxl bench`.
class Report {
 public:
  explicit Report(int ranks) : ranks_(ranks) {
    std::printf("# %d ranks (processes), emulated pool in shared memory\n",
                ranks);
    std::printf(
        "#%10s %10s %8s %5s  %-14s %-8s %10s %10s %10s %8s %8s %6s %6s\n",
        "size", "count", "type", "redop", "op", "backend", "min", "median",
        "max", "algbw", "busbw", "#wrong", "bound");
    std::printf(
        "#%10s %10s %8s %5s  %-14s %-8s %10s %10s %10s %8s %8s %6s %6s\n",
        "(B)", "(elements)", "", "", "", "", "(us)", "(us)", "(us)", "(GB/s)",
        "(GB/s)", "", "share");
  }

  void Add(const char* backend, const Problem& problem,
           const std::vector<double>& seconds, uint64_t wrong, double bound) {
    const plan::Op op = problem.request.op;
    const std::string name(plan::OpName(op));
    const double min = *std::min_element(seconds.begin(), seconds.end());
    const double max = *std::max_element(seconds.begin(), seconds.end());
    const double median = Median(seconds);
    const double algbw = problem.bytes / median / 1e9;
    const double busbw = algbw * BusFactor(op, ranks_);
    const bool sums = op == plan::Op::kAllReduce ||
                      op == plan::Op::kReduceScatter || op == plan::Op::kReduce;
    std::printf(
        " %10llu %10llu %8s %5s  %-14s %-8s %10.2f %10.2f %10.2f %8.3f "
        "%8.3f %6llu %5.0f%%\n",
        static_cast<unsigned long long>(problem.bytes),
        static_cast<unsigned long long>(problem.request.count), "float32",
        sums ? "sum" : "none", name.c_str(), backend, min * 1e6, median * 1e6,
        max * 1e6, algbw, busbw, static_cast<unsigned long long>(wrong),
        100 * bound / median);
    std::fflush(stdout);
    std::string samples;
    for (double sample : seconds) {
      char text[32];
      std::snprintf(text, sizeof(text), "%s%.4f", samples.empty() ? "" : ", ",
                    sample * 1e6);
      samples += text;
    }
    char row[512];
    std::snprintf(
        row, sizeof(row),
        "%s\n    {\"backend\": \"%s\", \"op\": \"%s\", \"bytes\": %llu, "
        "\"dtype\": \"float32\", \"ranks\": %d, \"time_us\": {\"min\": %.3f, "
        "\"median\": %.3f, \"max\": %.3f}, \"algbw_gbps\": %.6f, "
        "\"busbw_gbps\": %.6f, \"wrong\": %llu, \"bound_share\": %.6f, "
        "\"samples_us\": [",
        results_.empty() ? "" : ",", backend, name.c_str(),
        static_cast<unsigned long long>(problem.bytes), ranks_, min * 1e6,
        median * 1e6, max * 1e6, algbw, busbw,
        static_cast<unsigned long long>(wrong), bound / median);
    results_ += row + samples + "]}";
  }

  void Write(const std::string& path, const std::string& command,
             double load_before) const {
    double load_after = 0;
    getloadavg(&load_after, 1);
    std::ofstream out(path);
    out << "{\n  \"machine\": {\"cpu\": \"" << CpuModel()
        << "\", \"cores\": " << sysconf(_SC_NPROCESSORS_ONLN)
        << ", \"load_before\": " << load_before
        << ", \"load_after\": " << load_after << "},\n  \"command\": \""
        << command << "\",\n  \"versions\": {\"compiler\": \"" << __VERSION__
        << "\"},\n  \"emulated\": true,\n  \"results\": [" << results_
        << "\n  ]\n}\n";
  }

 private:
  static std::string CpuModel() {
    std::ifstream info("/proc/cpuinfo");
    for (std::string line; std::getline(info, line);)
      if (line.rfind("model name", 0) == 0)
        return line.substr(line.find(':') + 2);
    return "unknown";
  }

  int ranks_;
  std::string results_;
};

}  // namespace jax_cxl::comm

#endif  // JAX_CXL_BENCH_REPORT_H_
