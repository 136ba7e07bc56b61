// Threads that share a short piece of work with the thread that asks.
//
// To wake a thread takes longer than many a launch. So helpers look for more work for a moment after they have done
// some, before they fall asleep, as those of OpenMP do; whoever knows that their processors have other work sends them
// to sleep at once. Each thread begins with the same part of the work, so that what it has in its caches from the piece
// before is what it needs; who is done with his own part takes from those of others, so that nobody waits for a thread
// that sleeps or was interrupted before it began.
//
// A system may wake a helper on the processor of the thread that wakes him, where he waits until all is done: some do
// so on purpose, to spare a virtual machine's other processors. So helpers are kept off that processor.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace ocl {

class ThreadTeam {
 public:
  // Does the items [begin, end) of some work. Must not throw.
  using Part = void (*)(const void* work, size_t begin, size_t end);

  // How many threads this process may let work together, of so many that a device has.
  static unsigned suitable_size(unsigned units);

  // Of so many threads, the one that asks included.
  explicit ThreadTeam(unsigned size);
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  unsigned size() const { return size_; }
  // Makes the helpers. Before this, whoever asks works alone; a process that never asks has no such threads. They end
  // with the process.
  void start();
  // Calls `part` until all of `count` items are done. One thread at a time may ask. Helpers that sleep are woken if
  // `wake` says so, and otherwise left asleep.
  void share(Part part, const void* work, size_t count, bool wake);
  // Helpers that have nothing to do need not look for more.
  void rest();

 private:
  struct alignas(64) Share {
    std::atomic<size_t> next{0};
    size_t end = 0;
    std::atomic<int> thread{0};  // the system's number of a helper, once he is there
  };

  void help(unsigned number);
  uint32_t await_round(uint32_t last);
  void work_from(unsigned first);
  void keep_off_own_processor();

  const unsigned size_;
  std::atomic<bool> started_ = false;
  std::unique_ptr<Share[]> shares_;  // a thread's, by its number; the asking thread's is 0
  int kept_off_ = -1;                // the processor that helpers are kept off
  Part part_ = nullptr;
  const void* work_ = nullptr;

  // Odd while there is work. Whoever finds it odd after he has been counted in `inside_` may work: the asking thread
  // makes it even, waits until nobody is inside, and only then is the work done.
  alignas(64) std::atomic<uint32_t> round_{0};
  alignas(64) std::atomic<uint32_t> inside_{0};
  alignas(64) std::atomic<uint32_t> asleep_{0};
  std::atomic<bool> rests_{false};
};

}  // namespace ocl
