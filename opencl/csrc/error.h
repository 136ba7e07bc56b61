// How a failure travels: thrown as `Failure`, turned into a status and the thread's message at the edge of the driver's
// table.
#pragma once

#include <atomic>
#include <exception>
#include <string>

#include "opencl_api.h"
#include "torchgraft/driver.h"

namespace ocl {

class Failure : public std::exception {
 public:
  Failure(tg_status status, std::string message) : status(status), message_(std::move(message)) {}
  const char* what() const noexcept override { return message_.c_str(); }
  tg_status status;

 private:
  std::string message_;
};

[[noreturn]] void fail_invalid(std::string message);

// What a failed OpenCL call means: `call` is its name, `about` what it was for (a kernel's name, a size), perhaps
// empty.
Failure failure_of(const char* call, cl_int status, const std::string& about = "");
[[noreturn]] void fail_call(const char* call, cl_int status, const std::string& about = "");

inline void check(cl_int status, const char* call) {
  if (status != CL_SUCCESS) [[unlikely]]
    fail_call(call, status);
}

void set_last_error(std::string message);
const char* last_error();

// Tests make chosen calls of the table fail: "allocate:3,launch:1" fails the third allocate and the first launch from
// now on. Also read from TORCHGRAFT_OPENCL_FAIL when the driver is loaded. An empty text ends it. Returns whether the
// text was understood.
// Beside the table's functions there are "small_launch", one that is run by the thread that has the caller's device
// (a worker with a batch, say), and "small_launch_memory", one for which the host has no memory; and "direct_calls",
// whose first trial gets a wrong result.
bool inject_faults(const std::string& specification);
extern std::atomic<bool> faults_armed;
bool is_to_fail(const char* function);  // whether it is this call's turn
void maybe_fail(const char* function);  // throws when it is

}  // namespace ocl
