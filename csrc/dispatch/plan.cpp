#include "plan.h"

#include <ATen/Context.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/Generator.h>
#include <ATen/native/Resize.h>
#include <c10/core/DynamicCast.h>
#include <torch/library.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <deque>
#include <sstream>

#include "../runtime/allocator.h"
#include "../runtime/assertions.h"
#include "../runtime/command.h"
#include "../runtime/generator.h"
#include "../runtime/stream.h"
#include "dispatch.h"

namespace torchgraft {

namespace {

std::atomic<uint64_t> plan_epoch{0};
std::atomic<size_t> plan_capacity{4096};
std::atomic<uint64_t> clock_ticks{0};

constexpr uint64_t kLastTouchBit = 63;  // stands for all scalars from number 63 on

ArgumentKind kind_of(const c10::Argument& argument) {
  c10::TypePtr type = argument.type();
  if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  switch (type->kind()) {
    case c10::TypeKind::TensorType:
      return ArgumentKind::Tensor;
    case c10::TypeKind::NumberType:
    case c10::TypeKind::FloatType:
      return ArgumentKind::Scalar;
    case c10::TypeKind::GeneratorType:
      return ArgumentKind::Generator;
    case c10::TypeKind::ListType: {
      c10::TypePtr element = type->castRaw<c10::ListType>()->getElementType();
      if (auto optional = element->cast<c10::OptionalType>()) element = optional->getElementType();
      if (element->kind() == c10::TypeKind::TensorType) return ArgumentKind::TensorList;
      if (element->kind() == c10::TypeKind::NumberType) return ArgumentKind::ScalarList;
      return ArgumentKind::Static;
    }
    default:
      return ArgumentKind::Static;
  }
}

template <typename T>
void store(tg_arg& arg, T value) {
  static_assert(sizeof(T) <= sizeof(arg.value.bytes));
  arg.is_pointer = 0;
  arg.size = sizeof(T);
  std::memcpy(arg.value.bytes, &value, sizeof(T));
}

// Calls `convert.template operator()<T>()` with the C++ type of a ValueType and stores the answer.
template <typename Convert>
void store_as(tg_arg& arg, ValueType type, Convert&& convert) {
  switch (type) {
    case ValueType::F64:
      return store(arg, convert.template operator()<double>());
    case ValueType::F32:
      return store(arg, convert.template operator()<float>());
    case ValueType::I64:
      return store(arg, convert.template operator()<int64_t>());
    case ValueType::I32:
      return store(arg, convert.template operator()<int32_t>());
    case ValueType::I16:
      return store(arg, convert.template operator()<int16_t>());
    case ValueType::I8:
      return store(arg, convert.template operator()<int8_t>());
    case ValueType::U8:
      return store(arg, convert.template operator()<uint8_t>());
    case ValueType::B8:
      return store(arg, static_cast<uint8_t>(convert.template operator()<bool>()));
    case ValueType::C64:
      return store(arg, convert.template operator()<c10::complex<float>>());
    case ValueType::C128:
      return store(arg, convert.template operator()<c10::complex<double>>());
    case ValueType::U32:
      return store(arg, convert.template operator()<uint32_t>());
    case ValueType::U64:
      return store(arg, convert.template operator()<uint64_t>());
  }
}

// A scalar argument must fit, as on the CPU; the exception is Scalar::to's own.
void store_scalar(tg_arg& arg, ValueType type, const c10::Scalar& scalar) {
  store_as(arg, type, [&]<typename T>() { return scalar.to<T>(); });
}

// A zero-dim tensor is cast like any tensor: without a check.
void store_tensor_value(tg_arg& arg, ValueType type, const at::Tensor& tensor) {
  store_as(arg, type,
           [&]<typename T>() { return c10::fetch_and_cast<T>(tensor.scalar_type(), tensor.const_data_ptr()); });
}

const at::Tensor undefined_tensor;

[[noreturn]] void raise_devices_differ(const std::string& a, const std::string& b) {
  TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, ", a, " and ", b,
              "!");
}

}  // namespace

// One call, flattened: what the key is made of and what the plan is run on.
struct Call {
  const PlannedOp& op;
  c10::ArrayRef<c10::IValue> arguments;
  c10::SmallVector<const at::Tensor*, 12> tensors;
  c10::SmallVector<const c10::IValue*, 8> scalars;
  const at::Tensor* first = nullptr;  // the first tensor on our device
  const c10::IValue* generator = nullptr;
  c10::DeviceIndex device = -1;
  bool contiguous = false;
  Overlap overlap;

  Call(const PlannedOp& op, torch::jit::Stack* stack) : op(op) {
    if (op.cpu_tensors_ != CpuTensors::Value) upload(stack);
    arguments = torch::jit::last(*stack, op.kinds_.size());
    for (size_t i = 0; i < arguments.size(); ++i) flatten(i);
    if (first == nullptr) device = device_of_arguments();
    if (!op.written_.empty()) compare_memory();
    contiguous = op.pointwise_ && first != nullptr && all_contiguous();
  }

  void add(const at::Tensor& tensor) {
    tensors.push_back(&tensor);
    if (!tensor.defined()) return;
    if (tensor.is_privateuseone()) {
      if (first == nullptr) {
        first = &tensor;
        device = tensor.device().index();
      } else if (tensor.device().index() != device) {
        raise_devices_differ(first->device().str(), tensor.device().str());
      }
    } else if (!(tensor.is_cpu() && tensor.dim() == 0)) {
      raise_devices_differ(first ? first->device().str() : backend_name(), tensor.device().str());
    }
  }

  void flatten(size_t i) {
    const c10::IValue& value = arguments[i];
    switch (op.kinds_[i]) {
      case ArgumentKind::Tensor:
        add(value.isTensor() ? value.toTensor() : undefined_tensor);
        break;
      case ArgumentKind::TensorList:
        if (!value.isNone())
          for (const c10::IValue& item : value.toListRef()) add(item.isTensor() ? item.toTensor() : undefined_tensor);
        break;
      case ArgumentKind::Scalar:
        if (!value.isNone()) scalars.push_back(&value);
        break;
      case ArgumentKind::ScalarList:
        if (!value.isNone())
          for (const c10::IValue& item : value.toListRef()) scalars.push_back(&item);
        break;
      case ArgumentKind::Generator:
        generator = &value;
        break;
      case ArgumentKind::Static:
        break;
    }
  }

  // Ops that make tensors name their device.
  c10::DeviceIndex device_of_arguments() const {
    for (const c10::IValue& value : arguments)
      if (value.isDevice()) {
        c10::Device named = value.toDevice();
        return named.has_index() ? named.index() : current_device();
      }
    return current_device();
  }

  // Copies CPU tensors among the arguments to the device of the others.
  void upload(torch::jit::Stack* stack) {
    size_t base = stack->size() - op.kinds_.size();
    std::optional<c10::Device> target;
    bool found = false;
    auto look = [&](const c10::IValue& value, bool in_list) {
      if (!value.isTensor() || !value.toTensor().defined()) return;
      const at::Tensor& tensor = value.toTensor();
      if (tensor.is_privateuseone() && !target) target = tensor.device();
      found |= wants_upload(tensor, in_list);
    };
    for (size_t i = 0; i < op.kinds_.size(); ++i) {
      const c10::IValue& value = (*stack)[base + i];
      if (op.kinds_[i] == ArgumentKind::Tensor) look(value, false);
      if (op.kinds_[i] == ArgumentKind::TensorList && !value.isNone())
        for (const c10::IValue& item : value.toListRef()) look(item, true);
    }
    if (!found || !target) return;
    auto moved = [&](const c10::IValue& value, bool in_list) -> c10::IValue {
      if (!value.isTensor() || !value.toTensor().defined() || !wants_upload(value.toTensor(), in_list)) return value;
      const at::Tensor& source = value.toTensor();
      at::Tensor copy = empty_on_device(target->index(), source.sizes(), source.strides(), source.scalar_type());
      copy_from(source, copy, false);
      return copy;
    };
    for (size_t i = 0; i < op.kinds_.size(); ++i) {
      c10::IValue& value = (*stack)[base + i];
      bool written = std::find(op.written_.begin(), op.written_.end(), i) != op.written_.end();
      if (op.kinds_[i] == ArgumentKind::Tensor && !written) value = moved(value, false);
      if (op.kinds_[i] == ArgumentKind::TensorList && !value.isNone()) {
        c10::List<c10::IValue> list = value.toList().copy();
        for (size_t k = 0; k < list.size(); ++k) list.set(k, moved(list.get(k), true));
        value = std::move(list);
      }
    }
  }

  bool wants_upload(const at::Tensor& tensor, bool in_list) const {
    return tensor.is_cpu() && (tensor.dim() == 0 || (in_list && op.cpu_tensors_ == CpuTensors::UploadAll));
  }

  // Does a written tensor share memory with another argument?
  void compare_memory() {
    size_t slot = 0;
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (op.kinds_[i] == ArgumentKind::TensorList) {
        if (!arguments[i].isNone()) slot += arguments[i].toListRef().size();
        continue;
      }
      if (op.kinds_[i] != ArgumentKind::Tensor) continue;
      size_t own = slot++;
      bool written = false;
      for (uint16_t w : op.written_) written |= w == i;
      if (!written || !tensors[own]->defined()) continue;
      const auto* storage = tensors[own]->storage().unsafeGetStorageImpl();
      for (size_t k = 0; k < tensors.size(); ++k) {
        if (k == own || !tensors[k]->defined() || tensors[k]->storage().unsafeGetStorageImpl() != storage) continue;
        switch (at::get_overlap_status(*tensors[own], *tensors[k])) {
          case at::MemOverlapStatus::No:
            break;
          case at::MemOverlapStatus::Full:
            overlap.full = true;
            break;
          case at::MemOverlapStatus::Partial:
            overlap.partial = true;
            break;
          case at::MemOverlapStatus::TooHard:
            // An elementwise op goes on, as on the CPU; others write elsewhere first.
            overlap.unclear |= !op.pointwise_;
        }
      }
    }
  }

  bool all_contiguous() const {
    c10::IntArrayRef sizes = first->sizes();
    for (const at::Tensor* tensor : tensors) {
      if (!tensor->defined() || tensor->is_cpu()) continue;
      if (!tensor->is_contiguous() || tensor->is_conj() || tensor->is_neg()) return false;
      if (tensor != first && tensor->sizes() != sizes) return false;
    }
    return true;
  }

  // Of the four that it may be; it decides what integers and Python's floats become.
  static uint64_t default_dtype() {
    switch (c10::get_default_dtype_as_scalartype()) {
      case at::kDouble:
        return 1;
      case at::kHalf:
        return 2;
      case at::kBFloat16:
        return 3;
      default:
        return 0;
    }
  }

  Key key() const {
    Key key;
    bool large = contiguous && first->numel() > INT32_MAX;
    key.push_back(uint64_t(uint8_t(device)) | uint64_t(contiguous) << 8 | uint64_t(large) << 9 |
                  uint64_t(overlap.full) << 10 | uint64_t(overlap.partial) << 11 | uint64_t(overlap.unclear) << 12 |
                  uint64_t(at::globalContext().deterministicAlgorithms()) << 13 | default_dtype() << 14 |
                  plan_epoch.load(std::memory_order_relaxed) << 16);
    size_t tensor = 0, scalar = 0;
    uint64_t touched = op.touched_.load(std::memory_order_acquire);
    for (size_t i = 0; i < arguments.size(); ++i) {
      const c10::IValue& value = arguments[i];
      switch (op.kinds_[i]) {
        case ArgumentKind::Tensor:
          add_tensor(key, *tensors[tensor++]);
          break;
        case ArgumentKind::TensorList: {
          if (value.isNone()) {
            key.push_back(~uint64_t(0));
            break;
          }
          size_t count = value.toListRef().size();
          key.push_back(count);
          for (size_t k = 0; k < count; ++k) add_tensor(key, *tensors[tensor++]);
          break;
        }
        case ArgumentKind::Scalar:
          if (value.isNone())
            key.push_back(~uint64_t(0));
          else
            add_scalar(key, value, is_touched(touched, scalar++));
          break;
        case ArgumentKind::ScalarList:
          if (value.isNone()) {
            key.push_back(~uint64_t(0));
            break;
          }
          key.push_back(value.toListRef().size());
          for (const c10::IValue& item : value.toListRef()) add_scalar(key, item, is_touched(touched, scalar++));
          break;
        case ArgumentKind::Static:
          add_static(key, value);
          break;
        case ArgumentKind::Generator:
          break;
      }
    }
    return key;
  }

  double number(const Guard::Value& value) const {
    if (value.kind == Guard::Value::Number) return value.number;
    if (value.kind == Guard::Value::Tensor) {
      const at::Tensor& tensor = *tensors[value.index];
      return c10::fetch_and_cast<double>(tensor.scalar_type(), tensor.const_data_ptr());
    }
    const c10::Scalar scalar = scalars[value.index]->toScalar();
    return scalar.isComplex() ? scalar.toComplexDouble().real() : scalar.toDouble();
  }

  // The call's values are such as the plan was made for.
  bool obeys(const std::vector<Guard>& guards) const {
    for (const Guard& guard : guards) {
      double value = number(guard.subject);
      if (guard.low.kind != Guard::Value::None && !(number(guard.low) <= value)) return false;
      if (guard.high.kind != Guard::Value::None && !(value <= number(guard.high))) return false;
      if (guard.modulus != 0 && std::fmod(std::trunc(value), guard.modulus) == 0) return false;
    }
    return true;
  }

  static bool is_touched(uint64_t touched, size_t scalar) {
    return touched >> std::min<uint64_t>(scalar, kLastTouchBit) & 1;
  }

  void add_tensor(Key& key, const at::Tensor& tensor) const {
    if (!tensor.defined()) {
      key.push_back(0);
      return;
    }
    const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
    uint64_t dim = tensor.dim();
    uint64_t word = 1 | uint64_t(tensor.scalar_type()) << 8 | uint64_t(impl->is_wrapped_number()) << 1 |
                    uint64_t(tensor.is_cpu()) << 2 | uint64_t(tensor.is_conj()) << 3 | uint64_t(tensor.is_neg()) << 4;
    if (contiguous) {
      key.push_back(word | uint64_t(dim == 0) << 16);
      return;
    }
    key.push_back(word | dim << 16);
    key.append(tensor.sizes().begin(), tensor.sizes().end());
    key.append(tensor.strides().begin(), tensor.strides().end());
  }

  static void add_scalar(Key& key, const c10::IValue& value, bool with_value) {
    if (value.isDouble()) {
      key.push_back(1);
      if (with_value) key.push_back(std::bit_cast<uint64_t>(value.toDouble()));
    } else if (value.isInt()) {
      key.push_back(2);
      if (with_value) key.push_back(uint64_t(value.toInt()));
    } else if (value.isBool()) {
      key.push_back(3);
      if (with_value) key.push_back(value.toBool());
    } else {
      key.push_back(4);
      if (with_value) {
        c10::complex<double> number = value.toScalar().to<c10::complex<double>>();
        key.push_back(std::bit_cast<uint64_t>(number.real()));
        key.push_back(std::bit_cast<uint64_t>(number.imag()));
      }
    }
  }

  static void add_static(Key& key, const c10::IValue& value) {
    if (value.isNone()) {
      key.push_back(1);
    } else if (value.isInt()) {
      key.push_back(2);
      key.push_back(uint64_t(value.toInt()));
    } else if (value.isBool()) {
      key.push_back(value.toBool() ? 4 : 3);
    } else if (value.isDouble() || value.isComplexDouble()) {
      key.push_back(5);
      add_scalar(key, value, true);
    } else if (value.isString()) {
      c10::string_view text = value.toStringView();
      key.push_back(6 | text.size() << 8);
      for (size_t i = 0; i < text.size(); i += 8) {
        uint64_t word = 0;
        std::memcpy(&word, text.data() + i, std::min<size_t>(8, text.size() - i));
        key.push_back(word);
      }
    } else if (value.isDevice()) {
      key.push_back(7 | uint64_t(uint8_t(value.toDevice().type())) << 8 |
                    uint64_t(uint8_t(value.toDevice().index())) << 16);
    } else if (value.isIntList()) {
      auto list = value.toIntVector();
      key.push_back(8 | uint64_t(list.size()) << 8);
      key.append(list.begin(), list.end());
    } else if (value.isList()) {
      auto list = value.toList();
      key.push_back(9 | uint64_t(list.size()) << 8);
      for (size_t i = 0; i < list.size(); ++i) add_static(key, list.get(i));
    } else {
      TORCH_CHECK_NOT_IMPLEMENTED(false, "a planned op cannot have an argument of kind ", value.tagKind());
    }
  }
};

namespace {

struct Replay {
  const Plan& plan;
  const Call& call;
  Device& device;
  c10::Stream current;
  tg_stream stream;
  c10::SmallVector<char*, 16> slots;
  int64_t numel = 0, chunk = 0;
  std::optional<CallErrors> errors;  // what the call's kernels report, where it waits for them
  std::pair<uint64_t, uint64_t> philox{0, 0};

  Replay(const Plan& plan, const Call& call)
      : plan(plan),
        call(call),
        device(get_device(call.device)),
        current(current_stream(call.device)),
        stream(stream_handle(call.device, current.id())) {}

  void run(torch::jit::Stack* stack) {
    for (const Resize& resize : plan.resizes) {
      const at::Tensor& out = *call.tensors[resize.argument];
      at::native::resize_output(out, resize.sizes);
      out.unsafeGetTensorImpl()->set_sizes_and_strides(resize.sizes, resize.strides);
    }
    slots.resize(plan.slots, nullptr);
    for (size_t i = 0; i < call.tensors.size(); ++i)
      if (call.tensors[i]->defined()) slots[i] = static_cast<char*>(call.tensors[i]->data_ptr());
    if (call.contiguous) numel = call.first->numel();
    c10::SmallVector<c10::IValue, 4> results;
    for (const Output& output : plan.outputs) results.push_back(make(output));
    c10::DataPtr arena;  // back to the pool at the end: later work on this stream runs after ours
    if (plan.arena_bytes != 0) {
      arena = allocate(call.device, plan.arena_bytes);
      for (auto [slot, offset] : plan.temporaries) slots[slot] = static_cast<char*>(arena.get()) + offset;
    }
    if (plan.philox_count != 0) {
      std::optional<at::Generator> generator;
      if (call.generator != nullptr && !call.generator->isNone()) generator = call.generator->toGenerator();
      philox = reserve_philox(generator, call.device, plan.philox_count);
    }
    // The plan may be dropped, and its tables with it, while work on this stream still reads them.
    for (const at::Tensor& table : plan.tables) device_allocator()->recordStream(table.storage().data_ptr(), current);
    for (const Step& step : plan.steps) std::visit([this](const auto& s) { submit(s); }, step);
    // A CPU's kernels share its cores with the caller, so that waiting for the few that look at what they are given
    // costs little; and the error comes from the line that caused it.
    if (errors) errors->raise();
    torch::jit::drop(*stack, call.arguments.size());
    for (c10::IValue& result : results) stack->push_back(std::move(result));
  }

  c10::IValue make(const Output& output) {
    switch (output.kind) {
      case Output::Argument:
        return *call.tensors[output.argument];
      case Output::New: {
        at::Tensor tensor = empty_on_device(call.device, output.sizes, output.strides, output.dtype);
        slots[output.slot] = static_cast<char*>(tensor.data_ptr());
        return tensor;
      }
      case Output::LikeArgument: {
        const at::Tensor& like = *call.tensors[output.argument];
        at::Tensor tensor = empty_on_device(call.device, like.sizes(), like.strides(), output.dtype);
        slots[output.slot] = static_cast<char*>(tensor.data_ptr());
        return tensor;
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

  static at::Tensor view_of(const at::Tensor& base, const Output& output) {
    at::Tensor view = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(base.storage()),
                                                               base.key_set(), base.dtype());
    view.unsafeGetTensorImpl()->set_sizes_and_strides(output.sizes, output.strides,
                                                      base.storage_offset() + output.offset);
    return view;
  }

  void submit(const LaunchStep& step) {
    std::array<size_t, 3> groups = step.groups;
    if (step.chunking.multiple != 0) {
      if (numel == 0) return;
      chunk = step.chunking.chunk(numel);
      groups[0] = size_t((numel + chunk - 1) / chunk);
    }
    c10::SmallVector<tg_arg, 16> args(step.args.begin(), step.args.end());
    for (const auto& [position, source] : step.patches) patch(args[position], source);
    launch(*step.kernel, stream, {step.kernel->dims(), groups, step.kernel->local()}, args, plan.op);
    if (step.reports && !errors) note_checked_launch(call.device, current.id());
  }

  void* error_words() {
    if (device.properties.kind != TG_DEVICE_CPU) return stream_error_words(call.device, current.id());
    if (!errors) errors.emplace(device, current);
    return errors->words();
  }

  void patch(tg_arg& arg, const LaunchArg& source) {
    switch (source.source) {
      case ArgSource::Pointer:
        arg.is_pointer = 1;
        arg.size = sizeof(void*);
        arg.value.pointer = slots[source.index] == nullptr ? nullptr : slots[source.index] + source.offset;
        break;
      case ArgSource::Scalar:
        store_scalar(arg, source.type, call.scalars[source.index]->toScalar());
        break;
      case ArgSource::TensorValue:
        store_tensor_value(arg, source.type, *call.tensors[source.index]);
        break;
      case ArgSource::Numel:
        store_as(arg, source.type, [&]<typename T>() { return static_cast<T>(numel); });
        break;
      case ArgSource::Chunk:
        store_as(arg, source.type, [&]<typename T>() { return static_cast<T>(chunk); });
        break;
      case ArgSource::Seed:
        store(arg, philox.first);
        break;
      case ArgSource::Offset:
        store(arg, philox.second + uint64_t(source.offset));
        break;
      case ArgSource::ErrorWords:
        arg.is_pointer = 1;
        arg.size = sizeof(void*);
        arg.value.pointer = error_words();
        break;
      case ArgSource::Constant:
        break;
    }
  }

  void submit(const CopyStep& step) {
    check(device,
          submit_copy(device, stream, slots[step.destination] + step.destination_offset,
                      slots[step.source] + step.source_offset, uint64_t(step.bytes), TG_COPY_DEVICE_TO_DEVICE, false),
          "copy on the device");
  }

  void submit(const FillStep& step) {
    check(device,
          submit_fill(device, stream, slots[step.slot] + step.offset, step.pattern.data(), step.pattern_bytes,
                      uint64_t(step.bytes)),
          "fill memory");
  }
};

}  // namespace

PlannedOp::PlannedOp(c10::OperatorHandle op, CpuTensors cpu_tensors, bool pointwise, const PlannedOp* before)
    : op_(op), name_(toString(op.operator_name())), cpu_tensors_(cpu_tensors), pointwise_(pointwise) {
  if (before != nullptr) {
    misses_ = before->misses();
    retired_hits_ = before->hits();
  }
  const auto& arguments = op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    kinds_.push_back(kind_of(arguments[i]));
    const c10::AliasInfo* alias = arguments[i].alias_info();
    if (alias != nullptr && alias->isWrite()) written_.push_back(uint16_t(i));
  }
}

std::shared_ptr<Plan> PlannedOp::find(const Key& key) const {
  std::shared_lock lock(mutex_);
  auto it = plans_.find(c10::ArrayRef<uint64_t>(key));
  return it == plans_.end() ? nullptr : it->second;
}

void PlannedOp::insert(const Key& key, const std::shared_ptr<Plan>& plan) {
  std::vector<std::shared_ptr<Plan>>
      dropped;  // destroyed after the lock: a driver written in Python wants the GIL for it
  std::unique_lock lock(mutex_);
  size_t capacity = plan_capacity.load(std::memory_order_relaxed);
  if (plans_.size() >= capacity) {  // forget the half that was used longest ago
    std::vector<uint64_t> ages;
    for (const auto& [_, kept] : plans_) ages.push_back(kept->last_used.load(std::memory_order_relaxed));
    auto middle = ages.begin() + ptrdiff_t(ages.size() / 2);
    std::nth_element(ages.begin(), middle, ages.end());
    for (auto it = plans_.begin(); it != plans_.end();) {
      if (it->second->last_used.load(std::memory_order_relaxed) <= *middle) {
        retired_hits_ += it->second->hits.load(std::memory_order_relaxed);
        dropped.push_back(std::move(it->second));
        it = plans_.erase(it);
      } else {
        ++it;
      }
    }
  }
  // Where there is a plan its guards have not held, and the values that came last are likely to come again.
  auto [kept, added] = plans_.try_emplace(key, plan);
  if (added) return;
  retired_hits_ += kept->second->hits.load(std::memory_order_relaxed);
  dropped.push_back(std::exchange(kept->second, plan));
}

std::shared_ptr<Plan> PlannedOp::make(Call& call, torch::jit::Stack* stack) {
  misses_.fetch_add(1, std::memory_order_relaxed);
  auto [plan, touched] = request_plan({name_, stack, kinds_.size(), call.device, call.contiguous, call.overlap});
  if ((touched & ~touched_.load(std::memory_order_relaxed)) != 0) touched_.fetch_or(touched, std::memory_order_release);
  insert(call.key(), plan);
  return plan;
}

void PlannedOp::run(torch::jit::Stack* stack) {
  raise_if_forked();
  Call call(*this, stack);
  std::shared_ptr<Plan> plan = find(call.key());
  if (plan == nullptr || !call.obeys(plan->guards)) [[unlikely]] {
    plan = make(call, stack);
  } else {
    plan->hits.fetch_add(1, std::memory_order_relaxed);
  }
  plan->last_used.store(clock_ticks.fetch_add(1, std::memory_order_relaxed), std::memory_order_relaxed);
  if (plan->fallback) return cpu_fallback(op_, stack);
  if (plan->eager) return plan->eager(op_, stack);
  Replay(*plan, call).run(stack);
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
  for (const auto& [_, plan] : plans_) retired_hits_ += plan->hits.load(std::memory_order_relaxed);
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
    r.library(name.substr(0, name.find("::")))
        .impl(name.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<PlanKernel>(&known)));
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

void run_plan(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  Registry& r = registry();
  PlannedOp* planned = nullptr;
  {
    std::lock_guard lock(r.mutex);
    auto it = r.names.find(toString(op.operator_name()));
    if (it != r.names.end()) planned = it->second.op.load(std::memory_order_relaxed);
  }
  TORCH_CHECK_NOT_IMPLEMENTED(planned != nullptr, "no planner for ", op.operator_name());
  planned->run(stack);
}

void set_plan_epoch(uint64_t epoch) { plan_epoch.store(epoch); }
void set_plan_capacity(size_t plans_per_op) { plan_capacity.store(std::max<size_t>(plans_per_op, 1)); }

std::string Plan::describe(bool source) const {
  std::ostringstream out;
  out << op;
  if (fallback) {
    out << ": CPU fallback: " << reason << "\n";
    return out.str();
  }
  if (eager) {
    out << ": runs other ops, " << hits.load() << " hits\n";
    return out.str();
  }
  out << ": " << steps.size() << " steps, " << temporaries.size() << " temporaries (" << arena_bytes << " bytes), "
      << hits.load() << " hits\n";
  for (const Step& step : steps) {
    if (const auto* launch = std::get_if<LaunchStep>(&step)) {
      out << "  launch " << launch->kernel->name() << " groups (";
      if (launch->chunking.multiple != 0)
        out << "numel / chunk";
      else
        out << launch->groups[0] << ", " << launch->groups[1] << ", " << launch->groups[2];
      const auto& local = launch->kernel->local();
      out << ") of (" << local[0] << ", " << local[1] << ", " << local[2] << ")\n";
      if (source) out << launch->kernel->source() << "\n";
    } else if (const auto* copy = std::get_if<CopyStep>(&step)) {
      out << "  copy " << copy->bytes << " bytes\n";
    } else {
      out << "  fill " << std::get<FillStep>(step).bytes << " bytes\n";
    }
  }
  return out.str();
}

}  // namespace torchgraft
