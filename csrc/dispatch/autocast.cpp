// Autocast: PyTorch's own lists of what is cast to what, for this device. All other ops pass through.
#include <ATen/autocast_mode.h>

#include "dispatch.h"

namespace torchgraft {
namespace {

at::Tensor binary_cross_entropy_banned(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                                       int64_t) {
  TORCH_CHECK(
      false,
      "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
      "Many models use a sigmoid layer right before the binary cross entropy layer. In this case, combine the two "
      "layers using torch.nn.functional.binary_cross_entropy_with_logits or torch.nn.BCEWithLogitsLoss, which are "
      "safe to autocast.");
}

}  // namespace

void register_autocast() {
  static auto* others = new torch::Library(MAKE_TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1));
  others->fallback(torch::CppFunction::makeFallthrough());

  static auto* library = new torch::Library(MAKE_TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1));
  // The names that PyTorch's macros expect.
  torch::Library& m = *library;
  using at::IntArrayRef, at::Scalar, at::ScalarType, at::Tensor;
#define TORCHGRAFT_LOWER_PRECISION_FP(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define TORCHGRAFT_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define TORCHGRAFT_FP32_SET_OPT_DTYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define TORCHGRAFT_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_LOWER_PRECISION_FP(TORCHGRAFT_LOWER_PRECISION_FP)
  AT_FORALL_FP32(TORCHGRAFT_FP32)
  AT_FORALL_FP32_SET_OPT_DTYPE(TORCHGRAFT_FP32_SET_OPT_DTYPE)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
  AT_FORALL_PROMOTE(TORCHGRAFT_PROMOTE)
  m.impl("binary_cross_entropy", TORCH_FN(binary_cross_entropy_banned));
}

}  // namespace torchgraft
