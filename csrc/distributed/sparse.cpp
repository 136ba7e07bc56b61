// Sparse tensors in collectives. Torch knows no kernel of theirs for such a device, and what runs ops on the CPU that a
// device lacks would reduce copies.

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include "runtime/device.h"

namespace torchgraft {
namespace {

void as_dense(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), stack);
}

void refuse(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, op.schema().name(), " takes no sparse tensors on ", backend_name(),
                              ": of the collectives only all_reduce does");
}

TORCH_LIBRARY_IMPL(c10d, SparsePrivateUse1, m) {
  m.impl("allreduce_", torch::CppFunction::makeFromBoxedFunction<&as_dense>());
  for (const char* name : {"broadcast_", "reduce_", "allgather_", "_allgather_base_", "reduce_scatter_",
                           "_reduce_scatter_base_", "gather_", "scatter_", "alltoall_", "alltoall_base_", "send",
                           "recv_", "recv_any_source_", "allreduce_coalesced_"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&refuse>());
}

}  // namespace
}  // namespace torchgraft
