"""Kernels that torch's default compiler, inductor, makes for the device.

Inductor asks `torch.<name>` when it compiles for the first time: from torch 2.15 on it calls `_inductor_backend_init`
there, before it looks names up and takes what is there for the device's code generators. Nothing of it is imported
before.

Inductor is internal to torch and changes from one minor version to the next. The generators are tested with some of
them; a newer one is asked for every name that they use (`seam`) and served, with a warning, if all are as they were. If
not, and for devices without a compiler, there is an error that says what works.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any, NoReturn

import torch

from torchgraft import _backend
from torchgraft._core import minor

__all__ = ["HOOKS", "hook", "initialise", "refuse"]

#: The names that torch._inductor.codegen.common looks up where there is no `initialise`, before torch 2.15.
HOOKS = ("Scheduling", "PythonWrapperCodegen", "CppWrapperCodegen", "WrapperFxCodegen")

#: The versions of torch whose inductor the generators are tested with.
VERSIONS = ((2, 13), (2, 14), (2, 15))


class _NoGenerator:
    """Raises at the first question that inductor asks of it, and at every use."""

    @property
    def supports_caching(self) -> bool:
        refuse(why_unfit())

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        refuse(why_unfit())


_no_generator = _NoGenerator()


def hook(name: str) -> Any:
    """What inductor finds under one of `HOOKS`.

    It takes the device's generators from the first of them, with more than names could say: they are registered here,
    and no C++ wrapper is offered, without which inductor leaves it at that.
    """
    if why_unfit():
        return _no_generator
    if name != "Scheduling":
        return None
    from torchgraft.inductor.registration import register

    return register()


def initialise() -> None:
    """Registers the device's generators: `torch.<name>._inductor_backend_init`.

    Raises:
        NotImplementedError: this torch's inductor is none that they can be used with.
    """
    if why := why_unfit():
        refuse(why)
    from torchgraft.inductor.registration import register

    register()


@functools.cache
def why_unfit() -> str:
    """Why the generators cannot be used with this torch, or an empty string. Of a torch newer than those that they are
    tested with it warns that it is one."""
    if minor(torch.__version__) in VERSIONS:
        return ""
    from torchgraft.inductor.seam import broken

    tested = ", ".join(f"{major}.{minor_}" for major, minor_ in VERSIONS)
    if found := broken():
        others = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        return f"that is made for torch {tested}, and torch {torch.__version__} has changed: {found[0]}{others}"
    warnings.warn(
        f"torch.compile for '{_backend.name()}' is tested with torch {tested}. All that it uses of torch "
        f"{torch.__version__} is as it was there, so it is used; if something goes wrong, compare with {_ANYWAY}.",
        stacklevel=2,
    )
    return ""


_ANYWAY = 'torch.compile(model, backend="graft")'


def refuse(why: str) -> NoReturn:
    """Raises the error that says why there is no code, and what works.

    Raises:
        NotImplementedError: always.
    """
    name = _backend.name()
    raise NotImplementedError(
        f"inductor, the default backend of torch.compile, generates no code for device '{name}': {why}. What works is "
        f"{_ANYWAY}, which needs nothing of inductor: whole graphs, forward and backward, recorded and replayed; or "
        'backend="aot_eager", backend="eager", or the model without torch.compile'
    )
