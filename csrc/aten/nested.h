// Nested tensors have no memory of their own but that of their buffer, a dense tensor.
#pragma once

#include "sparse.h"

namespace torchgraft {

// A nested tensor of the same sizes, strides and offsets over the buffer that `map` gives.
at::Tensor map_nested(const at::Tensor& nested, const MapTensor& map);

}  // namespace torchgraft
