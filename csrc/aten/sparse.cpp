// Sparse and quantised tensors: PyTorch has keys of their own for them, under which nothing is registered for a device
// outside of its tree.
//
// What makes, takes apart and copies such tensors works on any device, and PyTorch's own functions are registered for
// it. All that computes goes to the CPU fallback, member by member.
#include "sparse.h"

#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/native/SparseTensorUtils.h>
#include <ATen/ops/_coalesced_native.h>
#include <ATen/ops/_dimI_native.h>
#include <ATen/ops/_dimV_native.h>
#include <ATen/ops/_indices_native.h>
#include <ATen/ops/_nnz_native.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_and_tensors_native.h>
#include <ATen/ops/_sparse_coo_tensor_with_dims_native.h>
#include <ATen/ops/_values_native.h>
#include <ATen/ops/ccol_indices_native.h>
#include <ATen/ops/clone_native.h>
#include <ATen/ops/col_indices_native.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/copy_sparse_to_sparse_native.h>
#include <ATen/ops/crow_indices_native.h>
#include <ATen/ops/dense_dim_native.h>
#include <ATen/ops/empty_like_native.h>
#include <ATen/ops/empty_native.h>
#include <ATen/ops/indices_native.h>
#include <ATen/ops/is_coalesced_native.h>
#include <ATen/ops/q_scale_native.h>
#include <ATen/ops/q_zero_point_native.h>
#include <ATen/ops/qscheme_native.h>
#include <ATen/ops/resize_as_sparse_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/row_indices_native.h>
#include <ATen/ops/sparse_dim_native.h>
#include <ATen/ops/sparse_resize_and_clear_native.h>
#include <ATen/ops/sparse_resize_native.h>
#include <ATen/ops/values_native.h>
#include <torch/library.h>

#include "dispatch.h"

namespace torchgraft {
namespace {

bool is_compressed(const at::Tensor& tensor) { return at::sparse_csr::is_sparse_compressed(tensor); }

// The same memory as integers, so that a copy takes the numbers as they are stored.
at::Tensor stored_numbers(const at::Tensor& quantised) {
  const c10::DispatchKeySet keys(quantised.is_cpu() ? c10::DispatchKey::CPU : c10::DispatchKey::PrivateUse1);
  at::Tensor plain = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(quantised.storage()), keys, c10::scalarTypeToTypeMeta(c10::toUnderlying(quantised.scalar_type())));
  plain.unsafeGetTensorImpl()->set_storage_offset(quantised.storage_offset());
  plain.unsafeGetTensorImpl()->set_sizes_and_strides(quantised.sizes(), quantised.strides());
  return plain;
}

at::Tensor copy_quantised(const at::Tensor& self, const at::Tensor& dst, bool non_blocking) {
  TORCH_CHECK(self.is_quantized() && dst.is_quantized() && self.scalar_type() == dst.scalar_type(), "copying ",
              self.toString(), " to ", dst.toString(), ": quantised tensors are copied to such of the same dtype; use ",
              "torch.quantize_per_tensor or dequantize");
  copy_from(stored_numbers(self), stored_numbers(dst), non_blocking);
  return dst;
}

}  // namespace

bool is_sparse(const at::Tensor& tensor) { return tensor.is_sparse() || is_compressed(tensor); }

void replace_members(const at::Tensor& target, const at::Tensor& source, const MapTensor& map) {
  if (is_compressed(source)) {
    const auto* from = at::sparse_csr::get_sparse_csr_impl(source);
    at::sparse_csr::get_sparse_csr_impl(target)->set_member_tensors(
        map(from->compressed_indices()), map(from->plain_indices()), map(from->values()), source.sizes());
    return;
  }
  const at::SparseTensorImpl* from = at::sparse::get_sparse_impl(source);
  at::SparseTensorImpl* to = at::sparse::get_sparse_impl(target);
  to->raw_resize_(from->sparse_dim(), from->dense_dim(), source.sizes());
  to->set_indices_and_values_unsafe(map(from->indices()), map(from->values()));
  to->set_coalesced(from->coalesced());
}

at::Tensor map_members(const at::Tensor& sparse, c10::DeviceType type, const MapTensor& map) {
  const bool on_cpu = type == c10::DeviceType::CPU;
  at::Tensor made;
  if (is_compressed(sparse)) {
    const auto key = on_cpu ? c10::DispatchKey::SparseCsrCPU : c10::DispatchKey::SparseCsrPrivateUse1;
    const c10::Device device = map(at::sparse_csr::get_sparse_csr_impl(sparse)->values()).device();
    made = at::detail::make_tensor<at::SparseCsrTensorImpl>(c10::DispatchKeySet(key), device, sparse.layout(),
                                                            sparse.dtype());
  } else {
    const auto key = on_cpu ? c10::DispatchKey::SparseCPU : c10::DispatchKey::SparsePrivateUse1;
    made = at::detail::make_tensor<at::SparseTensorImpl>(c10::DispatchKeySet(key), sparse.dtype());
  }
  replace_members(made, sparse, map);
  return made;
}

void register_sparse() {
  static auto* coo = new torch::Library(MAKE_TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1));
  coo->impl("_sparse_coo_tensor_with_dims", TORCH_FN(at::native::new_with_dims_sparse));
  coo->impl("_sparse_coo_tensor_with_dims_and_tensors", TORCH_FN(at::native::new_with_dims_and_tensor_sparse_symint));
  coo->impl("empty.memory_format", TORCH_FN(at::native::empty_sparse_symint));
  coo->impl("empty_like", TORCH_FN(at::native::empty_like_sparse_coo));
  coo->impl("clone", TORCH_FN(at::native::clone_sparse));
  coo->impl("copy_", TORCH_FN(at::native::copy_sparse_wrapper_));
  coo->impl("copy_sparse_to_sparse_", TORCH_FN(at::native::copy_sparse_));
  coo->impl("sparse_resize_", TORCH_FN(at::native::sparse_resize_));
  coo->impl("sparse_resize_and_clear_", TORCH_FN(at::native::sparse_resize_and_clear_));
  coo->impl("resize_as_sparse_", TORCH_FN(at::native::resize_as_sparse_));
  coo->impl("_nnz", TORCH_FN(at::native::_nnz_sparse));
  coo->impl("_indices", TORCH_FN(at::native::_indices_sparse));
  coo->impl("_values", TORCH_FN(at::native::_values_sparse));
  coo->impl("indices", TORCH_FN(at::native::indices_sparse));
  coo->impl("values", TORCH_FN(at::native::values_sparse));
  coo->impl("is_coalesced", TORCH_FN(at::native::is_coalesced_sparse));
  coo->impl("_coalesced_", TORCH_FN(at::native::_coalesced_sparse_));
  coo->impl("sparse_dim", TORCH_FN(at::native::sparse_dim_sparse));
  coo->impl("dense_dim", TORCH_FN(at::native::dense_dim_sparse));
  coo->impl("_dimI", TORCH_FN(at::native::sparse_dim_sparse));
  coo->impl("_dimV", TORCH_FN(at::native::dense_dim_sparse));

  static auto* compressed = new torch::Library(MAKE_TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1));
  compressed->impl("empty.memory_format", TORCH_FN(at::native::empty_sparse_compressed_symint));
  compressed->impl("empty_like", TORCH_FN(at::native::empty_like_sparse_csr));
  compressed->impl("clone", TORCH_FN(at::native::clone_sparse_compressed));
  compressed->impl("copy_", TORCH_FN(at::native::copy_sparse_compressed_));
  compressed->impl("resize_", TORCH_FN(at::native::resize_sparse_csr_));
  compressed->impl("resize_as_sparse_", TORCH_FN(at::native::resize_as_sparse_compressed_));
  compressed->impl("_nnz", TORCH_FN(at::native::_nnz_sparse_csr));
  compressed->impl("crow_indices", TORCH_FN(at::native::crow_indices_sparse_csr));
  compressed->impl("col_indices", TORCH_FN(at::native::col_indices_sparse_csr));
  compressed->impl("ccol_indices", TORCH_FN(at::native::ccol_indices_sparse_csr));
  compressed->impl("row_indices", TORCH_FN(at::native::row_indices_sparse_csr));
  compressed->impl("values", TORCH_FN(at::native::values_sparse_csr));
  compressed->impl("sparse_dim", TORCH_FN(at::native::sparse_dim_sparse_csr));
  compressed->impl("dense_dim", TORCH_FN(at::native::dense_dim_sparse_csr));

  static auto* quantised = new torch::Library(MAKE_TORCH_LIBRARY_IMPL(aten, QuantizedPrivateUse1));
  quantised->impl("_copy_from", TORCH_FN(copy_quantised));
  quantised->impl("q_scale", TORCH_FN(at::native::q_scale_quant));
  quantised->impl("q_zero_point", TORCH_FN(at::native::q_zero_point_quant));
  quantised->impl("qscheme", TORCH_FN(at::native::qscheme_quant));
}

}  // namespace torchgraft
