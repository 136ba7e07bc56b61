"""Kernels that torch's default compiler, inductor, makes for the device.

Inductor asks `torch.<name>` when it compiles for the first time: from torch 2.15 on it calls `_inductor_backend_init`
there, before it looks names up and takes what is there for the device's code generators. Nothing of it is imported
before.

Inductor is internal to torch and changes from one minor version to the next. The generators are tested with some of
them; a newer one is asked for every name that they use (`seam`) and served, with a warning, if all are as they were. If
not, and for devices without a compiler, there is an error that says what works.
"""

from __future__ import annotations

from typing import Any, NoReturn

from torchgraft.inductor.versions import refuse, why_unfit

__all__ = ["HOOKS", "hook", "initialise"]

#: The names that torch._inductor.codegen.common looks up where there is no `initialise`, before torch 2.15.
HOOKS = ("Scheduling", "PythonWrapperCodegen", "CppWrapperCodegen", "WrapperFxCodegen")


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
