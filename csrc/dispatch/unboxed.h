// Planned ops as the dispatcher calls them without a stack, for the signatures that most small ops have.
//
// A boxed call copies its tensors into IValues. Where a tensor has a Python object that is a matter of the GIL: with
// its second owner it takes a reference to the object, and gives it back with the last but one (torch 2.13). Here the
// values only borrow the tensors.
#pragma once

#include <ATen/core/function_schema.h>
#include <torch/library.h>

#include <optional>

namespace torchgraft {

struct PlannedName;

// The kernel of an op whose signature is one of these.
std::optional<torch::CppFunction> unboxed_kernel(const c10::FunctionSchema& schema, const PlannedName* name);

}  // namespace torchgraft
