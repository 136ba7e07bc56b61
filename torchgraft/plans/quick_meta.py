"""What common ops return of ordinary arguments.

torch's meta functions of these are written in Python, of other ops, and take up to some milliseconds: most of what a
call with new sizes would cost. Here is what they say of contiguous tensors of one floating-point type whose sizes fit
each other. Of whatever else, a function here says None, and torch's own answers or refuses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

Tensor = torch.Tensor

QUICK_METAS: dict[str, Callable[..., Any]] = {}
"""By the names of functional overloads."""

_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_INDICES = (torch.int64, torch.int32)


def _says(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enters what overloads return, of their arguments by keyword."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        QUICK_METAS.update(dict.fromkeys((f"aten::{name}" for name in names), function))
        return function

    return enter


def _alike(x: Tensor, *others: Tensor | None) -> bool:
    """Whether tensors have some elements, all of one floating-point type."""
    return x.dtype in _FLOATS and all(
        t.dtype == x.dtype and t.is_meta and t.numel() > 0 for t in (x, *others) if t is not None
    )


def _ordinary(x: Tensor, *others: Tensor | None) -> bool:
    """Whether they are contiguous besides."""
    return _alike(x, *others) and all(t.is_contiguous() for t in (x, *others) if t is not None)


def _shaped(shape: Sequence[int], *tensors: Tensor | None) -> bool:
    return all(tuple(t.shape) == tuple(shape) for t in tensors if t is not None)


def _numbers(*numbers: Any) -> bool:
    return all(type(number) in (int, float) for number in numbers)


def _dims(x: Tensor, dims: int | Sequence[int] | None) -> list[int] | None:
    """Dimensions from 0 on, all where none are given; None if there is one twice, one that is not there, or more than
    torch reduces."""
    given = [dims] if isinstance(dims, int) else list(dims or range(x.dim()))
    if x.dim() > 64 or not all(-x.dim() <= dim < x.dim() for dim in given):
        return None
    found = [dim % x.dim() for dim in given]
    return found if len(set(found)) == len(found) else None


def _reduced(x: Tensor, dims: int | Sequence[int] | None, keepdim: bool) -> tuple[int, ...] | None:
    found = _dims(x, dims)
    if found is None:
        return None
    sizes = ((1 if d in found else size) for d, size in enumerate(x.shape) if keepdim or d not in found)
    return tuple(sizes)


# ---- elements alone ----


@_says("cumsum", "cumprod")
def _scan(self: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor | None:
    ordinary = _ordinary(self) and dtype is None and self.dim() > 0 and _dims(self, dim) is not None
    return self.new_empty(self.shape) if ordinary else None


@_says("normal_")
def _drawn(self: Tensor, mean: Any = 0, std: Any = 1, *, generator: Any = None) -> Tensor | None:
    return self if _ordinary(self) and generator is None and std >= 0 else None


@_says("tril", "triu")
def _triangle(self: Tensor, diagonal: int = 0) -> Tensor | None:
    return self.new_empty(self.shape) if _ordinary(self) and self.dim() > 1 else None


@_says("native_dropout")
def _dropout(input: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor] | None:
    if not (_ordinary(input) and train is True and 0 < p < 1):
        return None
    return input.new_empty(input.shape), input.new_empty(input.shape, dtype=torch.bool)


@_says("_softmax", "_log_softmax")
def _softmax(self: Tensor, dim: int, half_to_float: bool) -> Tensor | None:
    ordinary = _ordinary(self) and self.dim() > 0 and _dims(self, dim) is not None and not half_to_float
    return self.new_empty(self.shape) if ordinary else None


@_says("_softmax_backward_data", "_log_softmax_backward_data")
def _softmax_backward(grad_output: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype) -> Tensor | None:
    ordinary = _ordinary(grad_output, output) and _shaped(output.shape, grad_output) and input_dtype == output.dtype
    if not ordinary or output.dim() == 0 or _dims(output, dim) is None:
        return None
    return output.new_empty(output.shape)


# ---- reductions ----


@_says("sum", "mean")
def _whole(self: Tensor, *, dtype: torch.dtype | None = None) -> Tensor | None:
    return self.new_empty(()) if _ordinary(self) and dtype is None else None


@_says("sum.dim_IntList", "mean.dim", "logsumexp", "amax", "amin")
def _along(
    self: Tensor, dim: Sequence[int] | None = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor | None:
    shape = _reduced(self, dim, keepdim) if _ordinary(self) and dtype is None else None
    return None if shape is None else self.new_empty(shape)


@_says("var.correction", "std.correction")
def _variance(
    self: Tensor, dim: Sequence[int] | None = None, *, correction: Any = None, keepdim: bool = False
) -> Tensor | None:
    return _along(self, dim, keepdim) if _enough(self, dim, correction) else None


@_says("var_mean.correction", "std_mean.correction")
def _variance_and_mean(
    self: Tensor, dim: Sequence[int] | None = None, *, correction: Any = None, keepdim: bool = False
) -> tuple[Tensor, Tensor] | None:
    shape = _reduced(self, dim, keepdim) if _ordinary(self) and _enough(self, dim, correction) else None
    return None if shape is None else (self.new_empty(shape), self.new_empty(shape))


def _enough(x: Tensor, dims: Sequence[int] | None, correction: Any) -> bool:
    """Whether there is no need to warn of too few elements."""
    found = _dims(x, dims)
    correction = 1 if correction is None else correction
    return found is not None and _numbers(correction) and math.prod(x.size(d) for d in found) > correction


@_says("linalg_vector_norm")
def _norm(
    self: Tensor,
    ord: Any = 2,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor | None:
    return _along(self, dim, keepdim, dtype=dtype) if _numbers(ord) else None


@_says("mse_loss", "smooth_l1_loss", "huber_loss")
def _loss(self: Tensor, target: Tensor, reduction: int = 1, **parameters: Any) -> Tensor | None:
    if not (_ordinary(self, target) and _shaped(self.shape, target) and all(v > 0 for v in parameters.values())):
        return None
    return self.new_empty(self.shape if reduction == 0 else ()) if reduction in (0, 1, 2) else None


# ---- products: their results are contiguous, however factors lie ----


@_says("mm")
def _mm(self: Tensor, mat2: Tensor) -> Tensor | None:
    fits = _alike(self, mat2) and self.dim() == mat2.dim() == 2 and self.size(1) == mat2.size(0)
    return self.new_empty((self.size(0), mat2.size(1))) if fits else None


@_says("addmm")
def _addmm(self: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor | None:
    made = _mm(mat1, mat2) if _alike(mat1, self) and self.is_contiguous() and _numbers(beta, alpha) else None
    return made if made is not None and tuple(self.shape) in (tuple(made.shape), (made.size(1),)) else None


@_says("bmm")
def _bmm(self: Tensor, mat2: Tensor) -> Tensor | None:
    fits = _alike(self, mat2) and self.dim() == mat2.dim() == 3
    if not (fits and self.size(0) == mat2.size(0) and self.size(2) == mat2.size(1)):
        return None
    return self.new_empty((self.size(0), self.size(1), mat2.size(2)))


@_says("mv")
def _mv(self: Tensor, vec: Tensor) -> Tensor | None:
    fits = _alike(self, vec) and self.dim() == 2 and _shaped(self.shape[1:], vec)
    return self.new_empty(self.shape[:1]) if fits else None


@_says("addmv")
def _addmv(self: Tensor, mat: Tensor, vec: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor | None:
    made = _mv(mat, vec) if _alike(mat, self) and self.is_contiguous() and _numbers(beta, alpha) else None
    return made if made is not None and _shaped(made.shape, self) else None


# ---- norms ----


@_says("native_layer_norm")
def _layer_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: Any
) -> tuple[Tensor, Tensor, Tensor] | None:
    kept = _kept_of_rows(input, normalized_shape, weight, bias)
    return None if kept is None else (input.new_empty(input.shape), input.new_empty(kept), input.new_empty(kept))


@_says("native_layer_norm_backward")
def _layer_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    normalized_shape: Sequence[int],
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, ...] | None:
    kept = _kept_of_rows(input, normalized_shape, weight, bias)
    fits = kept is not None and _ordinary(input, grad_out, mean, rstd) and _shaped(kept, mean, rstd)
    if not (fits and _shaped(input.shape, grad_out)):
        return None
    return tuple(_gradient(t, wanted) for t, wanted in zip((input, weight, bias), output_mask, strict=True))


def _kept_of_rows(x: Tensor, normalized_shape: Sequence[int], *parameters: Tensor | None) -> tuple[int, ...] | None:
    """The shape of a normalisation's statistics."""
    rank, shape = len(normalized_shape), tuple(normalized_shape)
    fits = 0 < rank <= x.dim() and tuple(x.shape[x.dim() - rank :]) == shape and _shaped(shape, *parameters)
    return (*x.shape[: x.dim() - rank], *[1] * rank) if fits and _ordinary(x, *parameters) else None


def _gradient(of: Tensor | None, wanted: bool) -> Tensor | None:
    return of.new_empty(of.shape) if wanted and of is not None else None


@_says("native_group_norm")
def _group_norm(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, N: int, C: int, HxW: int, group: int, eps: Any
) -> tuple[Tensor, Tensor, Tensor] | None:
    if not _in_groups(input, N, C, HxW, group, weight, bias):
        return None
    return input.new_empty(input.shape), input.new_empty((N, group)), input.new_empty((N, group))


@_says("native_group_norm_backward")
def _group_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, ...] | None:
    fits = weight is not None and _in_groups(input, N, C, HxW, group, weight) and _ordinary(input, grad_out, mean, rstd)
    if not (fits and _shaped(input.shape, grad_out) and _shaped((N, group), mean, rstd)):
        return None
    return tuple(_gradient(t, wanted) for t, wanted in zip((input, weight, weight), output_mask, strict=True))


def _in_groups(x: Tensor, n: int, channels: int, pixels: int, groups: int, *parameters: Tensor | None) -> bool:
    fits = x.dim() > 1 and tuple(x.shape[:2]) == (n, channels) and x.numel() == n * channels * pixels
    return fits and channels % groups == 0 and _shaped((channels,), *parameters) and _ordinary(x, *parameters)


@_says("native_batch_norm_backward")
def _batch_norm_backward(
    grad_out: Tensor,
    input: Tensor,
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    save_mean: Tensor | None,
    save_invstd: Tensor | None,
    train: bool,
    eps: Any,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, ...] | None:
    of_channels = (weight, running_mean, running_var, *((save_mean, save_invstd) if train else ()))
    if weight is None or input.dim() < 2 or not _shaped((input.size(1),), *of_channels):
        return None
    if not (_shaped(input.shape, grad_out) and _ordinary(input, grad_out, *of_channels)):
        return None
    return tuple(_gradient(t, wanted) for t, wanted in zip((input, weight, weight), output_mask, strict=True))


# ---- elements in other places ----


@_says("cat")
def _cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor | None:
    if not tensors or not _ordinary(tensors[0], *tensors[1:]) or _dims(tensors[0], dim) is None:
        return None
    shape = list(tensors[0].shape)
    for t in tensors[1:]:
        if t.dim() != len(shape) or any(t.size(d) != n for d, n in enumerate(shape) if d != dim % len(shape)):
            return None
    shape[dim] = sum(t.size(dim) for t in tensors)
    return tensors[0].new_empty(shape)


@_says("stack")
def _stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor | None:
    if not tensors or not _ordinary(tensors[0], *tensors[1:]) or not _shaped(tensors[0].shape, *tensors[1:]):
        return None
    rank = tensors[0].dim() + 1
    if not -rank <= dim < rank:
        return None
    shape = list(tensors[0].shape)
    shape.insert(dim % rank, len(tensors))
    return tensors[0].new_empty(shape)


@_says("index.Tensor")
def _index(self: Tensor, indices: Sequence[Tensor | None]) -> Tensor | None:
    """Of one tensor of indices, into the first dimension."""
    if not (indices and _ordinary(self) and self.dim() > 0 and all(index is None for index in indices[1:])):
        return None
    index = indices[0]
    if index is None or len(indices) > self.dim() or not _are_indices(index):
        return None
    return self.new_empty((*index.shape, *self.shape[1:]))


@_says("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d")
def _upsample(self: Tensor, output_size: Sequence[int], align_corners: bool, **scales: Any) -> Tensor | None:
    fits = _ordinary(self) and self.dim() == 2 + len(output_size) and min(output_size) > 0
    return self.new_empty((*self.shape[:2], *output_size)) if fits else None


@_says("embedding")
def _embedding(weight: Tensor, indices: Tensor, padding_idx: int = -1, *modes: bool, **others: bool) -> Tensor | None:
    fits = _ordinary(weight) and weight.dim() == 2 and _are_indices(indices)
    return weight.new_empty((*indices.shape, weight.size(1))) if fits else None


def _are_indices(x: Tensor) -> bool:
    return x.dtype in _INDICES and x.is_meta and x.is_contiguous() and x.numel() > 0


# ---- windows ----


@_says("im2col")
def _im2col(
    self: Tensor, kernel_size: Sequence[int], dilation: Sequence[int], padding: Sequence[int], stride: Sequence[int]
) -> Tensor | None:
    windows = _windows(self, kernel_size, dilation, padding, stride)
    if windows is None:
        return None
    return self.new_empty((self.size(0), self.size(1) * math.prod(kernel_size), math.prod(windows)))


def _windows(
    x: Tensor, kernel: Sequence[int], dilation: Sequence[int], padding: Sequence[int], stride: Sequence[int]
) -> list[int] | None:
    """How many windows a batch of images has in either direction."""
    given = (kernel, dilation, padding, stride)
    if not _ordinary(x) or x.dim() != 4 or any(len(g) != 2 for g in given) or min(padding) < 0:
        return None
    if min(*kernel, *dilation, *stride) < 1:
        return None
    windows = [(size + 2 * p - d * (k - 1) - 1) // s + 1 for size, k, d, p, s in zip(x.shape[2:], *given, strict=True)]
    return windows if min(windows) > 0 else None


@_says("max_pool2d_with_indices")
def _max_pool(
    self: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
    ceil_mode: bool = False,
) -> tuple[Tensor, Tensor] | None:
    windows = _windows(self, kernel_size, dilation, padding, stride or kernel_size)
    if windows is None or ceil_mode or any(2 * p > k for p, k in zip(padding, kernel_size, strict=True)):
        return None
    shape = (*self.shape[:2], *windows)
    return self.new_empty(shape), self.new_empty(shape, dtype=torch.int64)


@_says("max_pool2d_with_indices_backward")
def _max_pool_backward(
    grad_output: Tensor,
    self: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    indices: Tensor,
) -> Tensor | None:
    made = _max_pool(self, kernel_size, stride, padding, dilation, ceil_mode)
    fits = made is not None and _shaped(made[0].shape, grad_output, indices) and _ordinary(self, grad_output)
    return self.new_empty(self.shape) if fits and indices.dtype == torch.int64 and indices.is_contiguous() else None
