// Planned ops as the dispatcher calls them without a stack, for the signatures that most small ops have.
//
// A boxed call copies its tensors into IValues. Where a tensor has a Python object that is a matter of the GIL: with
// its second owner it takes a reference to the object, and gives it back with the last but one (torch 2.13). Here the
// values only borrow the tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <torch/library.h>

#include <array>
#include <atomic>
#include <optional>
#include <utility>

#include "plan.h"

namespace torchgraft {

// The arguments of a call as values that own no tensor of theirs.
template <size_t Count>
class Borrowed {
 public:
  template <typename... Arguments>
  explicit Borrowed(const Arguments&... arguments) : values{borrowed(arguments)...} {}
  ~Borrowed() {
    for (c10::IValue& value : values)
      if (value.isTensor()) static_cast<void>(std::move(value).toTensor().unsafeReleaseTensorImpl());
  }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;

  std::array<c10::IValue, Count> values;

 private:
  static c10::IValue borrowed(const at::Tensor& tensor) {
    return at::Tensor(
        c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim(tensor.unsafeGetTensorImpl()));
  }
  static c10::IValue borrowed(const at::Scalar& scalar) { return scalar; }
  static c10::IValue borrowed(bool flag) { return flag; }
};

// An op that the core itself asks for: run by its plan for this call, past the dispatcher.
class OwnOp {
 public:
  explicit OwnOp(const char* name) : name_(name), planned_(planned_name(name)) {}

  template <typename... Arguments>
  void operator()(const Arguments&... arguments) const {
    PlannedOp* op = planned_.op.load(std::memory_order_acquire);
    TORCH_CHECK_NOT_IMPLEMENTED(op != nullptr, "no planner for ", name_);
    const Borrowed<sizeof...(Arguments)> lent(arguments...);
    op->run_borrowed(lent.values, /*wants_arguments=*/false);
  }

 private:
  const char* name_;
  const PlannedName& planned_;
};

// The kernel of an op whose signature is one of these.
std::optional<torch::CppFunction> unboxed_kernel(const c10::FunctionSchema& schema, const PlannedName* name);

}  // namespace torchgraft
