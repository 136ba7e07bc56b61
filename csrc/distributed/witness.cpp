#include "witness.h"

#include <algorithm>
#include <exception>
#include <future>
#include <thread>
#include <utility>
#include <vector>

namespace torchgraft {
namespace {

constexpr size_t kMostNamed = 8;  // ranks in one message

using Clock = std::chrono::steady_clock;

// Under this number a rank writes what failed: "3 all_reduce, call 2". Whoever asks how many have come asks once, not
// for each rank.
std::string key(int64_t number) { return "failed/" + std::to_string(number); }

class Told {
 public:
  Told(c10d::Store& store, int rank, int size) : store_(store), rank_(rank), told_(size) {}

  void tell(const std::string& what_failed) {
    told_[rank_] = what_failed;
    const std::string mine = std::to_string(rank_) + ' ' + what_failed;
    store_.set(key(store_.add("failed", 1)), std::vector<uint8_t>(mine.begin(), mine.end()));
  }

  // Reads what is new. Returns whether all ranks have told.
  bool read() {
    const int64_t count = store_.add("failed", 0);
    while (read_ < count && store_.check({key(read_ + 1)})) {
      const std::string found = store_.get_to_str(key(++read_));
      const size_t space = found.find(' ');
      told_.at(std::stoi(found.substr(0, space))) = found.substr(space + 1);
    }
    return read_ >= static_cast<int64_t>(told_.size());
  }

  // First the ranks that one should look at: those that say nothing, then those that were at something else.
  std::string text() const {
    std::vector<std::pair<int, std::string>> found;  // how interesting, and the sentence
    for (int rank = 0; rank < static_cast<int>(told_.size()); ++rank) {
      if (rank == rank_) continue;
      const std::string& said = told_[rank];
      found.emplace_back(said.empty()           ? 0
                         : said == told_[rank_] ? 2
                                                : 1,
                         " Rank " + std::to_string(rank) +
                             (said.empty() ? " says nothing: it has ended, hangs, or has not come to this call."
                                           : " failed in " + said + "."));
    }
    std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    std::string text;
    for (size_t i = 0; i < std::min(found.size(), kMostNamed); ++i) text += found[i].second;
    if (found.size() > kMostNamed) text += ' ' + std::to_string(found.size() - kMostNamed) + " more are not named.";
    return text;
  }

 private:
  c10d::Store& store_;
  const int rank_;
  int64_t read_ = 0;
  std::vector<std::string> told_;  // by each rank
};

std::string ask(const c10::intrusive_ptr<c10d::Store>& shared, int rank, int size, const std::string& what_failed,
                Clock::time_point until) {
  const auto store = shared->clone();  // a connection of its own: another thread may be waiting in the shared one
  Told told(*store, rank, size);
  told.tell(what_failed);
  while (!told.read() && Clock::now() < until) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  return told.text();
}

}  // namespace

std::string Witness::account(const std::string& what_failed) {
  std::lock_guard lock(mutex_);
  if (!store_ || size_ < 2) return "";
  if (!first_.empty()) return " The group had failed before, in " + first_ + ".";
  first_ = what_failed;
  auto answer = std::make_shared<std::promise<std::string>>();
  std::future<std::string> found = answer->get_future();
  std::thread([=, store = store_, rank = rank_, size = size_, until = Clock::now() + kPatience * 2 / 3] {
    try {
      answer->set_value(ask(store, rank, size, what_failed, until));
    } catch (const std::exception&) {
      answer->set_value(" The store that the ranks met at does not answer: the process that kept it may have ended.");
    }
  }).detach();  // the store may hang for longer than anybody wants to wait
  return found.wait_for(kPatience) == std::future_status::ready ? found.get()
                                                                : " The store that the ranks met at does not answer.";
}

}  // namespace torchgraft
