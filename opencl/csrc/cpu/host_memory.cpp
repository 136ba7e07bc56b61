#include "host_memory.h"

#include <algorithm>
#include <cstring>
#include <system_error>
#include <thread>
#include <vector>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace ocl {
namespace {

// Measured on two cores: a second thread pays (its start is 20 us) from 8 MiB on; stores that bypass the caches from 32
// MiB on, where they double a copy's speed (one thread 11 GB/s, two 17, two bypassing 26).
constexpr uint64_t kParallel = uint64_t{8} << 20;
constexpr uint64_t kBytesPerThread = uint64_t{4} << 20;
constexpr uint64_t kBypass = uint64_t{32} << 20;
constexpr unsigned kMostThreads = 8;  // more do not make memory faster

// Calls part(begin, end) for pieces of [0, bytes) that begin at multiples of 64.
template <class Part>
void in_parallel(uint64_t bytes, Part part) {
  uint64_t threads = 1;
  if (bytes >= kParallel) {
    threads =
        std::min<uint64_t>({std::max(1u, std::thread::hardware_concurrency()), kMostThreads, bytes / kBytesPerThread});
  }
  const uint64_t piece = (bytes / threads + 63) / 64 * 64;
  std::vector<std::thread> helpers;
  uint64_t begin = 0;
  try {
    for (; helpers.size() + 1 < threads; begin += piece) helpers.emplace_back(part, begin, begin + piece);
  } catch (const std::system_error&) {
    // No more threads: this one does the rest.
  }
  part(begin, bytes);
  for (std::thread& helper : helpers) helper.join();
}

void copy_bypassing_caches(char* destination, const char* source, uint64_t bytes) {
#ifdef __SSE2__
  const uint64_t head = std::min<uint64_t>(bytes, -reinterpret_cast<uintptr_t>(destination) & 63);
  std::memcpy(destination, source, head);
  uint64_t i = head;
  for (; i + 64 <= bytes; i += 64) {
    const __m128i* from = reinterpret_cast<const __m128i*>(source + i);
    __m128i* to = reinterpret_cast<__m128i*>(destination + i);
    const __m128i a = _mm_loadu_si128(from), b = _mm_loadu_si128(from + 1);
    const __m128i c = _mm_loadu_si128(from + 2), d = _mm_loadu_si128(from + 3);
    _mm_stream_si128(to, a);
    _mm_stream_si128(to + 1, b);
    _mm_stream_si128(to + 2, c);
    _mm_stream_si128(to + 3, d);
  }
  _mm_sfence();
  std::memcpy(destination + i, source + i, bytes - i);
#else
  std::memcpy(destination, source, bytes);
#endif
}

}  // namespace

void host_copy(void* destination, const void* source, uint64_t bytes) {
  char* to = static_cast<char*>(destination);
  const char* from = static_cast<const char*>(source);
  if (bytes < kParallel) {
    std::memmove(to, from, bytes);
    return;
  }
  const bool bypass = bytes >= kBypass;
  in_parallel(bytes, [=](uint64_t begin, uint64_t end) {
    if (bypass) {
      copy_bypassing_caches(to + begin, from + begin, end - begin);
    } else {
      std::memcpy(to + begin, from + begin, end - begin);
    }
  });
}

void host_fill(void* destination, const unsigned char* pattern, uint32_t pattern_bytes, uint64_t bytes) {
  char* to = static_cast<char*>(destination);
  const bool uniform =
      std::all_of(pattern, pattern + pattern_bytes, [=](unsigned char byte) { return byte == pattern[0]; });
  // Copied as a whole by the widest registers that the C library finds.
  alignas(64) unsigned char block[8192];
  const uint64_t used = uniform ? 0 : std::min<uint64_t>(bytes, sizeof block);
  std::memcpy(block, pattern, pattern_bytes);
  for (uint64_t i = pattern_bytes; i < used; i *= 2) std::memcpy(block + i, block, i);
  in_parallel(bytes, [=, &block](uint64_t begin, uint64_t end) {
    if (uniform) {
      std::memset(to + begin, block[0], end - begin);
      return;
    }
    uint64_t i = begin;
    for (; i + sizeof block <= end; i += sizeof block) std::memcpy(to + i, block, sizeof block);
    std::memcpy(to + i, block, end - i);
  });
}

}  // namespace ocl
