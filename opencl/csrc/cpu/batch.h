// Small launches that a worker gets together.
//
// On a CPU to wake a worker for a small launch, and to tell the others when it is done, takes longer than the launch.
// So where nobody waits, small launches that follow each other become one command of the queue, to which later ones are
// added for as long as the worker is not through with it. It runs them one after the other, by the device that runs
// launches in the thread that asks.
#pragma once

#include <mutex>
#include <utility>
#include <vector>

#include "caller_device.h"
#include "stream.h"
#include "torchgraft/driver.h"

namespace ocl {

class Batch final : public ExecutorState {
 public:
  explicit Batch(CallerDevice& caller) : caller_(caller) {}

  // False if the worker is through with the batch.
  bool add(const tg_launch& launch);
  // In the worker's thread: until nothing is left. After a failure the rest is not run.
  void run();

 private:
  struct Item {
    explicit Item(const tg_launch& given);
    ~Item();
    Item(Item&& other) noexcept;
    Item& operator=(Item&&) = delete;

    tg_launch launch;
    std::vector<tg_arg> arguments;
  };

  void run_all();
  void close();

  CallerDevice& caller_;
  std::mutex mutex_;  // guards what follows
  std::vector<Item> items_;
  bool closed_ = false;
};

// Hands a launch over in a batch; false if it is not small, or its time is asked for.
bool hand_over(tg_stream_& stream, CallerDevice& caller, const tg_launch& launch);

}  // namespace ocl
