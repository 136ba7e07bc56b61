"""Attention by matrix products with the scores in memory, a part at a time: some heads' each. Where a GPU has much to
do, they are many times as quick as kernels that go over the keys and never have the scores in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from torchgraft.codegen import ceil_div
from torchgraft.codegen.kernel import Kernel
from torchgraft.kernels.attention import few_queries
from torchgraft.kernels.attention import scores as kernels
from torchgraft.ops.attention.problem import Attention, Backward, Forward, four, operand, strided
from torchgraft.ops.matmul import plan_product

#: Matrices of a product: GPUs take no more groups than that in the grid's last dimension.
MOST_MATRICES = 65535


def why_not(a: Attention) -> str:
    if a.is_cpu:
        return "GPUs"
    if a.variant.dropout or a.has_bias_gradient:
        return "calls without dropout and without a bias's gradient"
    if a.queries <= few_queries.MOST:
        return f"more than {few_queries.MOST} queries"
    sizes = a.p.device.tuning.attention
    if a.batch * a.heads * a.queries * a.keys * (a.head + a.value_head) < sizes.gpu_products:
        return f"{sizes.gpu_products} multiplications or more"
    most = sizes.gpu_scores
    return "" if _bytes_of_matrix(a) <= most else f"heads whose scores take at most {most} bytes"


def _bytes_of_matrix(a: Attention) -> int:
    """Of the scores of a head of keys."""
    return a.heads // a.key_heads * a.queries * a.keys * a.statistics.itemsize


class _Products:
    """What both directions need.

    Operands are matrices, one for each head of keys: the queries of all heads that share it are its rows, so that
    gradients of keys and values are summed over these heads by the products. Scores are scaled by the products, and so
    are the gradients of queries and keys: in float16 the scores' own would lose more to the scale.
    """

    def __init__(self, a: Attention) -> None:
        self.a, self.p = a, a.p
        self.matrices = a.batch * a.key_heads
        self.rows = a.heads // a.key_heads * a.queries
        self.group = kernels.group_of(a.keys)
        self.common = {name: value for name, value in a.common.items() if name not in ("group", "sk", "scale")}
        fit = max(1, a.p.device.tuning.attention.gpu_scores // _bytes_of_matrix(a))
        self.together = ceil_div(self.matrices, ceil_div(self.matrices, min(fit, MOST_MATRICES)))

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
        folded = self.folded(four(spec))
        return self.p.empty_like(four(spec)).view(self.matrices, -1, spec.shape[-1]) if folded is None else folded

    def deliver(self, spec: torch.Tensor | None, by: torch.Tensor | None) -> None:
        if spec is not None and by is not None and self.p.memory(spec) is not self.p.memory(by):
            self.p.copy(spec, by.view(spec.shape))

    def scores(self, dtype: torch.dtype | None = None, like: torch.Tensor | None = None) -> torch.Tensor:
        """A temporary for a part's scores, or `like` if that has the dtype: what depends on the scores of its own place
        alone may be written over them."""
        dtype = dtype or self.a.statistics
        if like is not None and like.dtype == dtype:
            return like
        return self.p.empty((self.together, self.rows, self.a.keys), dtype)

    def launch(self, kernel: Kernel, part: slice, **arguments: Any) -> None:
        """A kernel for the rows of a part."""
        rows = (part.stop - part.start) * self.rows
        first = part.start * (self.a.heads // self.a.key_heads)
        self.p.launch(kernel, self.p.long_rows(rows, self.a.keys), **arguments, **self.common, first=first)


def plan_forward(a: Forward) -> None:
    p, by = a.p, _Products(a)
    q, k, v = (by.operand(t) for t in (a.query, a.key, a.value))
    target = by.target(a.out)
    assert target is not None
    scores = by.scores()
    weights = by.scores(v.dtype, scores)
    for part in by.parts():
        s, w = (t[: part.stop - part.start] for t in (scores, weights))
        plan_product(p, s, q[part], k[part].transpose(1, 2), alpha=a.factor)
        by.launch(kernels.weights(a.variant, by.group), part, scores=s, out=w, lse=a.lse)
        plan_product(p, target[part], w, v[part])
    by.deliver(a.out, target)


def plan_backward(a: Backward) -> None:
    p, by = a.p, _Products(a)
    wanted = a.wanted[:3]
    q, k, v, g = (by.operand(t) for t in (a.query, a.key, a.value, a.grad))
    targets = [by.target(t) for t in wanted]
    dq, dk, dv = targets
    of_scores = dq is not None or dk is not None
    if not of_scores and dv is None:
        return
    kernel = kernels.gradients(a.variant, by.group, dv is not None, of_scores)
    scores = by.scores()
    places = {"scores": scores}
    if dv is not None:
        places["out"] = by.scores(v.dtype, scores)
    more: dict[str, Any] = {"lse": a.lse}
    if of_scores:
        places["dp"] = by.scores()
        places["ds"] = by.scores(v.dtype, places["dp"])
        more |= {**strided(g=a.grad, o=operand(p, a.out)), "value_head": a.value_head}
    for part in by.parts():
        own = {name: place[: part.stop - part.start] for name, place in places.items()}
        plan_product(p, own["scores"], q[part], k[part].transpose(1, 2), alpha=a.factor)
        if of_scores:
            plan_product(p, own["dp"], g[part], v[part].transpose(1, 2))
        by.launch(kernel, part, **own, **more)
        if dv is not None:
            plan_product(p, dv[part], own["out"].transpose(1, 2), g[part])
        if dq is not None:
            plan_product(p, dq[part], own["ds"], k[part], alpha=a.factor)
        if dk is not None:
            plan_product(p, dk[part], own["ds"].transpose(1, 2), q[part], alpha=a.factor)
    for spec, made in zip(wanted, targets, strict=True):
        by.deliver(spec, made)
