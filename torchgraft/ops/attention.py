"""Planners of scaled_dot_product_attention's fused op and its backward. Which calls come here is decided in
csrc/dispatch/attention.cpp.

One kernel goes over the keys without ever having the matrix of scores in memory. Where the GPU form has more to do,
matrix products are many times as quick: parts of the scores, some heads' each, are in memory between them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from torchgraft.codegen import ceil_div, element_type
from torchgraft.codegen.kernel import Kernel
from torchgraft.kernels import attention as kernels
from torchgraft.kernels import attention_pairs, attention_products
from torchgraft.kernels.attention import Variant
from torchgraft.kernels.attention_products import Rows, group_of
from torchgraft.kernels.pairs import LANES
from torchgraft.ops.matmul import plan_product
from torchgraft.plans import PlanBuilder, Scalar, Unsupported, decomposition, planner

aten = torch.ops.aten

#: Elements of a query or value: they are in registers and on the stack.
LARGEST_HEAD = 256
#: Multiplications from which products pay: they take some launches more, and fewer are done in less time than these.
LEAST_PRODUCTS = 5_000_000
#: Bytes of the scores that products have in memory at a time: a head of 8192 queries and keys in float32. A head that
#: has more is left to the kernel that needs no memory, lest long sequences take all there is.
LARGEST_SCORES = 256 << 20
#: Matrices of a product: GPUs take no more groups than that in the grid's last dimension.
MOST_MATRICES = 65535


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
        _, self.key_heads, self.keys, value_head = self.value.shape
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
        self.common: dict[str, Any] = {"heads": self.heads, "group": self.heads // self.key_heads}
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


class _Products:
    """A call by matrix products.

    Operands are matrices, one for each head of keys: the queries of all heads that share it are its rows, so that
    gradients of keys and values are summed over these heads by the products. Scores are scaled by the products, and so
    are the gradients of queries and keys: in float16 the scores' own would lose more to the scale.
    """

    def __init__(self, call: _Call) -> None:
        self.call, self.p = call, call.p
        self.scale = call.common["scale"]
        self.matrices = call.batch * call.key_heads
        self.rows = call.heads // call.key_heads * call.queries
        self.variant = Rows(call.variant.storage, call.variant.bias, call.variant.causal, group_of(call.keys))
        self.common = {name: value for name, value in call.common.items() if name not in ("group", "sk", "scale")}
        fit = max(1, LARGEST_SCORES // self.bytes_of_matrix(call))
        self.together = ceil_div(self.matrices, ceil_div(self.matrices, min(fit, MOST_MATRICES)))

    @staticmethod
    def bytes_of_matrix(call: _Call) -> int:
        """Of the scores of one."""
        return call.heads // call.key_heads * call.queries * call.keys * call.statistics.itemsize

    @classmethod
    def pay(cls, call: _Call) -> bool:
        """Whether they are quicker than the kernels for everything, and can be had. Weights are dropped and a bias's
        gradient is found only there."""
        v = call.variant
        if call.p.form != "gpu" or v.dropout or v.bias_gradient or call.queries <= kernels.FEW:
            return False
        multiplications = call.batch * call.heads * call.queries * call.keys * (v.head + v.value_head)
        return multiplications >= LEAST_PRODUCTS and cls.bytes_of_matrix(call) <= LARGEST_SCORES

    def parts(self) -> Iterator[slice]:
        """The matrices, as many at a time as may have scores in memory."""
        for begin in range(0, self.matrices, self.together):
            yield slice(begin, min(begin + self.together, self.matrices))

    def folded(self, spec: torch.Tensor) -> torch.Tensor | None:
        """Four dimensions as matrices, None if they do not lie so."""
        try:
            return spec.view(self.matrices, -1, spec.shape[-1])
        except RuntimeError:
            return None

    def operand(self, spec: torch.Tensor) -> torch.Tensor:
        """The same, or a copy."""
        folded = self.folded(spec)
        return self.p.contiguous(spec).view(self.matrices, -1, spec.shape[-1]) if folded is None else folded

    def target(self, spec: torch.Tensor | None) -> torch.Tensor | None:
        """Matrices that are to be brought to a result by `deliver`, its own if it lies so; None for none."""
        if spec is None:
            return None
        four = self.call.four(spec)
        folded = self.folded(four)
        return self.p.empty_like(four).view(self.matrices, -1, spec.shape[-1]) if folded is None else folded

    def deliver(self, spec: torch.Tensor | None, by: torch.Tensor | None) -> None:
        if spec is not None and by is not None and self.p.memory(spec) is not self.p.memory(by):
            self.p.copy(spec, by.view(spec.shape))

    def scores(self, dtype: torch.dtype | None = None, like: torch.Tensor | None = None) -> torch.Tensor:
        """A temporary for a part's scores, or `like` if that has the dtype: what depends on the scores of its own place
        alone may be written over them."""
        dtype = dtype or self.call.statistics
        if like is not None and like.dtype == dtype:
            return like
        return self.p.empty((self.together, self.rows, self.call.keys), dtype)

    def launch(self, kernel: Kernel, part: slice, **arguments: Any) -> None:
        """A kernel for the rows of a part."""
        rows = (part.stop - part.start) * self.rows
        first = part.start * (self.call.heads // self.call.key_heads)
        self.p.launch(kernel, self.p.long_rows(rows, self.call.keys), **arguments, **self.common, first=first)

    def forward(self, out: torch.Tensor, lse: torch.Tensor) -> None:
        p, call = self.p, self.call
        q, k, v = (self.operand(t) for t in (call.query, call.key, call.value))
        target = self.target(out)
        assert target is not None
        scores = self.scores()
        weights = self.scores(v.dtype, scores)
        for part in self.parts():
            s, w = (t[: part.stop - part.start] for t in (scores, weights))
            plan_product(p, s, q[part], k[part].transpose(1, 2), alpha=self.scale)
            self.launch(attention_products.weights(self.variant), part, scores=s, out=w, lse=lse)
            plan_product(p, target[part], w, v[part])
        self.deliver(out, target)

    def backward(
        self, wanted: tuple[torch.Tensor | None, ...], grad: torch.Tensor, out: torch.Tensor, lse: torch.Tensor
    ) -> None:
        """The gradients of queries, keys and values, as far as they are `wanted`."""
        p, call = self.p, self.call
        grad = call.rows(grad)
        q, k, v, g = (self.operand(t) for t in (call.query, call.key, call.value, grad))
        targets = [self.target(t) for t in wanted]
        dq, dk, dv = targets
        of_scores = dq is not None or dk is not None
        if not of_scores and dv is None:
            return
        kernel = attention_products.gradients(self.variant, dv is not None, of_scores)
        scores = self.scores()
        places = {"scores": scores}
        if dv is not None:
            places["out"] = self.scores(v.dtype, scores)
        more: dict[str, Any] = {"lse": lse}
        if of_scores:
            places["dp"] = self.scores()
            places["ds"] = self.scores(v.dtype, places["dp"])
            more |= {**strided(g=grad, o=call.rows(out)), "value_head": v.shape[-1]}
        for part in self.parts():
            own = {name: place[: part.stop - part.start] for name, place in places.items()}
            plan_product(p, own["scores"], q[part], k[part].transpose(1, 2), alpha=self.scale)
            if of_scores:
                plan_product(p, own["dp"], g[part], v[part].transpose(1, 2))
            self.launch(kernel, part, **own, **more)
            if dv is not None:
                plan_product(p, dv[part], own["out"].transpose(1, 2), g[part])
            if dq is not None:
                plan_product(p, dq[part], own["ds"], k[part], alpha=self.scale)
            if dk is not None:
                plan_product(p, dk[part], own["ds"].transpose(1, 2), q[part], alpha=self.scale)
        for spec, by in zip(wanted, targets, strict=True):
            self.deliver(spec, by)


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
    if _Products.pay(call):
        _Products(call).forward(out, lse)
        return
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
    if _Products.pay(call):
        _Products(call).backward((grad_query, grad_key, grad_value), grad_out, out, logsumexp)
        return
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
