// Stands for libcuda.so.1 and for libnccl.so.2 on machines without GPUs.
//
// Memory of a card is memory of the process. What is enqueued is executed at
// once. The ranks of a communicator meet in a file of /dev/shm, which has a
// slot for each pair of ranks. A library that is preloaded stands for
// jax_cxl's: with STAND_IN_GOES it tells where its communicators go, with
// STAND_IN_WRONG a sum of more than one element is wrong, and with
// STAND_IN_DIES rank 1 dies in it. With STAND_IN_FAST its calls are slow,
// unless the table that JAX_CXL_TUNING names has that text.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { kRanks = 4, kSlot = 4 << 20 };

int cuInit(unsigned flags) { return flags; }
int cuGetErrorString(int error, const char** text) {
  return *text = "of a stand-in", error == 0;
}
int cuDeviceGetCount(int* count) {
  const char* cards = getenv("STAND_IN_CARDS");
  *count = cards ? atoi(cards) : 2;
  return *count < 0 ? 100 : 0;
}
int cuDriverGetVersion(int* version) { return *version = 13010, 0; }
int cuDeviceGetName(char* name, int size, int card) {
  return snprintf(name, (size_t)size, "Stand-in") + card < 0;
}
int cuDeviceTotalMem_v2(size_t* bytes, int card) {
  return *bytes = (size_t)24 << 30, card < 0;
}
int cuDeviceGetAttribute(int* value, int which, int card) {
  return *value = which == 75 ? 8 : 9, card < 0;
}
int cuDeviceCanAccessPeer(int* can, int card, int other) {
  return *can = getenv("STAND_IN_PEERS") != NULL, card == other;
}
int cuDevicePrimaryCtxRetain(void** context, int card) {
  return *context = context, card < 0;
}
int cuCtxSetCurrent(void* context) { return context == NULL; }
int cuCtxSynchronize(void) { return 0; }
int cuStreamCreate(void** stream, unsigned flags) {
  return *stream = malloc(8), flags != 1;
}
int cuMemAlloc_v2(void** memory, size_t size) {
  return *memory = malloc(size), *memory == NULL;
}
int cuMemHostAlloc(void** memory, size_t size, unsigned flags) {
  return flags ? 1 : cuMemAlloc_v2(memory, size);
}
int cuMemHostRegister_v2(void* memory, size_t size, unsigned flags) {
  const int locked = getenv("STAND_IN_LOCKED") != NULL;
  return locked || memory == NULL || size == 0 || flags != 0;
}
int cuMemHostUnregister(void* memory) { return memory == NULL; }
int cuMemcpyHtoD_v2(void* to, const void* from, size_t size) {
  return memcpy(to, from, size) == NULL;
}
int cuMemcpyDtoH_v2(void* to, const void* from, size_t size) {
  return memcpy(to, from, size) == NULL;
}
// Only links are measured by these, and what they copy is not read.
int cuMemcpyHtoDAsync_v2(void* to, const void* from, size_t size, void* s) {
  return to == NULL || from == NULL || size == 0 || s == NULL;
}
int cuMemcpyDtoHAsync_v2(void* to, const void* from, size_t size, void* s) {
  return cuMemcpyHtoDAsync_v2(to, from, size, s);
}
int cuEventCreate(void** event, unsigned flags) {
  return *event = calloc(1, sizeof(struct timespec)), (int)flags;
}
int cuEventRecord(void* event, void* stream) {
  return clock_gettime(CLOCK_MONOTONIC, event) || stream == NULL;
}
int cuEventSynchronize(void* event) { return event == NULL; }
int cuEventElapsedTime(float* ms, struct timespec* a, struct timespec* b) {
  *ms = (float)((double)(b->tv_sec - a->tv_sec) * 1e3 +
                (double)(b->tv_nsec - a->tv_nsec) / 1e6);
  return 0;
}

typedef struct {
  char name[128];
} Id;

typedef struct {
  int rank, size;
  struct {
    atomic_int arrived;
    _Alignas(64) char slots[kRanks][kRanks][kSlot];
  }* shared;
  int barriers, slow;
} Comm;

typedef struct {
  void* memory;
  size_t bytes;
  int peer, sends;
} Move;

static Move moves[2 * kRanks];
static int count_of_moves;
static Comm* comm_of_moves;

int ncclGetVersion(int* version) { return *version = 22809, 0; }
const char* ncclGetLastError(Comm* comm) {
  return comm ? "of a communicator" : "a stand-in";
}
int ncclCommGetAsyncError(Comm* comm, int* error) {
  return *error = 0, comm == NULL;
}

int ncclGetUniqueId(Id* id) {
  memset(id, 0, sizeof *id);
  snprintf(id->name, sizeof id->name, "/dev/shm/stand_in.%d", getpid());
  const int file = open(id->name, O_CREAT | O_RDWR, 0600);
  return ftruncate(file, sizeof *((Comm*)0)->shared) || close(file);
}

static int IsPreloaded(void) {
  const char* preloaded = getenv("LD_PRELOAD");
  return preloaded != NULL && strstr(preloaded, "libnccl") != NULL;
}

static int IsSlow(void) {
  const char* fast = getenv("STAND_IN_FAST");
  if (fast == NULL || !IsPreloaded()) return 0;
  char table[4096] = "";
  FILE* file = fopen(getenv("JAX_CXL_TUNING"), "r");
  if (file != NULL) {
    fread(table, 1, sizeof table - 1, file);
    fclose(file);
  }
  return strstr(table, fast) == NULL;
}

static void Meet(Comm* comm) {
  if (comm->slow) usleep(2000);
  const int all = ++comm->barriers * comm->size;
  atomic_fetch_add(&comm->shared->arrived, 1);
  while (atomic_load(&comm->shared->arrived) < all) usleep(20);
}

int ncclCommInitRank(Comm** made, int size, Id id, int rank) {
  Comm* comm = calloc(1, sizeof *comm);
  comm->rank = rank;
  comm->size = size;
  const int file = open(id.name, O_RDWR);
  comm->shared = mmap(NULL, sizeof *comm->shared, PROT_READ | PROT_WRITE,
                      MAP_SHARED, file, 0);
  close(file);
  comm->slow = IsSlow();
  Meet(comm);
  unlink(id.name);
  if (rank == 0 && IsPreloaded() && getenv("STAND_IN_GOES"))
    fprintf(stderr, "jax_cxl nccl: communicator 7 of %d ranks goes %s\n", size,
            getenv("STAND_IN_GOES"));
  *made = comm;
  return 0;
}

int ncclGroupStart(void) { return count_of_moves = 0; }

static int Add(void* memory, size_t count, int type, int peer, Comm* comm,
               int sends) {
  moves[count_of_moves++] = (Move){memory, count * 4, peer, sends};
  comm_of_moves = comm;
  return type != 7;
}
int ncclSend(const void* memory, size_t count, int type, int peer, Comm* comm,
             void* stream) {
  return Add((void*)memory, count, type, peer, comm, 1) || stream == NULL;
}
int ncclRecv(void* memory, size_t count, int type, int peer, Comm* comm,
             void* stream) {
  return Add(memory, count, type, peer, comm, 0) || stream == NULL;
}

int ncclGroupEnd(void) {
  Comm* comm = comm_of_moves;
  for (int sends = 1; sends >= 0; --sends) {
    for (int i = 0; i < count_of_moves; ++i) {
      const Move* move = &moves[i];
      if (move->sends != sends) continue;
      if (sends)
        memcpy(comm->shared->slots[comm->rank][move->peer], move->memory,
               move->bytes);
      else
        memcpy(move->memory, comm->shared->slots[move->peer][comm->rank],
               move->bytes);
    }
    Meet(comm);
  }
  return 0;
}

// Makes all input visible, and writes the sum of elements [first, first +
// count) of all ranks to `out`, or the input of each rank if `gathers`.
static int Exchange(Comm* comm, const void* in, size_t in_count, size_t first,
                    float* out, size_t count, int gathers) {
  memcpy(comm->shared->slots[comm->rank][0], in, in_count * 4);
  Meet(comm);
  for (int rank = 0; rank < comm->size; ++rank) {
    const float* from = (const float*)comm->shared->slots[rank][0] + first;
    float* to = gathers ? out + (size_t)rank * count : out;
    for (size_t i = 0; i < count; ++i)
      to[i] = gathers || rank == 0 ? from[i] : to[i] + from[i];
  }
  Meet(comm);
  return 0;
}

int ncclAllReduce(const void* in, float* out, size_t count, int type, int op,
                  Comm* comm, void* stream) {
  const int breaks = IsPreloaded() && count > 1;
  if (getenv("STAND_IN_DIES") && breaks && comm->rank == 1) abort();
  Exchange(comm, in, count, 0, out, count, 0);
  if (getenv("STAND_IN_WRONG") && breaks) out[count - 1] += 1;
  return type != 7 || op != 0 || stream == NULL;
}
int ncclAllGather(const void* in, float* out, size_t count, int type,
                  Comm* comm, void* stream) {
  return Exchange(comm, in, count, 0, out, count, 1) || type != 7 || !stream;
}
int ncclReduceScatter(const void* in, float* out, size_t count, int type,
                      int op, Comm* comm, void* stream) {
  Exchange(comm, in, count * (size_t)comm->size, count * (size_t)comm->rank,
           out, count, 0);
  return type != 7 || op != 0 || stream == NULL;
}
