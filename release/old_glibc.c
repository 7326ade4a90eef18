/* Functions that libstdc++, libgcc and this project call on a newer C library,
 * and that C library 2.28 lacks (release/build.py links them into the wheel
 * jax_cxl_nccl). */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* False: libstdc++ then always counts references atomically. */
char __libc_single_threaded;

uint32_t arc4random(void) {
  uint32_t value;
  while (getrandom(&value, sizeof(value), 0) != sizeof(value)) {
  }
  return value;
}

pid_t gettid(void) { return (pid_t)syscall(SYS_gettid); }

/* Condition variables wait by the clock of the day here. If somebody sets that
 * clock, a wait may end early, which callers expect, or late. */
int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                           clockid_t clock, const struct timespec* until) {
  struct timespec now, day;
  clock_gettime(clock, &now);
  clock_gettime(CLOCK_REALTIME, &day);
  day.tv_sec += until->tv_sec - now.tv_sec;
  day.tv_nsec += until->tv_nsec - now.tv_nsec;
  while (day.tv_nsec < 0) {
    day.tv_nsec += 1000000000;
    --day.tv_sec;
  }
  while (day.tv_nsec >= 1000000000) {
    day.tv_nsec -= 1000000000;
    ++day.tv_sec;
  }
  return pthread_cond_timedwait(condition, mutex, &day);
}

struct search {
  uintptr_t address;
  struct dl_find_object* found;
};

static int look(struct dl_phdr_info* object, size_t size, void* argument) {
  struct search* search = argument;
  int inside = 0;
  void* frames = NULL;
  (void)size;
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)* header = &object->dlpi_phdr[i];
    const uintptr_t begin = object->dlpi_addr + header->p_vaddr;
    if (header->p_type == PT_LOAD && search->address >= begin &&
        search->address < begin + header->p_memsz)
      inside = 1;
    if (header->p_type == PT_GNU_EH_FRAME) frames = (void*)begin;
  }
  if (!inside || frames == NULL) return 0;
  search->found->dlfo_eh_frame = frames;
  return 1;
}

/* libgcc finds the handlers of exceptions by it, and reads only this address.
 */
int _dl_find_object(void* address, struct dl_find_object* found) {
  struct search search = {(uintptr_t)address, found};
  return dl_iterate_phdr(look, &search) == 1 ? 0 : -1;
}
