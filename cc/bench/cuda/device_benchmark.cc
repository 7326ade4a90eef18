// Times the CUDA engine without JAX. Each rank has one GPU, and all ranks are
// in this process. For each operation and size, it also measures how fast the
// links alone are (the bound), in the same run. The settings take turns.
//
//   device_benchmark [--ranks=2] [--ops=all_gather,psum]
//                    [--sizes=4096,1048576] [--coherence=coherent,flush,memory]
//                    [--shapes=64x64x448] [--slots=4x1048576] [--repeats=5]
//                    [--copy_engine=67108864] [--kernel_slots=0x524288]
//                    [--flagged=262144] [--flush_threads=0]
//                    [--flush_pieces=131072] [--started=0]
//                    [--aside=1048576] [--copies=0x2097152] [--bound=1]
//                    [--between=0]
//
// Prints one JSON object per line. In it, `bytes` is the total size as in
// nccl-tests, and `cores_busy` is how many cores the library's own threads use.
// A flag that is a list has one value for each setting:
//
// - A shape is blocks x sending threads x receiving threads.
// - kernel_slots is the bytes of a slot that kernels use (0: the engine
//   chooses) x the smallest chunk that is worth a round.
// - With --started=N, N calls at a time are started. Those of at least --aside
//   bytes use the copy engines.
// - copies is the number of pipelines of these calls (0: the engine chooses) x
//   their smallest chunk.
// - The coherence `memory` is flush with gpu_writes=memory.
//
// If there are more ranks than GPUs, ranks share GPUs. Then --copy_engine must
// be so large that no call uses copy engines. --bound=0 omits the bound. With
// --between=BYTES, a kernel that reads BYTES bytes runs before each call, as
// in a program that computes between its calls. The times are then those of the
// calls alone: the time of such a loop without the calls is subtracted.

#include <algorithm>
#include <barrier>
#include <bit>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cc/base/idle.h"
#include "cc/bench/cuda/bound/bound.h"
#include "cc/bench/cuda/device_settings.h"
#include "cc/engine/gpu_plan/gpu_plan.h"
#include "cc/plan/planners/make_plan.h"
#include "cc/testing/cuda/device_world.h"

namespace jax_cxl::comm {
namespace {

plan::Op OpByName(const std::string& name) {
  for (int op = 0; op < plan::kNumOps; ++op)
    if (plan::OpName(static_cast<plan::Op>(op)) == name)
      return static_cast<plan::Op>(op);
  OkOrDie(Error(Code::kInvalidArgument, "no operation ", name));
  return plan::Op::kBarrier;
}

// Returns the number of elements of one block in a call of `total` bytes, as
// nccl-tests counts them.
uint64_t CountOf(plan::Op op, uint64_t total, int ranks) {
  using plan::Op;
  const bool per_rank = op == Op::kAllGather || op == Op::kReduceScatter ||
                        op == Op::kAllToAll || op == Op::kGather ||
                        op == Op::kScatter;
  return std::max<uint64_t>(total / 4 / (per_rank ? ranks : 1), 1);
}

double BusFactor(plan::Op op, int n) {
  using plan::Op;
  switch (op) {
    case Op::kAllReduce:
      return 2.0 * (n - 1) / n;
    case Op::kAllGather:
    case Op::kReduceScatter:
    case Op::kAllToAll:
    case Op::kGather:
    case Op::kScatter:
      return 1.0 * (n - 1) / n;
    default:
      return 1.0;
  }
}

// The memory, the second stream and the events of one rank.
struct Rank {
  std::byte* between = nullptr;
  std::byte* input = nullptr;
  std::byte* output = nullptr;
  cudaStream_t second = nullptr;
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  cudaEvent_t joined = nullptr;
};

class Benchmark {
 public:
  Benchmark(int ranks, uint64_t buffer_bytes, uint64_t between)
      : ranks_(ranks),
        buffer_bytes_(buffer_bytes),
        between_(between),
        rank_(ranks) {
    for (int r = 0; r < ranks; ++r) {
      OkOrDie(cudaSetDevice(r % CountDevices()));
      OkOrDie(cudaMalloc(&rank_[r].input, buffer_bytes));
      OkOrDie(cudaMalloc(&rank_[r].output, buffer_bytes));
      if (between > 0) OkOrDie(cudaMalloc(&rank_[r].between, between));
      // The inputs are zeros, so all sums are exact.
      OkOrDie(cudaMemset(rank_[r].input, 0, buffer_bytes));
      OkOrDie(
          cudaStreamCreateWithFlags(&rank_[r].second, cudaStreamNonBlocking));
      OkOrDie(cudaEventCreate(&rank_[r].begin));
      OkOrDie(cudaEventCreate(&rank_[r].end));
      OkOrDie(
          cudaEventCreateWithFlags(&rank_[r].joined, cudaEventDisableTiming));
      OkOrDie(cudaDeviceSynchronize());
    }
    OkOrDie(cudaHostAlloc(&rings_, ranks * kRingBytes,
                          cudaHostAllocPortable | cudaHostAllocMapped));
  }

  // Times of one call in microseconds. min, median and max are those of the
  // slowest rank.
  struct Times {
    double min = 0, median = 0, max = 0;
    double device = 0;  // average time of one call on rank 0's device
    double cores = 0;  // average number of cores that the library's threads use
  };

  // Measures calls of `op`. Keeps `started` calls under way at a time, as a
  // program with start and done does. If `started` is 0, each call blocks.
  Times TimeCalls(DeviceWorld& world, plan::Op op, uint64_t count, int started,
                  int repeats) {
    std::vector<int32_t> members(ranks_);
    for (int r = 0; r < ranks_; ++r) members[r] = r;
    const auto compute = [&](int r) {
      if (between_ > 0)
        OkOrDie(
            cuda::EnqueueReading(rank_[r].between, between_, world.stream(r)));
    };
    auto enqueue = [&](int r, int calls, plan::Op what, uint64_t elements) {
      Call call;
      call.name = "benchmark";
      call.request.op = what;
      call.request.num_ranks = ranks_;
      call.request.rank = r;
      call.request.count = elements;
      call.request.element_bytes = 4;
      call.dtype = DType::kFloat32;
      call.input = rank_[r].input;
      call.output = rank_[r].output;
      DeviceEndpoint& endpoint = world.endpoint(r);
      if (started == 0 || what == plan::Op::kBarrier) {
        for (int i = 0; i < calls; ++i) {
          compute(r);
          OkOrDie(endpoint.Enqueue(members, call, world.stream(r)));
        }
        return;
      }
      const uint64_t bytes = plan::OutputBytes(call.request);
      const auto output = [&](int i) {
        return rank_[r].output + i % started * bytes;
      };
      const auto finish = [&](int i) {
        OkOrDie(
            endpoint.EnqueueDone(output(i), output(i), bytes, world.stream(r)));
      };
      for (int i = 0; i < calls; ++i) {
        if (i >= started) finish(i - started);
        call.output = output(i);
        OkOrDie(endpoint.EnqueueStart(members, call, world.stream(r)));
      }
      for (int i = std::max(calls - started, 0); i < calls; ++i) finish(i);
    };
    const int calls = CallsFor(count * 4 * ranks_);
    const Stats before = world.endpoint(0).stats();
    const auto used = UsedByOwnThreads();
    const auto start = Clock::now();
    Times times = Measure(
        world, repeats, calls, [&](int r) { enqueue(r, calls, op, count); },
        [&](int r) { enqueue(r, 1, plan::Op::kBarrier, 0); });
    if (between_ > 0) {
      const Times alone = Measure(
          world, repeats, calls,
          [&](int r) {
            for (int i = 0; i < calls; ++i) compute(r);
          },
          [&](int r) { enqueue(r, 1, plan::Op::kBarrier, 0); });
      times.min -= alone.median;
      times.median -= alone.median;
      times.max -= alone.median;
    }
    const Stats after = world.endpoint(0).stats();
    times.cores = std::chrono::duration<double>(UsedByOwnThreads() - used) /
                  (Clock::now() - start);
    times.device = (after.seconds - before.seconds) * 1e6 /
                   static_cast<double>(after.calls - before.calls);
    return times;
  }

  Times TimeBound(DeviceWorld& world, plan::Op op, uint64_t count,
                  const cuda::Shape& shape, bool copy_engine, int repeats) {
    std::vector<cuda::BoundTask> tasks(ranks_);
    for (int r = 0; r < ranks_; ++r) {
      plan::Request request;
      request.op = op;
      request.num_ranks = ranks_;
      request.rank = r;
      request.count = count;
      request.element_bytes = 4;
      plan::Geometry geometry;
      geometry.all_read_bytes = 0;  // fewest bytes
      const cuda::GpuPlan gpu_plan = OrDie(cuda::MakeGpuPlan(
          OrDie(plan::MakePlan(request, geometry)), r, {1, 16}));
      cuda::BoundTask& task = tasks[r];
      task.publish_bytes = gpu_plan.bytes_published;
      task.retrieve_bytes = gpu_plan.bytes_retrieved;
      task.ring_bytes = kRingBytes;
      task.own = rings_ + r * kRingBytes;
      for (int i = 1; i < ranks_; ++i)
        task.peers.push_back(rings_ + (r + i) % ranks_ * kRingBytes);
      task.buffer = rank_[r].input;
      task.buffer_bytes = std::bit_floor(buffer_bytes_ / 2);
    }
    const int calls = CallsFor(count * 4 * ranks_);
    auto run = [&](int r) {
      const cudaStream_t stream = world.stream(r);
      for (int i = 0; i < calls; ++i) {
        if (!copy_engine) {
          OkOrDie(cuda::EnqueueBoundByKernel(tasks[r], shape, stream));
          continue;
        }
        OkOrDie(cudaEventRecord(rank_[r].joined, stream));
        OkOrDie(cudaStreamWaitEvent(rank_[r].second, rank_[r].joined));
        OkOrDie(cuda::EnqueueBoundByCopyEngine(tasks[r], kChunkBytes, stream,
                                               rank_[r].second));
        OkOrDie(cudaEventRecord(rank_[r].joined, rank_[r].second));
        OkOrDie(cudaStreamWaitEvent(stream, rank_[r].joined));
      }
    };
    return Measure(world, repeats, calls, run, [](int) {});
  }

 private:
  static constexpr uint64_t kRingBytes = uint64_t{4} << 20;
  static constexpr uint64_t kChunkBytes = uint64_t{2} << 20;

  // Returns how many calls to measure together. There have to be enough to make
  // the start of the first call negligible: with only two calls of 256 MiB, the
  // start takes a tenth of the time.
  static int CallsFor(uint64_t bytes) {
    return static_cast<int>(
        std::clamp<uint64_t>((uint64_t{4} << 30) / bytes, 16, 400));
  }

  template <typename Run, typename Align>
  Times Measure(DeviceWorld& world, int repeats, int calls, const Run& run,
                const Align& align) {
    std::vector<double> times;
    for (int i = 0; i <= repeats; ++i) {
      std::vector<double> each(ranks_);
      std::barrier together(ranks_);
      std::vector<std::thread> threads;
      for (int r = 0; r < ranks_; ++r) {
        threads.emplace_back([&, r] {
          OkOrDie(cudaSetDevice(world.device(r)));
          const cudaStream_t stream = world.stream(r);
          together.arrive_and_wait();
          align(r);
          OkOrDie(cudaEventRecord(rank_[r].begin, stream));
          run(r);
          OkOrDie(cudaEventRecord(rank_[r].end, stream));
          OkOrDie(cudaStreamSynchronize(stream));
          float ms = 0;
          OkOrDie(cudaEventElapsedTime(&ms, rank_[r].begin, rank_[r].end));
          each[r] = ms * 1e3 / calls;
        });
      }
      for (std::thread& thread : threads) thread.join();
      if (i > 0)  // the first one warms up
        times.push_back(*std::max_element(each.begin(), each.end()));
    }
    std::sort(times.begin(), times.end());
    return {times.front(), times[times.size() / 2], times.back(), 0, 0};
  }

  int ranks_;
  uint64_t buffer_bytes_;
  uint64_t between_;
  std::vector<Rank> rank_;
  std::byte* rings_ = nullptr;
};

void Print(const Setting& setting, const std::string& op, int ranks,
           uint64_t bytes, const Benchmark::Times& times, double bound_us) {
  const double gbps = bytes * BusFactor(OpByName(op), ranks) * 1e-3;
  std::printf(
      "{\"op\": \"%s\", \"ranks\": %d, \"bytes\": %llu, "
      "\"coherence\": \"%s\", \"shape\": \"%s\", "
      "\"slots\": \"%s\", \"copy_engine\": %s, \"kernel_slots\": \"%s\", "
      "\"flagged\": %s, \"flush_threads\": %s, \"flush_pieces\": %s, "
      "\"started\": %s, \"aside\": %s, \"copies\": \"%s\", "
      "\"time_us\": {\"min\": %.2f, "
      "\"median\": %.2f, "
      "\"max\": %.2f}, \"device_us\": %.2f, \"cores_busy\": %.2f, "
      "\"busbw_gbps\": %.2f, "
      "\"bound_gbps\": %.2f}\n",
      op.c_str(), ranks, static_cast<unsigned long long>(bytes),
      setting.coherence.c_str(), setting.shape.c_str(), setting.slots.c_str(),
      setting.copy_engine.c_str(), setting.kernel_slots.c_str(),
      setting.flagged.c_str(), setting.flush_threads.c_str(),
      setting.flush_pieces.c_str(), setting.started.c_str(),
      setting.aside.c_str(), setting.copies.c_str(), times.min, times.median,
      times.max, times.device, times.cores, gbps / times.median,
      bound_us > 0 ? gbps / bound_us : 0.0);
  std::fflush(stdout);
}

// Joins several measurements of the same setting. Returns the measurement whose
// median is the median of all medians, but with the least minimum and the
// largest maximum of all measurements.
Benchmark::Times Joined(std::vector<Benchmark::Times> turns) {
  using Times = Benchmark::Times;
  std::ranges::sort(turns, {}, &Times::median);
  Times times = turns[turns.size() / 2];
  times.min = std::ranges::min(turns, {}, &Times::min).min;
  times.max = std::ranges::max(turns, {}, &Times::max).max;
  return times;
}

int Main(int argc, char** argv) {
  const Flags flags = Parse(argc, argv);
  const int ranks = flags.ranks > 0 ? flags.ranks : CountDevices();
  if (ranks < 2 || CountDevices() == 0) {
    std::fprintf(stderr, "needs 2 ranks and a GPU; there are %d GPUs\n",
                 CountDevices());
    return 1;
  }
  uint64_t largest = uint64_t{16} << 20;
  for (const std::string& size : flags.sizes)
    largest = std::max<uint64_t>(largest, std::stoull(size));
  const std::vector<Setting> settings = Settings(flags);
  uint64_t under_way = 2;
  for (const Setting& setting : settings)
    under_way = std::max<uint64_t>(under_way, std::stoull(setting.started));
  Benchmark benchmark(ranks, under_way * largest, flags.between);
  std::vector<std::unique_ptr<DeviceWorld>> worlds;
  for (const Setting& setting : settings)
    worlds.push_back(std::make_unique<DeviceWorld>(ranks, setting.Options(), 1,
                                                   192 << 20, setting.Mode()));
  for (const std::string& name : flags.ops) {
    const plan::Op op = OpByName(name);
    for (const std::string& size : flags.sizes) {
      const uint64_t bytes = std::stoull(size);
      const uint64_t count = CountOf(op, bytes, ranks);
      std::vector<std::vector<Benchmark::Times>> turns(settings.size());
      for (int turn = 0; turn < flags.repeats; ++turn)
        for (size_t i = 0; i < settings.size(); ++i)
          turns[i].push_back(benchmark.TimeCalls(
              *worlds[i], op, count, std::stoi(settings[i].started), 1));
      double bound = 0;
      if (flags.bound && bytes >= uint64_t{1} << 20) {
        for (bool by_copy_engine : {false, true}) {
          const auto times = benchmark.TimeBound(*worlds[0], op, count,
                                                 settings[0].Options().shape,
                                                 by_copy_engine, flags.repeats);
          bound = bound == 0 ? times.median : std::min(bound, times.median);
        }
      }
      for (size_t i = 0; i < settings.size(); ++i)
        Print(settings[i], name, ranks, bytes, Joined(turns[i]), bound);
    }
  }
  return 0;
}

}  // namespace
}  // namespace jax_cxl::comm

int main(int argc, char** argv) { return jax_cxl::comm::Main(argc, argv); }
