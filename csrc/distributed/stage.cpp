#include "stage.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/view_as_real.h>
#include <c10/core/InferenceMode.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "runtime/device.h"
#include "runtime/stream.h"

namespace torchgraft {
namespace {

std::atomic<uint64_t> calls{0}, queued_calls{0}, copies{0}, copied_bytes{0};

bool is_ours(const at::Tensor& tensor) { return tensor.device().is_privateuseone(); }

// Copies may be asked for where they are not needed, to see what they cost.
bool is_staged(c10::DeviceIndex device) {
  static const char* staged = std::getenv("TORCHGRAFT_DISTRIBUTED_STAGED");
  static const bool forced = staged != nullptr && std::string_view(staged) == "1";
  return forced || !get_device(device).has(TG_CAP_UNIFIED_MEMORY);
}

// Streams of its own for each thread that copies: a copy waits for no work of the program's.
class CopyStream {
 public:
  explicit CopyStream(const at::Tensor& tensor) {
    if (!is_ours(tensor)) return;
    thread_local std::array<c10::StreamId, kMaxDevices> streams{};  // 0, the default stream: none yet
    const c10::DeviceIndex device = tensor.device().index();
    if (streams[device] == 0) streams[device] = new_stream(device, /*priority=*/-1).id();
    before_ = exchange_stream(c10::Stream(c10::Stream::UNSAFE, tensor.device(), streams[device]));
  }
  ~CopyStream() {
    if (before_) exchange_stream(*before_);
  }
  CopyStream(const CopyStream&) = delete;
  CopyStream& operator=(const CopyStream&) = delete;

 private:
  std::optional<c10::Stream> before_;
};

// Blocks until it is done.
void copy_now(const at::Tensor& to, const at::Tensor& from) {
  const CopyStream stream(is_ours(to) ? to : from);
  std::optional<c10::InferenceMode> inference;  // where alone such a tensor may be written; others would keep traces
  if (to.is_inference()) inference.emplace();
  to.copy_(from);
  if (is_ours(to)) synchronize_stream(current_stream(to.device().index()));
  copies.fetch_add(1, std::memory_order_relaxed);
  copied_bytes.fetch_add(to.is_sparse() ? to._values().nbytes() : to.nbytes(), std::memory_order_relaxed);
}

bool is_known_inside(c10::ScalarType type) {
  switch (type) {
    case at::kFloat:
    case at::kDouble:
    case at::kHalf:
    case at::kBFloat16:
    case at::kChar:
    case at::kByte:
    case at::kInt:
    case at::kLong:
      return true;
    default:
      return false;
  }
}

// A contiguous tensor of the host's in a type that the inner backend knows: the same memory.
at::Tensor in_known_type(const at::Tensor& host, Stage::Use use) {
  if (is_known_inside(host.scalar_type())) return host;
  if (host.scalar_type() == at::kBool) return host.view(at::kByte);
  if (use == Stage::Use::Computes) return host.is_complex() ? at::view_as_real(host) : host;
  at::DimVector sizes(host.sizes());
  sizes.push_back(static_cast<int64_t>(host.itemsize()));
  return at::from_blob(host.data_ptr(), sizes, [keep = host](void*) {}, at::TensorOptions(at::kByte));
}

at::Tensor host_view(const at::Tensor& tensor) {
  if (!is_ours(tensor)) return tensor.detach();
  return at::from_blob(
      tensor.data_ptr(), tensor.sizes(), tensor.strides(), [keep = tensor](void*) {},
      at::TensorOptions(tensor.scalar_type()));
}

// Host memory for what comes from, or goes to, such a tensor.
at::Tensor room_for(const at::Tensor& like, at::IntArrayRef sizes) {
  return at::empty(sizes, at::TensorOptions(like.scalar_type()).pinned_memory(is_ours(like)));
}

at::Tensor sparse_on_host(const at::Tensor& tensor) {
  if (!is_ours(tensor)) return tensor.clone();
  const CopyStream stream(tensor);
  return tensor.to(at::kCPU);
}

bool lie_behind_each_other(const std::vector<at::Tensor>& tensors) {
  const auto* next = static_cast<const char*>(tensors.front().const_data_ptr());
  for (const at::Tensor& tensor : tensors) {
    if (!is_host_ready(tensor) || tensor.const_data_ptr() != next) return false;
    next += tensor.nbytes();
  }
  return true;
}

template <typename Function>
std::vector<at::Tensor> each(const std::vector<at::Tensor>& tensors, Function function) {
  std::vector<at::Tensor> found;
  found.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) found.push_back(function(tensor));
  return found;
}

}  // namespace

Traffic traffic() { return {calls.load(), queued_calls.load(), copies.load(), copied_bytes.load()}; }

void count_call(bool queued) {
  calls.fetch_add(1, std::memory_order_relaxed);
  if (queued) queued_calls.fetch_add(1, std::memory_order_relaxed);
}

bool is_host_ready(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg() &&
         (!is_ours(tensor) || !is_staged(tensor.device().index()));
}

bool some_device_is_staged() {
  if (devices_opened())
    for (c10::DeviceIndex device = 0; device < device_count(); ++device)
      if (is_staged(device)) return true;
  return false;
}

std::vector<at::Tensor> Stage::in(const std::vector<at::Tensor>& tensors) {
  return each(tensors, [this](const at::Tensor& tensor) { return in(tensor); });
}
std::vector<at::Tensor> Stage::out(const std::vector<at::Tensor>& tensors) {
  return each(tensors, [this](const at::Tensor& tensor) { return out(tensor); });
}
std::vector<at::Tensor> Stage::both(const std::vector<at::Tensor>& tensors) {
  return each(tensors, [this](const at::Tensor& tensor) { return both(tensor); });
}

at::Tensor Stage::add(const at::Tensor& tensor, bool reads, bool writes) {
  if (is_host_ready(tensor)) return in_known_type(host_view(tensor), use_);
  const at::Tensor host = tensor.is_sparse() ? sparse_on_host(tensor) : room_for(tensor, tensor.sizes());
  if (reads && !tensor.is_sparse()) copy_now(host, tensor);
  if (writes) backs_.emplace_back(tensor, host);
  return in_known_type(host, use_);
}

at::Tensor Stage::add_joined(const std::vector<at::Tensor>& tensors, bool reads, bool writes) {
  int64_t total = 0;
  for (const at::Tensor& tensor : tensors) total += tensor.numel();
  const at::Tensor& first = tensors.front();
  if (lie_behind_each_other(tensors)) {
    return in_known_type(
        at::from_blob(
            first.data_ptr(), {total}, [keep = tensors](void*) {}, at::TensorOptions(first.scalar_type())),
        use_);
  }
  const at::Tensor host = room_for(first, {total});
  int64_t begin = 0;
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor part = host.narrow(0, begin, tensor.numel()).view(tensor.sizes());
    const at::Tensor there = is_host_ready(tensor) ? host_view(tensor) : tensor;
    if (reads) copy_now(part, there);
    if (writes) backs_.emplace_back(there, part);
    begin += tensor.numel();
  }
  return in_known_type(host, use_);
}

void Stage::finish() {
  const at::NoGradGuard no_grad;
  {
    const c10::InferenceMode inference;  // the host's tensors may be such, and nobody else sees them
    for (const auto& task : tasks_) task();
  }
  for (const auto& [to, from] : backs_) copy_now(to, from);
}

}  // namespace torchgraft
