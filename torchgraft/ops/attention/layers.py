"""The ops that torch.nn's layers call in eval mode, made of others."""

from __future__ import annotations

import math
from typing import Any

import torch

from torchgraft.plans import PlanBuilder, decomposition, planner

aten = torch.ops.aten


def _masked(mask: torch.Tensor, kind: int | None, dtype: torch.dtype) -> torch.Tensor:
    """A mask (true: not to be seen; or what is added to the scores) as a bias of four dimensions. Kinds: 0 queries by
    keys, 1 batch by keys, 2 all.
    """
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=dtype).masked_fill(mask, -math.inf)
    if kind == 1 and mask.dim() == 2:
        return mask[:, None, None, :]
    return mask if mask.dim() == 4 else mask[None, None]


def _multi_head_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    embed_dim: int,
    heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    mask: torch.Tensor | None = None,
    need_weights: bool = True,
    average_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    def split(x: torch.Tensor, part: int) -> torch.Tensor:
        rows = slice(part * embed_dim, (part + 1) * embed_dim)
        projected = torch.nn.functional.linear(x, qkv_weight[rows], qkv_bias[rows])
        return projected.view(*x.shape[:2], heads, embed_dim // heads).transpose(1, 2)

    q, k, v = (split(x, part) for part, x in enumerate((query, key, value)))
    bias = None if mask is None else _masked(mask, mask_type, query.dtype)
    weights = None
    if need_weights:
        scores = torch.matmul(q * (1 / math.sqrt(q.shape[-1])), k.transpose(-2, -1))
        weights = torch.softmax(scores if bias is None else scores + bias, -1)
        joined = torch.matmul(weights, v)
    else:
        joined = aten._scaled_dot_product_fused_attention_overrideable(q, k, v, bias)[0]
    out = torch.nn.functional.linear(joined.transpose(1, 2).reshape(query.shape), proj_weight, proj_bias)
    return out, weights.mean(1) if weights is not None and average_weights else weights


def _encoder_layer(
    src: torch.Tensor,
    embed_dim: int,
    heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: torch.Tensor,
    norm_bias_1: torch.Tensor,
    norm_weight_2: torch.Tensor,
    norm_bias_2: torch.Tensor,
    ffn_weight_1: torch.Tensor,
    ffn_bias_1: torch.Tensor,
    ffn_weight_2: torch.Tensor,
    ffn_bias_2: torch.Tensor,
    mask: torch.Tensor | None = None,
    mask_type: int | None = None,
) -> torch.Tensor:
    functional = torch.nn.functional

    def norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, (embed_dim,), weight, bias, eps)

    x = norm(src, norm_weight_1, norm_bias_1) if norm_first else src
    projections = (embed_dim, heads, qkv_weight, qkv_bias, proj_weight, proj_bias)
    x, _ = _multi_head_attention(x, x, x, *projections, mask, need_weights=False, mask_type=mask_type)
    x = src + x
    if not norm_first:
        x = norm(x, norm_weight_1, norm_bias_1)
    y = norm(x, norm_weight_2, norm_bias_2) if norm_first else x
    y = functional.linear(y, ffn_weight_1, ffn_bias_1)
    y = functional.linear(functional.gelu(y) if use_gelu else functional.relu(y), ffn_weight_2, ffn_bias_2)
    return x + y if norm_first else norm(x + y, norm_weight_2, norm_bias_2)


def _meta_multi_head_attention(
    query: torch.Tensor, key: torch.Tensor, num_head: int, need_weights: bool, average_attn_weights: bool, **_: Any
) -> tuple[torch.Tensor, torch.Tensor | None]:
    batch, rows = query.shape[:2]
    shape = (batch, rows, key.shape[1]) if average_attn_weights else (batch, num_head, rows, key.shape[1])
    weights = torch.empty(shape, dtype=query.dtype, device="meta") if need_weights else None
    return torch.empty_like(query, memory_format=torch.contiguous_format), weights


decomposition("_native_multi_head_attention", meta=_meta_multi_head_attention)(_multi_head_attention)
decomposition("_transformer_encoder_layer_fwd")(_encoder_layer)


@planner("_nested_tensor_from_mask_left_aligned", meta=lambda **_: False)
def _left_aligned(p: PlanBuilder, out: bool, t: torch.Tensor, mask: torch.Tensor) -> None:
    """The device has no nested tensors; torch.nn.TransformerEncoder asks this before it makes one."""
