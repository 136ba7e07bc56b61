// aten::cross_entropy_loss where gradients are wanted. torch makes it of log_softmax and nll_loss; in the backward the
// one gives a tensor of zeros but for a class a target, and the other reads it twice. Here both backwards are one op,
// torchgraft::cross_entropy_backward. What is kept for it is what torch keeps, the logarithms of the probabilities, so
// that the logits may be written to before the gradients are asked for.

#include <ATen/autocast_mode.h>
#include <ATen/core/Reduction.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_log_softmax_backward_data.h>
#include <ATen/ops/cross_entropy_loss_native.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/nll_loss_backward.h>
#include <ATen/ops/nll_loss_forward.h>
#include <ATen/ops/where.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "dispatch.h"

namespace torchgraft {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// What else is traced or transformed needs ops of torch's, whose rules it knows.
constexpr c10::DispatchKeySet kTransformed({c10::DispatchKey::Python, c10::DispatchKey::Functionalize,
                                            c10::DispatchKey::FuncTorchBatched,
                                            c10::DispatchKey::FuncTorchGradWrapper});

bool is_plain(const at::Tensor& tensor) { return !tensor.key_set().has_any(kTransformed); }

at::Tensor fused_backward(const at::Tensor& gradient, const at::Tensor& log_probabilities, const at::Tensor& target,
                          const at::Tensor& total, int64_t reduction, int64_t ignored, double smoothing) {
  using Signature =
      at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&, int64_t, int64_t, double);
  static auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("torchgraft::cross_entropy_backward", "").typed<Signature>();
  return op.call(gradient, log_probabilities, target, total, reduction, ignored, smoothing);
}

// The loss of labels of which the share `smoothing` is spread over all classes, from that of the classes alone.
at::Tensor smoothed_loss(const at::Tensor& loss, const at::Tensor& log_probabilities, const at::Tensor& target,
                         const at::Tensor& total, int64_t reduction, int64_t ignored, double smoothing) {
  at::Tensor spread = log_probabilities.sum(1).masked_fill_(target == ignored, 0);
  if (reduction != at::Reduction::None) spread = spread.sum();
  if (reduction == at::Reduction::Mean) spread.div_(total);
  return loss.mul(1 - smoothing).sub_(spread, smoothing / static_cast<double>(log_probabilities.size(1)));
}

// Its gradient with respect to the logarithms, in ops that have gradients themselves.
at::Tensor gradient_of_classes(const at::Tensor& gradient, const at::Tensor& log_probabilities,
                               const at::Tensor& target, const at::Tensor& total, int64_t reduction, int64_t ignored,
                               double smoothing) {
  at::Tensor of_targets = at::nll_loss_backward(gradient, log_probabilities, target, {}, reduction, ignored, total);
  if (smoothing == 0) return of_targets;
  at::Tensor each = reduction == at::Reduction::Mean ? gradient / total : gradient;
  each = at::where(target != ignored, each, 0) * (smoothing / static_cast<double>(log_probabilities.size(1)));
  return of_targets * (1 - smoothing) - each.unsqueeze(1);
}

class CrossEntropy : public torch::autograd::Function<CrossEntropy> {
 public:
  // `log_probabilities` have a graph of their own from the logits, for gradients of gradients. By a pointer they are no
  // argument with a gradient.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& logits, const at::Tensor* log_probabilities,
                            const at::Tensor& target, int64_t reduction, int64_t ignored, double smoothing) {
    auto [loss, total] = at::nll_loss_forward(*log_probabilities, target, {}, reduction, ignored);
    context->save_for_backward({*log_probabilities, target, total});
    context->saved_data["reduction"] = reduction;
    context->saved_data["ignored"] = ignored;
    context->saved_data["smoothing"] = smoothing;
    if (smoothing == 0) return loss;
    return smoothed_loss(loss, *log_probabilities, target, total, reduction, ignored, smoothing);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    variable_list saved = context->get_saved_variables();
    const at::Tensor &gradient = gradients[0], &log_probabilities = saved[0], &target = saved[1], &total = saved[2];
    int64_t reduction = context->saved_data["reduction"].toInt(), ignored = context->saved_data["ignored"].toInt();
    double smoothing = context->saved_data["smoothing"].toDouble();
    variable_list results(6);
    if (!gradient.defined()) return results;
    if (at::GradMode::is_enabled() || !is_plain(gradient)) {
      at::Tensor of_classes =
          gradient_of_classes(gradient, log_probabilities, target, total, reduction, ignored, smoothing);
      results[0] = at::_log_softmax_backward_data(of_classes, log_probabilities, 1, log_probabilities.scalar_type());
    } else {
      results[0] = fused_backward(gradient, log_probabilities, target, total, reduction, ignored, smoothing);
    }
    return results;
  }
};

bool is_served(const at::Tensor& logits, const at::Tensor& target, const std::optional<at::Tensor>& weight,
               double label_smoothing) {
  return at::GradMode::is_enabled() && logits.requires_grad() && is_plain(logits) && is_plain(target) &&
         !c10::impl::dispatch_mode_enabled() && !logits._fw_grad(0).defined() && logits.device().is_privateuseone() &&
         target.device() == logits.device() && logits.layout() == c10::kStrided && logits.dim() == 2 &&
         target.dim() == 1 && target.scalar_type() == c10::kLong && logits.is_floating_point() &&
         logits.size(0) == target.size(0) && logits.numel() > 0 && !(weight.has_value() && weight->defined()) &&
         label_smoothing >= 0 && label_smoothing <= 1 && has_kernels(logits);
}

// Autocast has the logarithms made in float32 of whatever logits.
at::Tensor cast(const at::Tensor& logits) {
  bool narrow = logits.scalar_type() == c10::kHalf || logits.scalar_type() == c10::kBFloat16;
  return narrow && at::autocast::is_autocast_enabled(c10::kPrivateUse1) ? logits.to(c10::kFloat) : logits;
}

at::Tensor cross_entropy_loss(const at::Tensor& self, const at::Tensor& target, const std::optional<at::Tensor>& weight,
                              int64_t reduction, c10::SymInt ignore_index, double label_smoothing) {
  if (!is_served(self, target, weight, label_smoothing))
    return at::native::cross_entropy_loss_symint(self, target, weight, reduction, std::move(ignore_index),
                                                 label_smoothing);
  at::Tensor logits = cast(self);
  at::Tensor log_probabilities = at::log_softmax(logits, 1);
  return CrossEntropy::apply(logits, &log_probabilities, target, reduction, ignore_index.guard_int(__FILE__, __LINE__),
                             label_smoothing);
}

}  // namespace

void register_cross_entropy() {
  static auto* gradients = new torch::Library(MAKE_TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1));
  gradients->impl("cross_entropy_loss", TORCH_FN(cross_entropy_loss));
}

}  // namespace torchgraft
