"""Operands of elementwise ops and what is made of them: type promotion, broadcasting and the order of the elements, by
the code of torch's own kernels (TensorIterator)."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

import torch
from torch._prims_common import compute_elementwise_output_strides
from torch.utils._python_dispatch import _disable_current_modes

from torchgraft._core import _C

_NUMBERS = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}
_COMPUTED_IN = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.complex32: torch.complex64}


def number_dtype(type_: type) -> torch.dtype:
    """The dtype of a tensor that stands for a Python number."""
    return _NUMBERS[type_]


@functools.cache
def wrapped_number(dtype: torch.dtype) -> torch.Tensor:
    """A zero-dim CPU tensor that torch takes for a number; its value does not matter."""
    with _disable_current_modes():  # one of a mode's, a fake tensor, would be kept for all calls that follow
        tensor = torch.ones((), dtype=dtype, device="cpu")
    _C.set_wrapped_number(tensor)
    return tensor


def promoted_dtype(operands: Iterable[torch.Tensor | complex]) -> torch.dtype:
    """The common dtype of specs and numbers (torch.result_type, of any number of operands)."""
    return _C.promoted_dtype(
        [o if isinstance(o, torch.Tensor) else wrapped_number(number_dtype(type(o))) for o in operands]
    )


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """What is computed in for results of a dtype (at::opmath_type): float32 for those of 16 bits."""
    return _COMPUTED_IN.get(dtype, dtype)


def result_spec(operands: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    """The spec of a result: broadcast, with the elements in the operands' order.

    Raises:
        RuntimeError: sizes do not fit.
    """
    return _C.elementwise_result(list(operands), dtype)


def symbolic_result_spec(operands: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    """The same for tensors of symbolic sizes too, which TensorIterator does not know: by torch's reference for it."""
    spread = torch.broadcast_tensors(*operands)
    strides = compute_elementwise_output_strides(*spread)
    spec: torch.Tensor = spread[0].new_empty_strided(spread[0].shape, strides, dtype=dtype)
    return spec
