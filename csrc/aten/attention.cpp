// Which of torch's ways scaled_dot_product_attention takes on the device: the fused op where its kernels or its library
// serve the call, else the composition of matrix products and softmax. A mask of booleans is given to the fused op as
// it is.

#include <ATen/Context.h>
#include <ATen/SDPBackend.h>
#include <ATen/core/grad_mode.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_scaled_dot_product_fused_attention_overrideable.h>
#include <ATen/ops/scaled_dot_product_attention_native.h>
#include <torch/library.h>

#include <functional>

#include "dispatch.h"
#include "register.h"
#include "runtime/device.h"

namespace torchgraft {

namespace {

std::function<void()>& preparation() {
  static auto* prepare = new std::function<void()>;
  return *prepare;
}

AttentionOperator& attention_operator() {
  static auto* serves = new AttentionOperator;
  return *serves;
}

constexpr int64_t kLargestHead = 256;
// Fewer queries than this leave most of a vector empty in the fused backward; their scores take little memory.
constexpr int64_t kFewQueries = 5;

bool served_dtype(c10::ScalarType dtype) {
  return dtype == c10::kFloat || dtype == c10::kDouble || dtype == c10::kHalf || dtype == c10::kBFloat16;
}

// Sizes may be symbols: torch.export and torch.compile ask this too, and note what the answer depends on.
bool fused_serves(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                  const std::optional<at::Tensor>& mask, bool is_causal, bool enable_gqa) {
  int64_t dim = query.dim();
  if ((dim != 3 && dim != 4) || key.dim() != dim || value.dim() != dim) return false;
  for (const at::Tensor* tensor : {&query, &key, &value})
    if (tensor->is_nested() || tensor->scalar_type() != query.scalar_type() || tensor->sym_numel() == 0) return false;
  if (!served_dtype(query.scalar_type())) return false;
  if (query.sym_size(-1) != key.sym_size(-1) || query.sym_size(-1) > kLargestHead || value.sym_size(-1) > kLargestHead)
    return false;
  if (key.sym_size(-2) != value.sym_size(-2)) return false;
  if (key.sym_size(-3) != value.sym_size(-3)) return false;
  if (dim == 4 && (query.sym_size(0) != key.sym_size(0) || key.sym_size(0) != value.sym_size(0))) return false;
  if (query.sym_size(-3) != key.sym_size(-3) && (!enable_gqa || query.sym_size(-3) % key.sym_size(-3) != 0))
    return false;
  if (mask.has_value() && mask->defined() && (is_causal || mask->is_nested() || mask->dim() > dim)) return false;
  return true;
}

bool wants_gradient(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                    const std::optional<at::Tensor>& mask) {
  return at::GradMode::is_enabled() && (query.requires_grad() || key.requires_grad() || value.requires_grad() ||
                                        (mask.has_value() && mask->defined() && mask->requires_grad()));
}

// Whether a device without a compiler has an operator for the call, and for its gradient if that is wanted.
bool library_serves(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                    const std::optional<at::Tensor>& mask, double dropout, bool is_causal,
                    std::optional<double> scale) {
  return dropout == 0 && get_device(query.device().index()).has(TG_CAP_PROGRAMS) && attention_operator() &&
         attention_operator()(query, key, value, mask, is_causal, scale);
}

int64_t choose(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
               const std::optional<at::Tensor>& mask, double dropout, bool is_causal, std::optional<double> scale,
               bool enable_gqa) {
  at::Context& context = at::globalContext();
  const bool kernels = has_kernels(query);
  bool fused = context.userEnabledOverrideableSDP() && fused_serves(query, key, value, mask, is_causal, enable_gqa) &&
               (kernels || library_serves(query, key, value, mask, dropout, is_causal, scale));
  if (fused && kernels && context.userEnabledMathSDP() && wants_gradient(query, key, value, mask) &&
      query.sym_size(-2) < kFewQueries)
    fused = false;
  if (fused) {
    if (query.key_set().has(c10::DispatchKey::Python) && preparation()) preparation()();
    return static_cast<int64_t>(at::SDPBackend::overrideable);
  }
  TORCH_CHECK(context.userEnabledMathSDP(), "No available kernel. Aborting execution.");
  return static_cast<int64_t>(at::SDPBackend::math);
}

// As torch's own composition, which makes numbers of a mask of booleans before it calls a fused op; the kernels here
// read booleans. All other calls are left to it, refusals included.
at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const std::optional<at::Tensor>& mask, double dropout, bool is_causal, std::optional<double> scale,
                     bool enable_gqa) {
  bool booleans = mask.has_value() && mask->defined() && mask->scalar_type() == c10::kBool;
  if (booleans && query.device() == key.device() && query.device() == value.device() &&
      query.device() == mask->device() && query.device().is_privateuseone() &&
      choose(query, key, value, mask, dropout, is_causal, scale, enable_gqa) ==
          static_cast<int64_t>(at::SDPBackend::overrideable))
    return std::get<0>(at::_scaled_dot_product_fused_attention_overrideable(query, key, value, mask, dropout, is_causal,
                                                                            /*return_debug_mask=*/false, scale));
  return at::native::scaled_dot_product_attention(query, key, value, mask, dropout, is_causal, scale, enable_gqa);
}

}  // namespace

// Also where no device has been opened: torch.compile asks then.
bool has_kernels(const at::Tensor& tensor) {
  return !devices_opened() || get_device(tensor.device().index()).has(TG_CAP_COMPILER);
}

void prepare_attention_by(std::function<void()> prepare) { preparation() = std::move(prepare); }

void attention_operator_by(AttentionOperator serves) { attention_operator() = std::move(serves); }

void register_attention() {
  at::native::_fused_sdp_choice_stub.set_privateuse1_dispatch_ptr(&choose);
  static auto* library = new torch::Library(MAKE_TORCH_LIBRARY_IMPL(aten, PrivateUse1));
  library->impl("_fused_sdp_choice",
                TORCH_FN(choose));  // for whoever asks; by fallback the CPU would answer for itself
  // Made of other ops, so gradients are theirs: the same function below autograd, for inference mode, and in its place.
  static auto* gradients = new torch::Library(MAKE_TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1));
  library->impl("scaled_dot_product_attention", TORCH_FN(attention));
  gradients->impl("scaled_dot_product_attention", TORCH_FN(attention));
}

}  // namespace torchgraft
