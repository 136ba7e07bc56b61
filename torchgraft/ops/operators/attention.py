"""Attention as an operator of the device's library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad

from torchgraft._core import _C
from torchgraft.ops.attention.choose import sum_to
from torchgraft.ops.attention.problem import four, statistics_dtype
from torchgraft.plans import PlanBuilder, Scalar
from torchgraft.plans.call import library_serves
from torchgraft.plans.operators import operator_form

Optional = torch.Tensor | None


def _attributes(query: torch.Tensor, is_causal: bool, scale: Scalar | float | None) -> dict[str, Any]:
    return {"causal": is_causal, "scale": 1 / math.sqrt(query.shape[-1]) if scale is None else float(scale)}


def _wide(mask: Optional, query: torch.Tensor, key: torch.Tensor) -> Optional:
    """A mask with a place for each score."""
    return None if mask is None else mask.expand(*query.shape[:-1], key.shape[-2])


def _is_served(p: PlanBuilder, name: str, *tensors: torch.Tensor, dropout: Scalar | float) -> bool:
    if float(dropout) != 0:
        p.refused.append(f"{name}: has no dropout")
        return False
    return all(tensor.numel() for tensor in tensors)


def _operator(
    p: PlanBuilder, name: str, inputs: Sequence[Optional], outputs: Sequence[Optional], **attributes: Any
) -> bool:
    """The operator for tensors as they are, or contiguous ones: these it has been asked about before the op was
    chosen."""
    if p.operator(name, inputs, outputs, **attributes):
        return True
    tight = [None if each is None else p.contiguous(each) for each in inputs]
    made = [None if each is None or each.is_contiguous() else p.empty_like(each) for each in outputs]
    placed = [out if own is None else own for out, own in zip(outputs, made, strict=True)]
    if not p.operator(name, tight, placed, **attributes):
        return False
    for out, own in zip(outputs, made, strict=True):
        if out is not None and own is not None:
            p.copy(out, own)
    return True


@operator_form("_scaled_dot_product_fused_attention_overrideable")
def _attention(
    p: PlanBuilder,
    outs: tuple[Any, ...],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: Optional,
    dropout_p: Scalar | float,
    is_causal: bool,
    return_debug_mask: bool,
    *,
    scale: Scalar | float | None,
) -> bool:
    if not _is_served(p, "attention", query, value, dropout=dropout_p):
        return False
    mask = _wide(attn_bias, four(query), key)
    given = [four(query), four(key), four(value), mask]
    return _operator(p, "attention", given, [four(outs[0]), outs[1]], **_attributes(query, is_causal, scale))


@operator_form("_scaled_dot_product_fused_attention_overrideable_backward")
def _attention_backward(
    p: PlanBuilder,
    outs: tuple[Optional, ...],
    grad_out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: Optional,
    grad_input_mask: list[bool],
    out: torch.Tensor,
    logsumexp: torch.Tensor,
    dropout_p: Scalar | float,
    is_causal: bool,
    *,
    scale: Scalar | float | None,
    **_: Any,
) -> bool:
    if not _is_served(p, "attention_gradient", query, value, dropout=dropout_p):
        return False
    mask = _wide(attn_bias, four(query), key)
    of_mask = outs[3]
    of_scores = None if of_mask is None or mask is None else p.empty(mask.shape, of_mask.dtype)
    given = [four(grad_out), four(query), four(key), four(value), mask, four(out), logsumexp]
    wanted = [*(None if grad is None else four(grad) for grad in outs[:3]), of_scores]
    if not _operator(p, "attention_gradient", given, wanted, **_attributes(query, is_causal, scale)):
        return False
    if of_mask is not None and of_scores is not None:
        sum_to(p, of_mask, of_scores)
    return True


# ---- which calls of scaled_dot_product_attention come here ----


def _has_operator(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Optional, is_causal: bool, scale: float | None
) -> bool:
    """Whether the device has the operator for a call, and its gradient if there will be one: csrc/aten/attention.cpp
    asks this of devices without a compiler. Tensors of functional transforms are not what the op will get."""
    tensors = [query, key, value, *([] if mask is None else [mask])]
    if forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active():
        return False
    if any(type(t) not in (torch.Tensor, torch.nn.Parameter, FakeTensor) for t in tensors):
        return False
    if any(type(size) is not int for t in tensors for size in t.shape):
        return False
    differentiates = torch.is_grad_enabled()
    about = tuple((t.dtype, tuple(t.shape), differentiates and t.requires_grad) for t in tensors)
    return has_attention(query.device.index or 0, about, is_causal, scale)


@lru_cache(maxsize=1024)
def has_attention(
    device: int,
    about: tuple[tuple[torch.dtype, tuple[int, ...], bool], ...],
    is_causal: bool,
    scale: float | None,
) -> bool:
    """The same.

    Args:
        device: its index.
        about: of query, key, value and mask, if there is one: dtype, shape, and whether it needs a gradient.
    """
    wanted = [wants for _, _, wants in about] + [False] * (len(about) == 3)

    def plan(p: PlanBuilder) -> bool:
        specs = [p.empty(shape, dtype) for dtype, shape, _ in about]
        query, key, value, *rest = specs
        mask = rest[0] if rest else None
        out = p.empty((*query.shape[:-1], value.shape[-1]), query.dtype)
        sums = p.empty(four(query).shape[:-1], statistics_dtype(query))
        if not _attention(p, (out, sums), query, key, value, mask, 0.0, is_causal, False, scale=scale):
            return False
        made = tuple(
            p.empty_like(spec) if spec is not None and wants else None
            for spec, wants in zip((*specs, None), wanted, strict=False)
        )
        given = (p.empty_like(out), query, key, value, mask, wanted, out, sums, 0.0, is_causal)
        return not any(wanted) or _attention_backward(p, made, *given, scale=scale)

    return library_serves(device, "aten::scaled_dot_product_attention", plan)


_C.attention_operator_by(_has_operator)
