"""What torch's default compiler, inductor, finds where a device's code generators would be: the reason there are none.

Inductor looks four names up in `torch.<name>`, when it compiles for the first time, and takes what is there for the
device's generators. Without them it would end in a KeyError somewhere within.
"""

from __future__ import annotations

from typing import Any, NoReturn

from torchgraft import _backend

__all__ = ["HOOKS", "no_generator"]

#: The names that torch._inductor.codegen.common looks up.
HOOKS = ("Scheduling", "PythonWrapperCodegen", "CppWrapperCodegen", "WrapperFxCodegen")


class _NoGenerator:
    """Raises at the first question that inductor asks of it, and at every use."""

    @property
    def supports_caching(self) -> bool:
        _refuse()

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        _refuse()


no_generator = _NoGenerator()


def _refuse() -> NoReturn:
    name = _backend.name()
    raise NotImplementedError(
        f"inductor, the default backend of torch.compile, generates no code for device '{name}'. What works is "
        f'torch.compile(model, backend="aot_eager"): whole graphs, forward and backward, with their ops run by the '
        f"kernels of '{name}'; or backend=\"eager\"; or the model without torch.compile"
    )
