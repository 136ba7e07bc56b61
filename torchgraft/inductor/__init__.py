"""Kernels that torch's default compiler, inductor, makes for the device.

Inductor asks `torch.<name>` when it compiles for the first time: from torch 2.15 on it calls `_inductor_backend_init`
there, before it looks names up and takes what is there for the device's code generators. Nothing of it is imported
before.

Inductor is internal to torch and changes from one minor version to the next, so only those are served for which the
generators are made. For others, and for devices without a compiler, there is an error that says what works.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from torchgraft import _backend
from torchgraft._core import minor

__all__ = ["HOOKS", "hook", "initialise", "refuse"]

#: The names that torch._inductor.codegen.common looks up where there is no `initialise`, before torch 2.15.
HOOKS = ("Scheduling", "PythonWrapperCodegen", "CppWrapperCodegen", "WrapperFxCodegen")

#: The versions of torch whose inductor is known here.
VERSIONS = ((2, 13), (2, 14), (2, 15))


class _NoGenerator:
    """Raises at the first question that inductor asks of it, and at every use."""

    @property
    def supports_caching(self) -> bool:
        _refuse_version()

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        _refuse_version()


_no_generator = _NoGenerator()


def hook(name: str) -> Any:
    """What inductor finds under one of `HOOKS`.

    It takes the device's generators from the first of them, with more than names could say: they are registered here,
    and no C++ wrapper is offered, without which inductor leaves it at that.
    """
    if not is_known():
        return _no_generator
    if name != "Scheduling":
        return None
    from torchgraft.inductor.registration import register

    return register()


def initialise() -> None:
    """Registers the device's generators: `torch.<name>._inductor_backend_init`.

    Raises:
        NotImplementedError: they are not made for this torch.
    """
    if not is_known():
        _refuse_version()
    from torchgraft.inductor.registration import register

    register()


def is_known() -> bool:
    """Whether the generators are made for this torch."""
    return minor(torch.__version__) in VERSIONS


def refuse(why: str) -> NoReturn:
    """Raises the error that says why there is no code, and what works.

    Raises:
        NotImplementedError: always.
    """
    name = _backend.name()
    raise NotImplementedError(
        f"inductor, the default backend of torch.compile, generates no code for device '{name}': {why}. What works is "
        f'torch.compile(model, backend="aot_eager"): whole graphs, forward and backward, with their ops run by the '
        f"kernels of '{name}'; or backend=\"eager\"; or the model without torch.compile"
    )


def _refuse_version() -> NoReturn:
    versions = ", ".join(f"{major}.{minor_}" for major, minor_ in VERSIONS)
    refuse(f"that is made for torch {versions}")
