"""Meta functions: what an overload returns of which shapes, strides and dtypes, and what it refuses."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from traceback import walk_tb
from typing import Any

import torch
import torch._meta_registrations  # meta functions that torch has in Python
from torch._library import custom_ops

from torchgraft.plans import versions
from torchgraft.plans.schema import call_by_name, overload_name

_META_KEYS = (
    "Meta",
    "CompositeImplicitAutograd",
    "CompositeExplicitAutograd",
    "CompositeExplicitAutogradNonFunctional",
)


def has_meta(op: torch._ops.OpOverload) -> bool:
    """Whether an overload has a meta function."""
    definition = custom_ops._maybe_get_opdef(op)
    if definition is not None:  # torch.library.custom_op registers one that only raises
        return definition._abstract_fn is not None or (op._schema.is_mutable and not op._schema.returns)
    # Not the computed kernel: where there is none, that is a fallback which only raises.
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return any(has(overload_name(op), key) for key in _META_KEYS)


def ask_meta(op: torch._ops.OpOverload, arguments: Mapping[str, Any]) -> Any:
    """What torch's meta function of an overload says."""
    with meta_function():
        return call_by_name(op, op, arguments)


# How torch's references refuse dtypes: with RuntimeError, as its kernels do before 2.15.
_OF_DTYPES = re.compile(
    "could not infer output dtype|Expected a floating point or complex tensor|Low precision dtypes not supported"
    "|must be floating point|Unsupported input type"
)


@contextmanager
def meta_function() -> Iterator[None]:
    """Where meta functions are called: errors get the types that torch's kernels raise."""
    try:
        yield
    except RuntimeError as error:
        if type(error) is not RuntimeError or not _OF_DTYPES.search(str(error)):
            raise
        raise versions.DTYPES_REFUSED(str(error)) from error
    except OverflowError as error:  # a number that is made one of an integer type
        raise RuntimeError(f"value cannot be converted without overflow: {error}") from error
    except (AssertionError, ValueError) as error:
        # So some of torch's meta functions in Python refuse what its kernels refuse by a RuntimeError.
        if isinstance(error, ValueError) and not _raised_by_reference(error):
            raise
        kind = versions.DTYPES_REFUSED if _OF_DTYPES.search(str(error)) else RuntimeError
        raise kind(str(error)) from error


def _raised_by_reference(error: Exception) -> bool:
    """Whether one of torch's functions in Python has raised it itself, not a check of torch's that says ValueError."""
    *_, (innermost, _) = walk_tb(error.__traceback__)
    return str(innermost.f_globals.get("__name__", "")).startswith(("torch._refs", "torch._prims", "torch._decomp"))
