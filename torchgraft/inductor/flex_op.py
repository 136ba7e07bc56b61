"""The op that `flex_attention` becomes where there is a kernel for it: its functions are text among its arguments."""

from __future__ import annotations

from typing import Any

import torch

from torchgraft.codegen import ceil_div, element_type
from torchgraft.kernels.attention import Variant
from torchgraft.kernels.flex_attention import Functions, forward
from torchgraft.plans import PlanBuilder, Scalar, Unsupported, planner

__all__ = ["MOST_ELEMENTS", "lanes"]

#: Elements of a query or value: they are in registers and on the stack.
MOST_ELEMENTS = 256

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
    back = [(*order, 3).index(d) for d in range(4)]
    sizes = (*query.shape[:3], value.shape[3])
    out = query.new_empty([sizes[d] for d in (*order, 3)]).permute(back)
    lse, largest = (query.new_empty(query.shape[:3], dtype=torch.float32) for _ in range(2))
    return out, lse, largest


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
    if p.form == "gpu":
        raise Unsupported("functions of scores in a kernel for GPUs")
    out, lse, largest = outs
    if out.numel() == 0:
        return
    q, k, v = (t if t.stride(-1) == 1 or t.shape[-1] == 1 else p.contiguous(t) for t in (query, key, value))
    batch, heads, queries, head = q.shape
    # One batch of keys may be that of all queries.
    k, v = (t.expand(batch, *t.shape[1:]) for t in (k, v))
    variant = Variant(element_type(q.dtype).name, head, v.shape[3], "", False, False, simd_width=p.device.simd_width)
    types = tuple(element_type(t.dtype).name for t in captured)
    functions = Functions(score, mask, types, helpers, full_counts is not None)
    arguments: dict[str, Any] = {"q": q, "k": k, "v": v, "out": out}
    for name in list(arguments):
        arguments |= {f"{name}s{d}": s for d, s in zip("bhs", arguments[name].stride(), strict=False)}
    arguments |= {f"c{i}": p.contiguous(t) for i, t in enumerate(captured)}
    tables = {"counts": counts, "places": places}
    if full_counts is not None and full_places is not None:
        tables |= {"full_counts": full_counts, "full_places": full_places}
    table_batch, table_heads, q_blocks = counts.shape
    p.launch(
        forward(variant, functions),
        (batch * heads * ceil_div(queries, variant.lanes),),
        **arguments,
        **{name: p.contiguous(t) for name, t in tables.items()},
        lse=lse,
        largest=largest,
        table_b=table_heads * q_blocks if table_batch > 1 else 0,
        table_h=q_blocks if table_heads > 1 else 0,
        q_blocks=q_blocks,
        k_blocks=places.shape[3],
        q_size=q_size,
        k_size=k_size,
        heads=heads,
        group=heads // k.shape[1],
        sq=queries,
        sk=k.shape[2],
        scale=scale,
    )
