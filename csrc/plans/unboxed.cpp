#include "unboxed.h"

#include <string>
#include <type_traits>
#include <unordered_map>

namespace torchgraft {
namespace {

// ---- results ----

// In-place and out= forms return what they write, which is not const.
template <typename... Arguments>
at::Tensor& written(Arguments&... arguments) {
  at::Tensor* found = nullptr;
  const auto look = [&found](auto& argument) {
    if constexpr (std::is_same_v<decltype(argument), at::Tensor&>) found = &argument;
  };
  (look(arguments), ...);
  return *found;
}

// ---- kernels ----

template <typename Result, typename... Arguments>
torch::CppFunction kernel(const PlannedName* name) {
  return torch::CppFunction([name](Arguments... arguments) -> Result {
    PlannedOp& op = *name->op.load(std::memory_order_acquire);
    const Borrowed<sizeof...(Arguments)> lent(arguments...);
    constexpr bool returns_argument = std::is_reference_v<Result>;
    c10::IValue result = op.run_borrowed(lent.values, /*wants_arguments=*/!returns_argument);
    if constexpr (returns_argument) {
      return written(arguments...);
    } else {
      return std::move(result).toTensor();
    }
  });
}

using T = const at::Tensor&;
using W = at::Tensor&;  // written
using S = const at::Scalar&;
using Make = torch::CppFunction (*)(const PlannedName*);

const std::unordered_map<std::string, Make>& kernels() {
  static const auto& known = *new std::unordered_map<std::string, Make>{
      {"T>T", kernel<at::Tensor, T>},
      {"TT>T", kernel<at::Tensor, T, T>},
      {"TS>T", kernel<at::Tensor, T, S>},
      {"TTS>T", kernel<at::Tensor, T, T, S>},
      {"TSS>T", kernel<at::Tensor, T, S, S>},
      {"TTT>T", kernel<at::Tensor, T, T, T>},
      {"TTTS>T", kernel<at::Tensor, T, T, T, S>},
      {"TTTSS>T", kernel<at::Tensor, T, T, T, S, S>},
      {"W>W", kernel<W, W>},
      {"WT>W", kernel<W, W, T>},
      {"WS>W", kernel<W, W, S>},
      {"WTS>W", kernel<W, W, T, S>},
      {"WSS>W", kernel<W, W, S, S>},
      {"WTTS>W", kernel<W, W, T, T, S>},
      {"TW>W", kernel<W, T, W>},
      {"TTW>W", kernel<W, T, T, W>},
      {"TSW>W", kernel<W, T, S, W>},
      {"TTSW>W", kernel<W, T, T, S, W>},
  };
  return known;
}

// ---- signatures ----

char letter(const c10::Argument& argument) {
  switch (argument.type()->kind()) {
    case c10::TypeKind::TensorType:
      return argument.alias_info() != nullptr && argument.alias_info()->isWrite() ? 'W' : 'T';
    case c10::TypeKind::NumberType:
      return 'S';
    default:
      return '?';
  }
}

std::string letters(const c10::FunctionSchema& schema) {
  std::string text;
  for (const c10::Argument& argument : schema.arguments()) text += letter(argument);
  text += '>';
  for (const c10::Argument& result : schema.returns()) text += letter(result);
  return text;
}

}  // namespace

std::optional<torch::CppFunction> unboxed_kernel(const c10::FunctionSchema& schema, const PlannedName* name) {
  // The kernels of an op must all have one C++ type. For torch's own it follows from the schema; an extension may have
  // written `at::Tensor` where these say `const at::Tensor&`.
  if (!schema.name().starts_with("aten::")) return std::nullopt;
  const auto found = kernels().find(letters(schema));
  if (found == kernels().end()) return std::nullopt;
  return found->second(name);
}

}  // namespace torchgraft
