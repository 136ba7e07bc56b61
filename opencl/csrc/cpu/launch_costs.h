// What launches of a kernel have cost, so that it can be told where the next one is run best.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "torchgraft/driver.h"

namespace ocl {

// No less than one.
inline uint32_t nanoseconds_since(std::chrono::steady_clock::time_point begin) {
  const std::chrono::nanoseconds passed = std::chrono::steady_clock::now() - begin;
  return static_cast<uint32_t>(std::clamp<int64_t>(passed.count(), 1, UINT32_MAX));
}

// What a launch's time is known by. Of launches that span the same memory those of a part of it have fewer groups.
struct LaunchScale {
  explicit LaunchScale(const tg_launch& launch);
  uint64_t bytes;
  uint64_t groups = 1;
};

// What launches of one kernel have cost in the calling thread.
class LaunchCosts {
 public:
  // Runs a launch, and notes what it took if that is to be known: not of the first, which loads its code. Returns the
  // nanoseconds, or 0.
  template <typename Run>
  uint32_t run(const LaunchScale& scale, bool loaded, const Run& launch) {
    using Clock = std::chrono::steady_clock;
    const bool timed = loaded && wants_time(scale);
    const auto begin = timed ? Clock::now() : Clock::time_point();
    launch();
    const uint32_t taken = timed ? nanoseconds_since(begin) : 0;
    note(scale, taken);
    return taken;
  }
  // Whether a launch is known, or can be expected, to take at most so long. `least` is what one without work takes. A
  // launch of which nothing is known is tried if it spans at most `trial` bytes.
  bool expects(const LaunchScale& scale, uint32_t nanoseconds, uint32_t least, uint64_t trial);
  // Whether other threads are to be woken for a launch that takes one thread that long: nothing is known of it, or it
  // is not over before they are there.
  bool worth_waking(const LaunchScale& scale) const {
    constexpr uint32_t kLeast = 10000;
    return known(scale) == 0 || known(scale) >= kLeast;
  }
  uint32_t known(const LaunchScale& scale) const { return costs_[class_of(scale)].load(std::memory_order_relaxed); }

 private:
  // Whether the launch that follows is to be timed: the first, some of those that are known, and each that is tried
  // though it is expected to take longer.
  bool wants_time(const LaunchScale& scale);
  void note(const LaunchScale& scale, uint32_t nanoseconds);

  static constexpr size_t kByteClasses = 40, kGroupClasses = 8;
  static size_t class_of(const LaunchScale& scale) {
    return std::min<size_t>(std::bit_width(scale.bytes), kByteClasses - 1) * kGroupClasses +
           std::min<size_t>(std::bit_width(scale.groups), kGroupClasses - 1);
  }

  // By the binary logarithms of the bytes and of the groups; 0 where nothing is known. Racing writers lose a sample at
  // worst.
  std::array<std::atomic<uint32_t>, kByteClasses * kGroupClasses> costs_{};
  // How many launches of each have been passed over since the last that was not.
  std::array<std::atomic<uint32_t>, kByteClasses * kGroupClasses> passed_over_{};
  std::atomic<uint32_t> launches_{0};
  std::atomic<bool> tried_again_{false};
};

}  // namespace ocl
