"""PyTorch on oneDNN as on a device with a library of operators: `torch.device("onednn")` and `torch.onednn`.

`import torch` finds the device by itself, by the entry points in pyproject.toml; importing this package asks for it
whatever else is there.
"""

from __future__ import annotations

from torchgraft.autoload import choose

__all__: list[str] = []

choose("onednn", "onednn_device.driver:driver")
