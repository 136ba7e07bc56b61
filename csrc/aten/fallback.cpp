// The CPU fallback. Arguments on the device are seen by the CPU kernel as CPU tensors over mirrors of their storages:
// the same memory where the host can reach it, otherwise images that hold the bytes that the arguments reach. Offsets
// and strides are the same on both sides, so a result over a mirror is a view of the device tensor, and what was
// written goes back to where it came from.
#include "fallback.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/List.h>
#include <ATen/core/enum_tag.h>
#include <ATen/core/jit_type.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/strides.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <string_view>
#include <unordered_map>

#include "copy.h"
#include "dispatch.h"
#include "graphs/capture.h"
#include "nested.h"
#include "runtime/assertions.h"
#include "runtime/generator.h"
#include "runtime/place.h"
#include "runtime/stream.h"

namespace torchgraft {
namespace {

using torch::jit::Stack;

// ---- what is counted
// ----------------------------------------------------------------------------------------------------

std::atomic<FallbackMode> current_mode{FallbackMode::Warn};
std::atomic<bool> places_of_every_call{false};

struct Account {
  FallbackRecord record;
  bool located = false, warned = false;
};

struct Ledger {
  std::mutex mutex;
  std::unordered_map<c10::OperatorName, Account> accounts;
  std::set<c10::DeviceIndex> told_of;  // devices without a compiler of which there was a warning
  WarnOfFallback warn;
};

Ledger& ledger() {
  static auto* instance = new Ledger;  // outlives the threads that may still be counting when the process ends
  return *instance;
}

constexpr std::string_view kNoCompiler = "the device has no kernel compiler";

std::string in_parentheses(const std::string& place) { return place.empty() ? "" : " (called at " + place + ")"; }

// What a device without a compiler has no function for is not a matter of this op or that one.
std::string warning_of_device(c10::DeviceIndex device) {
  return c10::str("device '", backend_name(), ":", static_cast<int>(device), "' (", get_device(device).properties.name,
                  ") has no kernel compiler, so every op that it has no function for runs on the CPU");
}

// What is lacking, and why, if there is something for other calls of the op.
std::string lack(c10::DeviceIndex device, std::string_view reason) {
  const std::string none = c10::str("has no kernel for device '", backend_name(), ":", static_cast<int>(device), "'");
  return reason.empty() ? none : c10::str(none, " that serves this call: ", reason);
}

std::string warning_of_op(const c10::OperatorName& name, c10::DeviceIndex device, std::string_view reason,
                          const std::string& place) {
  return c10::str(name, " runs on the CPU", in_parentheses(place), ": it ", lack(device, reason));
}

// Asks Python who calls, where that is wanted, and warns at the first time: of each op, or of a device without a
// compiler. Python is asked without the lock: it may run other threads.
void announce(const c10::OperatorName& name, c10::DeviceIndex device, std::string_view reason, FallbackMode mode) {
  Ledger& books = ledger();
  const bool by_op = get_device(device).can_plan();
  bool locate, warn;
  {
    std::lock_guard lock(books.mutex);
    Account& account = books.accounts[name];
    warn = mode == FallbackMode::Warn && books.warn && (by_op ? !account.warned : books.told_of.insert(device).second);
    locate = warn || !account.located || places_of_every_call.load(std::memory_order_relaxed);
    account.located = true;
    account.warned |= warn;
  }
  if (!locate) return;
  std::string place = user_place();
  if (!place.empty()) {
    std::lock_guard lock(books.mutex);
    ++books.accounts[name].record.places[place];
  }
  if (!warn) return;
  const bool done =
      books.warn(c10::str(by_op ? warning_of_op(name, device, reason, place) : warning_of_device(device),
                          ". The result is right, the time is not. torchgraft.fallback_report() tells what it "
                          "costs; torchgraft.fallback.set_mode('silent') or TORCHGRAFT_FALLBACK=silent stops these "
                          "warnings, 'error' forbids it."),
                 by_op);
  if (!done) {
    std::lock_guard lock(books.mutex);
    books.accounts[name].warned = false;
  }
}

void count(const c10::OperatorName& name, std::string_view reason, uint64_t to_host, uint64_t to_device,
           double seconds) {
  Ledger& books = ledger();
  std::lock_guard lock(books.mutex);
  FallbackRecord& record = books.accounts[name].record;
  ++record.calls;
  ++record.reasons[std::string(reason)];
  record.bytes_to_host += to_host;
  record.bytes_to_device += to_device;
  record.seconds += seconds;
}

// ---- ops that PyTorch has no kernel of the CPU for
// -----------------------------------------------------------------------------------------------------------

struct HostKernels {
  std::mutex mutex;
  std::unordered_map<c10::OperatorName, HostKernel> kernels;
};

HostKernels& host_kernels() {
  static auto* instance = new HostKernels;  // holds functions of Python, which may be gone when the process ends
  return *instance;
}

HostKernel host_kernel(const c10::OperatorName& name) {
  HostKernels& known = host_kernels();
  std::lock_guard lock(known.mutex);
  const auto it = known.kernels.find(name);
  return it == known.kernels.end() ? HostKernel() : it->second;
}

// ---- what schemas say, and what they leave out
// --------------------------------------------------------------------------

bool is_written(const c10::OperatorName& name, const c10::Argument& argument) {
  if (const c10::AliasInfo* alias = argument.alias_info()) {
    if (alias->isWrite()) return true;
    for (const c10::AliasInfo& contained : alias->containedTypes())
      if (contained.isWrite()) return true;
  }
  // Batch norm updates its running statistics without saying so.
  static constexpr std::array<std::string_view, 2> silent_writers = {"aten::native_batch_norm",
                                                                     "aten::batch_norm_update_stats"};
  return std::ranges::find(silent_writers, name.name) != silent_writers.end() &&
         (argument.name() == "running_mean" || argument.name() == "running_var");
}

// Arguments that may stay on the CPU whatever their size, as on other devices.
bool may_be_on_cpu(const c10::OperatorName& name, const c10::Argument& argument) {
  static constexpr std::array<std::string_view, 5> indexed = {"aten::index", "aten::index_put", "aten::index_put_",
                                                              "aten::_index_put_impl_", "aten::_unsafe_index"};
  if (argument.name() == "indices") return std::ranges::find(indexed, name.name) != indexed.end();
  return argument.name() == "input_lengths" || argument.name() == "target_lengths" || argument.name() == "lengths";
}

// Whether the CPU's kernel gives what backward will need only if an argument says that there will be one.
bool keeps_for_backward(const c10::OperatorName& name) { return name.name == "aten::_sparse_mm_reduce_impl"; }

bool is_generator(const c10::Argument& argument) {
  c10::TypePtr type = argument.type();
  if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  return type->kind() == c10::TypeKind::GeneratorType;
}

// ---- random numbers
// -----------------------------------------------------------------------------------------------------

// A seed for a CPU generator out of the device's: it moves on with every use and repeats when the device is seeded
// again.
uint64_t draw_seed(const std::optional<at::Generator>& generator, c10::DeviceIndex device) {
  const auto [seed, offset] = philox_state(generator, device)->reserve(1);
  uint64_t mixed = seed + (offset + 1) * 0x9E3779B97F4A7C15ull;
  mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9ull;
  mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBull;
  return mixed ^ (mixed >> 31);
}

// For random ops that take no generator: lends the CPU's default one another state for the time of a call.
class BorrowedDefaultGenerator {
 public:
  explicit BorrowedDefaultGenerator(uint64_t seed) : turn_(turns()), generator_(at::detail::getDefaultCPUGenerator()) {
    std::lock_guard lock(generator_.mutex());
    state_ = generator_.get_state();
    generator_.set_current_seed(seed);
  }
  ~BorrowedDefaultGenerator() {
    std::lock_guard lock(generator_.mutex());
    generator_.set_state(state_);
  }

 private:
  static std::mutex& turns() {
    static std::mutex mutex;
    return mutex;
  }
  std::lock_guard<std::mutex> turn_;
  at::Generator generator_;
  at::Tensor state_;
};

// ---- one call
// -----------------------------------------------------------------------------------------------------------

bool is_on_device(const at::Tensor& tensor) { return tensor.defined() && tensor.device().is_privateuseone(); }

// Whether it is made of other tensors, which then are what is brought and sent.
bool has_members(const at::Tensor& tensor) { return is_sparse(tensor) || tensor.is_nested(); }

at::Tensor with_members(const at::Tensor& tensor, c10::DeviceType type, const MapTensor& map) {
  return tensor.is_nested() ? map_nested(tensor, map) : map_members(tensor, type, map);
}

template <typename Visit>
void for_each_tensor(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) visit(tensor);
  } else if (value.isOptionalTensorList()) {
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector())
      if (tensor) visit(*tensor);
  }
}

template <typename Transform>
void transform_tensors(c10::IValue& value, const Transform& transform) {
  if (value.isTensor()) {
    value = transform(value.toTensor());
  } else if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(transform(tensor));
    value = std::move(list);
  } else if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector())
      list.push_back(tensor ? std::optional<at::Tensor>(transform(*tensor)) : std::nullopt);
    value = std::move(list);
  }
}

class HostCall {
 public:
  // Finds the device, and that all arguments are on it. Changes nothing yet.
  HostCall(const c10::OperatorHandle& op, Stack& stack, c10::DispatchKey kernel)
      : op_(op), name_(op.operator_name()), stack_(stack), kernel_(kernel) {
    find_device();
    check_devices();
  }

  c10::DeviceIndex device() const { return device_; }
  uint64_t bytes_to_host() const { return bytes_to_host_; }
  uint64_t bytes_to_device() const { return bytes_to_device_; }

  void run() {
    std::optional<uint64_t> seed = bring_arguments();
    if (keeps_for_backward(name_))
      for (const Pair& pair : pairs_) pair.host.set_requires_grad(pair.device.requires_grad());
    {
      // The kernel may be composed of other ops; those shall not be cast as the CPU's autocast would.
      const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
      std::optional<BorrowedDefaultGenerator> borrowed;
      if (seed) borrowed.emplace(*seed);
      if (const HostKernel function = host_kernel(name_))
        function(op_, &stack_);
      else
        counterpart().redispatchBoxed(c10::DispatchKeySet(kernel_), &stack_);
    }
    for (const Pair& pair : pairs_)
      if (pair.written) put_back(pair);
    return_results();
  }

 private:
  struct Mirror {
    c10::Storage device, host;
    std::vector<std::pair<size_t, size_t>> fetched;  // the bytes that the image holds
  };
  struct Pair {
    at::Tensor device, host;
    const void* data;  // of the host's storage as it was given to the kernel
    bool written;
  };

  const std::vector<c10::Argument>& arguments() const { return op_.schema().arguments(); }
  c10::IValue& argument(size_t i) { return stack_[stack_.size() - arguments().size() + i]; }

  // Convolutions of devices outside of PyTorch's tree have names of their own, under which the CPU has nothing.
  c10::OperatorHandle counterpart() {
    c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
    if (name_.name == "aten::convolution_overrideable") return dispatcher.findSchemaOrThrow("aten::convolution", "");
    if (name_.name == "aten::convolution_backward_overrideable") {
      const std::vector<int64_t> bias_sizes{argument(0).toTensor().size(1)};
      stack_.insert(stack_.end() - arguments().size() + 3, bias_sizes);
      return dispatcher.findSchemaOrThrow("aten::convolution_backward", "");
    }
    return op_;
  }

  void find_device() {
    bool found = false;
    for (size_t i = 0; i < arguments().size(); ++i)
      for_each_tensor(argument(i), [&](const at::Tensor& tensor) {
        if (!found && is_on_device(tensor)) {
          device_ = tensor.device().index();
          found = true;
        }
      });
    has_tensors_ = found;
    for (size_t i = 0; i < arguments().size(); ++i) {
      const c10::IValue& value = argument(i);
      if (value.isDevice()) {
        const c10::Device device = value.toDevice();
        results_stay_ = !device.is_privateuseone();
        if (!found && !results_stay_) {
          device_ = device.has_index() ? device.index() : current_device();
          found = true;
        }
      } else if (value.isGenerator() && !found && value.toGenerator().device().is_privateuseone()) {
        device_ = value.toGenerator().device().index();
        found = true;
      }
    }
    if (!found) device_ = current_device();
  }

  void check_devices() {
    const c10::Device expected(c10::DeviceType::PrivateUse1, device_);
    for (size_t i = 0; i < arguments().size(); ++i) {
      const c10::Argument& declared = arguments()[i];
      const bool written = is_written(name_, declared);
      for_each_tensor(argument(i), [&](const at::Tensor& tensor) {
        if (!tensor.defined() || tensor.device() == expected || !has_tensors_) return;
        if (tensor.is_cpu() && !written && (tensor.dim() == 0 || may_be_on_cpu(name_, declared))) return;
        TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, ", expected,
                    " and ", tensor.device(), "! (when checking argument for argument ", declared.name(), " of ", name_,
                    ")");
      });
      const c10::IValue& value = argument(i);
      if (value.isGenerator() && !results_stay_)
        TORCH_CHECK(value.toGenerator().device().is_privateuseone(), "Expected a '", backend_name(),
                    "' device type for generator but found '", value.toGenerator().device().type(), "'");
    }
  }

  // Replaces the arguments on the stack. Returns a seed if the kernel will draw from the CPU's default generator.
  std::optional<uint64_t> bring_arguments() {
    unified_ = get_device(device_).has(TG_CAP_UNIFIED_MEMORY);
    if (has_tensors_ && unified_) wait_for_device(device_);
    bool takes_generator = false;
    for (size_t i = 0; i < arguments().size(); ++i) {
      const c10::Argument& declared = arguments()[i];
      c10::IValue& value = argument(i);
      if (value.isDevice()) {
        if (value.toDevice().is_privateuseone()) value = c10::Device(c10::DeviceType::CPU);
      } else if (is_generator(declared)) {
        takes_generator = true;
        if (!results_stay_)
          value = at::detail::createCPUGenerator(draw_seed(value.toOptional<at::Generator>(), device_));
      } else {
        const bool written = is_written(name_, declared);
        transform_tensors(value, [&](const at::Tensor& tensor) {
          return is_on_device(tensor) ? bring(tensor, written, !declared.is_out()) : tensor;
        });
      }
    }
    if (has_tensors_ && !unified_) raise_reported_errors(device_, current_stream(device_).id());
    if (!takes_generator && op_.hasTag(at::Tag::nondeterministic_seeded)) return draw_seed(std::nullopt, device_);
    return std::nullopt;
  }

  at::Tensor bring(const at::Tensor& tensor, bool written, bool read) {
    for (Pair& pair : pairs_)
      if (pair.device.is_same(tensor)) {
        pair.written |= written;
        if (read && !has_members(tensor)) fetch(mirror_of(tensor.storage()), tensor);
        return pair.host;
      }
    if (has_members(tensor)) {  // its members are needed whether or not they are read: they may be kept
      at::Tensor host = with_members(tensor, c10::DeviceType::CPU,
                                     [&](const at::Tensor& member) { return bring(member, written, true); });
      pairs_.push_back({tensor, host, nullptr, written});
      return host;
    }
    if (!unified_ && !written && reaches_too_far(tensor)) {
      at::Tensor dense =
          empty_on_device(device_, tensor.sizes(), c10::contiguous_strides(tensor.sizes()), tensor.scalar_type());
      copy_from(tensor, dense, false);
      return bring(dense, false, true);
    }
    Mirror& mirror = mirror_of(tensor.storage());
    // What lies between the elements of an output that is not dense is put back with it, so it is needed.
    if (read || !tensor.is_non_overlapping_and_dense()) fetch(mirror, tensor);
    at::Tensor host = tensor_over(mirror.host, tensor);
    pairs_.push_back({tensor, host, mirror.host.data(), written});
    return host;
  }

  // A column of a wide matrix: better gathered on the device than brought with all that lies between.
  bool reaches_too_far(const at::Tensor& tensor) const {
    const auto [first, last] = reached_bytes(tensor);
    return last - first > 4 * tensor.nbytes() + (size_t{1} << 20) && get_device(device_).has(TG_CAP_COMPILER);
  }

  Mirror& mirror_of(const c10::Storage& storage) {
    for (Mirror& mirror : mirrors_)
      if (mirror.device.unsafeGetStorageImpl() == storage.unsafeGetStorageImpl()) return mirror;
    return mirrors_.emplace_back(Mirror{storage, unified_ ? alias_storage(storage) : image_storage(storage), {}});
  }

  void fetch(Mirror& mirror, const at::Tensor& tensor) {
    if (unified_) return;
    const auto [first, last] = reached_bytes(tensor);
    for (const auto& [from, to] : mirror.fetched)
      if (from <= first && last <= to) return;
    download(mirror.host, mirror.device, first, last);
    mirror.fetched.emplace_back(first, last);
    bytes_to_host_ += last - first;
  }

  void put_back(const Pair& pair) {
    const auto& [device, host, data, written] = pair;
    if (host.is_nested()) return;  // its buffer is a pair of its own
    if (is_sparse(host)) {
      replace_members(device, host, [&](const at::Tensor& member) { return to_device(member); });
      return;
    }
    const bool moved = host.storage().data() != data;  // the kernel has grown it
    if (host.sizes() != device.sizes() || host.strides() != device.strides() ||
        host.storage_offset() != device.storage_offset()) {
      const size_t bytes = reached_bytes(host).second;
      if (bytes > device.storage().nbytes())
        at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(device.storage(), bytes);
      device.unsafeGetTensorImpl()->set_storage_offset(host.storage_offset());
      device.unsafeGetTensorImpl()->set_sizes_and_strides(host.sizes(), host.strides());
    }
    // Kernels may leave a conjugation pending in what they write.
    if (host.is_conj() != device.is_conj()) device._set_conj(host.is_conj());
    if (host.is_neg() != device.is_neg()) device._set_neg(host.is_neg());
    if (unified_ && !moved) return;
    const auto [first, last] = reached_bytes(host);
    upload(device.storage(), host.storage(), first, last);
    bytes_to_device_ += last - first;
  }

  void return_results() {
    const size_t count = op_.schema().returns().size();
    for (size_t i = stack_.size() - count; i < stack_.size(); ++i)
      transform_tensors(stack_[i], [&](const at::Tensor& tensor) { return to_device(tensor); });
  }

  at::Tensor to_device(const at::Tensor& host) {
    if (!host.defined() || !host.is_cpu()) return host;
    for (const Pair& pair : pairs_)
      if (pair.host.is_same(host)) return pair.device;
    if (has_members(host) && !results_stay_)
      return with_members(host, c10::DeviceType::PrivateUse1,
                          [&](const at::Tensor& member) { return to_device(member); });
    TORCH_CHECK_NOT_IMPLEMENTED(results_stay_ || host.layout() == c10::kStrided, name_, " gives a tensor (of layout ",
                                host.layout(), ") that device '", backend_name(),
                                "' cannot hold. Move its arguments to the CPU for this call.");
    if (host.layout() == c10::kStrided)
      for (const Mirror& mirror : mirrors_)
        if (host.storage().unsafeGetStorageImpl() == mirror.host.unsafeGetStorageImpl())
          return tensor_over(mirror.device, host);
    return results_stay_ ? host : send(host);
  }

  at::Tensor send(const at::Tensor& host) {
    if (host.is_quantized()) return send_quantised(host.storage_offset() == 0 ? host : host.clone());
    at::Tensor result =
        host.is_non_overlapping_and_dense()
            ? empty_on_device(device_, host.sizes(), host.strides(), host.scalar_type())
            : empty_on_device(device_, host.sizes(), c10::contiguous_strides(host.sizes()), host.scalar_type());
    copy_from(host, result, false);
    bytes_to_device_ += result.nbytes();
    return result;
  }

  at::Tensor send_quantised(const at::Tensor& host) {
    const at::Tensor memory = empty_on_device(device_, host.sizes(), host.strides(), host.scalar_type());
    const auto [first, last] = reached_bytes(host);
    upload(memory.storage(), host.storage(), first, last);
    bytes_to_device_ += last - first;
    return tensor_over(memory.storage(), host);
  }

  const c10::OperatorHandle& op_;
  const c10::OperatorName& name_;
  Stack& stack_;
  const c10::DispatchKey kernel_;
  c10::DeviceIndex device_ = 0;
  bool has_tensors_ = false, results_stay_ = false, unified_ = false;
  std::vector<Mirror> mirrors_;
  std::vector<Pair> pairs_;
  uint64_t bytes_to_host_ = 0, bytes_to_device_ = 0;
};

// ---- captures
// -----------------------------------------------------------------------------------------------------------

// The same memory, whatever the user makes of the tensor itself: a module's parameters move when it does.
at::Tensor alias_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  return at::Tensor(tensor.unsafeGetTensorImpl()->shallow_copy_and_detach(c10::VariableVersion(0), true));
}

at::Tensor meta_of(const at::Tensor& tensor) {
  if (!is_on_device(tensor)) return tensor;
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta));
}

// Results that the op was given to write to may have been of another size.
void resize_like(const at::Tensor& tensor, const at::Tensor& meta) {
  if (!meta.defined() || !meta.is_meta() || tensor.sizes() == meta.sizes()) return;
  tensor.resize_(meta.sizes());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(meta.sizes(), meta.strides());
}

// The results that the op will have for these arguments, on the device: those that are arguments, and new ones, by
// PyTorch's meta function.
std::vector<c10::IValue> results_in_capture(const c10::OperatorHandle& op, const Stack& stack,
                                            c10::DeviceIndex device) {
  const c10::FunctionSchema& schema = op.schema();
  TORCH_CHECK(op.hasComputedKernelForDispatchKey(c10::DispatchKey::Meta), op.operator_name(),
              " cannot be captured into a graph: it runs on the CPU, and PyTorch has no meta function that tells its "
              "results' shapes");
  Stack meta;
  for (const c10::IValue& value : stack) {
    c10::IValue& argument = meta.emplace_back(value);
    if (argument.isDevice()) argument = c10::Device(c10::DeviceType::Meta);
    if (argument.isGenerator()) argument = c10::IValue();
    transform_tensors(argument, meta_of);
  }
  const Stack arguments = meta;
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), &meta);
  for (size_t i = 0; i < arguments.size(); ++i)
    if (arguments[i].isTensor()) resize_like(stack[i].toTensor(), arguments[i].toTensor());
  const auto on_device = [&](const at::Tensor& result) -> at::Tensor {
    for (size_t i = 0; i < arguments.size(); ++i)
      if (arguments[i].isTensor() && arguments[i].toTensor().is_same(result)) return stack[i].toTensor();
    if (!result.defined()) return result;
    return empty_on_device(device, result.sizes(), result.strides(), result.scalar_type());
  };
  for (c10::IValue& result : meta) transform_tensors(result, on_device);
  TORCH_INTERNAL_ASSERT(meta.size() == schema.returns().size());
  return meta;
}

void copy_results(const std::vector<c10::IValue>& from, const std::vector<c10::IValue>& to) {
  std::vector<at::Tensor> sources;
  const auto note = [&](const at::Tensor& tensor) { sources.push_back(tensor); };
  for (const c10::IValue& value : from) for_each_tensor(value, note);
  size_t next = 0;
  const auto copy = [&](const at::Tensor& kept) {
    const at::Tensor& source = sources[next++];
    if (kept.defined() && kept.data_ptr() != source.data_ptr()) copy_from(source, kept, false);
  };
  for (const c10::IValue& value : to) for_each_tensor(value, copy);
}

// A device without a compiler has all its work done this way, so a graph of it is a list of such calls. For one with a
// compiler it would be slow where nobody expects it.
void capture_fallback(const c10::OperatorHandle& op, Stack* stack, std::string_view why, c10::DispatchKey kernel,
                      c10::DeviceIndex device, const Captured& captured) {
  if (get_device(device).has(TG_CAP_COMPILER))
    refuse_in_capture(device, captured.stream, c10::str(op.operator_name(), ", which runs on the CPU,"));
  const size_t count = op.schema().arguments().size();
  const Stack arguments(stack->end() - static_cast<ptrdiff_t>(count), stack->end());
  const std::vector<c10::IValue> results = results_in_capture(op, arguments, device);
  Stack kept = arguments;
  std::vector<c10::IValue> kept_results = results;
  std::vector<at::Tensor> tensors;
  const auto note = [&](const at::Tensor& tensor) {
    if (is_on_device(tensor)) tensors.push_back(tensor);
  };
  for (std::vector<c10::IValue>* values : {&kept, &kept_results})
    for (c10::IValue& value : *values) {
      transform_tensors(value, alias_of);
      for_each_tensor(value, note);
    }
  captured->function(
      captured.stream, c10::toString(op.operator_name()),
      [op, kept, reason = std::string(why), kernel, kept_results] {
        Stack call = kept;
        cpu_fallback(op, &call, reason, kernel);
        copy_results(call, kept_results);
      },
      tensors);
  torch::jit::drop(*stack, count);
  stack->insert(stack->end(), results.begin(), results.end());
}

// The copy kernel has no CPU counterpart under its name.
void copy_fallback(const c10::OperatorHandle& op, Stack* stack, std::string_view reason) {
  const auto start = std::chrono::steady_clock::now();
  const at::Tensor dst = torch::jit::peek(*stack, 1, 3).toTensor();
  const at::Tensor self = torch::jit::peek(*stack, 0, 3).toTensor();
  announce(op.operator_name(), dst.device().index(), reason, fallback_mode());
  copy_or_record_on_host(self, dst);
  torch::jit::drop(*stack, 3);
  torch::jit::push(*stack, dst);
  const bool unified = get_device(dst.device().index()).has(TG_CAP_UNIFIED_MEMORY);
  count(op.operator_name(), reason, unified ? 0 : self.nbytes(), unified ? 0 : dst.nbytes(),
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
}

template <c10::DispatchKey kernel>
void boxed_fallback(const c10::OperatorHandle& op, Stack* stack) {
  cpu_fallback(op, stack, {}, kernel);
}

template <c10::DispatchKey kernel>
void register_for(c10::DispatchKey key) {
  auto* library = new torch::Library(torch::Library::IMPL, "_", key, __FILE__, __LINE__);
  library->fallback(torch::CppFunction::makeFromBoxedFunction<&boxed_fallback<kernel>>());
}

// The same for sparse, quantised and nested tensors. What the CPU has a kernel of its own for, for such tensors, must
// not be composed of other ops as it is for dense ones: a composition comes before a fallback.
template <c10::DispatchKey kernel>
void register_each_for(c10::DispatchKey key) {
  register_for<kernel>(key);
  auto* library = new torch::Library(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
  for (const c10::OperatorHandle& op : aten_ops()) {
    if (!op.hasKernelForDispatchKey(kernel)) continue;
    if (op.hasKernelForDispatchKey(key)) continue;  // see register_sparse, register_nested
    library->impl(c10::toString(op.operator_name()).c_str(),
                  torch::CppFunction::makeFromBoxedFunction<&boxed_fallback<kernel>>());
  }
}

}  // namespace

const std::vector<c10::OperatorHandle>& aten_ops() {
  static const auto* const found = [] {
    c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
    auto* ops = new std::vector<c10::OperatorHandle>;
    for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
      if (name.name.rfind("aten::", 0) != 0) continue;
      if (auto op = dispatcher.findOp(name)) ops->push_back(*op);
    }
    return ops;
  }();
  return *found;
}

void set_fallback_mode(FallbackMode mode) noexcept { current_mode.store(mode, std::memory_order_relaxed); }
FallbackMode fallback_mode() noexcept { return current_mode.load(std::memory_order_relaxed); }

std::vector<FallbackRecord> fallback_report() {
  Ledger& books = ledger();
  std::lock_guard lock(books.mutex);
  std::vector<FallbackRecord> records;
  for (const auto& [name, account] : books.accounts) {
    if (account.record.calls == 0) continue;
    records.push_back(account.record);
    records.back().op = c10::toString(name);
  }
  return records;
}

void reset_fallback_report(bool warnings) {
  Ledger& books = ledger();
  std::lock_guard lock(books.mutex);
  for (auto& [name, account] : books.accounts) account = Account{{}, false, account.warned && !warnings};
  if (warnings) books.told_of.clear();
}

void record_fallback_places(bool every_call) noexcept {
  places_of_every_call.store(every_call, std::memory_order_relaxed);
}

void set_fallback_warning(WarnOfFallback warn) { ledger().warn = std::move(warn); }

void set_host_kernel(const c10::OperatorName& name, HostKernel run) {
  HostKernels& known = host_kernels();
  std::lock_guard lock(known.mutex);
  known.kernels[name] = std::move(run);
}

void cpu_fallback(const c10::OperatorHandle& op, Stack* stack, std::string_view why, c10::DispatchKey kernel) {
  const c10::OperatorName& name = op.operator_name();
  const FallbackMode mode = fallback_mode();
  HostCall call(op, *stack, kernel);
  const c10::DeviceIndex device = call.device();
  const std::string_view reason = why.empty() && !get_device(device).can_plan() ? kNoCompiler : why;
  if (mode == FallbackMode::Error)
    TORCH_CHECK_NOT_IMPLEMENTED(false, name, " ", lack(device, reason), ", and running it on the CPU is not permitted",
                                in_parentheses(user_place()),
                                ". Permit it with torchgraft.fallback.set_mode('warn'), or for some lines with "
                                "`with torchgraft.fallback('silent'):`, or give the device a kernel.");
  static const c10::OperatorName copy{"aten::_copy_from", ""};
  if (name == copy) return copy_fallback(op, stack, reason);
  TORCH_CHECK_NOT_IMPLEMENTED(op.hasComputedKernelForDispatchKey(kernel) || host_kernel(name), name, " ",
                              lack(device, reason), ", and PyTorch has none for the CPU, on which it could run instead",
                              in_parentheses(user_place()),
                              ". Give the device a kernel for it, or a function that does it on the CPU "
                              "(torchgraft.plans.on_host), or move the tensors to a device that has one.");
  announce(name, device, reason, mode);
  if (capturing()) [[unlikely]]
    if (const Captured captured = capture_of_current(device))
      return capture_fallback(op, stack, reason, kernel, device, captured);
  const auto start = std::chrono::steady_clock::now();
  call.run();
  count(name, reason, call.bytes_to_host(), call.bytes_to_device(),
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
}

void register_host_op(const c10::OperatorName& name) {
  const size_t colons = name.name.find("::");
  auto* library = new torch::Library(torch::Library::IMPL, name.name.substr(0, colons), c10::DispatchKey::PrivateUse1,
                                     __FILE__, __LINE__);
  library->impl(c10::toString(name).c_str(),
                torch::CppFunction::makeFromBoxedFunction<&boxed_fallback<c10::DispatchKey::CPU>>());
}

void register_fallback() {
  // Sparse, quantised and nested tensors have keys of their own, for which the CPU has kernels of their own.
  register_for<c10::DispatchKey::CPU>(c10::DispatchKey::PrivateUse1);
  register_each_for<c10::DispatchKey::SparseCPU>(c10::DispatchKey::SparsePrivateUse1);
  register_each_for<c10::DispatchKey::SparseCsrCPU>(c10::DispatchKey::SparseCsrPrivateUse1);
  register_each_for<c10::DispatchKey::QuantizedCPU>(c10::DispatchKey::QuantizedPrivateUse1);
  register_each_for<c10::DispatchKey::NestedTensorCPU>(c10::DispatchKey::NestedTensorPrivateUse1);
}

}  // namespace torchgraft
