// Measures the least time that calls of two GPUs can take in a pool without
// hardware coherence, as a multiple of the time in a coherent pool. Both GPUs
// copy to host memory and from it, without any protocol. Meanwhile threads of
// the host write back the cache lines that a GPU has written, and drop the
// lines that a GPU will read next. A thread begins with a chunk when the GPU's
// copy of the chunk has ended. But no copy waits for a thread, so this is a
// bound.
//
//   flush_bound_benchmark [--sizes=1048576,16777216,268435456]
//                         [--threads=1,2,3,4] [--rings=8388608,25165824]
//                         [--written=back,left] [--piece=131072] [--turns=5]
//
// Prints one JSON object per line:
//
// - `bytes` is the number of bytes in one direction, and `ring` the size of the
//   memory through which they go.
// - `ways` is "both" if each GPU writes and reads, and "one" if the first GPU
//   only writes and the second one only reads.
// - `written` is what the host does to lines that its GPU has written. It
//   writes them back; or it drops them, which writes them back too; or it
//   leaves them, as with gpu_writes=memory.
// - `alone_us` is the time of the copies without the threads of the host, with
//   the size of ring that gives the shortest time. It is measured alternately
//   with `time_us`, the time with these threads.
// - `times_alone`, their ratio, is the bound.
// - `gpu_lines_gbps` is the rate at which the threads of one GPU processed
//   lines in `time_us`.

#include <cuda_runtime.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "cc/bench/cuda/split.h"
#include "cc/pool/coherence/coherence.h"
#include "cc/testing/cuda/device_world.h"

namespace jax_cxl::comm {
namespace {

constexpr uint64_t kMostRingBytes = uint64_t{32} << 20;
constexpr uint64_t kChunkBytes = uint64_t{2} << 20;
constexpr size_t kMostChunks = 512;  // of one measurement

struct Flags {
  std::vector<uint64_t> sizes = {1 << 20, 16 << 20, 256 << 20};
  std::vector<uint64_t> threads = {1, 2, 3, 4};
  std::vector<uint64_t> rings = {8 << 20, 24 << 20};
  std::vector<std::string> written = {"back", "left"};
  uint64_t piece = 128 << 10;
  int turns = 5;
};

std::vector<uint64_t> Numbers(const std::string& text) {
  std::vector<uint64_t> numbers;
  for (const std::string& part : Split(text, ','))
    numbers.push_back(std::stoull(part));
  return numbers;
}

Flags Parse(int argc, char** argv) {
  Flags flags;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const size_t equals = argument.find('=');
    const std::string name = argument.substr(0, equals);
    const std::string value = argument.substr(equals + 1);
    if (name == "--sizes")
      flags.sizes = Numbers(value);
    else if (name == "--threads")
      flags.threads = Numbers(value);
    else if (name == "--rings")
      flags.rings = Numbers(value);
    else if (name == "--written")
      flags.written = Split(value, ',');
    else if (name == "--piece")
      flags.piece = std::stoull(value);
    else if (name == "--turns")
      flags.turns = std::stoi(value);
    else
      OkOrDie(Error(Code::kInvalidArgument, "no flag ", name));
  }
  for (uint64_t ring : flags.rings)
    if (ring % kChunkBytes != 0 || ring > kMostRingBytes)
      OkOrDie(Error(Code::kInvalidArgument, "--rings: multiples of ",
                    kChunkBytes, " up to ", kMostRingBytes));
  return flags;
}

// One direction of a GPU, in which it copies chunk after chunk through a ring.
struct Direction {
  bool writes = false;
  std::byte* ring = nullptr;    // of the writing GPU
  std::byte* buffer = nullptr;  // in the GPU's memory
  cudaStream_t stream = nullptr;
  std::vector<cudaEvent_t> events;  // one per chunk
  std::atomic<size_t> enqueued{0};
  std::atomic<size_t> done{0};
  std::mutex looking;

  // Returns true if the copies of the first `chunks` chunks have ended. Several
  // threads may call this.
  bool Done(size_t chunks) {
    if (done.load(std::memory_order_acquire) >= chunks) return true;
    const std::unique_lock lock(looking, std::try_to_lock);
    if (!lock.owns_lock()) return false;
    size_t ended = done.load();
    while (ended < enqueued.load(std::memory_order_acquire) &&
           cudaEventQuery(events[ended]) == cudaSuccess)
      ++ended;
    done.store(ended, std::memory_order_release);
    return ended >= chunks;
  }
};

struct Setting {
  uint64_t ring = 0;
  uint64_t threads = 0;  // a GPU
  std::string written = {};
};

class Benchmark {
 public:
  explicit Benchmark(uint64_t piece) : piece_(piece) {
    for (Gpu& gpu : gpus_) {
      gpu.device = static_cast<int>(&gpu - gpus_) % CountDevices();
      OkOrDie(cudaSetDevice(gpu.device));
      // Shared memory, so that the pages are like those of a pool in /dev/shm.
      void* ring = mmap(nullptr, kMostRingBytes, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
      if (ring == MAP_FAILED)
        OkOrDie(Error(Code::kResourceExhausted, "no memory for a ring"));
      std::memset(ring, 0, kMostRingBytes);
      OkOrDie(cudaHostRegister(ring, kMostRingBytes, cudaHostRegisterPortable));
      gpu.writing.writes = true;
      gpu.writing.ring = static_cast<std::byte*>(ring);
      for (Direction* direction : {&gpu.writing, &gpu.reading}) {
        OkOrDie(cudaMalloc(&direction->buffer, kMostRingBytes));
        OkOrDie(cudaStreamCreateWithFlags(&direction->stream,
                                          cudaStreamNonBlocking));
        direction->events.resize(kMostChunks);
        for (cudaEvent_t& event : direction->events)
          OkOrDie(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
      }
    }
    gpus_[0].reading.ring = gpus_[1].writing.ring;
    gpus_[1].reading.ring = gpus_[0].writing.ring;
  }

  // Returns the time in us in which `bytes` move in each direction. If `both`
  // is false, GPU 0 only writes and GPU 1 only reads.
  double Time(uint64_t bytes, bool both, const Setting& setting) {
    const uint64_t chunk = std::min(bytes, kChunkBytes);
    const size_t chunks = kMostChunks / (bytes / chunk) * (bytes / chunk);
    std::vector<std::thread> threads;
    const auto total = static_cast<ptrdiff_t>(2 * (setting.threads + 1) + 1);
    std::barrier together(total);
    for (Gpu& gpu : gpus_) {
      std::vector<Direction*> moving;
      if (both || &gpu == &gpus_[0]) moving.push_back(&gpu.writing);
      if (both || &gpu == &gpus_[1]) moving.push_back(&gpu.reading);
      for (Direction* direction : moving)
        direction->enqueued = direction->done = 0;
      threads.emplace_back([=, &together, device = gpu.device] {
        OkOrDie(cudaSetDevice(device));
        together.arrive_and_wait();
        Copy(moving, chunk, chunks, setting.ring);
      });
      gpu.piece = 0;
      for (uint64_t thread = 0; thread < setting.threads; ++thread)
        threads.emplace_back(
            [=, this, &together, &next = gpu.piece, device = gpu.device] {
              OkOrDie(cudaSetDevice(device));
              together.arrive_and_wait();
              Flush(moving, chunk, chunks, setting, next);
            });
    }
    together.arrive_and_wait();
    const auto begin = std::chrono::steady_clock::now();
    for (std::thread& thread : threads) thread.join();
    const std::chrono::duration<double, std::micro> time =
        std::chrono::steady_clock::now() - begin;
    return time.count() * static_cast<double>(bytes) /
           static_cast<double>(chunk * chunks);
  }

 private:
  struct Gpu {
    int device = 0;
    Direction writing;
    Direction reading;
    std::atomic<size_t> piece{0};  // the next one that a thread takes
  };

  static void Copy(const std::vector<Direction*>& moving, uint64_t chunk,
                   size_t chunks, uint64_t ring) {
    for (size_t i = 0; i < chunks; ++i) {
      for (Direction* direction : moving) {
        std::byte* to = direction->ring + i * chunk % ring;
        std::byte* from = direction->buffer + i * chunk % ring;
        if (!direction->writes) std::swap(to, from);
        OkOrDie(cudaMemcpyAsync(to, from, chunk, cudaMemcpyDefault,
                                direction->stream));
        OkOrDie(cudaEventRecord(direction->events[i], direction->stream));
        direction->enqueued.store(i + 1, std::memory_order_release);
      }
    }
    for (Direction* direction : moving)
      OkOrDie(cudaStreamSynchronize(direction->stream));
  }

  // Runs one of the threads of a GPU. They divide the pieces of all chunks
  // among themselves: each thread takes the piece with the number `next`, and
  // increments `next`.
  void Flush(const std::vector<Direction*>& moving, uint64_t chunk,
             size_t chunks, const Setting& setting,
             std::atomic<size_t>& next) const {
    const pool::Coherence coherence(pool::CoherenceMode::kFlush);
    const size_t pieces = (chunk + piece_ - 1) / piece_;
    const size_t all = chunks * moving.size() * pieces;
    for (size_t taken; (taken = next.fetch_add(1)) < all;) {
      Direction& direction = *moving[taken / pieces % moving.size()];
      const size_t index = taken / pieces / moving.size();
      if (direction.writes && setting.written == "left") continue;
      while (!direction.Done(index + 1)) std::this_thread::yield();
      // Write back the chunk that has been written, or drop the chunk that will
      // be read next.
      const size_t place = direction.writes ? index : index + 1;
      const uint64_t at = taken % pieces * piece_;
      const pool::Part part = {
          direction.ring + place * chunk % setting.ring + at,
          std::min(piece_, chunk - at)};
      if (direction.writes && setting.written == "back")
        coherence.PublishDeviceParts({&part, 1});
      else
        coherence.AcquireParts({&part, 1});
    }
  }

  const uint64_t piece_;
  Gpu gpus_[2];
};

double Median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

void Print(const std::vector<Setting>& settings, uint64_t bytes, bool both,
           const std::vector<std::vector<double>>& times) {
  double alone = 0;
  for (size_t i = 0; i < settings.size(); ++i)
    if (const double time = Median(times[i]);
        settings[i].threads == 0 && (alone == 0 || time < alone))
      alone = time;
  for (size_t i = 0; i < settings.size(); ++i) {
    const Setting& setting = settings[i];
    if (setting.threads == 0) continue;
    const double time = Median(times[i]);
    const double lines = (setting.written == "left" ? 1 : 2) *
                         static_cast<double>(bytes) / (both ? 1 : 2);
    std::printf(
        "{\"ways\": \"%s\", \"bytes\": %llu, \"ring\": %llu, \"threads\": "
        "%llu, "
        "\"written\": \"%s\", \"alone_us\": %.1f, \"time_us\": {\"min\": %.1f, "
        "\"median\": %.1f, \"max\": %.1f}, \"times_alone\": %.3f, "
        "\"gpu_lines_gbps\": %.1f}\n",
        both ? "both" : "one", static_cast<unsigned long long>(bytes),
        static_cast<unsigned long long>(setting.ring),
        static_cast<unsigned long long>(setting.threads),
        setting.written.c_str(), alone, std::ranges::min(times[i]), time,
        std::ranges::max(times[i]), time / alone, lines / time * 1e-3);
  }
  std::fflush(stdout);
}

int Main(int argc, char** argv) {
  const Flags flags = Parse(argc, argv);
  if (CountDevices() == 0) {
    std::fprintf(stderr, "needs a GPU\n");
    return 1;
  }
  OkOrDie(pool::CheckCoherenceSupported(pool::CoherenceMode::kFlush));
  Benchmark benchmark(flags.piece);
  std::vector<Setting> settings;
  for (uint64_t ring : flags.rings) settings.push_back({ring});
  for (const std::string& written : flags.written)
    for (uint64_t threads : flags.threads)
      for (uint64_t ring : flags.rings)
        settings.push_back({ring, threads, written});
  for (bool both : {true, false}) {
    for (uint64_t bytes : flags.sizes) {
      std::vector<std::vector<double>> times(settings.size());
      for (int turn = -1; turn < flags.turns; ++turn) {
        for (size_t i = 0; i < settings.size(); ++i) {
          const double time = benchmark.Time(bytes, both, settings[i]);
          if (turn >= 0) times[i].push_back(time);  // the first one warms up
        }
      }
      Print(settings, bytes, both, times);
    }
  }
  return 0;
}

}  // namespace
}  // namespace jax_cxl::comm

int main(int argc, char** argv) { return jax_cxl::comm::Main(argc, argv); }
