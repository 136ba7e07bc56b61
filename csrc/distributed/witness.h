// What the ranks of a group were at when it failed.
#pragma once

#include <chrono>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace torchgraft {

// Ranks tell each other through the store that the group was made with. A rank that tells nothing has ended, hangs, or
// has not come to the call.
class Witness {
 public:
  Witness(c10::intrusive_ptr<c10d::Store> store, int rank, int size)
      : store_(std::move(store)), rank_(rank), size_(size) {}

  // Tells the others what failed here, and returns what they have told, in sentences. Only the first failure of a group
  // is told: what comes after it says so. It takes at most kPatience, also where the store does not answer.
  std::string account(const std::string& what_failed);

  static constexpr std::chrono::milliseconds kPatience{1500};

 private:
  c10::intrusive_ptr<c10d::Store> store_;
  int rank_;
  int size_;
  std::mutex mutex_;
  std::string first_;  // what failed
};

}  // namespace torchgraft
