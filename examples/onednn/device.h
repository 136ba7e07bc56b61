// A device to program against: memory that the host cannot address, and streams that run by themselves.
//
// It is the host's processor in disguise: device addresses are the host's plus a distance, so that whoever mistakes one
// for the other crashes, and each stream is a thread with a queue.
#pragma once

#include <torchgraft/driver.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

namespace npu {

struct Failure : std::runtime_error {
  Failure(tg_status status, const std::string& text) : std::runtime_error(text), status(status) {}
  tg_status status;
};

constexpr uintptr_t kAway = uintptr_t{1} << 44;

inline void* on_device(void* host) { return static_cast<char*>(host) + kAway; }
template <class T = char>
T* on_host(const void* device) {
  return device == nullptr ? nullptr : reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(device) - kAway);
}

// A moment that is passed once.
class Mark {
 public:
  void pass() {
    const std::lock_guard lock(mutex_);
    time_ = std::chrono::steady_clock::now();
    passed_ = true;
    passing_.notify_all();
  }
  bool passed() {
    const std::lock_guard lock(mutex_);
    return passed_;
  }
  void wait() {
    std::unique_lock lock(mutex_);
    passing_.wait(lock, [this] { return passed_; });
  }
  bool wait_for(std::chrono::nanoseconds most) {
    std::unique_lock lock(mutex_);
    return passing_.wait_for(lock, most, [this] { return passed_; });
  }
  std::chrono::steady_clock::time_point time() const { return time_; }

 private:
  std::mutex mutex_;
  std::condition_variable passing_;
  bool passed_ = false;
  std::chrono::steady_clock::time_point time_{};
};

}  // namespace npu

// The opaque types of the driver's contract.
struct tg_stream_ {
  tg_stream_() : thread_([this] { run(); }) {}
  ~tg_stream_() {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  void submit(std::function<void()> work) {
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back(std::move(work));
      ++pending_;
    }
    changed_.notify_all();
  }

  // What failed is told once.
  void synchronize() {
    std::unique_lock lock(mutex_);
    idle_.wait(lock, [this] { return pending_ == 0; });
    tell();
  }
  bool is_idle() {
    const std::lock_guard lock(mutex_);
    if (pending_ != 0) return false;
    tell();
    return true;
  }

 private:
  void tell() {
    if (const auto failure = std::exchange(failure_, nullptr)) throw npu::Failure(*failure);
  }

  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return ends_ || !queue_.empty(); });
      if (queue_.empty()) return;
      const std::function<void()> work = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      std::unique_ptr<npu::Failure> failure;
      try {
        work();
      } catch (const std::exception& error) {
        failure = std::make_unique<npu::Failure>(TG_ERROR, error.what());
      }
      lock.lock();
      if (failure != nullptr && failure_ == nullptr) failure_ = std::move(failure);
      if (--pending_ == 0) idle_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_, idle_;
  std::deque<std::function<void()>> queue_;
  size_t pending_ = 0;
  bool ends_ = false;
  std::unique_ptr<npu::Failure> failure_;
  std::thread thread_;  // last: it uses the others
};

struct tg_event_ {
  std::mutex mutex;
  std::shared_ptr<npu::Mark> mark;  // of the last recording

  std::shared_ptr<npu::Mark> get() {
    const std::lock_guard lock(mutex);
    return mark;
  }
};
