#include "caller_device.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <utility>

#include "divided_launch.h"
#include "error.h"
#include "event.h"
#include "pocl_binary.h"
#include "program.h"
#include "stream.h"

namespace ocl {
namespace {

using Clock = std::chrono::steady_clock;

// A kernel of which nothing is known is tried with so many bytes: an elementwise one has done them in 10 us.
constexpr uint64_t kTrial = uint64_t{256} << 10;
// One that a team may share, with so many. Where the team is all threads that the device has, with any number: one that
// takes long is known from then on, and of one that looks up a few rows of a large table nothing else is ever known.
constexpr uint64_t kSharedTrial = uint64_t{4} << 20, kTrialOfAll = UINT64_MAX;
// Bytes of an unknown kernel that a thread has done in a nanosecond, roughly.
constexpr uint64_t kGuess = 16;
// Nanoseconds of one thread from which on others are to help.
constexpr uint32_t kWorthSharing = 5000;
// Where nobody waits soon a launch in the calling thread must not take much longer than the handing over.
constexpr uint32_t kPatience = 6;

// ---- the device ----

void run_nothing(void*) {}

// As programs wait where that is not as quick as OpenCL's own waits.
void wait_elsewhere(Device& device, tg_stream_& stream) {
  const std::unique_ptr<tg_event_, void (*)(tg_event)> event(create_event(device, /*timing=*/false), destroy_event);
  record(*event, stream);
  while (!wait_for(*event, std::chrono::seconds(1))) continue;
}

// What a wait for the least that a worker can do takes.
uint32_t measure_wake(Device& device, bool lends_thread) {
  constexpr int kTries = 9;
  // PoCL's workers sleep at once, those of Intel's runtime look for more work first.
  const uint32_t pause = lends_thread ? 2000000 : 20000;
  std::array<uint32_t, kTries> times{};
  tg_stream_& stream = *device.transfer_stream();
  for (uint32_t& time : times) {
    const auto begin = Clock::now();
    submit(stream, "clEnqueueNativeKernel", [&](cl_command_queue queue, cl_event* event) {
      return device.api->clEnqueueNativeKernel(queue, run_nothing, nullptr, 0, 0, nullptr, nullptr, 0, nullptr, event);
    });
    lends_thread ? wait_elsewhere(device, stream) : wait(stream);
    time = nanoseconds_since(begin);
    for (const auto end = Clock::now(); nanoseconds_since(end) < pause;) continue;  // the worker falls asleep
  }
  std::nth_element(times.begin(), times.begin() + kTries / 2, times.end());
  return times[kTries / 2];
}

cl_program build(const Api& api, cl_program program, cl_device_id id, const char* options) {
  if (program == nullptr) return nullptr;
  if (api.clBuildProgram(program, 1, &id, options, nullptr, nullptr) == CL_SUCCESS) return program;
  api.clReleaseProgram(program);
  return nullptr;
}

// What a kernel keeps of its own is on the stack of the thread that runs it. Workers' are made for that: a product may
// take 30 MB. Other threads are asked for so much at most.
constexpr size_t kStack = size_t{1} << 20;

bool fits_stack(const Api& api, cl_kernel kernel, cl_device_id id) {
  cl_ulong bytes = 0;
  return api.clGetKernelWorkGroupInfo(kernel, id, CL_KERNEL_PRIVATE_MEM_SIZE, sizeof bytes, &bytes, nullptr) ==
             CL_SUCCESS &&
         bytes <= kStack;
}

// Where the calling thread's stack ends, downwards; the highest address where that is not known.
uintptr_t find_stack_end() {
  void* end = nullptr;
  int status = -1;
#ifdef __linux__
  pthread_attr_t attributes;
  if (pthread_getattr_np(pthread_self(), &attributes) != 0) return UINTPTR_MAX;
  size_t size = 0;
  status = pthread_attr_getstack(&attributes, &end, &size);
  pthread_attr_destroy(&attributes);
#endif
  return status == 0 ? reinterpret_cast<uintptr_t>(end) : UINTPTR_MAX;
}

// Whether the calling thread has that, and what the implementation needs itself.
bool has_stack() {
  constexpr uintptr_t kBeside = uintptr_t{256} << 10;
  thread_local const uintptr_t end = find_stack_end();
  const char here = 0;
  const auto place = reinterpret_cast<uintptr_t>(&here);
  return place > end && place - end > kStack + kBeside;
}

}  // namespace

CallerDevice::CallerDevice(Device& device, const Platform* platform, cl_device_id other, HostMode mode,
                           bool lends_thread, SharedTeam& team, const HostClock& clock)
    : device_(device),
      api_(*device.api),
      platform_(platform != nullptr ? platform->id : nullptr),
      id_(other),
      units_(device.properties.compute_units),
      lends_thread_(lends_thread),
      clock_(clock),
      team_(team),
      direct_(platform != nullptr ? text(*platform, CL_PLATFORM_VERSION) : "", mode) {}

cl_command_queue CallerDevice::make_queue(cl_bitfield properties, cl_int& status) const {
  if (is_other()) return api_.clCreateCommandQueue(context_, id_, properties, &status);
  const cl_ulong list[] = {CL_QUEUE_PROPERTIES, properties | CL_QUEUE_THREAD_LOCAL_EXEC_ENABLE_INTEL, 0};
  return api_.clCreateCommandQueueWithProperties(context_, id_, list, &status);
}

// With the mutex held. What cannot be opened is not needed: the workers do everything.
bool CallerDevice::open() {
  if (opened_) return usable_;
  opened_ = true;
  cl_int status = CL_SUCCESS;
  context_ = is_other() ? create_context(api_, platform_, id_, status) : device_.context();
  for (const bool timed : {false, true}) {
    if (status != CL_SUCCESS) return false;
    queues_[timed] = make_queue(timed ? CL_QUEUE_PROFILING_ENABLE : 0, status);
  }
  constexpr unsigned kPieces = 8;  // of each thread, at most
  for (unsigned i = 0; !is_other() && status == CL_SUCCESS && i < kPieces * team_.team.size(); ++i)
    piece_queues_.push_back(make_queue(0, status));
  usable_ = status == CL_SUCCESS;
  if (usable_ && device_.has_native_kernels) wake_nanoseconds_ = measure_wake(device_, lends_thread_);
  return usable_;
}

// The number in binaries for this device: by the rule, else what a compilation says.
uint64_t CallerDevice::binary_number(uint64_t own) {
  if (binary_number_ == 0) binary_number_ = caller_device_number(device_.properties.name, own);
  if (binary_number_ == 0) {
    const char* text = "__kernel void tg_nothing() {}";
    const size_t length = std::strlen(text);
    cl_int status = CL_SUCCESS;
    cl_program program = api_.clCreateProgramWithSource(context_, 1, &text, &length, &status);
    program = build(api_, program, id_, "-cl-std=CL1.2");
    if (program != nullptr) {
      binary_number_ = device_number(binary_of(api_, program));
      api_.clReleaseProgram(program);
    }
  }
  return binary_number_;
}

// The kernel's program for this device, from its binary for the other; NULL if that is impossible.
cl_program CallerDevice::load(tg_kernel_& kernel) {
  cl_program own = nullptr;
  if (api_.clGetKernelInfo(kernel.kernel, CL_KERNEL_PROGRAM, sizeof own, &own, nullptr) != CL_SUCCESS) return nullptr;
  // This device would have other variables.
  if (may_have_variables(api_, own, device_.id)) return nullptr;
  Binary binary = binary_of(api_, own);
  if (has_variables(binary)) return nullptr;
  const uint64_t own_number = device_number(binary);
  const uint64_t number = own_number == 0 ? 0 : binary_number(own_number);
  if (number == 0) return nullptr;
  set_device_number(binary, number);
  const unsigned char* data = binary.data();
  const size_t size = binary.size();
  cl_int status = CL_SUCCESS, binary_status = CL_SUCCESS;
  cl_program program = api_.clCreateProgramWithBinary(context_, 1, &id_, &size, &data, &binary_status, &status);
  if (status != CL_SUCCESS || binary_status != CL_SUCCESS) {
    if (program != nullptr) api_.clReleaseProgram(program);
    return nullptr;
  }
  return build(api_, program, id_, "");
}

// Retained for the caller; NULL without a kernel.
cl_program CallerDevice::program_of(cl_kernel kernel) const {
  cl_program program = nullptr;
  if (kernel == nullptr ||
      api_.clGetKernelInfo(kernel, CL_KERNEL_PROGRAM, sizeof program, &program, nullptr) != CL_SUCCESS ||
      api_.clRetainProgram(program) != CL_SUCCESS)
    return nullptr;
  return program;
}

cl_kernel CallerDevice::kernel_of(tg_kernel_& kernel) {
  CallerKernel& mine = own(kernel);
  if (mine.kernel != nullptr || mine.refused) return mine.kernel;
  mine.refused = true;
  if (!is_other() && !fits_stack(api_, kernel.kernel, id_)) return nullptr;
  cl_program program = !is_other()                ? program_of(kernel.kernel)
                       : kernel.origin == nullptr ? load(kernel)
                                                  : program_of(kernel_of(*kernel.origin));
  if (program == nullptr) return nullptr;
  cl_int status = CL_SUCCESS;
  cl_kernel made = api_.clCreateKernel(program, kernel.name.c_str(), &status);
  mine.divisible = is_other() ? 0 : divisible_dimensions(api_, program);
  api_.clReleaseProgram(program);  // the kernel keeps it
  if (status != CL_SUCCESS) return nullptr;
  mine.refused = false;
  mine.kernel = made;
  mine.ready.store(true, std::memory_order_release);
  return made;
}

bool CallerDevice::suits_thread() const { return is_other() || has_stack(); }

CallerKernel& CallerDevice::own(const tg_kernel_& kernel) { return static_cast<CallerKernel&>(*kernel.executor_state); }

// What clones have in common.
CallerKernel& CallerDevice::original(const tg_kernel_& kernel) {
  return own(kernel.origin == nullptr ? kernel : *kernel.origin);
}

// ---- machine code ----

bool KernelCode::runs(const tg_launch& launch) const {
  if (function.load(std::memory_order_acquire) == nullptr || launch.arg_count != accepted.size()) return false;
  for (uint32_t d = 0; d < 3; ++d)
    if (local[d] != (d < launch.dims ? launch.local[d] : 1)) return false;
  for (uint32_t i = 0; i < launch.arg_count; ++i) {
    const tg_arg &own = launch.args[i], &other = accepted[i];
    if (own.is_pointer != other.is_pointer || (own.is_pointer == 0 && own.size != other.size)) return false;
  }
  return true;
}

// With the mutex held.
void CallerDevice::learn(tg_kernel_& kernel, const tg_launch& launch) {
  KernelCode& code = original(kernel).code;
  if (code.learned.load(std::memory_order_relaxed)) return;
  code.accepted.assign(launch.args, launch.args + launch.arg_count);
  for (uint32_t d = 0; d < 3; ++d) code.local[d] = d < launch.dims ? launch.local[d] : 1;
  code.learned.store(true, std::memory_order_release);
}

void CallerDevice::note_queued(tg_kernel_& kernel, const tg_launch& launch) {
  if (original(kernel).code.learned.load(std::memory_order_relaxed)) [[likely]]
    return;
  const std::unique_lock alone(team_.mutex, std::try_to_lock);
  if (alone) learn(kernel, launch);
}

bool CallerDevice::needs_code(CallerKernel& original) const {
  // PoCL loads the code when a worker first runs it, which may be later than expected.
  constexpr uint32_t kSearches = 4;
  const KernelCode& code = original.code;
  return is_other() && !calls_nothing_.load(std::memory_order_relaxed) &&
         code.function.load(std::memory_order_relaxed) == nullptr && code.learned.load(std::memory_order_acquire) &&
         code.searches.load(std::memory_order_relaxed) < kSearches;
}

// With the mutex held.
bool CallerDevice::may_call() {
  direct_.try_once(device_);
  calls_nothing_.store(direct_.release() == nullptr, std::memory_order_relaxed);
  return direct_.release() != nullptr;
}

std::pair<std::string, std::string> CallerDevice::describe() {
  if (!is_other()) return {"queues", ""};
  const std::unique_lock alone(team_.mutex);
  const bool direct = may_call();
  return {direct ? "direct" : "device", direct_.why()};
}

void CallerDevice::find_code(tg_kernel_& kernel) {
  const std::unique_lock alone(team_.mutex, std::try_to_lock);
  tg_kernel_& first = kernel.origin == nullptr ? kernel : *kernel.origin;
  if (!alone || !needs_code(own(first))) return;
  KernelCode& code = own(first).code;
  code.searches.fetch_add(1, std::memory_order_relaxed);
  open();
  if (!may_call()) return;
  cl_ulong local_memory = 1;
  cl_program program = nullptr;
  // A group's local memory would have to be found for it.
  if (code.accepted.size() > kMostArguments ||
      api_.clGetKernelWorkGroupInfo(first.kernel, device_.id, CL_KERNEL_LOCAL_MEM_SIZE, sizeof local_memory,
                                    &local_memory, nullptr) != CL_SUCCESS ||
      local_memory != 0 ||
      api_.clGetKernelInfo(first.kernel, CL_KERNEL_PROGRAM, sizeof program, &program, nullptr) != CL_SUCCESS ||
      may_have_variables(api_, program, device_.id))
    return;
  const Binary binary = binary_of(api_, program);
  const auto arguments = static_cast<uint32_t>(code.accepted.size());
  if (has_variables(binary) || may_print(binary) || may_have_local_arrays(binary, first.name, arguments)) {
    code.searches.store(UINT32_MAX, std::memory_order_relaxed);
    return;
  }
  Code found = ocl::find_code(code_folder(binary, *direct_.release()), first.name);
  code.object = std::move(found.object);
  code.function.store(found.function, std::memory_order_release);
  team_.team.start();
}

// So that it is known whether its launches may be divided.
bool CallerDevice::needs_preparing(const tg_kernel_& kernel) const {
  return !is_other() && !own(kernel).ready.load(std::memory_order_relaxed) && !own(kernel).refused;
}

void CallerDevice::prepare(tg_kernel_& kernel) {
  const std::unique_lock alone(team_.mutex, std::try_to_lock);
  if (alone && open()) kernel_of(kernel);
}

bool CallerDevice::divides(const tg_kernel_& kernel, const tg_launch& launch) const {
  const CallerKernel& mine = own(kernel);
  return mine.ready.load(std::memory_order_acquire) && find_cut(launch, mine.divisible).groups > 1;
}

// With the stream and the mutex held.
void CallerDevice::run_divided(tg_kernel_& kernel, const tg_launch& launch) {
  // To queue a piece takes 2 us where several threads do: one piece for each, unless it is long.
  constexpr uint32_t kLeastOfPiece = 50000;
  CallerKernel &mine = own(kernel), &first = original(kernel);
  LaunchCosts& costs = first.shared_costs;
  team_.team.start();
  set_arguments(kernel, mine.kernel, mine.set, launch);
  const LaunchScale scale(launch);
  const size_t pieces = std::max(team_.team.size(), costs.known(scale) / kLeastOfPiece * team_.team.size());
  costs.run(scale, std::exchange(first.code.ran, true), [&] {
    const cl_int status = ocl::run_divided(api_, mine.kernel, piece_queues_, launch, find_cut(launch, mine.divisible),
                                           pieces, team_.team, first.costs.worth_waking(scale));
    if (status != CL_SUCCESS) [[unlikely]]
      fail_call("clEnqueueNDRangeKernel", status, "kernel " + kernel.name);
  });
}

// With the mutex held.
void CallerDevice::run_code(CallerKernel& original, const tg_launch& launch, ThreadTeam* team) {
  LaunchCosts& costs = team != nullptr ? original.shared_costs : original.costs;
  const LaunchScale scale(launch);
  const WorkGroup function = original.code.function.load(std::memory_order_relaxed);
  bool ended_well = true;
  note_least(costs.run(scale, std::exchange(original.code.ran, true),
                       [&] { ended_well = run_groups(function, launch, team, original.costs.worth_waking(scale)); }));
  if (!ended_well) [[unlikely]] {
    throw Failure(TG_ERROR, "kernel " + launch.kernel->name +
                                " failed while it ran: it came to where it says that it never comes");
  }
}

void CallerDevice::note_least(uint32_t nanoseconds) {
  if (nanoseconds != 0) least_nanoseconds_ = std::min(least_nanoseconds_.load(std::memory_order_relaxed), nanoseconds);
}

std::optional<uint32_t> CallerDevice::takes(const tg_launch& launch) {
  CallerKernel& kernel = original(*launch.kernel);
  // A graph's launch has its arguments elsewhere, so that nobody asks whether they fit the code; they do once PoCL has
  // accepted them.
  const bool known = kernel.ready.load(std::memory_order_acquire) || kernel.code.function.load() != nullptr;
  if (launch.bytes == 0 || !known) return std::nullopt;
  const LaunchScale scale(launch);
  // Whoever wants a small launch to fail wants it to be one, however long it took on a busy machine.
  if (!kernel.costs.expects(scale, wake_nanoseconds() / 2, least_nanoseconds_, kTrial) &&
      !faults_armed.load(std::memory_order_relaxed))
    return std::nullopt;
  return std::max(kernel.costs.known(scale), least_nanoseconds_.load(std::memory_order_relaxed));
}

void CallerDevice::Turn::run(const tg_launch& launch, bool unchanged) {
  if (faults_armed.load(std::memory_order_relaxed)) [[unlikely]] {
    maybe_fail("small_launch");
    maybe_fail("small_launch_memory");
  }
  tg_kernel_& kernel = *launch.kernel;
  CallerKernel &mine = own(kernel), &first = original(kernel);
  if (first.code.runs(launch)) {
    device_.run_code(first, launch, nullptr);
    return;
  }
  size_t global[3];
  for (uint32_t d = 0; d < launch.dims; ++d) global[d] = launch.groups[d] * launch.local[d];
  if (mine.kernel == nullptr && (!device_.open() || device_.kernel_of(kernel) == nullptr))
    throw Failure(TG_ERROR, "kernel " + kernel.name + " cannot be run by the thread that asks");
  if (!unchanged || mine.set.empty()) set_arguments(kernel, mine.kernel, mine.set, launch);
  first.costs.run(LaunchScale(launch), true, [&] {
    check(device_.api_.clEnqueueNDRangeKernel(device_.queues_[0], mine.kernel, launch.dims, nullptr, global,
                                              launch.local, 0, nullptr, nullptr),
          "clEnqueueNDRangeKernel");
  });
}

// The most that a launch may take by the team where the program waits for it soon. Where the device has more threads,
// they would be done earlier at some time.
uint32_t CallerDevice::most_together() const {
  constexpr uint32_t kMost = 10, kMostOfAll = 3000000, kMostDivided = 300000;  // times a wake; nanoseconds
  if (team_is_all()) return is_other() ? kMostOfAll : kMostDivided;
  return std::min(kMost, units_ / (units_ - team_.team.size())) * wake_nanoseconds();
}

CallerDevice::Way CallerDevice::choose(const tg_stream_& stream, tg_kernel_& kernel, const tg_launch& launch) {
  CallerKernel& first = original(kernel);
  // Queues of the device's own hand over for a microsecond: while the program goes on, workers begin.
  const bool all = is_all(), soon = all || waits_soon(stream);
  const bool has_code = first.code.runs(launch), can_run = clock_.can_time(device_);
  const bool runs = can_run && (has_code || divides(kernel, launch));
  const Way by_this_thread = can_run && has_code ? Way::kAlone : Way::kByOpenCL;
  const LaunchScale scale(launch);
  if (runs && scale.groups > 1 && team_.team.size() > 1 && (soon || is_other())) {
    const uint32_t alone = first.costs.known(scale), together = first.shared_costs.known(scale);
    const uint64_t expected = alone != 0 ? alone : together != 0 ? uint64_t{2} * together : launch.bytes / kGuess;
    if (expected >= kWorthSharing) {
      const uint32_t most = soon ? most_together() : wake_nanoseconds();
      const uint64_t trial = all ? kTrialOfAll : kSharedTrial;
      // What one thread does as quickly by itself is not worth a second one.
      const uint32_t useful = alone != 0 ? std::min(alone, most) : most;
      if (first.shared_costs.expects(scale, useful, least_nanoseconds_, trial)) return Way::kTogether;
      return alone != 0 && alone <= most ? by_this_thread : Way::kWorkers;
    }
    if (alone == 0 && together != 0) return by_this_thread;
  }
  const uint32_t most = soon ? wake_nanoseconds() : wake_nanoseconds() / kPatience;
  const uint64_t trial = runs && all ? kTrialOfAll : kTrial;
  if (!first.costs.expects(scale, most, least_nanoseconds_, trial)) return Way::kWorkers;
  return by_this_thread == Way::kByOpenCL && own(kernel).refused ? Way::kWorkers : by_this_thread;
}

// With the stream and the mutex held.
void CallerDevice::run_by_opencl(tg_kernel_& kernel, const tg_launch& launch, bool known) {
  size_t global[3];
  for (uint32_t d = 0; d < launch.dims; ++d) global[d] = launch.groups[d] * launch.local[d];
  CallerKernel& mine = own(kernel);
  set_arguments(kernel, mine.kernel, mine.set, launch);
  const bool timed = is_timed(device_);
  cl_event event = nullptr;
  note_least(original(kernel).costs.run(LaunchScale(launch), known, [&] {
    const cl_int status = api_.clEnqueueNDRangeKernel(queues_[timed], mine.kernel, launch.dims, nullptr, global,
                                                      launch.local, 0, nullptr, timed ? &event : nullptr);
    if (status != CL_SUCCESS) [[unlikely]]
      fail_call("clEnqueueNDRangeKernel", status, "kernel " + kernel.name);
  }));
  learn(kernel, launch);
  if (timed) [[unlikely]] {
    time_command(*timer, event);
    api_.clReleaseEvent(event);
  }
}

bool CallerDevice::launch(tg_stream_& stream, tg_kernel_& kernel, const tg_launch& launch) {
  if (launch.bytes == 0) return false;
  CallerKernel& first = original(kernel);
  if (needs_code(first)) [[unlikely]]
    find_code(kernel);
  if (needs_preparing(kernel)) [[unlikely]]
    prepare(kernel);
  const Way way = choose(stream, kernel, launch);
  if (way == Way::kWorkers || !is_idle(stream)) {
    team_.team.rest();
    return false;
  }
  const std::unique_lock alone(team_.mutex, std::try_to_lock);
  if (!alone || !suits_thread() || (way == Way::kByOpenCL && !open())) return false;
  const bool known = own(kernel).kernel != nullptr;
  if (way == Way::kByOpenCL && kernel_of(kernel) == nullptr) return false;

  std::lock_guard lock(stream.mutex);
  if (stream.busy.load(std::memory_order_relaxed)) return false;  // another thread was quicker
  if (way == Way::kByOpenCL) {
    run_by_opencl(kernel, launch, known);
  } else if (first.code.runs(launch)) {
    clock_.run_timed(device_, [&] { run_code(first, launch, way == Way::kTogether ? &team_.team : nullptr); });
  } else if (way == Way::kTogether && divides(kernel, launch)) {
    clock_.run_timed(device_, [&] { run_divided(kernel, launch); });
  } else {
    return false;
  }
  stream.since_wait.fetch_add(1, std::memory_order_relaxed);
  return true;
}

}  // namespace ocl
