// The functions that this library forwards to NVIDIA's. Each is a trampoline of
// a few instructions, which passes on any arguments and any result. A function
// whose communicator goes through the pool ends with an error instead.

#include <cstddef>
#include <cstdint>

#include "cc/base/status.h"
#include "cc/nccl/interface/abi.h"
#include "cc/nccl/interface/real_library.h"
#include "cc/nccl/interface/results.h"
#include "cc/nccl_library/exported.h"

#ifndef __x86_64__
#error "The trampolines are written for x86-64"
#endif

namespace jax_cxl::nccl {
namespace {

#define FORWARD(name, place) #name,
constexpr const char* kNames[] = {
#include "cc/nccl_library/forwarded.inc"
};
#undef FORWARD

// What a function returns if there is no real library.
int Missing() {
  return Report(RealLibrary::Loaded().status().ok()
                    ? Error(Code::kUnimplemented, "NCCL at ",
                            RealLibrary::Loaded().path(),
                            " does not have the function that the program "
                            "calls: install a newer NCCL")
                    : RealLibrary::Loaded().status());
}

}  // namespace

extern "C" {

// The functions of the real library; null: not looked up yet.
__attribute__((
    visibility("hidden"))) void* jax_cxl_nccl_forwarded[std::size(kNames)];
__attribute__((visibility("hidden"))) extern const uint64_t jax_cxl_nccl_magic;
const uint64_t jax_cxl_nccl_magic = kCommunicatorMagic;

__attribute__((visibility("hidden"), used)) void* jax_cxl_nccl_find(
    size_t index) {
  void* found = RealLibrary::Loaded().Find(kNames[index]);
  JoinRealGroup();
  if (found == nullptr) return reinterpret_cast<void*>(&Missing);
  __atomic_store_n(&jax_cxl_nccl_forwarded[index], found, __ATOMIC_RELEASE);
  return found;
}

__attribute__((visibility("hidden"), used)) int jax_cxl_nccl_refuse(
    size_t index) {
  return Report(Error(
      Code::kUnimplemented, kNames[index],
      " is not available for a communicator that goes through the pool. Set "
      "JAX_CXL_NCCL_HOSTS=machines, so that NCCL itself serves it"));
}

}  // extern "C"

// A trampoline loads its index, and the communicator if it has one.
#define PLACE_0 "mov %rdi, %r11\n"
#define PLACE_1 "mov %rsi, %r11\n"
#define PLACE_2 "mov %rdx, %r11\n"
#define PLACE_3 "mov %rcx, %r11\n"
#define PLACE_4 "mov %r8, %r11\n"
#define PLACE_5 "mov %r9, %r11\n"
#define PLACE_6 "mov 8(%rsp), %r11\n"
#define PLACE_9 "mov 32(%rsp), %r11\n"
#define PLACE_NONE "xor %r11d, %r11d\n"

#define FORWARD(name, place)                                                  \
  ".globl " #name "\n.type " #name                                            \
  ", @function\n"                                                             \
  ".globl p" #name "\n.set p" #name ", " #name "\n" #name ":\n" PLACE_##place \
      "mov $jax_cxl_nccl_index, %r10d\n"                                      \
      "jmp jax_cxl_nccl_jump\n"                                               \
      ".size " #name ", . - " #name                                           \
      "\n"                                                                    \
      ".set jax_cxl_nccl_index, jax_cxl_nccl_index + 1\n"

// clang-format off
__asm__(
    ".text\n"
    ".set jax_cxl_nccl_index, 0\n"
    ".type jax_cxl_nccl_jump, @function\n"
    "jax_cxl_nccl_jump:\n"
    "test %r11, %r11\n"
    "jz 1f\n"
    "mov (%r11), %r11\n"
    "cmp jax_cxl_nccl_magic(%rip), %r11\n"
    "je 3f\n"
    "1:\n"
    "lea jax_cxl_nccl_forwarded(%rip), %r11\n"
    "mov (%r11, %r10, 8), %r11\n"
    "test %r11, %r11\n"
    "jz 2f\n"
    "jmp *%r11\n"
    "2:\n"  // The first call of this function.
    "push %rdi\npush %rsi\npush %rdx\npush %rcx\npush %r8\npush %r9\n"
    "push %rax\n"
    "mov %r10, %rdi\n"
    "call jax_cxl_nccl_find\n"
    "mov %rax, %r11\n"
    "pop %rax\n"
    "pop %r9\npop %r8\npop %rcx\npop %rdx\npop %rsi\npop %rdi\n"
    "jmp *%r11\n"
    "3:\n"
    "mov %r10, %rdi\n"
    "jmp jax_cxl_nccl_refuse\n"
    ".size jax_cxl_nccl_jump, . - jax_cxl_nccl_jump\n"
#include "cc/nccl_library/forwarded.inc"
);
// clang-format on

}  // namespace jax_cxl::nccl
