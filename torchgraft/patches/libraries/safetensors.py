"""safetensors."""

from __future__ import annotations

import contextlib
from functools import wraps
from typing import Any

import torch

from torchgraft import backend
from torchgraft.patches.libraries.patch import after, is_ours


@after("safetensors")
def safetensors_open_on_the_device(safetensors: Any) -> None:
    """`safe_open` and `load_file` refuse names of devices that they do not know, and take them as numbers.
    safetensors 0.5 to 0.8 (bindings/python/src/lib.rs).
    """
    plain = safetensors.safe_open

    @wraps(plain, updated=())
    def safe_open(filename: Any, framework: str, device: Any = "cpu", **options: Any) -> Any:
        with contextlib.suppress(RuntimeError, TypeError):  # what names no device is for safetensors to refuse
            if is_ours(torch.device(device)):
                device = backend.device_index(device)
        return plain(filename, framework, device=device, **options)

    safetensors.safe_open = safe_open
