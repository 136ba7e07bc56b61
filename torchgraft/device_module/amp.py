"""Automatic mixed precision: what `torch.autocast("<name>")` asks of the device."""

from __future__ import annotations

import torch

from torchgraft import backend

__all__ = [
    "get_amp_supported_dtype",
    "get_autocast_dtype",
    "is_autocast_enabled",
    "is_bf16_supported",
    "set_autocast_dtype",
    "set_autocast_enabled",
]


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The types that autocast may compute in. Both are storage types computed in float32, so every device has them."""
    return [torch.float16, torch.bfloat16]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Whether bfloat16 tensors can be used: always, but without emulation never, since float32 does their computing."""
    return including_emulation


# The four that PyTorch's guide of 2.1 asks of the module; torch has since kept this state for every device itself.


def is_autocast_enabled() -> bool:
    return torch.is_autocast_enabled(backend.name())


def set_autocast_enabled(enabled: bool) -> None:
    torch.set_autocast_enabled(backend.name(), enabled)


def get_autocast_dtype() -> torch.dtype:
    return torch.get_autocast_dtype(backend.name())


def set_autocast_dtype(dtype: torch.dtype) -> None:
    torch.set_autocast_dtype(backend.name(), dtype)
