#include "error.h"

#include <charconv>
#include <cstdlib>
#include <map>
#include <mutex>
#include <new>
#include <set>
#include <sstream>

namespace ocl {
namespace {

thread_local std::string thread_message;

tg_status meaning(cl_int status) {
  switch (status) {
    case CL_MEM_OBJECT_ALLOCATION_FAILURE:
    case CL_OUT_OF_HOST_MEMORY:
    case CL_INVALID_BUFFER_SIZE:
      return TG_ERROR_OUT_OF_MEMORY;
    case CL_BUILD_PROGRAM_FAILURE:
    case CL_INVALID_BUILD_OPTIONS:
    case CL_INVALID_BINARY:
      return TG_ERROR_COMPILE;
    default:
      return status <= CL_INVALID_VALUE && status > -1000 ? TG_ERROR_INVALID : TG_ERROR;
  }
}

struct Faults {
  std::mutex mutex;
  std::map<std::string, std::set<long>> turns;  // which calls fail, counted from 1
  std::map<std::string, long> calls;
};

Faults& faults() {
  static Faults& instance = *new Faults;
  return instance;
}

}  // namespace

std::atomic<bool> faults_armed = false;
static const bool faults_from_environment = [] {
  const char* text = std::getenv("TORCHGRAFT_OPENCL_FAIL");
  return text != nullptr && inject_faults(text);
}();

void fail_invalid(std::string message) { throw Failure(TG_ERROR_INVALID, std::move(message)); }

Failure failure_of(const char* call, cl_int status, const std::string& about) {
  return {meaning(status), std::string(call) + ": " + status_name(status) + (about.empty() ? "" : ", " + about)};
}

void fail_call(const char* call, cl_int status, const std::string& about) { throw failure_of(call, status, about); }

void set_last_error(std::string message) { thread_message = std::move(message); }
const char* last_error() { return thread_message.c_str(); }

bool inject_faults(const std::string& specification) {
  std::map<std::string, std::set<long>> turns;
  std::stringstream entries(specification);
  for (std::string entry; std::getline(entries, entry, ',');) {
    const size_t colon = entry.find(':');
    long turn = 1;
    if (colon != std::string::npos) {
      const char* const end = entry.data() + entry.size();
      const auto [stop, error] = std::from_chars(entry.data() + colon + 1, end, turn);
      if (error != std::errc() || stop != end || turn < 1) return false;
    }
    turns[entry.substr(0, colon)].insert(turn);
  }
  std::lock_guard lock(faults().mutex);
  faults().turns = std::move(turns);
  faults().calls.clear();
  faults_armed = !faults().turns.empty();
  return true;
}

bool is_to_fail(const char* function) {
  std::lock_guard lock(faults().mutex);
  const auto found = faults().turns.find(function);
  return found != faults().turns.end() && found->second.contains(++faults().calls[function]);
}

void maybe_fail(const char* function) {
  if (!is_to_fail(function)) return;
  const std::string name = function;
  if (name == "small_launch_memory") throw std::bad_alloc();
  const tg_status status = name == "allocate" || name == "host_allocate"          ? TG_ERROR_OUT_OF_MEMORY
                           : name == "module_compile" || name == "program_create" ? TG_ERROR_COMPILE
                                                                                  : TG_ERROR;
  throw Failure(status, name + ": fails because TORCHGRAFT_OPENCL_FAIL asks for it");
}

}  // namespace ocl
