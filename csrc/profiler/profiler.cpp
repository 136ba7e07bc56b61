#include "profiler.h"

#include <c10/core/DeviceGuard.h>
#include <c10/util/ApproximateClock.h>
#include <c10/util/Exception.h>
#include <torch/csrc/profiler/stubs/base.h>
#include <torch/version.h>

#include <map>
#include <memory>
#include <set>
#include <unordered_map>
#include <unordered_set>

// Absent where torch was built without Kineto: then there is the older profiler alone.
#if __has_include(<libkineto.h>)
#define USE_KINETO
#define FMT_HEADER_ONLY  // torch does not export the library that Kineto's headers use
#include <libkineto.h>
#include <output_base.h>
#if __has_include(<torch/csrc/profiler/standalone/privateuse1_profiler.h>)
#include <torch/csrc/profiler/standalone/privateuse1_profiler.h>
#define TORCHGRAFT_HAS_PROFILER_REGISTRY
#endif
#endif

#include "activity.h"
#include "runtime/event.h"
#include "runtime/stream.h"

namespace torchgraft {
namespace {

// torch.autograd.profiler.profile(use_device=..., use_kineto=False): an event at the begin and the end of each
// operator.

struct Mark {
  EventPtr event;  // NULL where the device's events take no times
  int64_t host;    // ns
};

class Stubs final : public torch::profiler::impl::ProfilerStubs {
  using Handle = torch::profiler::impl::ProfilerVoidEventStub;

 public:
  void record(c10::DeviceIndex* device, Handle* event, int64_t* cpu_ns) const override {
    auto mark = std::make_shared<Mark>();
    if (device_count() > 0) {
      const c10::DeviceIndex index = current_device();
      if (device != nullptr) *device = index;
      if (get_device(index).has(TG_CAP_EVENT_TIMING)) {
        mark->event.reset(create_event(index, /*timing=*/true));
        record_event(*mark->event, current_stream(index));
      } else {
        synchronize_stream(current_stream(index));
      }
    }
    mark->host = c10::getTime();
    if (cpu_ns != nullptr) *cpu_ns = mark->host;
    *event = std::move(mark);
  }

  // Microseconds.
  float elapsed(const Handle* from, const Handle* to) const override {
    const auto &begin = *static_cast<const Mark*>(from->get()), &end = *static_cast<const Mark*>(to->get());
    const bool same_device = begin.event && end.event && begin.event->device == end.event->device;
    if (!same_device) return static_cast<float>(end.host - begin.host) * 1e-3F;
    synchronize_event(*begin.event);
    synchronize_event(*end.event);
    return static_cast<float>(elapsed_time(*begin.event, *end.event) * 1e3);
  }

  // For tools that follow a process by marks, like NVTX. The driver's contract knows of none.
  void mark(const char*) const override {}
  void rangePush(const char*) const override {}
  void rangePop() const override {}

  bool enabled() const override { return true; }

  void onEachDevice(std::function<void(int)> op) const override {
    for (c10::DeviceIndex index = 0; index < device_count(); ++index) {
      const c10::DeviceGuard guard(c10::Device(c10::DeviceType::PrivateUse1, index));
      op(index);
    }
  }

  void synchronize() const override {
    if (device_count() > 0) synchronize_device(current_device());
  }
};

}  // namespace

#ifdef USE_KINETO

namespace {

using libkineto::ActivityType;
using libkineto::GenericTraceActivity;
using Types = std::set<ActivityType>;
using Linked = libkineto::getLinkedActivityCallback;

ActivityType type_of(const Activity& activity) {
  switch (activity.kind) {
    case Activity::Launch:
      return ActivityType::CONCURRENT_KERNEL;
    case Activity::Copy:
      return ActivityType::GPU_MEMCPY;
    case Activity::Fill:
      return ActivityType::GPU_MEMSET;
    case Activity::Wait:
      break;
  }
  return ActivityType::PRIVATEUSE1_RUNTIME;
}

// Names as torch has them for CUDA, so that what reads traces knows them.
std::string name_of(const Activity& activity) {
  switch (activity.kind) {
    case Activity::Launch:
      return *activity.name;
    case Activity::Copy:
      return activity.direction == TG_COPY_HOST_TO_DEVICE   ? "Memcpy HtoD"
             : activity.direction == TG_COPY_DEVICE_TO_HOST ? "Memcpy DtoH"
                                                            : "Memcpy DtoD";
    case Activity::Fill:
      return "Memset";
    case Activity::Wait:
      break;
  }
  return activity.stream == kAllStreams ? "DeviceSynchronize" : "StreamSynchronize";
}

// "oclLaunchKernel": what the host did, as CUDA has "cudaLaunchKernel".
std::string call_of(const Activity& activity) {
  switch (activity.kind) {
    case Activity::Launch:
      return backend_name() + "LaunchKernel";
    case Activity::Copy:
      return backend_name() + "Memcpy";
    case Activity::Fill:
      return backend_name() + "Memset";
    case Activity::Wait:
      break;
  }
  return backend_name() + name_of(activity);
}

std::string triple(const std::array<uint64_t, 3>& values) {
  return "[" + std::to_string(values[0]) + ", " + std::to_string(values[1]) + ", " + std::to_string(values[2]) + "]";
}

// A text within a JSON string.
std::string escaped(const char* text) {
  std::string out;
  for (; *text != '\0'; ++text) {
    if (*text == '"' || *text == '\\') out += '\\';
    out += static_cast<unsigned char>(*text) < ' ' ? ' ' : *text;
  }
  return out;
}

// One for all, since torch keeps pointers to it.
const libkineto::TraceSpan& trace_span() {
  static const auto* span = new libkineto::TraceSpan(0, 0, backend_name());
  return *span;
}

class Session final : public libkineto::IActivityProfilerSession {
 public:
  explicit Session(Types types) : types_(std::move(types)) {}
  ~Session() override {
    if (status_ == libkineto::TraceStatus::RECORDING) abandon_collecting();
  }

  void start() override {
    start_collecting();
    status_ = libkineto::TraceStatus::RECORDING;
  }

  void stop() override {
    activities_ = stop_collecting(problems_);
    for (const std::string& problem : problems_) TORCH_WARN("profile of ", backend_name(), ": ", problem);
    status_ = libkineto::TraceStatus::PROCESSING;
  }

  std::vector<std::string> errors() override { return problems_; }

  void pushCorrelationId(uint64_t id) override { push_op(id); }
  void popCorrelationId() override { pop_op(); }
  void pushUserCorrelationId(uint64_t id) override { push_range(id); }
  void popUserCorrelationId() override { pop_range(); }

  void processTrace(libkineto::ActivityLogger& logger) override {
    processTrace(logger, [](int32_t) -> const libkineto::ITraceActivity* { return nullptr; }, 0, 0);
  }

  void processTrace(libkineto::ActivityLogger& logger, Linked linked, int64_t, int64_t) override {
    for (const Activity& activity : activities_) {
      if (wants(ActivityType::PRIVATEUSE1_RUNTIME)) log_call(activity, linked, logger);
      if (activity.kind != Activity::Wait && wants(type_of(activity))) log_command(activity, linked, logger);
    }
    if (wants(ActivityType::GPU_USER_ANNOTATION)) log_ranges(linked, logger);
    for (c10::DeviceIndex device : devices()) {
      if (device != *devices().begin()) logger.handleDeviceInfo(info_of(device), activities_.front().host_begin);
    }
  }

  // Of the first device; the others are logged above.
  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override {
    if (devices().empty()) return nullptr;
    return std::make_unique<libkineto::DeviceInfo>(info_of(*devices().begin()));
  }

  std::vector<libkineto::ResourceInfo> getResourceInfos() override {
    std::set<std::pair<c10::DeviceIndex, int64_t>> streams;
    for (const Activity& activity : activities_)
      if (activity.kind != Activity::Wait) streams.emplace(activity.device, activity.stream);
    std::vector<libkineto::ResourceInfo> infos;
    for (auto [device, stream] : streams) infos.push_back(info_of(device, stream));
    return infos;
  }

  std::string getDeviceProperties() override {
    std::string json;
    for (c10::DeviceIndex index : devices()) {
      const tg_device_properties& p = get_device(index).properties;
      if (!json.empty()) json += ", ";
      json += "{\"id\": " + std::to_string(index) + ", \"name\": \"" + escaped(p.name) + "\", \"vendor\": \"" +
              escaped(p.vendor) + "\", \"driver\": \"" + escaped(p.driver_version) +
              "\", \"totalGlobalMem\": " + std::to_string(p.total_memory) +
              ", \"numSms\": " + std::to_string(p.compute_units) + "}";
    }
    return json;
  }

  std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override { return nullptr; }  // the logger has copies

 private:
  bool wants(ActivityType type) const { return types_.count(type) != 0; }

  std::set<c10::DeviceIndex> devices() const {
    std::set<c10::DeviceIndex> indices;
    for (const Activity& activity : activities_) indices.insert(activity.device);
    return indices;
  }

  // Device tracks come below those of all processes.
  static libkineto::DeviceInfo info_of(c10::DeviceIndex index) {
    return {index, index + libkineto::kExceedMaxPid, backend_name() + ":" + std::to_string(index),
            get_device(index).properties.name};
  }

  static libkineto::ResourceInfo info_of(c10::DeviceIndex device, int64_t stream) {
    const std::string name = stream == kOwnStream ? "own stream" : "stream " + std::to_string(stream);
#if TORCH_VERSION_MINOR < 13  // where it has a constructor, which takes all in another order
    return {/*deviceId=*/device, /*id=*/stream, /*sortIndex=*/stream, name};
#else
    return {.id = stream, .sortIndex = stream, .deviceId = device, .name = name};
#endif
  }

  // What torch attributes the activity to: the operator, or else the user's own range.
  static const libkineto::ITraceActivity* asker(const Activity& activity, const Linked& linked) {
    const libkineto::ITraceActivity* found = nullptr;
    if (activity.op != 0) found = linked(static_cast<int32_t>(activity.op));
    if (found == nullptr && activity.range != 0) found = linked(static_cast<int32_t>(activity.range));
    return found;
  }

  // Host and device side have one number, and an arrow between them.
  static GenericTraceActivity traced(const Activity& activity, ActivityType type, const std::string& name, bool start,
                                     const Linked& linked) {
    GenericTraceActivity out(trace_span(), type, name);
    out.id = static_cast<int32_t>(activity.number);
    out.linked = asker(activity, linked);
    if (activity.kind != Activity::Wait) {
      out.flow.id = static_cast<uint32_t>(activity.number);
      out.flow.type = libkineto::kLinkAsyncCpuGpu;
      out.flow.start = start;
    }
    out.addMetadata("correlation", activity.number);
    return out;
  }

  static void log_call(const Activity& activity, const Linked& linked, libkineto::ActivityLogger& logger) {
    GenericTraceActivity call = traced(activity, ActivityType::PRIVATEUSE1_RUNTIME, call_of(activity), true, linked);
    call.startTime = activity.host_begin;
    call.endTime = activity.host_end;
    call.device = libkineto::processId();
    call.resource = call.threadId = activity.thread;
    call.log(logger);
  }

  static void log_command(const Activity& activity, const Linked& linked, libkineto::ActivityLogger& logger) {
    GenericTraceActivity command = traced(activity, type_of(activity), name_of(activity), false, linked);
    command.startTime = activity.begin;
    command.endTime = activity.end;
    command.device = activity.device;
    command.resource = static_cast<int32_t>(activity.stream);
    command.addMetadata("device", static_cast<int>(activity.device));
    command.addMetadata("stream", activity.stream);
    command.addMetadataQuoted("timed by", activity.timed_by_device ? "device" : "host");
    if (activity.kind == Activity::Launch) {
      command.addMetadata("grid", triple(activity.groups));
      command.addMetadata("block", triple(activity.local));
    } else {
      command.addMetadata("bytes", activity.bytes);
      const int64_t duration = activity.end - activity.begin;
      if (duration > 0) {
        command.addMetadata("memory bandwidth (GB/s)",
                            static_cast<double>(activity.bytes) / static_cast<double>(duration));
      }
    }
    command.log(logger);
  }

  // On each stream, what each record_function spans there.
  void log_ranges(const Linked& linked, libkineto::ActivityLogger& logger) const {
    struct Span {
      int64_t begin, end;
    };
    std::map<std::tuple<c10::DeviceIndex, int64_t, uint64_t>, Span> spans;
    for (const Activity& activity : activities_) {
      if (activity.kind == Activity::Wait || activity.range == 0) continue;
      auto [it, added] =
          spans.try_emplace({activity.device, activity.stream, activity.range}, Span{activity.begin, activity.end});
      if (added) continue;
      it->second.begin = std::min(it->second.begin, activity.begin);
      it->second.end = std::max(it->second.end, activity.end);
    }
    for (const auto& [key, span] : spans) {
      const auto [device, stream, range] = key;
      const libkineto::ITraceActivity* user = linked(static_cast<int32_t>(range));
      if (user == nullptr) continue;
      GenericTraceActivity out(trace_span(), ActivityType::GPU_USER_ANNOTATION, user->name());
      out.id = static_cast<int32_t>(range);
      out.startTime = span.begin;
      out.endTime = span.end;
      out.device = device;
      out.resource = static_cast<int32_t>(stream);
      out.log(logger);
    }
  }

  const Types types_;
  std::vector<Activity> activities_;
  std::vector<std::string> problems_;
};

class Profiler final : public libkineto::IActivityProfiler {
 public:
  const std::string& name() const override { return backend_name(); }

  const Types& availableActivities() const override {
    static const auto* types =
        new Types{ActivityType::CONCURRENT_KERNEL, ActivityType::GPU_MEMCPY, ActivityType::GPU_MEMSET,
                  ActivityType::GPU_USER_ANNOTATION, ActivityType::PRIVATEUSE1_RUNTIME};
    return *types;
  }

  // A session where something of the device's is asked for. Its calls alone are not: they belong to the activities of
  // the CPU as well.
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(const Types& types,
                                                                 const libkineto::Config&) override {
    for (ActivityType type : {ActivityType::CONCURRENT_KERNEL, ActivityType::GPU_MEMCPY, ActivityType::GPU_MEMSET})
      if (types.count(type) != 0) return std::make_unique<Session>(types);
    return nullptr;
  }

  std::unique_ptr<libkineto::IActivityProfilerSession> configure(int64_t, int64_t, const Types& types,
                                                                 const libkineto::Config& config) override {
    return configure(types, config);
  }
};

}  // namespace

int32_t profiled_thread_id() { return libkineto::systemThreadId(); }

void register_profiler() {
  static Stubs stubs;
  torch::profiler::impl::registerPrivateUse1Methods(&stubs);
  auto factory = [] { return std::make_unique<Profiler>(); };
#ifdef TORCHGRAFT_HAS_PROFILER_REGISTRY
  torch::profiler::impl::PrivateUse1ProfilerRegistry::instance().registerFactory(factory);
#else
  libkineto::api().registerProfilerFactory(factory);
#endif
}

#else

int32_t profiled_thread_id() { return 0; }  // nothing is collected

void register_profiler() {
  static Stubs stubs;
  torch::profiler::impl::registerPrivateUse1Methods(&stubs);
}

#endif

}  // namespace torchgraft
