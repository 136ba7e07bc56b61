"""An op's own forward and backward on the device, in place of torch's derivative formula."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from torchgraft.plans.schema import overload_name, parameters, resolve, variants

__all__ = ["override"]

_Function = TypeVar("_Function", bound=type[torch.autograd.Function])

_lock = threading.Lock()
_overrides: dict[str, type[torch.autograd.Function]] = {}
_libraries: list[torch.library.Library] = []  # what is registered lasts as long as these do


def override(op: str, *, replace: bool = False) -> Callable[[_Function], _Function]:
    """Declares a `torch.autograd.Function` as an op's forward and backward on the device::

        @torchgraft.autograd.override("selu")
        class Selu(torch.autograd.Function):
            @staticmethod
            def forward(x): ...                              # torch.selu(x) here is the kernel below autograd
            @staticmethod
            def setup_context(ctx, inputs, output): ...
            @staticmethod
            def backward(ctx, gradient): ...

    `forward` gets all arguments of the op by position, in the schema's order, defaults filled in; `backward` returns as
    many gradients. In `forward` autograd is out of the way: the op itself, called there, is the device's kernel. With
    `setup_context` the op also works under torch.func; add `generate_vmap_rule = True` or `vmap` for vmap over its
    gradient, `jvp` for forward mode. The in-place form follows, where there is one; out= has no gradient in torch.

    It may be declared before the devices are opened or after, and for ops of an author's own as for torch's, though
    `torch.library.register_autograd` is the better place where the formula is not the device's alone.

    Args:
        op: a functional overload: "selu", "aten::add.Tensor", "mylib::axpy".
        replace: takes the place of an override that the op has, which is an error otherwise.

    Raises:
        ValueError: there is no such op, it is overridden already, it writes its arguments, or takes lists of tensors.
        TypeError: what is declared is no autograd.Function with forward and backward.
    """
    overload = resolve(op)
    if any(a.is_written for a in parameters(overload)):
        raise ValueError(f"{overload} writes its arguments: override the functional overload, the other forms follow")
    if any("List[" in a.type and "Tensor" in a.type for a in parameters(overload)):
        raise ValueError(
            f"{overload} takes a list of tensors, which an autograd.Function does not differentiate; "
            "torch.library.register_autograd does"
        )

    def declare(function: _Function) -> _Function:
        _check(function)
        with _lock:
            if not replace and overload_name(overload) in _overrides:
                raise ValueError(f"{overload_name(overload)} is overridden already; replace=True replaces that")
            known = overload_name(overload) in _overrides
            _overrides[overload_name(overload)] = _below_autograd(function)
            if not known:
                _register(overload)
        return function

    return declare


def _check(function: Any) -> None:
    base = torch.autograd.Function
    if not (isinstance(function, type) and issubclass(function, base)):
        raise TypeError(f"an override is a subclass of torch.autograd.Function, not {function!r}")
    backward = function.backward is not base.backward or function.vjp is not base.vjp
    if function.forward is base.forward or not backward:
        raise TypeError(f"{function.__name__} needs both forward and backward")


def _below_autograd(function: type[torch.autograd.Function]) -> type[torch.autograd.Function]:
    """The same, with autograd's keys left out in `forward`, where the op itself would lead here again."""

    @functools.wraps(function.forward)
    def forward(*args: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return function.forward(*args)

    return type(function.__name__, (function,), {"forward": staticmethod(forward), "__doc__": function.__doc__})


def _register(overload: torch._ops.OpOverload) -> None:
    name = overload_name(overload)
    library = torch.library.Library(overload.namespace, "IMPL")
    _libraries.append(library)

    def arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """All, by position: the dispatcher leaves out those that equal their defaults."""
        named = dict(zip([a.name for a in parameters(overload)], args, strict=False)) | kwargs
        return [named.get(a.name, a.default) for a in parameters(overload)]

    def functional(*args: Any, **kwargs: Any) -> Any:
        return _overrides[name].apply(*arguments(args, kwargs))

    def in_place(target: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        # Of a copy, since what is saved for backward must outlive the writing.
        return target.copy_(functional(target.clone(), *args, **kwargs))

    for form, kind in variants(overload):
        if kind != "out":
            kernel = functional if kind == "functional" else in_place
            library.impl(overload_name(form).split("::")[1], kernel, "AutogradPrivateUse1")
