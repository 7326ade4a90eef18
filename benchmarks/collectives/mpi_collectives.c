/* Speed of MPI's collectives, in the loop of cc/bench/engine_benchmark.cc:
 * samples of as many calls as fill 10 ms, ranks started together, the slowest
 * rank's time. compare_mpi.py builds and runs it.
 *
 * mpi_collectives [MAX_BYTES [REPEATS]]
 *
 * Writes a line a result: operation, bytes, microseconds of each sample, wrong
 * elements. Bytes are those of the larger buffer, by NCCL's convention. */

#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static const double kSampleSeconds = 0.01;
static const int kMaxCalls = 20000;
static const float kUnwritten = -1;

enum Op {
  kBarrier,
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kBroadcast,
  kReduce,
  kGather,
  kScatter,
  kNumOps
};
static const char* const kNames[] = {
    "barrier",   "all_reduce", "all_gather", "reduce_scatter", "all_to_all",
    "broadcast", "reduce",     "gather",     "scatter"};

static int rank, ranks;

struct Problem {
  enum Op op;
  int count; /* elements of one block */
  size_t inputs, outputs;
  float *input, *output;
};

static float Value(int of_rank, size_t position) {
  return (float)((((uint32_t)position * 2654435761u >> 13) + 5 * of_rank) % 4);
}

static void Call(const struct Problem* p) {
  const int n = p->count;
  const MPI_Comm world = MPI_COMM_WORLD;
  switch (p->op) {
    case kBarrier:
      MPI_Barrier(world);
      break;
    case kAllReduce:
      MPI_Allreduce(p->input, p->output, n, MPI_FLOAT, MPI_SUM, world);
      break;
    case kAllGather:
      MPI_Allgather(p->input, n, MPI_FLOAT, p->output, n, MPI_FLOAT, world);
      break;
    case kReduceScatter:
      MPI_Reduce_scatter_block(p->input, p->output, n, MPI_FLOAT, MPI_SUM,
                               world);
      break;
    case kAllToAll:
      MPI_Alltoall(p->input, n, MPI_FLOAT, p->output, n, MPI_FLOAT, world);
      break;
    case kBroadcast: /* in place, which is less than our two buffers do */
      MPI_Bcast(rank == 0 ? p->input : p->output, n, MPI_FLOAT, 0, world);
      break;
    case kReduce:
      MPI_Reduce(p->input, p->output, n, MPI_FLOAT, MPI_SUM, 0, world);
      break;
    case kGather:
      MPI_Gather(p->input, n, MPI_FLOAT, p->output, n, MPI_FLOAT, 0, world);
      break;
    case kScatter:
      MPI_Scatter(p->input, n, MPI_FLOAT, p->output, n, MPI_FLOAT, 0, world);
      break;
    default:
      abort();
  }
}

static float Expected(const struct Problem* p, size_t i) {
  const size_t n = p->count, mine = rank * n + i % n;
  float sum = 0;
  switch (p->op) {
    case kAllGather:
    case kGather:
      return Value((int)(i / n), i % n);
    case kAllToAll:
      return Value((int)(i / n), mine);
    case kBroadcast:
      return Value(0, i);
    case kScatter:
      return Value(0, mine);
    default:
      for (int r = 0; r < ranks; ++r)
        sum += Value(r, p->op == kReduceScatter ? mine : i);
      return sum;
  }
}

static long CountWrong(const struct Problem* p) {
  const int rooted = p->op == kReduce || p->op == kGather;
  long wrong = 0, all = 0;
  for (size_t i = 0; i < p->outputs; ++i) p->output[i] = kUnwritten;
  Call(p);
  if (!(rooted && rank != 0) && !(p->op == kBroadcast && rank == 0))
    for (size_t i = 0; i < p->outputs; ++i)
      wrong += p->output[i] != Expected(p, i);
  MPI_Allreduce(&wrong, &all, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
  return all;
}

/* Seconds of one call on the slowest rank. */
static double Sample(const struct Problem* p, int calls) {
  double mine, slowest;
  MPI_Barrier(MPI_COMM_WORLD);
  mine = MPI_Wtime();
  for (int i = 0; i < calls; ++i) Call(p);
  mine = MPI_Wtime() - mine;
  MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return slowest / calls;
}

static void Measure(enum Op op, size_t bytes, int repeats) {
  const int whole = op == kAllReduce || op == kReduce || op == kBroadcast;
  const size_t n = ranks;
  struct Problem p = {op, 0, 0, 0, NULL, NULL};
  if (op != kBarrier) {
    const size_t count = bytes / sizeof(float) / (whole ? 1 : n);
    p.count = count > 0 ? (int)count : 1;
  }
  p.inputs = p.outputs = p.count;
  if (op == kReduceScatter || op == kAllToAll || op == kScatter) p.inputs *= n;
  if (op == kAllGather || op == kAllToAll || op == kGather) p.outputs *= n;
  p.input = malloc(p.inputs * sizeof(float) + 1);
  p.output = malloc(p.outputs * sizeof(float) + 1);
  if (p.input == NULL || p.output == NULL) MPI_Abort(MPI_COMM_WORLD, 1);
  for (size_t i = 0; i < p.inputs; ++i) p.input[i] = Value(rank, i);
  for (size_t i = 0; i < p.outputs; ++i) p.output[i] = kUnwritten;

  int calls = 1;
  Sample(&p, calls);
  while (calls < kMaxCalls && Sample(&p, calls) * calls < kSampleSeconds)
    calls *= 2;
  if (calls > kMaxCalls) calls = kMaxCalls;
  const size_t larger = p.inputs > p.outputs ? p.inputs : p.outputs;
  if (rank == 0) printf("%s %zu", kNames[op], larger * sizeof(float));
  for (int i = 0; i < repeats; ++i) {
    const double seconds = Sample(&p, calls);
    if (rank == 0) printf(" %.4f", seconds * 1e6);
  }
  const long wrong = CountWrong(&p);
  if (rank == 0) printf(" %ld\n", wrong);
  free(p.input);
  free(p.output);
}

int main(int argc, char** argv) {
  const size_t max_bytes =
      argc > 1 ? strtoull(argv[1], NULL, 10) : (size_t)64 << 20;
  const int repeats = argc > 2 ? atoi(argv[2]) : 1;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  Measure(kBarrier, 0, repeats);
  for (int op = kAllReduce; op < kNumOps; ++op) {
    size_t bytes = 8;
    for (; bytes < max_bytes; bytes *= 8) Measure(op, bytes, repeats);
    Measure(op, max_bytes, repeats);
  }
  MPI_Finalize();
  return 0;
}
