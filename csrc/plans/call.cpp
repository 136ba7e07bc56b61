#include "call.h"

#include <ATen/Context.h>
#include <ATen/MemoryOverlap.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "aten/dispatch.h"
#include "runtime/device.h"
#include "runtime/stream.h"

namespace torchgraft {

namespace {

constexpr uint64_t kLastTouchBit = 63;  // stands for all scalars from number 63 on
constexpr uint64_t kLeftOut = ~uint64_t(0);

const at::Tensor undefined_tensor;

ArgumentKind kind_of_list(const c10::TypePtr& list) {
  c10::TypePtr element = list->castRaw<c10::ListType>()->getElementType();
  if (auto optional = element->cast<c10::OptionalType>()) element = optional->getElementType();
  if (element->kind() == c10::TypeKind::TensorType) return ArgumentKind::TensorList;
  if (element->kind() == c10::TypeKind::NumberType) return ArgumentKind::ScalarList;
  return ArgumentKind::Static;
}

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
    case c10::TypeKind::ListType:
      return kind_of_list(type);
    default:
      return ArgumentKind::Static;
  }
}

const at::Tensor& tensor_in(const c10::IValue& value) { return value.isTensor() ? value.toTensor() : undefined_tensor; }

[[noreturn]] void raise_devices_differ(const std::string& a, const std::string& b) {
  TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, ", a, " and ", b,
              "!");
}

// Of the four that it may be; it decides what integers and Python's floats become.
uint64_t default_dtype() {
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

bool is_touched(uint64_t touched, size_t scalar) { return touched >> std::min<uint64_t>(scalar, kLastTouchBit) & 1; }

void add_scalar(Key& key, const c10::IValue& value, bool with_value) {
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
    if (!with_value) return;
    c10::complex<double> number = value.toScalar().to<c10::complex<double>>();
    key.push_back(std::bit_cast<uint64_t>(number.real()));
    key.push_back(std::bit_cast<uint64_t>(number.imag()));
  }
}

void add_text(Key& key, c10::string_view text) {
  key.push_back(6 | text.size() << 8);
  for (size_t i = 0; i < text.size(); i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, text.data() + i, std::min<size_t>(8, text.size() - i));
    key.push_back(word);
  }
}

void add_static(Key& key, const c10::IValue& value) {
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
    add_text(key, value.toStringView());
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

}  // namespace

Signature::Signature(const c10::FunctionSchema& schema, CpuTensors cpu_tensors, bool pointwise)
    : cpu_tensors(cpu_tensors), pointwise(pointwise) {
  const auto& arguments = schema.arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    kinds.push_back(kind_of(arguments[i]));
    const c10::AliasInfo* alias = arguments[i].alias_info();
    if (alias != nullptr && alias->isWrite()) written.push_back(uint16_t(i));
  }
}

bool Signature::writes(size_t argument) const {
  return std::find(written.begin(), written.end(), argument) != written.end();
}

Call::Call(const Signature& signature, torch::jit::Stack* stack) : signature(signature) {
  if (signature.cpu_tensors != CpuTensors::Value) upload(stack);
  read(torch::jit::last(*stack, signature.kinds.size()));
}

Call::Call(const Signature& signature, c10::ArrayRef<c10::IValue> given) : signature(signature) { read(given); }

void Call::read(c10::ArrayRef<c10::IValue> given) {
  arguments = given;
  for (size_t i = 0; i < arguments.size(); ++i) flatten(i);
  if (first == nullptr) device = device_of_arguments();
  compare_memory();
  // A plan for any shape is one of kernels: programs are for one.
  contiguous = signature.pointwise && first != nullptr && all_contiguous() && get_device(device).has(TG_CAP_COMPILER);
}

// Copies CPU tensors among the arguments to the device of the others.
void Call::upload(torch::jit::Stack* stack) const {
  const size_t count = signature.kinds.size(), base = stack->size() - count;
  const std::optional<c10::Device> target = upload_target(torch::jit::last(*stack, count));
  if (!target) return;
  for (size_t i = 0; i < count; ++i) {
    c10::IValue& value = (*stack)[base + i];
    if (signature.kinds[i] == ArgumentKind::Tensor && !signature.writes(i))
      value = uploaded(value, false, target->index());
    if (signature.kinds[i] != ArgumentKind::TensorList || value.isNone()) continue;
    c10::List<c10::IValue> list = value.toList().copy();
    for (size_t k = 0; k < list.size(); ++k) list.set(k, uploaded(list.get(k), true, target->index()));
    value = std::move(list);
  }
}

// Where they go; nothing if there are none, or no device for them.
std::optional<c10::Device> Call::upload_target(c10::ArrayRef<c10::IValue> values) const {
  std::optional<c10::Device> target;
  bool found = false;
  auto look = [&](const c10::IValue& value, bool in_list) {
    if (!target && tensor_in(value).is_privateuseone()) target = value.toTensor().device();
    found |= wants_upload(value, in_list);
  };
  for (size_t i = 0; i < values.size(); ++i) {
    if (signature.kinds[i] == ArgumentKind::Tensor) look(values[i], false);
    if (signature.kinds[i] == ArgumentKind::TensorList && !values[i].isNone())
      for (const c10::IValue& item : values[i].toListRef()) look(item, true);
  }
  return found ? target : std::nullopt;
}

bool Call::wants_upload(const c10::IValue& value, bool in_list) const {
  const at::Tensor& tensor = tensor_in(value);
  return tensor.defined() && tensor.is_cpu() &&
         (tensor.dim() == 0 || (in_list && signature.cpu_tensors == CpuTensors::UploadAll));
}

c10::IValue Call::uploaded(const c10::IValue& value, bool in_list, c10::DeviceIndex target) const {
  if (!wants_upload(value, in_list)) return value;
  const at::Tensor& source = value.toTensor();
  at::Tensor copy = empty_on_device(target, source.sizes(), source.strides(), source.scalar_type());
  copy_from(source, copy, false);
  return copy;
}

void Call::flatten(size_t argument) {
  const c10::IValue& value = arguments[argument];
  const ArgumentKind kind = signature.kinds[argument];
  const bool has_tensors = kind == ArgumentKind::Tensor || kind == ArgumentKind::TensorList;
  const auto number = [&] { return uint32_t(has_tensors ? tensors.size() : scalars.size()); };
  const uint32_t start = number();
  switch (kind) {
    case ArgumentKind::Tensor:
      add(tensor_in(value));
      break;
    case ArgumentKind::TensorList:
      if (!value.isNone())
        for (const c10::IValue& item : value.toListRef()) add(tensor_in(item));
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
  places.push_back({kind, start, number() - start});
}

void Call::add(const at::Tensor& tensor) {
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

// Ops that make tensors name their device.
c10::DeviceIndex Call::device_of_arguments() const {
  for (const c10::IValue& value : arguments)
    if (value.isDevice()) {
      c10::Device named = value.toDevice();
      return named.has_index() ? named.index() : current_device();
    }
  return current_device();
}

// Does a written tensor share memory with another argument?
void Call::compare_memory() {
  for (uint16_t argument : signature.written)
    if (signature.kinds[argument] == ArgumentKind::Tensor && tensors[places[argument].first]->defined())
      compare_memory(places[argument].first);
}

void Call::compare_memory(size_t written_slot) {
  const at::Tensor& written = *tensors[written_slot];
  const c10::StorageImpl* storage = written.storage().unsafeGetStorageImpl();
  for (size_t slot = 0; slot < tensors.size(); ++slot) {
    const at::Tensor& other = *tensors[slot];
    if (slot == written_slot || !other.defined() || other.storage().unsafeGetStorageImpl() != storage) continue;
    switch (at::get_overlap_status(written, other)) {
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
        overlap.unclear |= !signature.pointwise;
    }
  }
}

bool Call::all_contiguous() const {
  c10::IntArrayRef sizes = first->sizes();
  for (const at::Tensor* tensor : tensors) {
    if (!tensor->defined() || tensor->is_cpu()) continue;
    if (!tensor->is_contiguous() || tensor->is_conj() || tensor->is_neg()) return false;
    if (tensor != first && tensor->sizes() != sizes) return false;
  }
  return true;
}

// What a plan depends on beside the arguments.
uint64_t Call::circumstances() const {
  const bool large = contiguous && first->numel() > INT32_MAX;
  return uint64_t(uint8_t(device)) | uint64_t(contiguous) << 8 | uint64_t(large) << 9 | uint64_t(overlap.full) << 10 |
         uint64_t(overlap.partial) << 11 | uint64_t(overlap.unclear) << 12 |
         uint64_t(at::globalContext().deterministicAlgorithms()) << 13 | default_dtype() << 14;
}

Key Call::key(uint64_t touched) const {
  Key key;
  key.push_back(circumstances());
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto [kind, first, count] = places[i];
    switch (kind) {
      case ArgumentKind::TensorList:
        key.push_back(arguments[i].isNone() ? kLeftOut : count);
        [[fallthrough]];
      case ArgumentKind::Tensor:
        for (size_t slot = first; slot < first + count; ++slot) add_tensor(key, *tensors[slot]);
        break;
      case ArgumentKind::ScalarList:
        key.push_back(arguments[i].isNone() ? kLeftOut : count);
        [[fallthrough]];
      case ArgumentKind::Scalar:
        if (kind == ArgumentKind::Scalar && count == 0) key.push_back(kLeftOut);
        for (size_t k = first; k < first + count; ++k) add_scalar(key, *scalars[k], is_touched(touched, k));
        break;
      case ArgumentKind::Static:
        add_static(key, arguments[i]);
        break;
      case ArgumentKind::Generator:
        break;
    }
  }
  return key;
}

void Call::add_tensor(Key& key, const at::Tensor& tensor) const {
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

}  // namespace torchgraft
