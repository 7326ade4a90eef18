// Times short and long calls of NCCL in a loop, between the GPUs of a machine,
// one process for each GPU.
//
//   nvcc -O2 -std=c++17 -o call_times call_times.cu -lnccl
//   NCCL_P2P_DISABLE=1 ./call_times 2
//   JAX_CXL_NCCL_HOSTS=all LD_PRELOAD=.../_nccl/libnccl.so.2 ./call_times 2
//
// Prints two times in us for each call and size, which are medians of nine
// samples: the time that the host takes to enqueue the call, and the time until
// the call has finished. nccl-tests measures only the second one.
#include <cuda_runtime.h>
#include <nccl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace {

constexpr size_t kMostBytes = size_t{64} << 20;

#define CHECK(call)                                           \
  do {                                                        \
    const int status = static_cast<int>(call);                \
    if (status != 0) {                                        \
      std::fprintf(stderr, "%s returns %d\n", #call, status); \
      std::exit(1);                                           \
    }                                                         \
  } while (0)

double NowUs() {
  return std::chrono::duration<double, std::micro>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

double Median(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  return samples[samples.size() / 2];
}

using Calls =
    std::vector<std::pair<std::string, std::function<void(size_t floats)>>>;

Calls CallsOf(ncclComm_t comm, cudaStream_t stream, int rank, int size) {
  float *from, *to;
  CHECK(cudaMalloc(&from, kMostBytes));
  CHECK(cudaMalloc(&to, kMostBytes));
  CHECK(cudaMemset(from, 0, kMostBytes));
  const size_t ranks = static_cast<size_t>(size);
  return {
      {"all_reduce",
       [=](size_t n) {
         CHECK(ncclAllReduce(from, to, n, ncclFloat, ncclSum, comm, stream));
       }},
      {"all_gather",
       [=](size_t n) {
         CHECK(ncclAllGather(from, to, n / ranks, ncclFloat, comm, stream));
       }},
      {"reduce_scatter",
       [=](size_t n) {
         CHECK(ncclReduceScatter(from, to, n / ranks, ncclFloat, ncclSum, comm,
                                 stream));
       }},
      {"alltoall",
       [=](size_t n) {
         CHECK(ncclAlltoAll(from, to, n / ranks, ncclFloat, comm, stream));
       }},
      {"broadcast",
       [=](size_t n) {
         CHECK(ncclBroadcast(from, to, n, ncclFloat, 0, comm, stream));
       }},
      {"reduce",
       [=](size_t n) {
         CHECK(ncclReduce(from, to, n, ncclFloat, ncclSum, 0, comm, stream));
       }},
      {"gather",
       [=](size_t n) {
         CHECK(ncclGather(from, to, n / ranks, ncclFloat, 0, comm, stream));
       }},
      {"scatter",
       [=](size_t n) {
         CHECK(ncclScatter(from, to, n / ranks, ncclFloat, 0, comm, stream));
       }},
      {"reduce_scatter (mean)",
       [=](size_t n) {
         CHECK(ncclReduceScatter(from, to, n / ranks, ncclFloat, ncclAvg, comm,
                                 stream));
       }},
      {"sendrecv",
       [=](size_t n) {
         CHECK(ncclGroupStart());
         CHECK(ncclSend(from, n, ncclFloat, (rank + 1) % size, comm, stream));
         CHECK(ncclRecv(to, n, ncclFloat, (rank + size - 1) % size, comm,
                        stream));
         CHECK(ncclGroupEnd());
       }},
  };
}

void Measure(int rank, int size, const ncclUniqueId& id) {
  CHECK(cudaSetDevice(rank));
  ncclComm_t comm;
  CHECK(ncclCommInitRank(&comm, size, id, rank));
  cudaStream_t stream;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  for (const auto& [name, run] : CallsOf(comm, stream, rank, size)) {
    for (size_t bytes = 1024; bytes <= kMostBytes; bytes *= 2) {
      const size_t floats = bytes / sizeof(float);
      const size_t calls = std::clamp<size_t>(kMostBytes / bytes, 4, 100);
      std::vector<double> host, whole;
      for (int sample = -1; sample < 9; ++sample) {
        const double begin = NowUs();
        for (size_t i = 0; i < calls; ++i) run(floats);
        const double enqueued = NowUs();
        CHECK(cudaStreamSynchronize(stream));
        if (sample < 0) continue;  // the first calls connect
        host.push_back((enqueued - begin) / static_cast<double>(calls));
        whole.push_back((NowUs() - begin) / static_cast<double>(calls));
      }
      if (rank == 0)
        std::printf("%-21s %9zu bytes: host %7.2f us, whole %9.2f us\n",
                    name.c_str(), bytes, Median(host), Median(whole));
    }
  }
  CHECK(ncclCommDestroy(comm));
}

}  // namespace

int main(int argc, char** argv) {
  const int size = argc > 1 ? std::atoi(argv[1]) : 2;
  std::vector<int> writes;
  for (int rank = 1; rank < size; ++rank) {
    int ends[2];
    CHECK(pipe(ends));
    // Fork before the first call of CUDA, because a child could not use CUDA
    // that its parent has initialized.
    if (fork() == 0) {
      ncclUniqueId id;
      if (read(ends[0], &id, sizeof(id)) != sizeof(id)) return 1;
      Measure(rank, size, id);
      return 0;
    }
    writes.push_back(ends[1]);
  }
  ncclUniqueId id;
  CHECK(ncclGetUniqueId(&id));
  for (int end : writes)
    if (write(end, &id, sizeof(id)) != sizeof(id)) return 1;
  Measure(0, size, id);
  int status = 0;
  bool failed = false;
  while (wait(&status) > 0) failed |= status != 0;
  return failed ? 1 : 0;
}
