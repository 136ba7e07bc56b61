// Autocast: PyTorch's own lists of what is cast to what, for this device. All other ops pass through.
#include <ATen/autocast_mode.h>
#include <torch/version.h>

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

enum class Policy { LowerPrecision, Float32, Promote, None };

Policy policy_named(const std::string& name) {
  if (name == "lower_precision") return Policy::LowerPrecision;
  if (name == "float32") return Policy::Float32;
  if (name == "promote") return Policy::Promote;
  TORCH_CHECK_VALUE(name == "none", "an autocast policy is 'lower_precision', 'float32', 'promote' or 'none', not '",
                    name, "'");
  return Policy::None;
}

// One policy for any op: what the macros below make of an op's C++ signature, made of its schema.
struct PolicyKernel final : c10::OperatorKernel {
  explicit PolicyKernel(Policy policy) : policy(policy) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastPrivateUse1);
    if (policy != Policy::None) {
      auto arguments = torch::jit::last(*stack, op.schema().arguments().size());
      const at::ScalarType target = dtype(arguments);
      size_t first = stack->size() - arguments.size();
      for (size_t i = first; i < stack->size(); ++i) cast((*stack)[i], target);
    }
    op.callBoxed(stack);
  }

  at::ScalarType dtype(c10::ArrayRef<c10::IValue> arguments) const {
    if (policy == Policy::Float32) return at::kFloat;
    at::ScalarType found = at::autocast::get_lower_precision_fp_from_device_type(c10::DeviceType::PrivateUse1);
    if (policy == Policy::Promote)
      for (const c10::IValue& value : arguments) {
        if (value.isTensor()) found = at::autocast::prioritize(found, value.toTensor(), c10::DeviceType::PrivateUse1);
        if (value.isTensorList())
          for (const at::Tensor& tensor : value.toTensorVector())
            found = at::autocast::prioritize(found, tensor, c10::DeviceType::PrivateUse1);
      }
    return found;
  }

  static void cast(c10::IValue& value, at::ScalarType target) {
    if (value.isTensor()) value = at::autocast::cached_cast(target, value.toTensor(), c10::DeviceType::PrivateUse1);
    if (value.isTensorList()) {
      std::vector<at::Tensor> tensors = value.toTensorVector();
      // A vector would be taken by the overload that passes on what is no tensor.
      value = at::autocast::cached_cast(target, at::TensorList(tensors), c10::DeviceType::PrivateUse1);
    }
  }

  Policy policy;
};

// torch warns where a policy of its lists is replaced, which is the wish here. In this thread alone: the filters of
// Python's warnings are the whole process's.
class NoWarningOfReplacement final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override {
    if (warning.msg().find("Warning only once for all operators") == std::string::npos) others_->process(warning);
  }

 private:
  c10::WarningHandler* others_ = c10::WarningUtils::get_warning_handler();
  c10::WarningUtils::WarningHandlerGuard guard_{this};
};

}  // namespace

void register_autocast_policy(const std::string& op, const std::string& policy) {
  auto kernel = std::make_unique<PolicyKernel>(policy_named(policy));
  NoWarningOfReplacement quiet;
  // Never taken back, as the registrations of the ops themselves.
  auto* library = new torch::Library(torch::Library::IMPL, op.substr(0, op.find("::")),
                                     c10::DispatchKey::AutocastPrivateUse1, __FILE__, __LINE__);
  library->impl(op.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::move(kernel)));
}

void register_autocast() {
  static auto* others = new torch::Library(MAKE_TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1));
  others->fallback(torch::CppFunction::makeFallthrough());

  static auto* library = new torch::Library(MAKE_TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1));
  // The names that PyTorch's macros expect.
  torch::Library& m = *library;
  using at::IntArrayRef, at::Scalar, at::ScalarType, at::Tensor;
#if TORCH_VERSION_MINOR < 13  // it has named dimensions
  using at::DimnameList;
#endif
#define TORCHGRAFT_LOWER_PRECISION_FP(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define TORCHGRAFT_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define TORCHGRAFT_FP32_SET_OPT_DTYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define TORCHGRAFT_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
  AT_FORALL_LOWER_PRECISION_FP(TORCHGRAFT_LOWER_PRECISION_FP)
  AT_FORALL_FP32(TORCHGRAFT_FP32)
  AT_FORALL_FP32_SET_OPT_DTYPE(TORCHGRAFT_FP32_SET_OPT_DTYPE)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
  AT_FORALL_PROMOTE(TORCHGRAFT_PROMOTE)
#if TORCH_VERSION_MINOR >= 14  // which casts it for CUDA and the CPU, not in the list for all
  TORCHGRAFT_FP32(linalg_matrix_sqrth)
#endif
  m.impl("binary_cross_entropy", TORCH_FN(binary_cross_entropy_banned));
}

}  // namespace torchgraft
