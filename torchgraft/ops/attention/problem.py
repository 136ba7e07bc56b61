"""What is asked of attention, and what its ways need to know of it, found once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from torchgraft.codegen import ceil_div, element_type
from torchgraft.kernels.attention.variant import Variant
from torchgraft.kernels.pairs import LANES
from torchgraft.plans import PlanBuilder, Scalar, Unsupported

#: Elements of a query or value: they are in registers and on the stack.
LARGEST_HEAD = 256


@dataclass
class Attention:
    """softmax(scale query key' + bias) value.

    Attributes:
        query, key, value: operands, with four dimensions and contiguous rows once the record is made.
        bias: of numbers, or a mask of booleans: what takes part.
        dropout: the share of weights that are dropped.
        causal: a query sees the keys up to its own number.
    """

    p: PlanBuilder
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    bias: torch.Tensor | None
    dropout: Scalar | float
    causal: bool
    scale: Scalar | float | None

    def __post_init__(self) -> None:
        self.query, self.key, self.value = (operand(self.p, t) for t in (self.query, self.key, self.value))
        self.batch, self.heads, self.queries, self.head = self.query.shape
        _, self.key_heads, self.keys, self.value_head = self.value.shape
        self.statistics = statistics_dtype(self.query)
        if max(self.head, self.value_head) > LARGEST_HEAD:
            raise Unsupported(f"heads of more than {LARGEST_HEAD} elements")

    def __str__(self) -> str:
        v, times = self.variant, f"{self.batch} times " if self.batch > 1 else ""
        heads = f"{self.heads} heads" + f" of {self.key_heads}" * (self.key_heads < self.heads)
        sizes = f"{v.head}" if v.value_head == v.head else f"{v.head} and {v.value_head}"
        rows = f"{self.queries} queries and {self.keys} keys of {sizes} of {v.storage}"
        more = ", causal" * v.causal + f", bias of {v.bias}" * bool(v.bias) + ", dropout" * v.dropout
        return f"{times}{heads}, {rows}{more}"

    @property
    def is_cpu(self) -> bool:
        return self.p.form == "cpu"

    @property
    def has_bias_gradient(self) -> bool:
        return False

    @cached_property
    def variant(self) -> Variant:
        return Variant(
            element_type(self.query.dtype).name,
            self.head,
            self.value_head,
            "" if self.bias is None else element_type(self.bias.dtype).name,
            self.causal,
            self.dropout != 0,
            self.has_bias_gradient,
            self.p.device.simd_width,
            self.p.device.tuning.attention,
            self.p.form,
        )

    @cached_property
    def packed(self) -> Variant:
        """With products of packed bfloat16."""
        return replace(self.variant, simd_width=LANES, packed=self.p.device.bfloat16)

    @property
    def factor(self) -> Scalar | float:
        """What scores are multiplied by."""
        return 1 / math.sqrt(self.head) if self.scale is None else self.scale

    @cached_property
    def common(self) -> dict[str, Any]:
        """The arguments that all kernels take."""
        common: dict[str, Any] = {"heads": self.heads, "group": self.heads // self.key_heads}
        common |= {"sq": self.queries, "sk": self.keys, "scale": self.factor}
        if self.bias is not None:
            wide = self.bias.expand(self.batch, self.heads, self.queries, self.keys)
            common |= {"bias": wide, **{f"bs{d}": s for d, s in zip("bhqk", wide.stride(), strict=True)}}
        return common

    def groups(self, v: Variant, rows: int, heads: int) -> tuple[int]:
        """Of a kernel that takes some of each head's rows in a group."""
        return (self.batch * heads * ceil_div(rows, v.rows),)


@dataclass
class Forward(Attention):
    """The results; and for the backward the logarithms of the weights' sums, and where random numbers began."""

    out: torch.Tensor
    lse: torch.Tensor
    seed: torch.Tensor
    offset: torch.Tensor


@dataclass
class Backward(Forward):
    """Of what `Forward` gave, the gradients that are `wanted`, of query, key, value and bias."""

    grad: torch.Tensor
    wanted: Sequence[torch.Tensor | None]

    def __post_init__(self) -> None:
        super().__post_init__()
        self.grad = operand(self.p, self.grad)

    @property
    def has_bias_gradient(self) -> bool:
        return self.wanted[3] is not None


def statistics_dtype(query: torch.Tensor) -> torch.dtype:
    """Of scores and their sums."""
    return torch.float64 if query.dtype == torch.float64 else torch.float32


def four(spec: torch.Tensor) -> torch.Tensor:
    """With four dimensions."""
    return spec if spec.dim() == 4 else spec.unsqueeze(0)


def has_rows(spec: torch.Tensor) -> bool:
    return spec.stride(-1) == 1 or spec.shape[-1] == 1


def operand(p: PlanBuilder, spec: torch.Tensor) -> torch.Tensor:
    """The spec, or a copy, with four dimensions and contiguous rows."""
    return four(spec) if has_rows(spec) else p.contiguous(four(spec))


def strided(**specs: torch.Tensor) -> dict[str, Any]:
    """Operands with their strides, as arguments."""
    out: dict[str, Any] = dict(specs)
    for name, spec in specs.items():
        out |= {f"{name}s{d}": s for d, s in zip("bhs", spec.stride(), strict=False)}
    return out
