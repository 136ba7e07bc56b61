// Sparse tensors have no memory of their own: they are made of dense ones, their members.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

namespace torchgraft {

using MapTensor = std::function<at::Tensor(const at::Tensor&)>;

// True of every layout that is made of members: COO, CSR, CSC, BSR and BSC.
bool is_sparse(const at::Tensor& tensor);
// A tensor of the same layout, sizes and dtype, of the members that `map` gives, which are on a device of that type.
at::Tensor map_members(const at::Tensor& sparse, c10::DeviceType type, const MapTensor& map);
// Makes `target` be of the members, and of the sizes, of `source`, mapped. Both have one layout.
void replace_members(const at::Tensor& target, const at::Tensor& source, const MapTensor& map);

}  // namespace torchgraft
