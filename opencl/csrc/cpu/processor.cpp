#include "processor.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace ocl {

#if defined(__x86_64__) && defined(__linux__)
bool may_use_tiles() {
  constexpr unsigned kFeatures = 7, kBfloat16 = 1u << 22, kTiles = 1u << 24;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(kFeatures, 0, &a, &b, &c, &d) == 0) return false;
  if ((d & kBfloat16) == 0 || (d & kTiles) == 0) return false;
  // arch/x86/include/uapi/asm/prctl.h; the C library has no name for it. It fails where Linux does not know tiles
  // (before 5.16) or does not save them, and where a thread's alternative signal stack has no room for them.
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

bool may_use_vectors() {
  constexpr unsigned kFeatures = 7, kBfloat16 = 1u << 5;
  unsigned a = 0, b = 0, c = 0, d = 0;
  // Whether Linux saves such registers the compiler's library has asked, too.
  return __builtin_cpu_supports("avx512f") != 0 && __get_cpuid_count(kFeatures, 1, &a, &b, &c, &d) != 0 &&
         (a & kBfloat16) != 0;
}
#else
bool may_use_tiles() { return false; }
bool may_use_vectors() { return false; }
#endif

}  // namespace ocl
