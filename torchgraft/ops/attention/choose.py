"""Which kernels attention gets. The first way that it suits is taken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchgraft.codegen import ceil_div
from torchgraft.codegen.kernel import Kernel
from torchgraft.kernels.attention import few_queries, items, lanes, packed_bfloat16
from torchgraft.kernels.attention.variant import Variant
from torchgraft.kernels.choice import Way, choose
from torchgraft.kernels.pairs import LANES
from torchgraft.ops.attention import products
from torchgraft.ops.attention.problem import Attention, Backward, Forward, four, has_rows, operand, strided
from torchgraft.plans import PlanBuilder


def _why_not_few(a: Attention) -> str:
    return "" if a.queries <= few_queries.MOST else f"at most {few_queries.MOST} queries"


def _why_no_packed(a: Attention) -> str:
    if not a.is_cpu:
        return "CPUs"
    if a.variant.storage != "bf16":
        return "bfloat16"
    if a.p.device.bfloat16 is None:
        return "devices with instructions for it"
    if a.queries <= few_queries.MOST:
        return f"more than {few_queries.MOST} queries"
    possible = packed_bfloat16.is_possible(a.head, a.value_head)
    return "" if possible else f"heads of {LANES} elements, or a multiple"


def _for_cpus(a: Attention) -> str:
    return "" if a.is_cpu else "CPUs"


def _for_gpus(a: Attention) -> str:
    return "GPUs" if a.is_cpu else ""


# ---- Forward. ----


def _launch(a: Forward, kernel: Kernel, groups: tuple[int]) -> None:
    arguments = {**strided(q=a.query, k=a.key, v=a.value, out=four(a.out)), "lse": a.lse, **a.common}
    if a.variant.dropout:
        reserved = a.p.philox(a.batch * a.heads * a.queries * ceil_div(a.keys, 4))
        arguments |= {"drop": a.dropout, "seed": reserved.seed, "offset": reserved.offset}
        arguments |= {"seed_p": a.seed, "offset_p": a.offset}
    a.p.launch(kernel, groups, **arguments)


def _plan_few(a: Forward) -> None:
    groups = a.batch * a.heads * (1 if a.is_cpu else a.queries)
    _launch(a, few_queries.forward(a.variant, a.queries), (groups,))


def _plan_blocks(a: Forward, v: Variant, forward: Callable[[Variant], Kernel]) -> None:
    _launch(a, forward(v), a.groups(v, a.queries, a.heads))


FORWARD: tuple[Way[Forward, None], ...] = (
    Way("products", products.why_not, products.plan_forward),
    Way("few-queries", _why_not_few, _plan_few),
    Way("packed-bfloat16", _why_no_packed, lambda a: _plan_blocks(a, a.packed, lanes.forward)),
    Way("lanes", _for_cpus, lambda a: _plan_blocks(a, a.variant, lanes.forward)),
    Way("items", _for_gpus, lambda a: _plan_blocks(a, a.variant, items.forward)),
)


def plan_forward(attention: Forward) -> None:
    choose("attention", FORWARD, attention)


# ---- Backward. ----


def _plan_back(
    a: Backward, v: Variant, of_queries: Callable[[Variant], Kernel], of_keys: Callable[[Variant], Kernel]
) -> None:
    p, q, k = a.p, a.query, a.key
    grad_query, grad_key, grad_value, grad_bias = a.wanted
    common: dict[str, Any] = {"lse": a.lse, "delta": p.empty(a.lse.shape, a.statistics), **a.common}
    if v.dropout:
        common |= {"drop": a.dropout, "seed_p": a.seed, "offset_p": a.offset}

    def target(spec: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor:
        return four(spec) if spec is not None and has_rows(spec) else p.empty(like.shape, like.dtype)

    def deliver(spec: torch.Tensor | None, by: torch.Tensor) -> None:
        if spec is not None and p.memory(spec) is not p.memory(by):
            p.copy(four(spec), by)

    dq, scores = target(grad_query, q), {}
    if grad_bias is not None:
        scores["scores_g"] = p.empty((a.batch, a.heads, a.queries, a.keys), a.statistics)
    operands = strided(q=q, k=k, v=a.value, o=operand(p, a.out), g=a.grad, dq=dq)
    p.launch(of_queries(v), a.groups(v, a.queries, a.heads), **operands, **common, **scores)
    deliver(grad_query, dq)
    if grad_key is not None or grad_value is not None:
        dk, dv = target(grad_key, k), target(grad_value, a.value)
        operands = strided(q=q, k=k, v=a.value, g=a.grad, dk=dk, dv=dv)
        p.launch(of_keys(v), a.groups(v, a.keys, a.key_heads), **operands, **common)
        deliver(grad_key, dk)
        deliver(grad_value, dv)
    if grad_bias is not None:
        sum_to(p, grad_bias, scores["scores_g"])


def sum_to(p: PlanBuilder, to: torch.Tensor, by: torch.Tensor) -> None:
    """Sums over what `to` was broadcast along."""
    lead = by.dim() - to.dim()
    sizes = [1] * lead + list(to.shape)
    dims = [d for d in range(by.dim()) if sizes[d] == 1 and by.shape[d] != 1]
    if dims:
        by = p.call(torch.ops.aten.sum.dim_IntList, by, dims, True)
    p.copy(to, by.view(to.shape) if lead else by)


BACKWARD: tuple[Way[Backward, None], ...] = (
    Way("products", products.why_not, products.plan_backward),
    Way("packed-bfloat16", _why_no_packed, lambda a: _plan_back(a, a.packed, lanes.query_gradient, lanes.key_gradient)),
    Way("lanes", _for_cpus, lambda a: _plan_back(a, a.variant, lanes.query_gradient, lanes.key_gradient)),
    Way("items", _for_gpus, lambda a: _plan_back(a, a.variant, items.query_gradient, items.key_gradient)),
)


def plan_backward(attention: Backward) -> None:
    choose("attention-backward", BACKWARD, attention)
