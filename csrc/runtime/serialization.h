// A tensor's own fields (c10::BackendMeta): what torch.save writes beside the data, and what travels with copies.
//
// PyTorch carries them as a map of string to bool. Here they are kept as that map, whatever it says; how it holds a
// user's fields is for torchgraft/serialization.py.
#pragma once

#include <ATen/core/Tensor.h>

namespace torchgraft {

// Gives `copy`, a faithful copy of `original`, its fields.
void carry_backend_meta(const at::Tensor& original, const at::Tensor& copy);

// Called once by install_runtime().
void register_serialization();

}  // namespace torchgraft
