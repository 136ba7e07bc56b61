"""The op that `flex_attention` becomes where there is a kernel for it: its functions are text among its arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchgraft.codegen import element_type
from torchgraft.kernels.attention.flex import Functions, forward, key_gradient, query_gradient
from torchgraft.kernels.attention.variant import Variant
from torchgraft.ops.attention.problem import Attention, operand, strided
from torchgraft.plans import PlanBuilder, Scalar, Unsupported, planner

__all__ = ["lanes"]

torch.library.define(
    "torchgraft::flex_attention",
    "(Tensor query, Tensor key, Tensor value, Tensor counts, Tensor places, Tensor? full_counts, Tensor? full_places, "
    "Tensor[] captured, float scale, int q_size, int k_size, str score, str mask, str helpers) "
    "-> (Tensor, Tensor, Tensor)",
)


def lanes(dtype: torch.dtype, simd_width: int) -> int:
    """Queries that a work-item takes."""
    return Variant(element_type(dtype).name, 1, 1, "", False, False, simd_width=simd_width).lanes


def _meta(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any) -> tuple[Any, ...]:
    """The result has its dimensions in memory as the queries have."""
    order = sorted(range(3), key=query.stride, reverse=True)
    sizes = (*query.shape[:3], value.shape[3])
    out = torch.empty_permuted(sizes, (*order, 3), dtype=query.dtype, device=query.device)
    lse, largest = (query.new_empty(query.shape[:3], dtype=torch.float32) for _ in range(2))
    return out, lse, largest


@dataclass
class _Flex(Attention):
    """Attention without bias, dropout and causal limit, which functions stand for."""

    captured: Sequence[torch.Tensor]
    q_size: int
    k_size: int

    def __post_init__(self) -> None:
        if self.p.form == "gpu":
            raise Unsupported("functions of scores in a kernel for GPUs")
        super().__post_init__()
        # One batch of keys may be that of all queries.
        self.key, self.value = (t.expand(self.batch, *t.shape[1:]) for t in (self.key, self.value))
        self.types = tuple(element_type(t.dtype).name for t in self.captured)
        self.common |= {f"c{i}": self.p.contiguous(t) for i, t in enumerate(self.captured)}
        self.common |= {"q_size": self.q_size, "k_size": self.k_size}

    def tables(self, prefix: str, counts: torch.Tensor, places: torch.Tensor, *full: torch.Tensor | None) -> Any:
        """Those of blocks with a mask and of those without, if there are, as arguments."""
        batch, heads, rows = counts.shape
        blocks = {"q_blocks": rows, "k_blocks": places.shape[3]}
        if prefix:
            blocks = {"k_blocks": rows, "q_blocks": places.shape[3]}
        names = (f"{prefix}counts", f"{prefix}places", f"full_{prefix}counts", f"full_{prefix}places")
        tables = {n: self.p.contiguous(t) for n, t in zip(names, (counts, places, *full), strict=True) if t is not None}
        return {
            **tables,
            **blocks,
            "table_b": heads * rows if batch > 1 else 0,
            "table_h": rows if heads > 1 else 0,
        }


@planner("torchgraft::flex_attention", meta=_meta)
def _flex_attention(
    p: PlanBuilder,
    outs: tuple[torch.Tensor, ...],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    counts: torch.Tensor,
    places: torch.Tensor,
    full_counts: torch.Tensor | None,
    full_places: torch.Tensor | None,
    captured: list[torch.Tensor],
    scale: Scalar | float,
    q_size: int,
    k_size: int,
    score: str,
    mask: str,
    helpers: str,
) -> None:
    out, lse, largest = outs
    if out.numel() == 0:
        return
    call = _Flex(p, query, key, value, None, 0.0, False, scale, captured, q_size, k_size)
    functions = Functions(score, mask, call.types, helpers, full_counts is not None)
    p.launch(
        forward(call.variant, functions),
        call.groups(call.variant, call.queries, call.heads),
        **strided(q=call.query, k=call.key, v=call.value, out=out),
        **call.tables("", counts, places, full_counts, full_places),
        **call.common,
        lse=lse,
        largest=largest,
    )


torch.library.define(
    "torchgraft::flex_attention_backward",
    "(Tensor query, Tensor key, Tensor value, Tensor grad, Tensor lse, Tensor delta, Tensor counts, Tensor places, "
    "Tensor? full_counts, Tensor? full_places, Tensor q_counts, Tensor q_places, Tensor? full_q_counts, "
    "Tensor? full_q_places, Tensor[] captured, float scale, int q_size, int k_size, str score, str mask, "
    "str gradient, str helpers) -> (Tensor, Tensor, Tensor)",
)


def _meta_backward(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any) -> tuple[Any, ...]:
    """Keys and values have as many batches as queries."""
    batch = query.shape[0]
    return (
        query.new_empty(query.shape),
        key.new_empty((batch, *key.shape[1:])),
        value.new_empty((batch, *value.shape[1:])),
    )


@planner("torchgraft::flex_attention_backward", meta=_meta_backward)
def _flex_attention_backward(
    p: PlanBuilder,
    outs: tuple[torch.Tensor, ...],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    grad: torch.Tensor,
    lse: torch.Tensor,
    delta: torch.Tensor,
    counts: torch.Tensor,
    places: torch.Tensor,
    full_counts: torch.Tensor | None,
    full_places: torch.Tensor | None,
    q_counts: torch.Tensor,
    q_places: torch.Tensor,
    full_q_counts: torch.Tensor | None,
    full_q_places: torch.Tensor | None,
    captured: list[torch.Tensor],
    scale: Scalar | float,
    q_size: int,
    k_size: int,
    score: str,
    mask: str,
    gradient: str,
    helpers: str,
) -> None:
    if query.numel() == 0:
        for out in outs:
            p.zero(out)
        return
    dq, dk, dv = outs
    call = _Flex(p, query, key, value, None, 0.0, False, scale, captured, q_size, k_size)
    functions = Functions(score, mask, call.types, helpers, full_counts is not None, gradient)
    operands = {"q": call.query, "k": call.key, "v": call.value, "g": operand(p, grad)}
    common = {**call.common, "lse": p.contiguous(lse), "delta": p.contiguous(delta)}
    p.launch(
        query_gradient(call.variant, functions),
        call.groups(call.variant, call.queries, call.heads),
        **strided(**operands, dq=dq),
        **call.tables("", counts, places, full_counts, full_places),
        **common,
    )
    p.launch(
        key_gradient(call.variant, functions),
        call.groups(call.variant, call.keys, call.key_heads),
        **strided(**operands, dk=dk, dv=dv),
        **call.tables("q_", q_counts, q_places, full_q_counts, full_q_places),
        **common,
    )
