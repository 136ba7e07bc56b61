// Fills: memory that lies in one piece is filled by a command, anything else by a plan.
#include <ATen/EmptyTensor.h>
#include <ATen/ops/fill_native.h>
#include <torch/library.h>

#include "dispatch.h"
#include "plans/unboxed.h"
#include "runtime/command.h"
#include "runtime/stream.h"

namespace torchgraft {
namespace {

bool is_one_piece(const at::Tensor& tensor) {
  return tensor.numel() != 0 && tensor.is_non_overlapping_and_dense() && !tensor.is_conj() && !tensor.is_neg();
}

at::Tensor& fill_scalar(at::Tensor& self, const at::Scalar& value) {
  if (is_one_piece(self)) {
    at::Tensor element(at::detail::empty_cpu({}, self.scalar_type()));
    at::native::fill_(element, value);
    fill_memory(self, element.const_data_ptr(), self.itemsize());
  } else {
    static const OwnOp by_plan("aten::fill_.Scalar");
    by_plan(self, value);
  }
  return self;
}

at::Tensor& zero(at::Tensor& self) {
  constexpr char kZero = 0;
  if (is_one_piece(self)) {
    fill_memory(self, &kZero, 1);
  } else {
    static const OwnOp by_plan("aten::zero_");
    by_plan(self);
  }
  return self;
}

}  // namespace

void fill_memory(const at::Tensor& dense, const void* pattern, size_t pattern_bytes) {
  const Device& device = get_device(dense.device().index());
  check(device,
        submit_fill(device, current_stream_handle(device.index), dense.data_ptr(), pattern,
                    static_cast<uint32_t>(pattern_bytes), dense.nbytes()),
        "filling");
}

void register_fill() {
  static auto* library = new torch::Library(MAKE_TORCH_LIBRARY_IMPL(aten, PrivateUse1));
  library->impl("fill_.Scalar", TORCH_FN(fill_scalar));
  library->impl("zero_", TORCH_FN(zero));
}

}  // namespace torchgraft
