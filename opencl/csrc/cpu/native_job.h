// Functions of the host's as commands of a queue.
#pragma once

#include <exception>
#include <memory>
#include <new>
#include <utility>

#include "stream.h"

namespace ocl {

// Queues `job`, whose run() is called in a worker's thread in the stream's order, and returns its number among the
// stream's commands. What it throws becomes the failure of `job->stream`.
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

// The same for plain data, which is copied, and for a function that does not fail.
template <class Job>
void submit_native(tg_stream_& stream, NativeKernel run, Job job) {
  submit(stream, "clEnqueueNativeKernel", [&](cl_command_queue queue, cl_event* event) {
    return stream.device->api->clEnqueueNativeKernel(queue, run, &job, sizeof job, 0, nullptr, nullptr, 0, nullptr,
                                                     event);
  });
}

}  // namespace ocl
