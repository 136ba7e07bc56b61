"""Libraries that choose a device for the program and know devices by name only: what makes them choose the backend's.

Where it is the only accelerator there is (libraries put those that they know first), a program that names no device
runs on it. A library with an interface for devices gets the device by that. Where it has none, one of its functions is
put in order, in the file of its library: each function says what is wrong and in which versions;
tests/ecosystem/test_needed.py fails as soon as one is needed no longer. No library is imported for this: a function is
called when its module has been executed.
"""

from __future__ import annotations

from collections import defaultdict

from torchgraft.patches import imports
from torchgraft.patches.libraries import (  # noqa: F401  # each puts its functions into PATCHES
    accelerate,
    lightning,
    safetensors,
    sentence_transformers,
    transformers,
)
from torchgraft.patches.libraries.patch import PATCHES, Patch, only_device

__all__ = ["PATCHES", "install", "only_device"]


def install() -> None:
    """A step of the registration."""
    calls: defaultdict[str, list[Patch]] = defaultdict(list)
    for patch, modules in PATCHES.items():
        for module in modules:
            calls[module].append(patch)
    imports.call_after(calls)
