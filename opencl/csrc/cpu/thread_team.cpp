#include "thread_team.h"

#include <sched.h>
#ifdef __linux__
#include <unistd.h>
#endif

#include <algorithm>
#include <chrono>
#include <system_error>
#include <thread>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "signals_blocked.h"

namespace ocl {
namespace {

using Clock = std::chrono::steady_clock;

// Helpers look so long for more work. What a program does between two calls of small ops takes less.
constexpr std::chrono::microseconds kLook(100);
// Between two looks at the clock.
constexpr int kLooks = 16;
// Waking more would take as long as what there is to share.
constexpr unsigned kMost = 4;

void pause() {
#ifdef __SSE2__
  _mm_pause();
#endif
}

#ifdef __linux__
// Those that the asking thread may use; none if the system does not say.
cpu_set_t usable_set() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) CPU_ZERO(&set);
  return set;
}
#endif

unsigned usable_processors() {
#ifdef __linux__
  const cpu_set_t set = usable_set();
  if (const int count = CPU_COUNT(&set)) return static_cast<unsigned>(count);
#endif
  return std::max(1u, std::thread::hardware_concurrency());
}

}  // namespace

unsigned ThreadTeam::suitable_size(unsigned units) {
  return std::max(1u, std::min({units, usable_processors(), kMost}));
}

ThreadTeam::ThreadTeam(unsigned size) : size_(size), shares_(new Share[size]) {}

void ThreadTeam::start() {
  if (started_) return;
  const SignalsBlocked blocked;
  try {
    for (unsigned number = 1; number < size_; ++number) std::thread(&ThreadTeam::help, this, number).detach();
  } catch (const std::system_error&) {
    // No more threads: the others do the parts of those that are missing.
  }
  started_ = true;
}

void ThreadTeam::rest() {
  if (started_) rests_.store(true, std::memory_order_relaxed);
}

// The number of a round that has begun after `last`.
uint32_t ThreadTeam::await_round(uint32_t last) {
  auto end = Clock::now() + kLook;
  for (int looks = 0;;) {
    const uint32_t round = round_.load(std::memory_order_acquire);
    if (round != last && (round & 1) != 0) return round;
    pause();
    if (++looks % kLooks != 0) continue;
    if (Clock::now() < end && !rests_.load(std::memory_order_relaxed)) continue;
    asleep_.fetch_add(1);
    round_.wait(round);
    asleep_.fetch_sub(1);
    end = Clock::now() + kLook;
  }
}

void ThreadTeam::help(unsigned number) {
#ifdef __linux__
  shares_[number].thread.store(gettid(), std::memory_order_relaxed);
#endif
  for (uint32_t last = 0;;) {
    last = await_round(last);
    inside_.fetch_add(1);
    const uint32_t round = round_.load();
    if ((round & 1) != 0) {
      work_from(number);
      last = round;
    }
    inside_.fetch_sub(1, std::memory_order_release);
  }
}

void ThreadTeam::work_from(unsigned first) {
  for (unsigned i = 0; i < size_; ++i) {
    Share& share = shares_[(first + i) % size_];
    while (true) {
      const size_t item = share.next.load(std::memory_order_relaxed) < share.end
                              ? share.next.fetch_add(1, std::memory_order_relaxed)
                              : share.end;
      if (item >= share.end) break;
      part_(work_, item, item + 1);
    }
  }
}

// Asks the system for something where the asking thread has moved to another processor since.
void ThreadTeam::keep_off_own_processor() {
#ifdef __linux__
  const int own = sched_getcpu();
  if (own < 0 || own >= CPU_SETSIZE || own == kept_off_) return;
  cpu_set_t others = usable_set();
  CPU_CLR(static_cast<size_t>(own), &others);
  if (CPU_COUNT(&others) == 0) return;
  kept_off_ = own;
  for (unsigned i = 1; i < size_; ++i) {
    const int helper = shares_[i].thread.load(std::memory_order_relaxed);
    if (helper == 0)
      kept_off_ = -1;  // not there yet
    else
      sched_setaffinity(helper, sizeof others,
                        &others);  // where that is forbidden they stay where the system puts them
  }
#endif
}

void ThreadTeam::share(Part part, const void* work, size_t count, bool wake) {
  if (!started_ || size_ == 1 || count < 2 || (!wake && asleep_.load() + 1 >= size_)) {
    part(work, 0, count);
    return;
  }
  if (wake) keep_off_own_processor();
  part_ = part;
  work_ = work;
  for (unsigned i = 0; i < size_; ++i) {
    shares_[i].next.store(count * i / size_, std::memory_order_relaxed);
    shares_[i].end = count * (i + 1) / size_;
  }
  rests_.store(false, std::memory_order_relaxed);
  round_.fetch_add(1);
  if (wake && asleep_.load() != 0) round_.notify_all();
  work_from(0);
  round_.fetch_add(1);
  constexpr int kPatience = 1024;
  for (int looks = 0; inside_.load() != 0; ++looks) {
    if (looks < kPatience)
      pause();
    else
      std::this_thread::yield();  // a helper was interrupted: there are more threads than processors
  }
}

}  // namespace ocl
