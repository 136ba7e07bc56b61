"""Planners of scaled_dot_product_attention's fused op and its backward. Which calls come here is decided in
csrc/aten/attention.cpp."""

from __future__ import annotations

from typing import Any

import torch

from torchgraft.ops.attention.choose import plan_backward, plan_forward
from torchgraft.ops.attention.problem import Backward, Forward, statistics_dtype
from torchgraft.plans import PlanBuilder, Scalar, planner


def _meta(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **_: Any) -> tuple[Any, ...]:
    """As torch's, but that the logarithms of sums are float64 for float64."""
    dims = sorted(range(query.dim() - 1), key=query.stride, reverse=True)
    out = torch.empty_permuted(
        (*query.shape[:-1], value.shape[-1]), (*dims, query.dim() - 1), dtype=query.dtype, device="meta"
    )
    batch = query.shape[0] if query.dim() == 4 else 1
    lse = torch.empty((batch, *query.shape[-3:-1]), dtype=statistics_dtype(query), device="meta")
    seed, offset = (torch.empty((), dtype=torch.int64, device="meta") for _ in range(2))
    return out, lse, None, None, query.shape[-2], key.shape[-2], seed, offset, None


@planner("_scaled_dot_product_fused_attention_overrideable", meta=_meta)
def _attention(
    p: PlanBuilder,
    outs: tuple[Any, ...],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: torch.Tensor | None,
    dropout_p: Scalar,
    is_causal: bool,
    return_debug_mask: bool,
    *,
    scale: Scalar | None,
) -> None:
    out, lse, seed, offset = outs[0], outs[1], outs[6], outs[7]
    if out.numel() == 0:  # a part of a DTensor may be
        return
    asked = (p, query, key, value, attn_bias, dropout_p, is_causal, scale)
    plan_forward(Forward(*asked, out, lse, seed, offset))


def _meta_backward(*, grad_input_mask: list[bool], **given: Any) -> tuple[Any, ...]:
    operands = (given[name] for name in ("query", "key", "value", "attn_bias"))
    return tuple(
        torch.empty_like(t) if wanted and t is not None else None
        for t, wanted in zip(operands, grad_input_mask, strict=True)
    )


@planner("_scaled_dot_product_fused_attention_overrideable_backward", meta=_meta_backward)
def _attention_backward(
    p: PlanBuilder,
    outs: tuple[Any, ...],
    grad_out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: torch.Tensor | None,
    grad_input_mask: list[bool],
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    cum_seq_q: None,
    cum_seq_k: None,
    max_q: int,
    max_k: int,
    dropout_p: Scalar,
    is_causal: bool,
    philox_seed: torch.Tensor,
    philox_offset: torch.Tensor,
    *,
    scale: Scalar | None,
) -> None:
    if out.numel() == 0:
        for gradient in outs:
            if gradient is not None:
                p.zero(gradient)
        return
    asked = (p, query, key, value, attn_bias, dropout_p, is_causal, scale)
    plan_backward(Backward(*asked, out, logsumexp, philox_seed, philox_offset, grad_out, outs))
