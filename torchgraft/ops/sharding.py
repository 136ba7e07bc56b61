"""How DTensor may cut what ops work on for which torch has no strategy of its own: the fused attention.

Torch has one for each fused attention of its own devices. Without one here, attention of DTensors would be refused.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch

from torchgraft._core import _C

aten = torch.ops.aten
_attention = aten._scaled_dot_product_fused_attention_overrideable.default
_attention_backward = aten._scaled_dot_product_fused_attention_overrideable_backward.default

# For each way to cut: placements of results and of arguments, None for what is no tensor.
Ways = list[tuple[list[Any], list[Any]]]

_known = False


def prepare() -> None:
    """Tells DTensor, once it has been imported; called where attention is asked for with tensors of a subclass."""
    global _known
    if _known or "torch.distributed.tensor" not in sys.modules:
        return
    _known = True
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.experimental import register_sharding

    known = DTensor._op_dispatcher.sharding_propagator.op_strategy_funcs
    if _attention not in known:  # a later torch may know it
        register_sharding(_attention)(_ways)
        register_sharding(_attention_backward)(_ways_backward)


def _cuts(query: Any, key: Any, bias: Any) -> Sequence[tuple[Any, Any, Any, Any]]:
    """Each way to cut, of the operands and results, the sums' logarithms, the bias, and the bias's gradient: not at
    all, by heads, by batch."""
    from torch.distributed.tensor import Partial, Replicate, Shard

    whole = Replicate()
    cuts: list[tuple[Any, Any, Any, Any]] = [(whole, whole, whole, whole)]
    # Each part of the queries' heads must find its own among the keys', of which there may be fewer.
    heads_meet = query.shape[-3] == key.shape[-3] or key.shape[-3] % query.mesh.size() == 0
    for from_behind, statistics in ((3, 1), (4, 0)):
        dim = len(query.shape) - from_behind
        if dim < 0 or (from_behind == 3 and not heads_meet):
            continue
        its: Any = whole
        gradient: Any = Partial()
        if bias is not None and len(bias.shape) >= from_behind and bias.shape[-from_behind] != 1:
            its = gradient = Shard(len(bias.shape) - from_behind)
        cuts.append((Shard(dim), Shard(statistics), its, gradient))
    return cuts


def _ways(query: Any, key: Any, value: Any, attn_bias: Any = None, *_: Any, **__: Any) -> Ways:
    from torch.distributed.tensor import Replicate

    random = [Replicate(), Replicate()]
    return [
        ([all_of, sums, None, None, None, None, *random, None], [all_of] * 3 + ([] if attn_bias is None else [bias]))
        for all_of, sums, bias, _ in _cuts(query, key, attn_bias)
    ]


def _ways_backward(
    grad_out: Any,
    query: Any,
    key: Any,
    value: Any,
    attn_bias: Any,
    grad_input_mask: Sequence[bool],
    out: Any,
    logsumexp: Any,
    cum_seq_q: Any,
    cum_seq_k: Any,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    philox_seed: Any,
    philox_offset: Any,
    **_: Any,
) -> Ways:
    from torch.distributed.tensor import Replicate

    ways: Ways = []
    for all_of, sums, bias, gradient in _cuts(query, key, attn_bias):
        kinds = (all_of, all_of, all_of, None if attn_bias is None else gradient)
        gradients = [kind if wanted else None for kind, wanted in zip(kinds, grad_input_mask, strict=True)]
        given = [all_of] * 4 + ([] if attn_bias is None else [bias]) + [all_of, sums, Replicate(), Replicate()]
        ways.append((gradients, given))
    return ways


_C.attention_prepare_by(prepare)
