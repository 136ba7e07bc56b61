#include "queue.h"

namespace torchgraft {

Queue::Queue() : state_(std::make_shared<State>()) {}

Queue::~Queue() {
  std::unique_lock lock(state_->mutex);
  state_->ends = true;
  state_->changed.notify_all();
  const bool is_own = state_->thread == std::this_thread::get_id();
  if (state_->thread != std::thread::id() && !is_own) state_->changed.wait(lock, [this] { return state_->ended; });
}

void Queue::push(Task task) {
  std::lock_guard lock(state_->mutex);
  if (state_->ended) return;
  state_->tasks.push_back(std::move(task));
  if (state_->thread == std::thread::id()) {
    std::thread thread([state = state_] { run(state); });
    state_->thread = thread.get_id();
    thread.detach();
  }
  state_->changed.notify_all();
}

bool Queue::run_if_idle(const Task& task) {
  {
    std::lock_guard lock(state_->mutex);
    if (state_->busy || !state_->tasks.empty()) return false;
    state_->busy = true;
  }
  struct Done {
    State& state;
    ~Done() {
      std::lock_guard lock(state.mutex);
      state.busy = false;
      if (!state.tasks.empty() || state.ends) state.changed.notify_all();
    }
  } done{*state_};
  task();
  return true;
}

void Queue::abandon() {
  std::lock_guard lock(state_->mutex);
  state_->tasks.clear();
  state_->ends = state_->ended = true;
  state_->changed.notify_all();
}

void Queue::run(const std::shared_ptr<State>& state) {
  std::unique_lock lock(state->mutex);
  while (true) {
    state->changed.wait(lock, [&] { return !state->busy && (state->ends || !state->tasks.empty()); });
    if (state->tasks.empty()) break;
    Task task = std::move(state->tasks.front());
    state->tasks.pop_front();
    state->busy = true;
    lock.unlock();
    task();
    task = nullptr;  // its tensors go before the next task is waited for
    lock.lock();
    state->busy = false;
  }
  state->ended = true;
  state->changed.notify_all();
}

}  // namespace torchgraft
