"""Places of inductor that have the devices of torch's own tree in them, and no registration: the only monkeypatches.

Each function here has one of them know the backend's device, and leaves it as it is for all others. They are applied
when inductor asks for the device's generators; tests/test_inductor.py fails as soon as one is needed no longer.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from torchgraft import _backend

__all__ = ["PATCHES", "apply"]


def pointwise_results_are_on_the_device() -> None:
    """The result of a pointwise op with a tensor of the CPU without dimensions goes where its first operand is, unless
    another is on a device of a list: with the CPU's one first, the result is on the CPU. torch 2.13
    (torch/_inductor/lowering.py, `make_pointwise`, whose only question of the kind this is).
    """
    import torch._inductor.lowering

    lowering: Any = torch._inductor.lowering

    plain = lowering.is_gpu

    @wraps(plain)
    def is_gpu(device: str | None) -> bool:
        return device == _backend.name() or bool(plain(device))

    lowering.is_gpu = is_gpu


PATCHES = (pointwise_results_are_on_the_device,)


def apply() -> None:
    """Applies them all."""
    for patch in PATCHES:
        patch()
