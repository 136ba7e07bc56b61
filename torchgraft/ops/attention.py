"""Planners of scaled_dot_product_attention's fused op and its backward. Which calls come here is decided in
csrc/dispatch/attention.cpp.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from torchgraft.codegen import ceil_div, element_type
from torchgraft.kernels import attention as kernels
from torchgraft.kernels import attention_pairs
from torchgraft.kernels.attention import Variant
from torchgraft.kernels.pairs import LANES
from torchgraft.plans import PlanBuilder, Scalar, Unsupported, decomposition, planner

aten = torch.ops.aten

#: Elements of a query or value: they are in registers and on the stack.
LARGEST_HEAD = 256


def _statistics_dtype(query: torch.Tensor) -> torch.dtype:
    return torch.float64 if query.dtype == torch.float64 else torch.float32


def _meta(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    scale: float | None = None,
) -> tuple[Any, ...]:
    """As torch's, but that the logarithms of sums are float64 for float64."""
    dims = sorted(range(query.dim() - 1), key=query.stride, reverse=True)
    out = torch.empty_permuted(
        (*query.shape[:-1], value.shape[-1]), (*dims, query.dim() - 1), dtype=query.dtype, device="meta"
    )
    batch = query.shape[0] if query.dim() == 4 else 1
    lse = torch.empty((batch, *query.shape[-3:-1]), dtype=_statistics_dtype(query), device="meta")
    seed, offset = (torch.empty((), dtype=torch.int64, device="meta") for _ in range(2))
    return out, lse, None, None, query.shape[-2], key.shape[-2], seed, offset, None


def with_rows(p: PlanBuilder, spec: torch.Tensor) -> torch.Tensor:
    """The spec, or a copy, with contiguous rows."""
    return spec if spec.stride(-1) == 1 or spec.shape[-1] == 1 else p.contiguous(spec)


def strided(**specs: torch.Tensor) -> dict[str, Any]:
    """Operands with their strides, as arguments."""
    out: dict[str, Any] = dict(specs)
    for name, spec in specs.items():
        out |= {f"{name}s{d}": s for d, s in zip("bhs", spec.stride(), strict=False)}
    return out


class _Call:
    """What both directions need: operands of four dimensions whose rows are contiguous, and the kernels' common
    arguments.
    """

    def __init__(
        self,
        p: PlanBuilder,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        bias: torch.Tensor | None,
        dropout: Scalar | float,
        causal: bool,
        scale: Scalar | float | None,
        bias_gradient: bool = False,
    ) -> None:
        self.p = p
        self.query, self.key, self.value = (self.rows(t) for t in (query, key, value))
        self.batch, self.heads, self.queries, head = self.query.shape
        _, key_heads, self.keys, value_head = self.value.shape
        self.statistics = _statistics_dtype(query)
        self.dropout = dropout
        suits = query.dtype == torch.bfloat16 and self.queries > kernels.FEW
        suits = suits and p.form == "cpu" and attention_pairs.is_possible(head, value_head)
        pairs = p.device.bfloat16 if suits else None
        self.variant = Variant(
            element_type(query.dtype).name,
            head,
            value_head,
            "" if bias is None else element_type(bias.dtype).name,
            causal,
            dropout != 0,
            bias_gradient,
            p.device.simd_width if pairs is None else LANES,
            p.device.tuning.attention,
            pairs=pairs,
        )
        if max(head, value_head) > LARGEST_HEAD:
            raise Unsupported(f"heads of more than {LARGEST_HEAD} elements")
        self.common: dict[str, Any] = {"heads": self.heads, "group": self.heads // key_heads}
        self.common |= {"sq": self.queries, "sk": self.keys, "scale": 1 / math.sqrt(head) if scale is None else scale}
        if bias is not None:
            wide = bias.expand(self.batch, self.heads, self.queries, self.keys)
            self.common |= {"bias": wide, **{f"bs{d}": s for d, s in zip("bhqk", wide.stride(), strict=True)}}

    @staticmethod
    def four(spec: torch.Tensor) -> torch.Tensor:
        return spec if spec.dim() == 4 else spec.unsqueeze(0)

    def rows(self, spec: torch.Tensor) -> torch.Tensor:
        """The spec, or a copy, with four dimensions and contiguous rows."""
        return with_rows(self.p, self.four(spec))

    def groups(self, rows: int, heads: int) -> tuple[int]:
        block = self.variant.group if self.p.form == "gpu" else self.variant.lanes
        return (self.batch * heads * ceil_div(rows, block),)


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
    call = _Call(p, query, key, value, attn_bias, dropout_p, is_causal, scale)
    target = call.rows(out) if out.stride(-1) == 1 or out.shape[-1] == 1 else p.empty(call.four(out).shape, out.dtype)
    arguments = {**strided(q=call.query, k=call.key, v=call.value, out=target), "lse": lse, **call.common}
    if call.variant.dropout:
        reserved = p.philox(call.batch * call.heads * call.queries * ceil_div(call.keys, 4))
        arguments |= {"drop": dropout_p, "seed": reserved.seed, "offset": reserved.offset}
        arguments |= {"seed_p": seed, "offset_p": offset}
    if call.queries <= kernels.FEW:
        groups = (call.batch * call.heads * (call.queries if p.form == "gpu" else 1),)
        p.launch(kernels.forward(call.variant, p.form, call.queries), groups, **arguments)
    else:
        p.launch(kernels.forward(call.variant, p.form), call.groups(call.queries, call.heads), **arguments)


def _meta_backward(
    grad_out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: torch.Tensor | None,
    grad_input_mask: list[bool],
    *_: Any,
    **__: Any,
) -> tuple[Any, ...]:
    operands = (query, key, value, attn_bias)
    return tuple(
        torch.empty_like(t) if wanted and t is not None else None
        for t, wanted in zip(operands, grad_input_mask, strict=True)
    )


@planner(
    "_scaled_dot_product_fused_attention_overrideable_backward", meta=lambda **given: _meta_backward(*given.values())
)
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
    grad_query, grad_key, grad_value, grad_bias = outs
    if out.numel() == 0:
        for gradient in outs:
            if gradient is not None:
                p.zero(gradient)
        return
    call = _Call(p, query, key, value, attn_bias, dropout_p, is_causal, scale, grad_bias is not None)
    q, k, v = call.query, call.key, call.value
    grad = call.rows(grad_out)
    delta = p.empty(logsumexp.shape, call.statistics)
    common: dict[str, Any] = {"lse": logsumexp, "delta": delta, **call.common}
    if call.variant.dropout:
        common |= {"drop": dropout_p, "seed_p": philox_seed, "offset_p": philox_offset}

    def target(spec: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor:
        if spec is not None and (spec.stride(-1) == 1 or spec.shape[-1] == 1):
            return call.four(spec)
        return p.empty(like.shape, like.dtype)

    def deliver(spec: torch.Tensor | None, by: torch.Tensor) -> None:
        if spec is not None and p.memory(spec) is not p.memory(by):
            p.copy(call.four(spec), by)

    dq = target(grad_query, q)
    scores = {}
    if grad_bias is not None:
        scores["scores_g"] = p.empty((call.batch, call.heads, call.queries, call.keys), call.statistics)
    operands = strided(q=q, k=k, v=v, o=call.rows(out), g=grad, dq=dq)
    groups = call.groups(call.queries, call.heads)
    p.launch(kernels.query_gradient(call.variant, p.form), groups, **operands, **common, **scores)
    deliver(grad_query, dq)
    if grad_key is not None or grad_value is not None:
        dk, dv = target(grad_key, k), target(grad_value, v)
        operands = strided(q=q, k=k, v=v, g=grad, dk=dk, dv=dv)
        groups = call.groups(call.keys, k.shape[1])
        p.launch(kernels.key_gradient(call.variant, p.form), groups, **operands, **common)
        deliver(grad_key, dk)
        deliver(grad_value, dv)
    if grad_bias is not None:
        _sum_to(p, grad_bias, scores["scores_g"])


def _sum_to(p: PlanBuilder, to: torch.Tensor, by: torch.Tensor) -> None:
    """Sums over what `to` was broadcast along."""
    lead = by.dim() - to.dim()
    sizes = [1] * lead + list(to.shape)
    dims = [d for d in range(by.dim()) if sizes[d] == 1 and by.shape[d] != 1]
    if dims:
        by = p.call(aten.sum.dim_IntList, by, dims, True)
    p.copy(to, by.view(to.shape) if lead else by)


# ---- the ops that torch.nn's layers call in eval mode ----


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
    x, _ = _multi_head_attention(
        x,
        x,
        x,
        embed_dim,
        heads,
        qkv_weight,
        qkv_bias,
        proj_weight,
        proj_bias,
        mask,
        need_weights=False,
        mask_type=mask_type,
    )
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
