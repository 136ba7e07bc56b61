// Small launches that a worker gets together.
//
// On a CPU to wake a worker for a small launch, and to tell the others when it is done, takes longer than the launch.
// So where nobody waits, small launches that follow each other become one command of the queue, to which later ones are
// added for as long as the worker is not through with it. It runs them one after the other, by the device that runs
// launches in the thread that asks.
#pragma once

#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "stream.h"
#include "torchgraft/driver.h"

namespace ocl {

class Batch {
 public:
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

  std::mutex mutex_;  // guards what follows
  std::vector<Item> items_;
  bool closed_ = false;
};

// Hands a launch over in a batch; false if it is not small, or its time is asked for.
bool hand_over(tg_stream_& stream, const tg_launch& launch);

// Queues a function of the host's as one command, and returns its number among the stream's; what it throws is the
// stream's.
template <class Job>
uint64_t submit_job(tg_stream_& stream, std::unique_ptr<Job> job) {
  Job* argument = job.get();
  const auto run = [](void* argument) {
    const std::unique_ptr<Job> job(*static_cast<Job**>(argument));
    try {
      job->run();
    } catch (Failure& failure) {
      note_failure(*job->stream, std::move(failure));
    } catch (const std::bad_alloc&) {
      note_failure(*job->stream, {TG_ERROR_OUT_OF_MEMORY, "no host memory"});  // short: a string without memory
    } catch (const std::exception& error) {
      note_failure(*job->stream, {TG_ERROR, error.what()});
    }
  };
  uint64_t number = 0;
  submit(stream, "clEnqueueNativeKernel", [&](cl_command_queue queue, cl_event* event) {
    number = stream.submitted + 1;
    return stream.device->api->clEnqueueNativeKernel(queue, run, &argument, sizeof argument, 0, nullptr, nullptr, 0,
                                                     nullptr, event);
  });
  static_cast<void>(job.release());  // the command has it now
  return number;
}

}  // namespace ocl
