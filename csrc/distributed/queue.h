// A thread that does one thing after another.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace torchgraft {

// Runs tasks one after the other: every rank has to ask for its collectives in one order. The thread starts with the
// first task that cannot be done where it is given.
class Queue {
 public:
  using Task = std::function<void()>;

  Queue();
  ~Queue();  // after the tasks that are left, unless one of them destroys it
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  void push(Task task);  // nothing happens with it once the queue is abandoned
  // Runs it at once, in the calling thread, if nothing is before it; whatever is pushed meanwhile comes after it.
  // Returns whether it did.
  bool run_if_idle(const Task& task);
  // Lets go of the thread, in whatever task it is, and of all that is left.
  void abandon();

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Task> tasks;
    bool busy = false;       // a task is being run, here or by a caller
    std::thread::id thread;  // none before it is needed
    bool ends = false;
    bool ended = false;
  };
  static void run(const std::shared_ptr<State>& state);

  std::shared_ptr<State> state_;  // shared with the thread, which may outlive the queue
};

}  // namespace torchgraft
