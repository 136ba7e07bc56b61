#include "capture.h"

#include <ATen/EmptyTensor.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "memory/host_allocator.h"
#include "runtime/kernel.h"
#include "runtime/place.h"
#include "runtime/program.h"
#include "runtime/stream.h"

namespace torchgraft {

namespace detail {
constinit std::atomic<int> captures{0};
constinit thread_local int captures_suspended = 0;
}  // namespace detail

namespace {

using Key = std::pair<c10::DeviceIndex, c10::StreamId>;

struct Table {
  std::mutex mutex;
  std::map<Key, std::shared_ptr<Capture>> streams;  // that are being captured
};
Table& table() {
  static auto* instance = new Table;  // outlives the threads that may still ask
  return *instance;
}

std::string name_of(c10::DeviceIndex index) { return backend_name() + ":" + std::to_string(index); }

std::string called_at() {
  const std::string place = user_place();
  return place.empty() ? "" : " (called at " + place + ")";
}

}  // namespace

// ---- what is recorded ----

uint16_t Capture::branch_of(c10::StreamId stream) {
  const auto found = std::ranges::find(branches_, stream, &Branch::stream);
  const auto place = static_cast<uint16_t>(found - branches_.begin());
  if (found == branches_.end()) branches_.push_back({stream});
  return place;
}

Node& Capture::add(c10::StreamId stream, std::string op, decltype(Node::action) action) {
  const uint16_t branch = branch_of(stream);
  ++branches_[branch].commands;
  return append(branch, std::move(op), std::move(action));
}

Node& Capture::append(uint16_t branch, std::string op, decltype(Node::action) action) {
  // By another thread, which had begun before the end.
  TORCH_CHECK(!taken_, "the capture of this stream is over: its commands came too late");
  if (symbolic_memory_ != nullptr) symbolic_memory_->count_command();
  return recording_.nodes.emplace_back(branch, std::move(op), std::move(action));
}

void Capture::launch(c10::StreamId stream, const tg_launch& launch, std::shared_ptr<const Kernel> kernel,
                     std::string op, c10::ArrayRef<RandomArgument> randoms) {
  DeviceCommand recorded{{}, std::move(kernel), {launch.args, launch.args + launch.arg_count}};
  recorded.command.kind = TG_COMMAND_LAUNCH;
  recorded.command.launch = launch;
  recorded.command.launch.args = recorded.arguments.data();
  std::lock_guard lock(mutex_);
  draw_for_next(randoms);
  add(stream, std::move(op), std::move(recorded));
}

void Capture::draw_for_next(c10::ArrayRef<RandomArgument> randoms) {
  for (const RandomArgument& each : randoms)
    recording_.randoms.push_back({static_cast<uint32_t>(recording_.nodes.size()), each});
}

void Capture::run(c10::StreamId stream, std::shared_ptr<const Program> program, c10::ArrayRef<tg_arg> addresses,
                  std::string op, c10::ArrayRef<RandomArgument> randoms) {
  DeviceCommand recorded{};
  recorded.command.kind = TG_COMMAND_RUN;
  recorded.arguments = addresses.vec();
  recorded.run = std::make_unique<DeviceCommand::Run>();
  DeviceCommand::Run& made = *recorded.run;
  for (size_t i = 0; i + 1 < addresses.size(); ++i) made.addresses.push_back(place_of(recorded.arguments[i]));
  made.record = {sizeof(tg_run), static_cast<uint32_t>(made.addresses.size()), program->handle(), made.addresses.data(),
                 addresses.back().value.pointer};
  recorded.command.source = &made.record;
  recorded.program = std::move(program);
  std::lock_guard lock(mutex_);
  draw_for_next(randoms);
  add(stream, std::move(op), std::move(recorded));
}

void DeviceCommand::set(uint32_t argument, const tg_arg& value) {
  arguments[argument] = value;
  if (run == nullptr || value.is_pointer == 0) return;
  (argument < run->addresses.size() ? run->addresses[argument] : run->record.scratch) = value.value.pointer;
}

void Capture::copy(c10::StreamId stream, void* destination, const void* source, uint64_t bytes, tg_copy_kind kind) {
  DeviceCommand recorded{};
  recorded.command.kind = TG_COMMAND_COPY;
  recorded.command.copy_kind = kind;
  recorded.command.destination = destination;
  recorded.command.source = source;
  recorded.command.bytes = bytes;
  std::lock_guard lock(mutex_);
  add(stream, "", std::move(recorded));
}

void Capture::fill(c10::StreamId stream, void* destination, const void* pattern, uint32_t pattern_bytes,
                   uint64_t bytes) {
  DeviceCommand recorded{};
  recorded.command.kind = TG_COMMAND_FILL;
  recorded.command.destination = destination;
  recorded.command.bytes = bytes;
  recorded.command.pattern_bytes = pattern_bytes;
  std::memcpy(recorded.command.pattern, pattern, pattern_bytes);
  std::lock_guard lock(mutex_);
  add(stream, "", std::move(recorded));
}

namespace {

struct Span {
  const char *first, *behind;
};

Span span_of(const at::Tensor& tensor) {
  const auto* first = static_cast<const char*>(tensor.const_data_ptr());
  return {first, first + at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize())};
}

// Gives tensors storages of their own, without memory yet, so that nothing keeps what they had: one for all that had
// one, from the first byte in use to the last. What was there may lie elsewhere, in memory of another size.
std::vector<HostFunction::Memory> taken_apart(const std::string& op, const std::vector<at::Tensor>& tensors) {
  std::vector<std::pair<c10::Storage, Span>> spans;
  const auto entry = [&](const at::Tensor& tensor) {
    return std::ranges::find_if(spans, [&](const auto& known) { return known.first.is_alias_of(tensor.storage()); });
  };
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel() == 0) continue;
    const Span span = span_of(tensor);
    if (const auto known = entry(tensor); known == spans.end())
      spans.emplace_back(tensor.storage(), span);
    else
      known->second = {std::min(known->second.first, span.first), std::max(known->second.behind, span.behind)};
  }
  std::vector<HostFunction::Memory> memory;
  const auto storage_of = [](c10::Device device, size_t bytes) {
    return c10::Storage(c10::Storage::use_byte_size_t(), bytes, at::DataPtr(nullptr, device), /*allocator=*/nullptr,
                        /*resizable=*/false);
  };
  for (const auto& [storage, span] : spans)
    memory.push_back({storage_of(storage.device(), size_t(span.behind - span.first)), span.first});
  for (const at::Tensor& tensor : tensors) {
    const auto known = entry(tensor);
    const bool is_empty = tensor.numel() == 0;
    const int64_t bytes = is_empty ? 0 : span_of(tensor).first - known->second.first;
    const auto item = static_cast<int64_t>(tensor.itemsize());
    TORCH_CHECK(bytes % item == 0, "the tensors of ", op, " lie in one memory, but not by whole elements");
    c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
    impl->set_storage_keep_dtype(is_empty ? storage_of(tensor.device(), 0)
                                          : memory[size_t(known - spans.begin())].storage);
    impl->set_storage_offset(bytes / item);
  }
  return memory;
}

}  // namespace

void Capture::function(c10::StreamId stream, std::string op, std::function<void()> run,
                       const std::vector<at::Tensor>& tensors) {
  std::vector<HostFunction::Memory> memory;
  if (symbolic_memory_ != nullptr) memory = taken_apart(op, tensors);
  std::lock_guard lock(mutex_);
  add(stream, std::move(op), HostFunction{std::move(run), std::move(memory)});
}

uint32_t Capture::mark(c10::StreamId stream) {
  std::lock_guard lock(mutex_);
  Branch& branch = branches_[branch_of(stream)];
  std::vector<uint64_t> seen = branch.seen;
  seen.resize(branches_.size());
  seen[branch_of(stream)] = branch.commands;
  marks_.push_back(std::move(seen));
  append(branch_of(stream), "", Mark{recording_.marks});
  return recording_.marks++;
}

void Capture::see(Branch& branch, const std::vector<uint64_t>& seen) {
  branch.seen.resize(branches_.size());
  for (size_t i = 0; i < seen.size(); ++i) branch.seen[i] = std::max(branch.seen[i], seen[i]);
}

void Capture::wait(c10::StreamId stream, uint32_t mark) {
  std::lock_guard lock(mutex_);
  see(branches_[branch_of(stream)], marks_[mark]);
  append(branch_of(stream), "", WaitForMark{mark});
}

std::pair<uint32_t, uint64_t> Capture::draw(const std::shared_ptr<PhiloxState>& generator, uint64_t count) {
  std::lock_guard lock(mutex_);
  auto& all = recording_.generators;
  auto found = std::ranges::find(all, generator, &Recording::Generator::state);
  if (found == all.end()) found = all.insert(all.end(), {generator, 0});
  return {static_cast<uint32_t>(found - all.begin()), std::exchange(found->count, found->count + count)};
}

void* Capture::error_words(const std::string& op) {
  const std::string place = user_place();
  std::string text = place.empty() ? "captured for " + op : "captured at " + place;
  text += symbolic_memory_ == nullptr ? ", found when the graph was replayed" : ", in a compiled graph";
  GilSafeLock lock(words_mutex_);
  if (recording_.errors == nullptr)
    recording_.errors = std::make_shared<GraphErrors>(get_device(origin_.device_index()));
  return recording_.errors->add(std::move(text));
}

void Capture::keep(c10::Storage storage) {
  std::lock_guard lock(mutex_);
  recording_.kept.push_back(std::move(storage));
}

void Capture::fail(const std::string& why) {
  std::lock_guard lock(mutex_);
  if (failure_.empty()) failure_ = why;
}

Recording Capture::take() {
  GilSafeLock words_lock(words_mutex_);
  std::lock_guard lock(mutex_);
  taken_ = true;
  TORCH_CHECK(failure_.empty(), "the capture has failed and there is no graph: ", failure_);
  const std::vector<uint64_t>& seen = branches_[0].seen;
  for (size_t i = 1; i < branches_.size(); ++i)
    TORCH_CHECK(i < seen.size() && seen[i] == branches_[i].commands,
                "the capture has failed and there is no graph: ", "stream ", branches_[i].stream, " of ",
                name_of(origin_.device_index()),
                " joined it, and the stream on which it began has not waited for all that was given to that one; call "
                "wait_stream before the end of the capture");
  recording_.branches = static_cast<uint16_t>(branches_.size());
  return std::move(recording_);
}

// ---- which streams are being captured ----

Captured capture_of(c10::DeviceIndex index, c10::StreamId stream) {
  if (detail::captures_suspended != 0) return {};
  std::lock_guard lock(table().mutex);
  const auto found = table().streams.find({index, stream});
  return found == table().streams.end() ? Captured{} : Captured{found->second, stream};
}

Captured capture_of(c10::DeviceIndex index, tg_stream stream) { return capture_of(index, stream_id(index, stream)); }

Captured capture_of_current(c10::DeviceIndex index) { return capture_of(index, current_stream(index).id()); }

void refuse_in_capture(c10::DeviceIndex index, c10::StreamId stream, const std::string& what) {
  if (!capturing()) [[likely]]
    return;
  const Captured captured = capture_of(index, stream);
  if (!captured) return;
  const std::string text = what + " cannot be captured into a graph, and the current stream of " + name_of(index) +
                           " is being captured" + called_at() + ". Do it before the capture or after it.";
  captured->fail(text);
  TORCH_CHECK(false, text);
}

void enter_capture(const std::shared_ptr<Capture>& capture, c10::StreamId stream) {
  const c10::DeviceIndex index = capture->origin().device_index();
  std::lock_guard lock(table().mutex);
  TORCH_CHECK(!capture->over, "stream ", stream, " of ", name_of(index), " cannot join a capture that is over");
  const bool entered = table().streams.try_emplace({index, stream}, capture).first->second == capture;
  TORCH_CHECK(entered, "stream ", stream, " of ", name_of(index), " is being captured into another graph");
}

void begin_capture(const std::shared_ptr<Capture>& capture) {
  enter_capture(capture, capture->origin().id());
  detail::captures.fetch_add(1);
}

void end_capture(const std::shared_ptr<Capture>& capture) noexcept {
  std::lock_guard lock(table().mutex);
  capture->over = true;
  if (std::erase_if(table().streams, [&](const auto& entry) { return entry.second == capture; }) != 0)
    detail::captures.fetch_sub(1);
}

}  // namespace torchgraft
