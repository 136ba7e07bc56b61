#include "plan.h"

#include <ATen/core/Generator.h>
#include <ATen/native/Resize.h>
#include <c10/core/DynamicCast.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <sstream>
#include <tuple>

#include "aten/dispatch.h"
#include "memory/allocator.h"
#include "reports.h"
#include "runtime/command.h"
#include "runtime/generator.h"
#include "runtime/stream.h"
#include "unboxed.h"

namespace torchgraft {

// ---- what a plan consists of ----

std::pair<int64_t, int64_t> Chunking::divide(int64_t numel) const {
  const auto divided = [](int64_t n, int64_t by) { return (n + by - 1) / by; };
  if (numel == 0) return {0, multiple};
  int64_t groups = 1;
  if (numel > single) groups = divided(numel, per_group);
  if (max_groups != 0) groups = std::min(groups, max_groups);
  const int64_t chunk = divided(divided(numel, groups), multiple) * multiple;
  return {divided(numel, chunk), chunk};
}

Arguments::Arguments(const std::vector<LaunchArgument>& arguments) {
  for (const LaunchArgument& argument : arguments) {
    if (argument.source.kind != ArgumentSource::Fixed) patches.push_back({uint16_t(args.size()), argument.source});
    if (argument.table.defined()) tables.push_back(argument.table);
    reports |= argument.source.kind == ArgumentSource::ErrorWords;
    args.push_back(argument.fixed);
  }
}

LaunchStep::LaunchStep(std::shared_ptr<Kernel> launched, const std::vector<size_t>& sizes,
                       const std::vector<LaunchArgument>& arguments, std::optional<Chunking> rule, uint64_t bytes)
    : Arguments(arguments), kernel(std::move(launched)), chunking(rule), bytes(bytes) {
  TORCH_CHECK_VALUE(sizes.size() <= groups.size(), "a launch has at most three dimensions, not ", sizes.size());
  std::copy(sizes.begin(), sizes.end(), groups.begin());
}

RunStep::RunStep(std::shared_ptr<Program> run, const std::vector<LaunchArgument>& arguments)
    : Arguments(arguments), program(std::move(run)) {
  TORCH_CHECK_VALUE(!args.empty(), "a run has at least the address of its scratch");
}

FillStep::FillStep(Address destination, int64_t bytes, std::string_view repeated)
    : destination(destination), bytes(bytes), pattern_bytes(uint32_t(repeated.size())) {
  TORCH_CHECK_VALUE(!repeated.empty() && repeated.size() <= pattern.size(), "a fill's pattern has 1 to ",
                    pattern.size(), " bytes, not ", repeated.size());
  std::copy(repeated.begin(), repeated.end(), pattern.begin());
}

double Guard::Value::in(const Call& call) const {
  switch (kind) {
    case Number:
      return number;
    case Tensor: {
      const at::Tensor& tensor = *call.tensors[index];
      return c10::fetch_and_cast<double>(tensor.scalar_type(), tensor.const_data_ptr());
    }
    case Scalar: {
      const c10::Scalar scalar = call.scalars[index]->toScalar();
      return scalar.isComplex() ? scalar.toComplexDouble().real() : scalar.toDouble();
    }
  }
  return 0;
}

bool Guard::holds(const Call& call) const {
  const double value = subject.in(call);
  if (low && !(low->in(call) <= value)) return false;
  if (high && !(value <= high->in(call))) return false;
  return modulus == 0 || std::fmod(std::trunc(value), modulus) != 0;
}

// The call's values are such as the plan was made for.
bool Plan::serves(const Call& call) const {
  return std::all_of(guards.begin(), guards.end(), [&](const Guard& guard) { return guard.holds(call); });
}

namespace {

// Visits the slots of new results.
template <typename Visit>
void for_each_slot(const Output& output, Visit&& visit) {
  if (output.kind == Output::New || output.kind == Output::LikeArgument) visit(output.slot);
  for (const Output& item : output.items) for_each_slot(item, visit);
}

// NULL: the step has none.
const Arguments* arguments_of(const Step& step) {
  if (const auto* launch = std::get_if<LaunchStep>(&step)) return launch;
  return std::get_if<RunStep>(&step);
}

// Visits the slots that a step reads and writes.
template <typename Visit>
void for_each_slot(const Step& step, Visit&& visit) {
  if (const Arguments* arguments = arguments_of(step)) {
    for (const auto& [_, source] : arguments->patches)
      if (source.kind == ArgumentSource::Pointer || source.kind == ArgumentSource::TensorValue) visit(source.index);
  } else if (const auto* copy = std::get_if<CopyStep>(&step)) {
    visit(copy->destination.slot);
    visit(copy->source.slot);
  } else {
    visit(std::get<FillStep>(step).destination.slot);
  }
}

}  // namespace

void Plan::complete() {
  const auto check_slot = [this](uint16_t slot) {
    TORCH_CHECK_VALUE(slot < slots, "the plan of ", op, " uses slot ", slot, " of ", slots);
  };
  for (const Output& output : outputs) for_each_slot(output, check_slot);
  for (const Address& temporary : temporaries) check_slot(temporary.slot);
  for (const Step& step : steps) {
    for_each_slot(step, check_slot);
    if (const Arguments* arguments = arguments_of(step)) keep(arguments->tables);
  }
}

void Plan::keep(const std::vector<at::Tensor>& added) {
  for (const at::Tensor& table : added) {
    if (std::any_of(tables.begin(), tables.end(), [&](const at::Tensor& kept) { return kept.is_same(table); }))
      continue;
    tables.push_back(table);
    table_bytes += table.nbytes();
  }
}

namespace {

std::atomic<size_t> plan_capacity{4096};
// What the tables of one op's plans may take of a device's memory.
constexpr size_t kTableBytes = size_t{64} << 20;
std::atomic<uint64_t> clock_ticks{0};

// ---- a call is run ----

struct Replay {
  const Plan& plan;
  const Call& call;
  Device& device;
  c10::Stream current;
  tg_stream stream;
  c10::SmallVector<char*, 16> slots;
  int64_t numel = 0, chunk = 0;
  Captured captured;  // the capture that the stream is in, if any
  Reports reports;
  std::pair<uint64_t, uint64_t> philox{0, 0};
  uint32_t generator = 0;  // its number in the capture

  Replay(const Plan& plan, const Call& call)
      : plan(plan),
        call(call),
        device(get_device(call.device)),
        current(current_stream(call.device)),
        stream(stream_handle(call.device, current.id())),
        captured(capturing() ? capture_of(call.device, current.id()) : Captured()),
        reports(device, current, captured) {}

  using Results = c10::SmallVector<c10::IValue, 4>;

  void run(torch::jit::Stack* stack) {
    Results results = run(/*wants_arguments=*/true);
    torch::jit::drop(*stack, call.arguments.size());
    for (c10::IValue& result : results) stack->push_back(std::move(result));
  }

  Results run(bool wants_arguments) {
    for (const Resize& change : plan.resizes) resize(change);
    find_arguments();
    Results results;
    for (const Output& output : plan.outputs)
      results.push_back(output.kind == Output::Argument && !wants_arguments ? c10::IValue() : make(output));
    c10::DataPtr arena;  // back to the pool at the end: later work on this stream runs after ours
    if (plan.arena_bytes != 0) {
      arena = allocate(call.device, plan.arena_bytes);
      for (const auto [slot, offset] : plan.temporaries) slots[slot] = static_cast<char*>(arena.get()) + offset;
    }
    if (plan.philox_count != 0) reserve();
    // The plan may be dropped, and its tables with it, while work on this stream still reads them.
    for (const at::Tensor& table : plan.tables) keep(table.storage());
    for (const Step& step : plan.steps) std::visit([this](const auto& s) { submit(s); }, step);
    reports.raise();
    return results;
  }

  void keep(const c10::Storage& table) const {
    if (captured) [[unlikely]]
      captured->keep(table);
    else
      device_allocator()->recordStream(table.data_ptr(), current);
  }

  void resize(const Resize& change) const {
    const at::Tensor& out = *call.tensors[change.argument];
    at::native::resize_output(out, change.sizes);
    out.unsafeGetTensorImpl()->set_sizes_and_strides(change.sizes, change.strides);
  }

  void find_arguments() {
    slots.resize(plan.slots, nullptr);
    for (size_t i = 0; i < call.tensors.size(); ++i)
      if (call.tensors[i]->defined()) slots[i] = static_cast<char*>(call.tensors[i]->data_ptr());
    if (call.contiguous) numel = call.first->numel();
  }

  void reserve() {
    std::optional<at::Generator> given;
    if (call.generator != nullptr && !call.generator->isNone()) given = call.generator->toGenerator();
    const std::shared_ptr<PhiloxState>& state = philox_state(given, call.device);
    if (captured) [[unlikely]]
      std::tie(generator, philox.second) = captured->draw(state, plan.philox_count);
    else
      philox = state->reserve(plan.philox_count);
  }

  c10::IValue make(const Output& output) {
    switch (output.kind) {
      case Output::Argument:
        return *call.tensors[output.argument];
      case Output::New:
        return allocated(output, output.sizes, output.strides);
      case Output::LikeArgument: {
        const at::Tensor& like = *call.tensors[output.argument];
        return allocated(output, like.sizes(), like.strides());
      }
      case Output::View:
        return view_of(*call.tensors[output.argument], output);
      case Output::Undefined:
        return at::Tensor();
      case Output::Constant:
        return output.constant;
      case Output::List: {
        c10::List<at::Tensor> list;
        list.reserve(output.items.size());
        for (const Output& item : output.items) list.push_back(make(item).toTensor());
        return list;
      }
    }
    return {};
  }

  at::Tensor allocated(const Output& output, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
    at::Tensor tensor = empty_on_device(call.device, sizes, strides, output.dtype);
    slots[output.slot] = static_cast<char*>(tensor.data_ptr());
    return tensor;
  }

  static at::Tensor view_of(const at::Tensor& base, const Output& output) {
    at::Tensor view = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(base.storage()),
                                                               base.key_set(), base.dtype());
    view.unsafeGetTensorImpl()->set_sizes_and_strides(output.sizes, output.strides,
                                                      base.storage_offset() + output.offset);
    return view;
  }

  void submit(const LaunchStep& step) {
    std::array<size_t, 3> groups = step.groups;
    if (step.chunking) {
      if (numel == 0) return;
      std::tie(groups[0], chunk) = step.chunking->divide(numel);
    }
    c10::SmallVector<tg_arg, 16> args(step.args.begin(), step.args.end());
    for (const auto& [position, source] : step.patches) patch(args[position], source);
    const uint64_t bytes = step.bytes * (step.chunking ? uint64_t(numel) : 1);
    launch(*step.kernel, stream, {step.kernel->dims(), groups, step.kernel->local(), bytes}, args, plan.op,
           captured ? randoms(step) : c10::SmallVector<RandomArgument, 2>());
    if (step.reports) reports.submitted();
  }

  void submit(const RunStep& step) {
    c10::SmallVector<tg_arg, 16> addresses(step.args.begin(), step.args.end());
    for (const auto& [position, source] : step.patches) patch(addresses[position], source);
    torchgraft::run(*step.program, stream, addresses, plan.op,
                    captured ? randoms(step) : c10::SmallVector<RandomArgument, 2>());
  }

  c10::SmallVector<RandomArgument, 2> randoms(const Arguments& step) const {
    c10::SmallVector<RandomArgument, 2> found;
    for (const auto& [position, source] : step.patches)
      if (source.kind == ArgumentSource::Seed || source.kind == ArgumentSource::Offset)
        found.push_back(
            {position, source.kind == ArgumentSource::Seed, philox.second + uint64_t(source.offset), generator});
    return found;
  }

  void patch(tg_arg& arg, const ArgumentSource& source) {
    switch (source.kind) {
      case ArgumentSource::Pointer:
        return store_pointer(arg, slots[source.index] == nullptr ? nullptr : slots[source.index] + source.offset);
      case ArgumentSource::Scalar:
        return store_checked(arg, source.type, call.scalars[source.index]->toScalar());
      case ArgumentSource::TensorValue:
        return store_value_of(arg, source.type, *call.tensors[source.index]);
      case ArgumentSource::Numel:
        return store(arg, numel);
      case ArgumentSource::Chunk:
        return store(arg, chunk);
      case ArgumentSource::Seed:
        return store(arg, philox.first);
      case ArgumentSource::Offset:
        return store(arg, philox.second + uint64_t(source.offset));
      case ArgumentSource::ErrorWords:
        return store_pointer(arg, reports.words(plan.op));
      case ArgumentSource::Fixed:
        return;
    }
  }

  char* address_of(Address address) const { return slots[address.slot] + address.offset; }

  void submit(const CopyStep& step) {
    check(device,
          submit_copy(device, stream, address_of(step.destination), address_of(step.source), uint64_t(step.bytes),
                      TG_COPY_DEVICE_TO_DEVICE, false),
          "copy on the device");
  }

  void submit(const FillStep& step) {
    check(device,
          submit_fill(device, stream, address_of(step.destination), step.pattern.data(), step.pattern_bytes,
                      uint64_t(step.bytes)),
          "fill memory");
  }
};

}  // namespace

PlannedOp::PlannedOp(const c10::OperatorHandle& op, CpuTensors cpu_tensors, bool pointwise, const PlannedOp* before)
    : op_(op), name_(toString(op.operator_name())), signature_(op.schema(), cpu_tensors, pointwise) {
  if (before == nullptr) return;
  misses_ = before->misses();
  retired_hits_ = before->hits();
}

std::shared_ptr<Plan> PlannedOp::find(const Key& key) const {
  std::shared_lock lock(mutex_);
  auto it = plans_.find(c10::ArrayRef<uint64_t>(key));
  return it == plans_.end() ? nullptr : it->second;
}

void PlannedOp::insert(const Key& key, const std::shared_ptr<Plan>& plan) {
  // Destroyed after the lock is given up: a driver written in Python wants the GIL for it.
  std::vector<std::shared_ptr<Plan>> dropped;
  std::unique_lock lock(mutex_);
  if (plans_.size() >= plan_capacity.load(std::memory_order_relaxed)) drop_older_half(dropped);
  while (plan->table_bytes != 0 && !plans_.empty() && table_bytes_ + plan->table_bytes > kTableBytes)
    drop_older_half(dropped);
  table_bytes_ += plan->table_bytes;
  // Where there is a plan its guards have not held, and the values that came last are likely to come again.
  auto [kept, added] = plans_.try_emplace(key, plan);
  if (added) return;
  retire(*kept->second);
  dropped.push_back(std::exchange(kept->second, plan));
}

void PlannedOp::retire(const Plan& plan) {
  retired_hits_ += plan.hits.load(std::memory_order_relaxed);
  table_bytes_ -= plan.table_bytes;
}

void PlannedOp::drop_older_half(std::vector<std::shared_ptr<Plan>>& dropped) {
  std::vector<uint64_t> ages;
  for (const auto& [_, kept] : plans_) ages.push_back(kept->last_used.load(std::memory_order_relaxed));
  const auto middle = ages.begin() + ptrdiff_t(ages.size() / 2);
  std::nth_element(ages.begin(), middle, ages.end());
  std::erase_if(plans_, [&](auto& item) {
    const std::shared_ptr<Plan>& plan = item.second;
    if (plan->last_used.load(std::memory_order_relaxed) > *middle) return false;
    retire(*plan);
    dropped.push_back(plan);
    return true;
  });
}

std::shared_ptr<Plan> PlannedOp::make(const Call& call) {
  misses_.fetch_add(1, std::memory_order_relaxed);
  auto [plan, read] = request_plan(name_, call, 0);
  const uint64_t touched = touched_.fetch_or(read, std::memory_order_acq_rel) | read;
  insert(call.key(touched), plan);
  return plan;
}

std::shared_ptr<Plan> PlannedOp::plan_of(const Call& call) {
  std::shared_ptr<Plan> plan = find(call.key(touched_.load(std::memory_order_acquire)));
  if (plan == nullptr || !plan->serves(call)) [[unlikely]] {
    plan = make(call);
  } else {
    plan->hits.fetch_add(1, std::memory_order_relaxed);
  }
  plan->last_used.store(clock_ticks.fetch_add(1, std::memory_order_relaxed), std::memory_order_relaxed);
  return plan;
}

std::shared_ptr<Plan> PlannedOp::other_plan(Plan& plan, const Call& call, uint32_t refused) {
  if (std::shared_ptr<Plan> known = plan.otherwise.load(); known != nullptr && known->serves(call)) {
    known->hits.fetch_add(1, std::memory_order_relaxed);
    return known;
  }
  misses_.fetch_add(1, std::memory_order_relaxed);
  auto [other, read] = request_plan(name_, call, refused);
  // One that depends on more of the call than the key has is for this call; later ones have another key.
  if ((read & ~touched_.fetch_or(read, std::memory_order_acq_rel)) == 0) plan.otherwise.store(other);
  return other;
}

void PlannedOp::run_on_cpu(const Plan& plan, const std::string& reason, torch::jit::Stack* stack) const {
  cpu_fallback(op_, stack, reason);
  const size_t count = plan.result_strides.size();
  for (size_t i = 0; i < count; ++i) {
    c10::IValue& result = (*stack)[stack->size() - count + i];
    const c10::IntArrayRef strides = plan.result_strides[i];
    if (!result.isTensor() || !result.toTensor().defined()) continue;
    const at::Tensor made = result.toTensor();
    if (made.numel() == 0 || size_t(made.dim()) != strides.size() || made.strides() == strides) continue;
    const at::Tensor laid_out = empty_on_device(made.device().index(), made.sizes(), strides, made.scalar_type());
    result = copy_from(made, laid_out, /*non_blocking=*/false);
  }
}

void PlannedOp::run(torch::jit::Stack* stack) {
  raise_if_forked();
  const Call call(signature_, stack);
  run(plan_of(call), call, stack);
}

void PlannedOp::run(std::shared_ptr<Plan> plan, const Call& call, torch::jit::Stack* stack) {
  std::string reasons;
  const auto add = [&](const std::string& reason) {
    if (!reason.empty()) reasons += reasons.empty() ? reason : "; " + reason;
  };
  for (uint32_t refused = 1; plan->eager; ++refused) {
    const std::optional<std::string> reason = plan->eager(op_, stack);
    if (!reason) return;
    add(*reason);
    plan = other_plan(*plan, call, refused);
  }
  if (!plan->fallback) return Replay(*plan, call).run(stack);
  add(plan->reason);
  run_on_cpu(*plan, reasons, stack);
}

c10::IValue PlannedOp::run_borrowed(c10::ArrayRef<c10::IValue> arguments, bool wants_arguments) {
  raise_if_forked();
  const auto is_on_cpu = [](const c10::IValue& value) { return value.isTensor() && value.toTensor().is_cpu(); };
  torch::jit::Stack stack;
  if (signature_.cpu_tensors != CpuTensors::Value && std::any_of(arguments.begin(), arguments.end(), is_on_cpu)) {
    stack.assign(arguments.begin(), arguments.end());
    run(&stack);
    return std::move(stack.back());
  }
  const Call call(signature_, arguments);
  const std::shared_ptr<Plan> plan = plan_of(call);
  if (!plan->fallback && !plan->eager) return std::move(Replay(*plan, call).run(wants_arguments).front());
  stack.assign(arguments.begin(), arguments.end());  // with tensors of its own
  run(plan, call, &stack);
  return std::move(stack.back());
}

std::vector<std::shared_ptr<const Plan>> PlannedOp::plans() const {
  std::shared_lock lock(mutex_);
  std::vector<std::shared_ptr<const Plan>> out;
  for (const auto& [_, plan] : plans_) out.push_back(plan);
  return out;
}

uint64_t PlannedOp::hits() const {
  std::shared_lock lock(mutex_);
  uint64_t total = retired_hits_.load(std::memory_order_relaxed);
  for (const auto& [_, plan] : plans_) total += plan->hits.load(std::memory_order_relaxed);
  return total;
}

void PlannedOp::clear() {
  decltype(plans_) dropped;
  std::unique_lock lock(mutex_);
  for (const auto& [_, plan] : plans_) retire(*plan);
  dropped.swap(plans_);
  lock.unlock();
}

namespace {

struct Registry {
  std::mutex mutex;
  std::deque<PlannedOp> ops;                           // never freed, not even when replaced: calls may be running
  std::unordered_map<std::string, PlannedName> names;  // nor moved: the dispatcher holds pointers
  std::unordered_map<std::string, torch::Library> libraries;  // by namespace

  torch::Library& library(const std::string& ns) {
    auto it = libraries.find(ns);
    if (it == libraries.end())
      it = libraries
               .emplace(ns, torch::Library(torch::Library::IMPL, ns, c10::DispatchKey::PrivateUse1, __FILE__, __LINE__))
               .first;
    return it->second;
  }
};

Registry& registry() {
  static Registry* instance = new Registry;
  return *instance;
}

}  // namespace

void register_planned_op(const std::string& name, CpuTensors cpu_tensors, bool pointwise, bool dispatch) {
  Registry& r = registry();
  size_t dot = name.find('.');
  c10::OperatorHandle handle = c10::Dispatcher::singleton().findSchemaOrThrow(
      name.substr(0, dot).c_str(), dot == std::string::npos ? "" : name.substr(dot + 1).c_str());
  std::lock_guard lock(r.mutex);
  PlannedName& known = r.names[name];
  const PlannedOp* before = known.op.load(std::memory_order_relaxed);
  known.op.store(&r.ops.emplace_back(handle, cpu_tensors, pointwise, before), std::memory_order_release);
  if (dispatch && !known.dispatched) {
    std::optional<torch::CppFunction> unboxed = unboxed_kernel(handle.schema(), &known);
    r.library(name.substr(0, name.find("::")))
        .impl(name.c_str(), unboxed ? std::move(*unboxed)
                                    : torch::CppFunction::makeFromBoxedFunctor(std::make_unique<PlanKernel>(&known)));
    known.dispatched = true;
  }
}

std::vector<PlannedOp*> planned_ops() {
  Registry& r = registry();
  std::lock_guard lock(r.mutex);
  std::vector<PlannedOp*> out;
  for (PlannedOp& op : r.ops)
    if (r.names.at(op.name()).op.load(std::memory_order_relaxed) == &op) out.push_back(&op);
  return out;
}

const PlannedName& planned_name(std::string_view name) {
  Registry& r = registry();
  std::lock_guard lock(r.mutex);
  return r.names[std::string(name)];
}

void set_plan_capacity(size_t plans_per_op) { plan_capacity.store(std::max<size_t>(plans_per_op, 1)); }

namespace {

void describe(std::ostream& out, const LaunchStep& step, bool source) {
  const auto& [groups, local] = std::tie(step.groups, step.kernel->local());
  out << "  launch " << step.kernel->name() << " groups (";
  if (step.chunking)
    out << "numel / chunk";
  else
    out << groups[0] << ", " << groups[1] << ", " << groups[2];
  out << ") of (" << local[0] << ", " << local[1] << ", " << local[2] << ")\n";
  if (source) out << step.kernel->source() << "\n";
}

void describe(std::ostream& out, const RunStep& step, bool) {
  out << "  run " << step.program->name() << ", " << step.program->scratch_bytes() << " bytes of scratch\n";
}

void describe(std::ostream& out, const CopyStep& step, bool) { out << "  copy " << step.bytes << " bytes\n"; }
void describe(std::ostream& out, const FillStep& step, bool) { out << "  fill " << step.bytes << " bytes\n"; }

}  // namespace

std::string Plan::describe(bool source) const {
  std::ostringstream out;
  out << op;
  if (fallback) {
    out << ": CPU fallback: " << reason << "\n";
  } else if (eager) {
    out << ": runs other ops, " << hits.load() << " hits\n";
    if (const std::shared_ptr<Plan> other = otherwise.load()) out << "  or " << other->describe(source);
  } else {
    out << ": " << steps.size() << " steps, " << temporaries.size() << " temporaries (" << arena_bytes << " bytes), "
        << hits.load() << " hits\n";
    for (const Step& step : steps) std::visit([&](const auto& each) { torchgraft::describe(out, each, source); }, step);
  }
  return out.str();
}

}  // namespace torchgraft
