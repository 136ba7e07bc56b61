"""Reductions: rows of a table, and planners of those with more to decide."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from torchgraft.codegen import ElementType, element_type
from torchgraft.kernels import reduce as kernels
from torchgraft.kernels import softmax
from torchgraft.kernels.reduce import Reduction
from torchgraft.ops.table import Accumulated, reduction_of
from torchgraft.plans import OtherOut, PlanBuilder, Scalar, Unsupported, composite, other_out, planner, versions
from torchgraft.plans.reduction import plan_reduction, reduced_dims
from torchgraft.plans.refusals import check_out_dtype, dtype_name, refuse_dtype
from torchgraft.plans.rows import Rows, why_not_unrolled
from torchgraft.plans.schema import overload_name

aten = torch.ops.aten

# ---- what is accumulated ----


def converted(given: torch.dtype, result: torch.dtype) -> torch.dtype:
    """What the input of a sum or product is read as: as torch's CPU, fractions and imaginary parts are cut off before.
    Kernels convert from one real type to another, not from one complex type to another."""
    cut = given.is_floating_point and not (result.is_floating_point or result.is_complex)
    return result if cut or result.is_complex or given.is_complex else given


def _summed_as(given: torch.dtype, result: torch.dtype) -> torch.dtype:
    narrow = given == torch.float64 and result.is_floating_point
    return result if narrow else converted(given, result)


def _summed_numbers(given: torch.dtype, result: torch.dtype) -> torch.dtype:
    """What is no number is left out before fractions are cut off: of integers nobody could tell."""
    if given.is_complex:
        raise Unsupported("nansum of complex numbers")
    return _summed_as(given, result) if result.is_floating_point or result.is_complex else given


def _total(mean: bool = False, skip_nan: bool = False) -> Accumulated:
    def total(x: ElementType, out: ElementType, count: int) -> Reduction:
        if out.name == "b8":
            return kernels.truth(False, x.is_complex, skip_nan=skip_nan and x.is_float)
        return kernels.total(out.accumulate, out.name, mean, skip_nan and not x.is_integer)

    return total


def _product(x: ElementType, out: ElementType, count: int) -> Reduction:
    return kernels.truth(True, x.is_complex) if out.name == "b8" else kernels.product(out.accumulate, out.name)


def _compared(x: ElementType) -> str:
    if x.is_complex:
        raise Unsupported("order of complex numbers")
    return x.compute


def _extreme(greater: bool) -> Accumulated:
    return lambda x, out, count: kernels.extreme(_compared(x), out.name, greater)


def _place(greater: bool, with_value: bool) -> Accumulated:
    def place(x: ElementType, out: ElementType, count: int) -> Reduction:
        index = "i64" if x.size == 8 or count >= 2**31 - 1 else "i32"
        return kernels.extreme_index(_compared(x), out.name, greater, index, with_value)

    return place


def _truth(every: bool) -> Accumulated:
    return lambda x, out, count: kernels.truth(every, x.is_complex, out.name)


# ---- what torch's CPU refuses ----


def _check_dtype_of_out(dtype: torch.dtype | None = None, out: torch.Tensor | None = None, **_: Any) -> None:
    if dtype is not None and out is not None:
        check_out_dtype(dtype, out.dtype, exact=True)


def _nansum_meta(
    self: torch.Tensor, dim: Sequence[int] | None, keepdim: bool, dtype: torch.dtype | None
) -> torch.Tensor:
    """torch's own takes no dimensions for none to be reduced, as no other op does."""
    result: torch.Tensor = aten.nansum.default(self, dim or None, keepdim, dtype=dtype)
    return result


def _check_nansum(
    self: torch.Tensor, dtype: torch.dtype | None = None, out: torch.Tensor | None = None, **_: Any
) -> None:
    """Sums are in the dtype of `out=`, of which torch's CPU has those of floating-point numbers."""
    if out is not None and self.is_floating_point() and not out.is_floating_point():
        refuse_dtype("nansum_cpu", out.dtype)
    _check_dtype_of_out(dtype, out)


def check_some(name: str, x: torch.Tensor, dim: int | Sequence[int] | None) -> list[int]:
    """The dimensions to reduce; refuses to choose among no elements.

    Raises:
        IndexError: a dimension that is named has no elements.
        RuntimeError: none is named, and the tensor is empty.
    """
    dims = reduced_dims(x.dim(), dim)
    for d in dims if x.dim() else []:
        if x.size(d) == 0 and dim is not None and (isinstance(dim, int) or len(dim) > 0):
            raise IndexError(f"{name}(): Expected reduction dim {d} to have non-zero size.")
    if x.numel() == 0 and (dim is None or dim in ([], ())):
        raise RuntimeError(
            f"{name}(): Expected reduction dim to be specified for input.numel() == 0. "
            "Specify the reduction dim with the 'dim' argument."
        )
    return dims


def _some(name: str) -> Callable[..., None]:
    """torch's meta functions raise RuntimeError where its CPU raises IndexError."""

    def check(self: torch.Tensor, dim: int | Sequence[int] | None = None, **_: Any) -> None:
        check_some(name, self, dim)

    return check


def _some_to_place(name: str) -> Callable[..., None]:
    def check(self: torch.Tensor, dim: int | None = None, **_: Any) -> None:
        if self.is_complex():
            raise versions.COMPLEX_REFUSED(f"{name}(): does not support complex input")
        if self.dtype == torch.bool:
            raise versions.DTYPES_REFUSED(f"{name}(): does not support bool input")
        if dim is None and self.numel() == 0:
            raise IndexError(f"{name}(): Expected reduction dim to be specified for input.numel() == 0.")
        check_some(name, self, dim)

    return check


def _check_alike(self: torch.Tensor, out: torch.Tensor | None = None, **_: Any) -> None:
    if out is not None and out.dtype != self.dtype:
        raise RuntimeError(
            f"Expected the dtype for input and out to match, but got {dtype_name(self.dtype)} for input's dtype and "
            f"{dtype_name(out.dtype)} for out's dtype."
        )


def _check_truth(name: str) -> Callable[..., None]:
    def check(out: torch.Tensor | None = None, **_: Any) -> None:
        if out is not None and out.dtype not in (torch.bool, torch.uint8):
            raise RuntimeError(f"{name} only supports bool tensor for result, got: {dtype_name(out.dtype)}")

    return check


_RESULTS_APART = "aminmax(): the `min` and `max` out= tensors must not overlap." if versions.HERE >= (2, 15) else ""

# ---- the table ----

reduction_of("sum sum.dim_IntList", _total(), reads=_summed_as, refuses=OtherOut(but_untyped=True))
reduction_of("prod prod.dim_int", _product, reads=converted, refuses=OtherOut(but_untyped=True))
reduction_of("mean mean.dim", _total(mean=True), reads=_summed_as, refuses=_check_dtype_of_out)
reduction_of("nansum", _total(skip_nan=True), reads=_summed_numbers, meta=_nansum_meta, refuses=_check_nansum)
reduction_of(
    "count_nonzero.dim_IntList",
    lambda x, out, count: kernels.nonzeros(x.is_complex),
    meta=lambda self, dim: torch.sum(self, dim, dtype=torch.int64),
)
for _name, _greater in (("max", True), ("min", False)):
    _among, _arg = f"a{_name}", f"arg{_name}"
    reduction_of(_name, _extreme(_greater), refuses=_some(_name))
    reduction_of(f"{_name}.dim", _place(_greater, True), refuses=(_some(_name), other_out))
    _meta = getattr(aten, _among).default
    reduction_of(_among, _extreme(_greater), meta=_meta, refuses=(_check_alike, _some(_among), other_out))
    _meta = getattr(aten, _arg).default
    reduction_of(_arg, _place(_greater, False), meta=_meta, refuses=(_some_to_place(_arg), other_out))
reduction_of(
    "aminmax",
    lambda x, out, count: kernels.extremes(_compared(x), out.name),
    meta=aten.aminmax.default,
    refuses=(_some("aminmax"), OtherOut(apart=_RESULTS_APART)),
)
for _name in ("any", "all"):
    # The functional forms' meta functions: that of out= refuses truth of bytes.
    for _meta in (getattr(getattr(aten, _name), overload) for overload in ("default", "dim", "dims")):
        _refuses = (_check_truth(_name), OtherOut(but_bytes=True))
        reduction_of(overload_name(_meta), _truth(_name == "all"), empty_is_all=False, meta=_meta, refuses=_refuses)


# ---- of some calls, what others do ----


@composite("nansum.out", when=lambda self, **_: not (self.is_floating_point() or self.is_complex()))
def _nansum_of_integers(
    self: torch.Tensor, dim: list[int] | None, keepdim: bool, *, dtype: torch.dtype | None, out: torch.Tensor
) -> torch.Tensor:
    """The sum, in the dtype of `out=`."""
    return self.sum(dim, keepdim, dtype=dtype or out.dtype)


@composite("mean.out", when=lambda self, out, **_: out.is_floating_point() and self.is_complex())
def _real_mean(*args: Any, out: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    """Of complex numbers a real `out=` gets the real part, as on torch's CPU."""
    mean: torch.Tensor = aten.mean.dim(*args, **kwargs)
    return mean.real


# ---- sums of exponentials ----


def _check_log_sum_exp(
    self: torch.Tensor, dim: Sequence[int], keepdim: bool = False, out: torch.Tensor | None = None
) -> None:
    # Of no dimensions all are summed over, and the largest element is left with all of them.
    if not dim and not keepdim and self.dim() and self.numel():
        raise RuntimeError(f"output with shape [] doesn't match the broadcast shape {[1] * self.dim()}")
    if out is not None and not (out.is_floating_point() or out.is_complex()):
        raise RuntimeError(
            f"logsumexp(): Expected floating point type for result tensor, but got: {dtype_name(out.dtype)}"
        )


@composite(
    "logsumexp",
    "logsumexp.out",
    when=lambda self, out=None, **_: self.is_complex() or (out is not None and out.is_complex()),
    refuses=_check_log_sum_exp,
)
def _log_sum_exp_of_complex(
    self: torch.Tensor, dim: list[int], keepdim: bool = False, *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """The largest real part is what is taken out. The sums are of the type of `out`, which may have no logarithm of
    them, as on torch's CPU."""
    dims = reduced_dims(self.dim(), dim)
    if not (self.is_complex() or self.is_floating_point()):
        self = self.to(torch.get_default_dtype())
    if self.numel() == 0:
        top = torch.zeros((), device=self.device)
    else:
        top = torch.amax(self.real, dims, keepdim=True)
        top = torch.where(top.isinf(), 0, top)
    sums = (self - top).exp().sum(dims, keepdim)
    if out is not None:
        sums = sums.to(out.dtype)
    return sums.log() + (top.squeeze(dims) if top.dim() and not keepdim else top)


def _has_more_digits(self: torch.Tensor, out: torch.Tensor, **_: Any) -> bool:
    """Whether `out` is of a floating-point type that has all numbers of the operand's, and more."""
    both = torch.promote_types(self.dtype, out.dtype)
    return self.is_floating_point() and both == out.dtype != self.dtype and out.is_floating_point()


@composite("logsumexp.out", when=_has_more_digits, refuses=_check_log_sum_exp)
def _log_sum_exp_with_more_digits(
    self: torch.Tensor, dim: list[int], keepdim: bool = False, *, out: torch.Tensor
) -> torch.Tensor:
    """The sums are of the type of `out`, which is not to have what was rounded to the operand's."""
    return torch.logsumexp(self.to(out.dtype), dim, keepdim)


@planner("logsumexp", refuses=_check_log_sum_exp)
def log_sum_exp(
    p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, dim: Sequence[int], keepdim: bool = False
) -> None:
    x = self if self.is_floating_point() else p.cast(self, torch.get_default_dtype())
    dims = reduced_dims(x.dim(), dim)
    if _log_sum_exp_of_rows(p, out, x, dims):
        return
    reduction = kernels.log_sum_exp(element_type(x.dtype).accumulate, element_type(out.dtype).name)
    plan_reduction(p, reduction, [out], x, dims)


def _log_sum_exp_of_rows(p: PlanBuilder, out: torch.Tensor, x: torch.Tensor, dims: list[int]) -> bool:
    """Plans it in two passes if a CPU's nearest cache holds a row in between: one exponential less."""
    rows, size = x.shape[: x.dim() - len(dims)].numel(), math.prod(x.shape[d] for d in dims)
    if p.form != "cpu" or dims != [*range(x.dim() - len(dims), x.dim())] or not 0 < size <= softmax.HELD:
        return False
    if not (x.is_contiguous() and out.is_contiguous()) or x.is_neg() or rows == 0:
        return False
    if not why_not_unrolled(Rows(p.partitioner, rows, size)):
        return False
    layout, grid = p.along_rows(rows, size, 2, unrolled=False)
    kernel = softmax.log_sum_exp_kernel(layout, element_type(x.dtype).name, element_type(out.dtype).name)
    p.launch(kernel, grid, x=x, out=out)
    return True


# ---- moments ----


def _variance(
    p: PlanBuilder, outs: Sequence[torch.Tensor], x: torch.Tensor, dim: Any, correction: Scalar | None, root: bool
) -> None:
    if not (x.is_floating_point() or x.is_complex()):
        raise versions.DTYPES_REFUSED("std and var only support floating point and complex dtypes")
    if x.is_complex():
        _complex_variance(p, outs, x, dim, correction, root)
        return
    type_ = element_type(outs[0].dtype)
    reduction = kernels.variance(type_.accumulate, type_.name, root, len(outs) == 2)
    plan_reduction(p, reduction, outs, x, reduced_dims(x.dim(), dim), [1 if correction is None else correction])


def _complex_variance(
    p: PlanBuilder, outs: Sequence[torch.Tensor], x: torch.Tensor, dim: Any, correction: Scalar | None, root: bool
) -> None:
    """The sum of the variances of both parts."""
    dims = reduced_dims(x.dim(), dim)
    parts = torch.view_as_real(p.contiguous(x))
    both = p.empty([n for d, n in enumerate(parts.shape) if d not in dims], parts.dtype)
    type_ = element_type(outs[0].dtype)
    variance = kernels.variance(type_.accumulate, type_.name, False, False)
    plan_reduction(p, variance, [both], parts, dims, [1 if correction is None else correction])
    total = kernels.total(type_.accumulate, type_.name)
    if root:
        total = replace(total, name=f"root_{total.name}", results=((type_.name, "sqrt(A.sum)"),))
    plan_reduction(p, total, [outs[0].view(both.shape[:-1])], both, [both.dim() - 1])
    if len(outs) == 2:
        whole = element_type(x.dtype)
        plan_reduction(p, kernels.total(whole.accumulate, whole.name, True), [outs[1]], x, dims)


def _check_variance_out(
    self: torch.Tensor, dim: Sequence[int] | None, out: torch.Tensor | None = None, **_: Any
) -> None:
    """Torch's CPU sums in the dtype of `out=`, but all elements at once by a kernel that has neither 16-bit numbers nor
    a way to them."""
    x = self
    if out is None or x.is_complex() or out.dtype == x.dtype:
        return
    whole = len(reduced_dims(x.dim(), dim)) == x.dim()
    if whole and x.numel() and x.element_size() == 2 and not (out.is_floating_point() and out.element_size() == 2):
        raise RuntimeError(f"std_var_all: Unsupported dtype {dtype_name(x.dtype)}")
    if out.is_complex() and not whole:
        refuse_dtype("std_cpu", out.dtype)


def _declare_variance(name: str, root: bool, with_mean: bool) -> None:
    @planner(f"{name}.correction", refuses=_check_variance_out)
    def plan(
        p: PlanBuilder,
        out: Any,
        self: torch.Tensor,
        dim: Sequence[int] | None = None,
        *,
        correction: Scalar | None = None,
        keepdim: bool = False,
    ) -> None:
        _variance(p, out if with_mean else [out], self, dim, correction, root)


for _name in ("var", "std"):
    _declare_variance(_name, _name == "std", False)
    _declare_variance(f"{_name}_mean", _name == "std", True)


# ---- norms ----


def _vector_norm_meta(
    self: torch.Tensor,
    ord: float,
    dim: Sequence[int] | None,
    keepdim: bool,
    dtype: torch.dtype | None,
) -> torch.Tensor:
    """torch's own refuses a norm without identity of any empty tensor, also where what is reduced has elements."""
    dims = reduced_dims(self.dim(), dim)
    some = [n or int(d not in dims) for d, n in enumerate(self.shape)]
    result: torch.Tensor = aten.linalg_vector_norm.default(self.new_empty(some), ord, dim, keepdim, dtype=dtype)
    shape = [1 if d in dims else n for d, n in enumerate(self.shape) if keepdim or d not in dims]
    return result.new_empty(shape)


def _norm(
    p: PlanBuilder,
    out: torch.Tensor,
    self: torch.Tensor,
    order: Scalar | float | None = 2,
    dim: Sequence[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> None:
    value, x = 2.0 if order is None else float(order), self
    if x.is_complex():
        x = p.cast(x, out.dtype.to_complex())
    elif x.dtype == torch.float64:
        x = p.cast(x, out.dtype)
    known = {0.0: "0", 1.0: "1", 2.0: "2", math.inf: "inf", -math.inf: "-inf"}
    kind = known.get(value, "p")
    type_ = element_type(out.dtype)
    reduction = kernels.norm(kind, type_.accumulate, type_.name, x.is_complex())
    plan_reduction(p, reduction, [out], x, reduced_dims(x.dim(), dim), [value] if kind == "p" else [])


planner("norm.ScalarOpt_dim", "norm.ScalarOpt_dim_dtype")(_norm)
planner("linalg_vector_norm", meta=_vector_norm_meta)(_norm)


# ---- hashes ----


@composite("hash_tensor")
def _hash_tensor(self: torch.Tensor, dim: Sequence[int] = (), *, keepdim: bool = False, mode: int = 0) -> torch.Tensor:
    """The exclusive or of the bits of all elements as float64 or int64. Kernels take uint64 for int64."""
    if mode != 0:
        raise RuntimeError(f"Unknown hash_tensor mode: {mode}")
    if self.is_complex():
        raise NotImplementedError(f"hash_tensor is not implemented for {self.dtype}, on any device")
    if self.numel() == 0 and len(dim) == 0:
        raise RuntimeError("hash_tensor: specify the reduction dim with the 'dim' argument where there is no element.")
    bits = self.double().view(torch.int64) if self.is_floating_point() else self.long()
    dims = reduced_dims(self.dim(), dim)
    kept = [size for d, size in enumerate(self.shape) if d not in dims]
    shape = [1 if d in dims else size for d, size in enumerate(self.shape)] if keepdim else kept
    bits = bits.movedim(dims, list(range(-len(dims), 0))).reshape(*kept, math.prod(self.shape[d] for d in dims))
    while (count := bits.shape[-1]) > 1:
        half = count // 2
        rest = bits[..., 2 * half :]
        bits = torch.cat([bits[..., :half] ^ bits[..., half : 2 * half], rest], -1)
    whole = bits if bits.shape[-1] else bits.new_zeros(*kept, 1)
    return whole.reshape(shape).view(torch.uint64)
