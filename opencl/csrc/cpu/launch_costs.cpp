#include "launch_costs.h"

namespace ocl {
namespace {

// Launches that were too long are tried again after so many, after twice as many, and so on up to so many: whoever
// measured may have been interrupted, for a moment or for as long as the machine has other work.
constexpr uint32_t kFirstRetry = 8, kLastRetry = 1024;
// Of launches whose time is known one in so many is timed.
constexpr uint32_t kSample = 8;

}  // namespace

LaunchScale::LaunchScale(const tg_launch& launch) : bytes(launch.bytes) {
  for (uint32_t d = 0; d < launch.dims; ++d) groups *= launch.groups[d];
}

bool LaunchCosts::expects(const LaunchScale& scale, uint32_t nanoseconds, uint32_t least, uint64_t trial) {
  const size_t own = class_of(scale);
  if (const uint32_t known = costs_[own].load(std::memory_order_relaxed)) {
    std::atomic<uint32_t>& passed_over = passed_over_[own];
    if (known <= nanoseconds) {
      passed_over.store(0, std::memory_order_relaxed);
      return true;
    }
    const uint32_t passed = passed_over.fetch_add(1, std::memory_order_relaxed) + 1;
    const bool again = passed >= kFirstRetry && (std::has_single_bit(passed) || passed % kLastRetry == 0);
    if (again) tried_again_.store(true, std::memory_order_relaxed);
    return again;
  }
  // The next smaller one that is known, of as many groups or fewer.
  const size_t most_groups = own % kGroupClasses;
  for (size_t smaller = own; smaller-- > 0;) {
    const uint64_t known = costs_[smaller].load(std::memory_order_relaxed);
    if (known == 0 || smaller % kGroupClasses > most_groups) continue;
    const uint64_t grown = least + ((known - std::min<uint64_t>(known, least)) << (own - smaller) / kGroupClasses);
    return (scale.bytes <= trial ? known : grown) <= nanoseconds;
  }
  return scale.bytes <= trial;
}

bool LaunchCosts::wants_time(const LaunchScale& scale) {
  if (tried_again_.load(std::memory_order_relaxed)) {
    tried_again_.store(false, std::memory_order_relaxed);
    return true;
  }
  return costs_[class_of(scale)].load(std::memory_order_relaxed) == 0 ||
         launches_.load(std::memory_order_relaxed) % kSample == 0;
}

void LaunchCosts::note(const LaunchScale& scale, uint32_t nanoseconds) {
  launches_.fetch_add(1, std::memory_order_relaxed);
  if (nanoseconds == 0) return;
  std::atomic<uint32_t>& cost = costs_[class_of(scale)];
  const uint32_t known = cost.load(std::memory_order_relaxed);
  // The mean of the last few, of which none counts for more than four times what was known. What is less than that
  // counts for more, and what is far less for all: interruptions only make a time longer.
  const int64_t sample = std::min<int64_t>(nanoseconds, known == 0 ? INT32_MAX : int64_t{4} * known);
  const int64_t more = sample - int64_t{known};
  const bool alone = known == 0 || nanoseconds < known / 4;
  const int64_t mean = alone ? sample : known + (more < 0 ? 3 * more / 4 : more / 4);
  cost.store(static_cast<uint32_t>(std::clamp<int64_t>(mean, 1, INT32_MAX)), std::memory_order_relaxed);
}

}  // namespace ocl
