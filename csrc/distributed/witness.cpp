#include "witness.h"

#include <exception>
#include <future>
#include <sstream>
#include <thread>
#include <vector>

namespace torchgraft {
namespace {

constexpr int kMostNamed = 8;  // ranks in one message

using Clock = std::chrono::steady_clock;

std::string key(int rank) { return "failed/" + std::to_string(rank); }

std::string told_by(c10d::Store& store, int rank) {
  return store.check({key(rank)}) ? store.get_to_str(key(rank)) : std::string();
}

std::string ask(const c10::intrusive_ptr<c10d::Store>& shared, int rank, int size, const std::string& mine,
                Clock::time_point until) {
  const auto store = shared->clone();  // a connection of its own: another thread may be waiting in the shared one
  store->set(key(rank), mine);
  std::vector<std::string> others(size);
  const auto all_told = [&] {
    bool all = true;
    for (int other = 0; other < size; ++other)
      if (other != rank && others[other].empty()) all = !(others[other] = told_by(*store, other)).empty() && all;
    return all;
  };
  while (!all_told() && Clock::now() < until) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  std::ostringstream text;
  int named = 0;
  for (int other = 0; other < size && named < kMostNamed; ++other) {
    if (other == rank) continue;
    ++named;
    text << " Rank " << other
         << (others[other].empty() ? " says nothing: it has ended, hangs, or has not come to this call."
                                   : " failed in " + others[other] + ".");
  }
  return text.str();
}

}  // namespace

std::string Witness::account(const std::string& what_failed) {
  std::lock_guard lock(mutex_);
  if (told_ || !store_ || size_ < 2) return others_;
  told_ = true;
  auto answer = std::make_shared<std::promise<std::string>>();
  std::future<std::string> found = answer->get_future();
  std::thread([=, store = store_, rank = rank_, size = size_, until = Clock::now() + kPatience * 2 / 3] {
    try {
      answer->set_value(ask(store, rank, size, what_failed, until));
    } catch (const std::exception&) {
      answer->set_value(" The store that the ranks met at does not answer: the process that kept it may have ended.");
    }
  }).detach();  // the store may hang for longer than anybody wants to wait
  others_ = found.wait_for(kPatience) == std::future_status::ready
                ? found.get()
                : " The store that the ranks met at does not answer.";
  return others_;
}

}  // namespace torchgraft
