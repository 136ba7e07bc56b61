"""Products, convolutions, reductions, normalisation, indices and losses as operators of the device's library.

A form returns False where a call is none of its operator's; the op's planner serves it then, or the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._prims_common import canonicalize_dim

from torchgraft.plans.builder import PlanBuilder
from torchgraft.plans.operators import kernels_multiply, operator_form
from torchgraft.plans.reduction import reduced_dims
from torchgraft.plans.scalar import Scalar

aten = torch.ops.aten

Number = Scalar | float
Tensors = Sequence[torch.Tensor | None]


# ---- products ----


def _product(
    p: PlanBuilder,
    out: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    addend: torch.Tensor | None = None,
    beta: Number = 1,
    alpha: Number = 1,
) -> bool:
    if a.dtype != b.dtype or out.is_complex() or out.numel() == 0 or a.shape[-1] == 0:
        return False
    if kernels_multiply(p, out.numel() * a.shape[-1]):
        return False
    added = None if addend is None or beta == 0 else addend.expand(out.shape)
    return p.operator(
        "matmul", [a, b, added], [out], alpha=float(alpha), beta=float(beta) if added is not None else 0.0
    )


@operator_form("mm", "bmm", multiplies=True)
def _mm(p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, mat2: torch.Tensor) -> bool:
    return _product(p, out, self, mat2)


@operator_form("baddbmm", multiplies=True)
def _baddbmm(
    p: PlanBuilder,
    out: torch.Tensor,
    self: torch.Tensor,
    batch1: torch.Tensor,
    batch2: torch.Tensor,
    *,
    beta: Number,
    alpha: Number,
) -> bool:
    return _product(p, out, batch1, batch2, self, beta, alpha)


@operator_form("addmm", multiplies=True)
def _addmm(
    p: PlanBuilder,
    out: torch.Tensor,
    self: torch.Tensor,
    mat1: torch.Tensor,
    mat2: torch.Tensor,
    *,
    beta: Number,
    alpha: Number,
) -> bool:
    return _product(p, out, mat1, mat2, self, beta, alpha)


@operator_form("mv", multiplies=True)
def _mv(p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, vec: torch.Tensor) -> bool:
    return _product(p, out.unsqueeze(1), self, vec.unsqueeze(1))


@operator_form("dot", multiplies=True)
def _dot(p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, tensor: torch.Tensor) -> bool:
    return _product(p, out.view(1, 1), self.unsqueeze(0), tensor.unsqueeze(1))


# ---- convolution ----


@operator_form("convolution_overrideable")
def _convolution(
    p: PlanBuilder,
    out: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    **sizes: Any,
) -> bool:
    if out.numel() == 0 or input.numel() == 0:
        return False
    return p.operator("convolution", [input, weight, bias], [out], **_of_dimensions(input, sizes))


@operator_form("convolution_backward_overrideable")
def _convolution_backward(
    p: PlanBuilder,
    outs: Tensors,
    grad_output: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    output_mask: Sequence[bool],
    **sizes: Any,
) -> bool:
    grad_input, grad_weight, grad_bias = outs
    if grad_output.numel() == 0 or input.numel() == 0:
        return False
    sizes = _of_dimensions(input, sizes)
    of_input, of_weight = "convolution_input_gradient", "convolution_weight_gradient"
    if grad_input is not None and not p.operator(of_input, [grad_output, weight], [grad_input], **sizes):
        return False
    if grad_weight is not None and not p.operator(of_weight, [grad_output, input], [grad_weight], **sizes):
        return False
    if grad_bias is not None:
        dims = [0, *range(2, grad_output.dim())]
        p.call_out(torch.ops.aten.sum.dim_IntList, grad_bias, grad_output, dims, False)
    return True


def _of_dimensions(image: torch.Tensor, sizes: dict[str, Any]) -> dict[str, Any]:
    """A number for each dimension, where torch also takes one for all."""
    dims = image.dim() - 2
    return {
        name: list(value) * (dims if len(value) == 1 else 1) if isinstance(value, (list, tuple)) else value
        for name, value in sizes.items()
    }


# ---- pooling ----


def _square(**sizes: Sequence[int]) -> dict[str, list[int]]:
    """A number for each of two dimensions, where torch also takes one for both."""
    return {name: list(value) * (2 if len(value) == 1 else 1) for name, value in sizes.items()}


@operator_form("max_pool2d_with_indices")
def _max_pool(
    p: PlanBuilder,
    outs: Tensors,
    self: torch.Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> bool:
    if self.numel() == 0:
        return False
    stride = stride or kernel_size
    sizes = _square(kernel_size=kernel_size, stride=stride, padding=padding, dilation=dilation)
    return p.operator("max_pool", [self], list(outs), **sizes, ceil_mode=ceil_mode)


@operator_form("max_pool2d_with_indices_backward")
def _max_pool_backward(
    p: PlanBuilder, out: torch.Tensor, grad_output: torch.Tensor, self: torch.Tensor, indices: torch.Tensor, **_: Any
) -> bool:
    if self.numel() == 0:
        return False
    return p.operator("max_pool_gradient", [grad_output, indices], [out])


@operator_form("_adaptive_avg_pool2d")
def _adaptive_pool(p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, output_size: Sequence[int]) -> bool:
    return self.numel() != 0 and p.operator("adaptive_average_pool", [self], [out])


@operator_form("_adaptive_avg_pool2d_backward")
def _adaptive_pool_backward(p: PlanBuilder, out: torch.Tensor, grad_output: torch.Tensor, self: torch.Tensor) -> bool:
    return self.numel() != 0 and p.operator("adaptive_average_pool_gradient", [grad_output], [out])


# ---- reductions ----


def _reduce(
    p: PlanBuilder,
    kind: str,
    outs: Tensors,
    x: torch.Tensor,
    dim: Any,
    **attributes: Any,
) -> bool:
    if x.numel() == 0:
        return False
    dims = reduced_dims(x.dim(), dim)
    squeezed = [out if out is None or out.dim() != x.dim() else out.squeeze(dims) for out in outs]
    return p.operator("reduce", [x], squeezed, kind=kind, dims=dims, **attributes)


def _sums(name: str, kind: str) -> None:
    @operator_form(name)
    def form(
        p: PlanBuilder,
        out: torch.Tensor,
        self: torch.Tensor,
        dim: Any = None,
        keepdim: bool = False,
        *,
        dtype: torch.dtype | None = None,
    ) -> bool:
        return self.numel() != 0 and _reduce(p, kind, [out], p.cast(self, out.dtype), dim)


for _name, _kind in {"sum": "sum", "sum.dim_IntList": "sum", "mean": "mean", "mean.dim": "mean"}.items():
    _sums(_name, _kind)
for _name in ("prod", "prod.dim_int"):
    _sums(_name, "prod")


def _extremes(name: str) -> None:
    @operator_form(name)
    def form(p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, dim: Any = (), keepdim: bool = False) -> bool:
        return _reduce(p, name.partition(".")[0], [out], self, dim)


for _name in ("amax", "amin", "argmax", "argmin", "logsumexp", "any.dim", "all.dim", "any", "all", "max", "min"):
    _extremes(_name)


def _extremes_with_places(name: str) -> None:
    @operator_form(f"{name}.dim")
    def form(p: PlanBuilder, outs: Tensors, self: torch.Tensor, dim: int, keepdim: bool = False) -> bool:
        return _reduce(p, name, outs, self, dim)


for _name in ("max", "min"):
    _extremes_with_places(_name)


def _moments(name: str, kind: str) -> None:
    @operator_form(name)
    def form(
        p: PlanBuilder,
        out: Any,
        self: torch.Tensor,
        dim: Any = None,
        *,
        correction: Number | None = None,
        keepdim: bool = False,
    ) -> bool:
        outs = list(out) if isinstance(out, tuple) else [out]
        return _reduce(p, kind, outs, self, dim, correction=1.0 if correction is None else float(correction))


for _name in ("var", "std", "var_mean", "std_mean"):
    _moments(f"{_name}.correction", _name)


@operator_form("linalg_vector_norm")
def _vector_norm(
    p: PlanBuilder,
    out: torch.Tensor,
    self: torch.Tensor,
    ord: Number = 2,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> bool:
    if self.is_complex() or self.numel() == 0:
        return False
    return _reduce(p, "norm", [out], p.cast(self, out.dtype), dim, ord=float(ord))


# ---- along a dimension ----


def _axis(x: torch.Tensor, dim: int) -> int:
    return int(canonicalize_dim(x.dim(), dim))


def _softmaxes(kind: str) -> None:
    @operator_form(f"_{kind}")
    def forward(p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, dim: int, half_to_float: bool) -> bool:
        if self.numel() == 0 or self.dim() == 0:
            return False
        return p.operator(kind, [self], [out], dim=_axis(self, dim))

    @operator_form(f"_{kind}_backward_data")
    def backward(
        p: PlanBuilder,
        out: torch.Tensor,
        grad_output: torch.Tensor,
        output: torch.Tensor,
        dim: int,
        input_dtype: torch.dtype,
    ) -> bool:
        if output.numel() == 0 or output.dim() == 0:
            return False
        grad = p.cast(grad_output, output.dtype)
        return p.operator(f"{kind}_gradient", [grad, output], [out], dim=_axis(output, dim))


for _kind in ("softmax", "log_softmax"):
    _softmaxes(_kind)


def _cumulatives(kind: str) -> None:
    @operator_form(kind)
    def form(
        p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None
    ) -> bool:
        if self.numel() == 0 or self.dim() == 0:
            return False
        return p.operator("cumulative", [p.cast(self, out.dtype)], [out], kind=kind, dim=_axis(self, dim))


for _kind in ("cumsum", "cumprod"):
    _cumulatives(_kind)


@operator_form("sort.stable")
def _sort(
    p: PlanBuilder, outs: Tensors, self: torch.Tensor, *, stable: bool | None, dim: int = -1, descending: bool = False
) -> bool:
    if self.numel() == 0 or self.dim() == 0:
        return False
    return p.operator("sort", [self], list(outs), dim=_axis(self, dim), descending=descending)


@operator_form("sort")
def _sort_any(p: PlanBuilder, outs: Tensors, self: torch.Tensor, dim: int = -1, descending: bool = False) -> bool:
    return _sort(p, outs, self, stable=True, dim=dim, descending=descending)


@operator_form("topk")
def _top(
    p: PlanBuilder,
    outs: Tensors,
    self: torch.Tensor,
    k: Any,
    dim: int = -1,
    largest: bool = True,
    sorted: bool = True,
) -> bool:
    if self.numel() == 0 or self.dim() == 0 or int(k) == 0:
        return False
    return p.operator("topk", [self], list(outs), dim=_axis(self, dim), largest=largest)


# ---- normalisation ----


@operator_form("native_layer_norm")
def _layer_norm(
    p: PlanBuilder,
    outs: Tensors,
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: Number,
) -> bool:
    if input.numel() == 0:
        return False
    return p.operator("layer_norm", [input, weight, bias], list(outs), dims=len(normalized_shape), eps=float(eps))


@operator_form("native_layer_norm_backward")
def _layer_norm_backward(
    p: PlanBuilder,
    outs: Tensors,
    grad_out: torch.Tensor,
    input: torch.Tensor,
    normalized_shape: Sequence[int],
    mean: torch.Tensor,
    rstd: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    output_mask: Sequence[bool],
) -> bool:
    if input.numel() == 0:
        return False
    given = [grad_out, input, mean, rstd, weight]
    return p.operator("layer_norm_gradient", given, list(outs), dims=len(normalized_shape))


@operator_form("native_batch_norm")
def _batch_norm(
    p: PlanBuilder,
    outs: Tensors,
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    training: bool,
    momentum: Number,
    eps: Number,
) -> bool:
    if input.numel() == 0 or (not training and (running_mean is None or running_var is None)):
        return False
    given = [input, weight, bias, running_mean, running_var]
    updated = [running_mean, running_var] if training else [None, None]
    numbers = {"momentum": float(momentum), "eps": float(eps)}
    # Without training torch gives statistics without elements.
    statistics = list(outs[1:]) if training else [None, None]
    return p.operator("batch_norm", given, [outs[0], *statistics, *updated], training=training, **numbers)


@operator_form("native_batch_norm_backward")
def _batch_norm_backward(
    p: PlanBuilder,
    outs: Tensors,
    grad_out: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    save_mean: torch.Tensor | None,
    save_invstd: torch.Tensor | None,
    train: bool,
    eps: Number,
    output_mask: Sequence[bool],
) -> bool:
    if input.numel() == 0 or not train or save_mean is None:
        return False
    return p.operator("batch_norm_gradient", [grad_out, input, weight, save_mean, save_invstd], list(outs))


# ---- indices ----


def _is_index(indices: torch.Tensor) -> bool:
    return indices.dtype in (torch.int64, torch.int32)


@operator_form("index_select")
def _index_select(p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, dim: int, index: torch.Tensor) -> bool:
    if out.numel() == 0 or self.dim() == 0 or not _is_index(index):
        return False
    return p.operator("gather", [self, index.reshape(-1)], [out], dim=_axis(self, dim))


@operator_form("embedding")
def _embedding(p: PlanBuilder, out: torch.Tensor, weight: torch.Tensor, indices: torch.Tensor, **_: Any) -> bool:
    if out.numel() == 0 or not _is_index(indices):
        return False
    return p.operator("gather", [weight, indices], [out], dim=0)


@operator_form("embedding_dense_backward")
def _embedding_backward(
    p: PlanBuilder,
    out: torch.Tensor,
    grad_output: torch.Tensor,
    indices: torch.Tensor,
    num_weights: int,
    padding_idx: int,
    scale_grad_by_freq: bool,
) -> bool:
    if grad_output.numel() == 0 or scale_grad_by_freq or not _is_index(indices):
        return False
    return p.operator("scatter_add", [grad_output, indices], [out], left_out=int(padding_idx))


@operator_form("cat")
def _cat(p: PlanBuilder, out: torch.Tensor, tensors: Sequence[torch.Tensor], dim: int = 0) -> bool:
    if out.numel() == 0 or any(t.dim() != out.dim() for t in tensors):
        return False
    parts = [p.cast(t, out.dtype) for t in tensors if t.numel() != 0]
    return p.operator("cat", parts, [out], dim=_axis(out, dim))


@operator_form("stack")
def _stack(p: PlanBuilder, out: torch.Tensor, tensors: Sequence[torch.Tensor], dim: int = 0) -> bool:
    axis = _axis(out, dim)
    return _cat(p, out, [t.unsqueeze(axis) for t in tensors], axis)


# ---- new values ----


@operator_form("fill_.Scalar", "zero_", overwrites=True)
def _fill(p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, value: Number = 0) -> bool:
    number = value.value if isinstance(value, Scalar) else value
    return out.numel() != 0 and not isinstance(number, complex) and p.operator("fill", [], [out], value=number)


@operator_form("arange.start_out")
def _arange(
    p: PlanBuilder, result: torch.Tensor, start: Number, end: Number, step: Number, *, out: torch.Tensor
) -> bool:
    if result.numel() == 0 or result.dim() != 1:
        return False
    float(end)  # the plan is for these numbers, by which it has so many elements
    numbers = (float, float) if result.is_floating_point() else (int, int)
    return p.operator("range", [], [result], start=numbers[0](start), step=numbers[1](step))


def _triangles(kind: str) -> None:
    @operator_form(kind)
    def form(p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, diagonal: int = 0) -> bool:
        return self.numel() != 0 and p.operator("triangle", [self], [out], kind=kind, diagonal=int(diagonal))


for _kind in ("tril", "triu"):
    _triangles(_kind)


# ---- losses ----


@operator_form("mse_loss")
def _mse(p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, target: torch.Tensor, reduction: int = 1) -> bool:
    """By other ops, whose operators or fallbacks are theirs."""
    difference = p.call(aten.sub.Tensor, self, target)
    if difference.dtype != out.dtype or difference.numel() == 0:
        return False
    square = p.call(aten.mul.Tensor, difference, difference)
    if reduction == 0:
        p.copy(out, square)
    else:
        p.call_out((aten.mean.dim, aten.sum.dim_IntList)[reduction - 1], out, square, list(range(square.dim())), False)
    return True


@operator_form("mse_loss_backward")
def _mse_backward(
    p: PlanBuilder,
    out: torch.Tensor,
    grad_output: torch.Tensor,
    self: torch.Tensor,
    target: torch.Tensor,
    reduction: int,
) -> bool:
    difference = p.call(aten.sub.Tensor, self, target)
    if difference.dtype != out.dtype or difference.numel() == 0 or grad_output.dtype != out.dtype:
        return False
    factor = 2.0 / difference.numel() if reduction == 1 else 2.0  # first: gradients of 16-bit floats may be large
    p.call_out(aten.mul.Tensor, out, p.call(aten.mul.Tensor, difference, factor), grad_output)
    return True


_REDUCTIONS = ("none", "mean", "sum")


@operator_form("nll_loss_forward")
def _nll_loss(
    p: PlanBuilder,
    outs: Tensors,
    self: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    reduction: int,
    ignore_index: int,
) -> bool:
    if self.numel() == 0:
        return False
    how = {"reduction": _REDUCTIONS[int(reduction)], "ignored": int(ignore_index)}
    return p.operator("nll_loss", [self, p.cast(target, torch.int64), weight], list(outs), **how)


@operator_form("nll_loss_backward")
def _nll_loss_backward(
    p: PlanBuilder,
    out: torch.Tensor,
    grad_output: torch.Tensor,
    self: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: torch.Tensor,
) -> bool:
    if self.numel() == 0:
        return False
    how = {"reduction": _REDUCTIONS[int(reduction)], "ignored": int(ignore_index)}
    given = [grad_output, p.cast(target, torch.int64), weight, total_weight]
    return p.operator("nll_loss_gradient", given, [out], **how)
