"""What torch's CPU refuses of calls, in its words.

What an op refuses is declared: `refuses=` takes one of these or several, among them functions of the call's arguments,
which raise. A refusal of torch's own meta functions needs no declaration.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from torchgraft.plans.builder import PlanBuilder
from torchgraft.plans.schema import tensors_in

Bounds = Mapping[str, tuple[float | None, float | None, str]]

Check = Callable[..., None]


@dataclass(frozen=True)
class Only:
    """Refuses to compute in other types than some; see `only`."""

    types: str


def only(types: str) -> Only:
    """Refuses compute types that the op has not on torch's CPU either, with NotImplementedError.

    Args:
        types: those that it has: "float" (with complex where there is an expression), "integer" (with bool) or "number"
            (all but bool).
    """
    if types not in ("float", "integer", "number"):
        raise ValueError(f"types are 'float', 'integer' or 'number', not {types!r}")
    return Only(types)


@dataclass(frozen=True)
class Within:
    """Refuses numbers that are out of bounds; see `within`."""

    bounds: Bounds
    where: str | Callable[..., bool] = ""

    def guard(self, p: PlanBuilder, arguments: Mapping[str, Any]) -> None:
        """Holds a call's scalars, and those of later calls that its plan serves, to the bounds."""
        if self._holds(arguments):
            for name, (low, high, message) in self.bounds.items():
                p.within(arguments[name], low, high, message)

    def _holds(self, arguments: Mapping[str, Any]) -> bool:
        if callable(self.where):
            return self.where(**arguments)
        return not self.where or bool(arguments[self.where])


def within(bounds: Bounds, where: str | Callable[..., bool] = "") -> Within:
    """Refuses values of scalars with RuntimeError, in later calls too; the scalars stay dynamic.

    Args:
        bounds: of scalar arguments: at least, at most, each None for none, and what the error says of others, "{}"
            being the value.
        where: an argument without which, or where it is false, there are no bounds; or a function of the arguments
            that says, by their dtypes and flags, whether there are.
    """
    return Within(bounds, where)


@dataclass(frozen=True)
class OtherOut:
    """Refuses an `out=` of another dtype than the result's, to which it would be converted.

    Attributes:
        but_bytes: bytes are taken for truth, of old, when there was no bool.
        but_untyped: where the argument `dtype` is not given, an `out=` gives it.
        apart: what a ValueError says of two results that share elements; without it that is no mistake.
    """

    but_bytes: bool = False
    but_untyped: bool = False
    apart: str = ""

    def check_apart(self, results: Sequence[torch.Tensor]) -> None:
        """Refuses results that share elements, of a call in which something written does."""
        if self.apart and len({result.untyped_storage()._cdata for result in results}) < len(results):
            raise ValueError(self.apart)


other_out = OtherOut()

Refusal = Only | Within | OtherOut | Check
Refuses = Refusal | tuple[Refusal, ...]


@dataclass(frozen=True)
class Refusals:
    """All that an op refuses, by kind."""

    only: Only | None = None
    within: tuple[Within, ...] = ()
    out: OtherOut | None = None
    checks: tuple[Check, ...] = ()

    def check(self, arguments: Mapping[str, Any]) -> None:
        """Has the functions look at a call's arguments."""
        for check in self.checks:
            check(**arguments)

    def refuses_type(self, *, is_integer: bool, is_bool: bool) -> bool:
        """Whether the op has no such compute type."""
        types = "" if self.only is None else self.only.types
        return {"": False, "float": is_integer, "integer": not is_integer, "number": is_bool}[types]


def gathered(refuses: Refuses) -> Refusals:
    """What an op refuses, of what its declaration says."""
    items = refuses if isinstance(refuses, tuple) else (refuses,)
    unknown = [item for item in items if not (isinstance(item, (Only, Within, OtherOut)) or callable(item))]
    if unknown:
        raise ValueError(f"refuses= takes refusals and functions, not {unknown[0]!r}")
    onlys, outs = [i for i in items if isinstance(i, Only)], [i for i in items if isinstance(i, OtherOut)]
    if len(onlys) > 1 or len(outs) > 1:
        raise ValueError(f"refuses= takes one of a kind, not {[*onlys, *outs]}")
    return Refusals(
        onlys[0] if onlys else None,
        tuple(item for item in items if isinstance(item, Within)),
        outs[0] if outs else None,
        tuple(item for item in items if not isinstance(item, (Only, Within, OtherOut))),
    )


# ---- dtypes ----

_NAMES = {
    torch.float32: "Float",
    torch.float64: "Double",
    torch.float16: "Half",
    torch.bfloat16: "BFloat16",
    torch.int64: "Long",
    torch.int32: "Int",
    torch.int16: "Short",
    torch.int8: "Char",
    torch.uint8: "Byte",
    torch.bool: "Bool",
    torch.complex64: "ComplexFloat",
    torch.complex128: "ComplexDouble",
}


def dtype_name(dtype: torch.dtype) -> str:
    """As torch's messages call it: "Float", "Long"."""
    return _NAMES.get(dtype, str(dtype))


def refuse_dtype(name: str, dtype: torch.dtype) -> NoReturn:
    """Says of an op that torch's CPU has none for a dtype either."""
    raise NotImplementedError(f"\"{name}\" not implemented for '{dtype_name(dtype)}', on any device")


def check_same_dtype(x: torch.Tensor, *others: torch.Tensor | None) -> None:
    """Refuses tensors of another dtype than the first one's."""
    for other in others:
        if other is not None and other.dtype != x.dtype:
            raise RuntimeError(f"expected scalar type {dtype_name(x.dtype)} but found {dtype_name(other.dtype)}")


def check_parameters(x: torch.Tensor, *parameters: torch.Tensor | None) -> None:
    """Refuses parameters of a norm that are neither of its input's dtype nor float32 beside halves."""
    if not x.is_floating_point():
        refuse_dtype("norm", x.dtype)
    allowed = (x.dtype, torch.float32) if x.dtype in (torch.float16, torch.bfloat16) else (x.dtype,)
    if any(parameter is not None and parameter.dtype not in allowed for parameter in parameters):
        raise RuntimeError(f"mixed dtype: parameters beside an input of {x.dtype} must be of it, or float32 for halves")


def check_fits(value: complex, dtype: torch.dtype) -> None:
    """Refuses a number outside of a real type's range, as torch's kernels do. Integers have no infinities; unsigned
    ones take negative numbers, which wrap."""
    most = torch.finfo(dtype).max if dtype.is_floating_point else torch.iinfo(dtype).max
    least = -most if dtype.is_floating_point else min(-most, torch.iinfo(dtype).min)
    endless = dtype.is_floating_point and not math.isfinite(value.real)
    if not endless and not least <= value.real <= most:
        raise RuntimeError(f"value cannot be converted to type {dtype_name(dtype)} without overflow")


def check_filling(self: torch.Tensor, value: torch.Tensor | complex, **_: Any) -> None:
    """A check of ops that put a number into places of a tensor, also where there is no such place."""
    is_integer = not (self.is_floating_point() or self.is_complex() or self.dtype == torch.bool)
    if is_integer and isinstance(value, (int, float)):
        check_fits(value, self.dtype)


def check_floating(self: torch.Tensor, **_: Any) -> None:
    """A check of ops that have real, floating-point numbers only."""
    if not self.is_floating_point():
        raise NotImplementedError(f"not implemented for '{dtype_name(self.dtype)}', only for floating-point numbers")


# ---- results that are given ----


def check_out(out: torch.Tensor, result: torch.Tensor, exact: bool = True) -> None:
    """Refuses an `out=` that is elsewhere, or of a dtype that the result cannot be put into."""
    check_out_dtype(result.dtype, out.dtype, exact)
    if out.device != result.device:
        raise RuntimeError(f"Expected out to be on the same device as the inputs, {result.device}, not {out.device}")


def check_in_place(op: torch._ops.OpOverload, target: torch.Tensor, result: torch.Tensor) -> None:
    """Refuses to put the result of a functional overload in the place of an operand that it does not fit."""
    if target.is_complex() and not result.is_complex():
        raise RuntimeError(f"In-place {op._opname} is not supported for complex tensors.")
    _check_cast(result.dtype, target.dtype)
    if target.shape != result.shape:
        refuse_resized(target.shape, result.shape)


def check_out_dtype(dtype: torch.dtype, out: torch.dtype, exact: bool) -> None:
    """Refuses an `out=` whose dtype is not the result's, or to which the result's cannot be converted.

    Args:
        dtype: of the result.
        out: of the `out=`.
        exact: whether they must be the same.
    """
    if exact and dtype != out:
        raise RuntimeError(f"Expected out tensor to have dtype {dtype_name(dtype)}, but got {dtype_name(out)} instead")
    _check_cast(dtype, out)


def _check_cast(dtype: torch.dtype, to: torch.dtype) -> None:
    if not torch.can_cast(dtype, to):
        raise RuntimeError(f"result type {dtype_name(dtype)} can't be cast to the desired output type {dtype_name(to)}")


def refuse_resized(shape: torch.Size, wanted: torch.Size) -> NoReturn:
    """Says that a result has another shape than what it is to be written into."""
    raise RuntimeError(f"output with shape {list(shape)} doesn't match the broadcast shape {list(wanted)}")


def check_broadcast(specs: Iterable[torch.Tensor]) -> None:
    """Says in the words of torch's CPU which sizes do not fit; some meta kernels say it in others."""
    for a, b in itertools.combinations(specs, 2):
        for dim in range(-1, -min(a.dim(), b.dim()) - 1, -1):
            if a.shape[dim] != b.shape[dim] and 1 not in (a.shape[dim], b.shape[dim]):
                raise RuntimeError(
                    f"The size of tensor a ({a.shape[dim]}) must match the size of tensor b ({b.shape[dim]}) at "
                    f"non-singleton dimension {max(a.dim(), b.dim()) + dim}"
                )


# ---- memory that is shared ----

# Where elements of a tensor share memory these still do what is meant, and torch's CPU lets them, some with a warning.
_WARN_OF_EXPANDED = {
    "aten::masked_fill.Scalar",
    "aten::masked_fill.Tensor",
    "aten::index_fill.int_Scalar",
    "aten::index_fill.int_Tensor",
    "aten::index_put",
    "aten::_index_put_impl_",
}
_WRITE_ONE_VALUE = {"aten::fill_.Scalar", "aten::fill_.Tensor", "aten::zero_", "aten::threshold", *_WARN_OF_EXPANDED}


# Elementwise ops and these look at an `out=` as it is given, others as it is when it has got the result's shape.
_LOOK_FIRST = {"aten::index_select", "aten::take"}


def looks_at_out_first(functional: torch._ops.OpOverload) -> bool:
    """Whether an `out=` that lies over itself is refused even if it is to get another shape."""
    return functional._schema.name in _LOOK_FIRST


def check_on_device(written: Iterable[torch.Tensor]) -> None:
    """Refuses to write tensors on the CPU."""
    elsewhere = next((t.device for t in written if t.device.type == "cpu"), None)
    if elsewhere is not None:
        backend = torch._C._get_privateuse1_backend_name()
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {elsewhere} (written to) "
            f"and {backend}"
        )


def check_over_itself(functional: str, written: Iterable[torch.Tensor]) -> None:
    """Refuses to write tensors of which several elements are one, but to ops that write one value."""
    if not any(map(_lies_over_itself, written)):
        return
    if functional in _WARN_OF_EXPANDED:
        name = functional.partition(".")[0].removeprefix("aten::").replace("_index_put_impl_", "index_put")
        warnings.warn(
            f"Use of {name}_ on expanded tensors is deprecated. Please clone() the tensor before performing this "
            "operation. This also applies to advanced indexing e.g. tensor[mask] = scalar",
            stacklevel=2,
        )
    if functional not in _WRITE_ONE_VALUE:
        raise RuntimeError(
            "unsupported operation: more than one element of the written-to tensor refers to a single memory "
            "location. Please clone() the tensor before performing the operation."
        )


def check_apart(written: list[torch.Tensor], apart: list[torch.Tensor]) -> None:
    """Refuses written tensors in the memory of those that they must be apart from."""
    memory = {t.untyped_storage()._cdata for t in written}
    if any(t.untyped_storage()._cdata in memory for t in apart):
        refuse_overlap()


def refuse_overlap() -> NoReturn:
    """Says that a result lies over an input that must be elsewhere."""
    raise RuntimeError(
        "unsupported operation: some elements of the input tensor and the written-to tensor refer to a single "
        "memory location. Please clone() the tensor before performing the operation."
    )


def _lies_over_itself(tensor: torch.Tensor) -> bool:
    repeats = any(s == 0 and n > 1 for s, n in zip(tensor.stride(), tensor.shape, strict=True))
    return repeats and tensor.numel() > 0


def named_tensors(arguments: Mapping[str, Any], names: Iterable[str]) -> list[torch.Tensor]:
    """The tensors of some of a call's arguments."""
    return [t for name in names for t in tensors_in(arguments[name])]
