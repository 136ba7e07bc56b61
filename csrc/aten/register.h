// The parts of dispatch, for whoever puts them together; free of torch's headers.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace at {
class Tensor;
}

namespace torchgraft {

// Each registers its kernels for PrivateUse1; called once.
void register_factories();
void register_views();
void register_copy();
void register_fill();
void register_sparse();
void register_nested();
void register_fallback();
void register_autocast();
void register_attention();
void register_cross_entropy();

// What is called before the fused attention is chosen for tensors of a subclass: whose subclass it is may have to hear
// of the op first.
void prepare_attention_by(std::function<void()> prepare);

// Asks whether the device's library has an operator for a call of scaled_dot_product_attention without dropout, in the
// order query, key, value, mask, is_causal, scale: torchgraft/ops/operators/attention.py.
using AttentionOperator = std::function<bool(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                             const std::optional<at::Tensor>&, bool, std::optional<double>)>;
void attention_operator_by(AttentionOperator serves);

// What autocast does with an op of an author's: see torchgraft/autocast.py.
void register_autocast_policy(const std::string& op, const std::string& policy);

}  // namespace torchgraft
