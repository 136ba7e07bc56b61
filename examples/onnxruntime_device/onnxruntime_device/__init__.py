"""PyTorch on ONNX Runtime as on a device with a graph compiler: `torch.device("onnxruntime")` and `torch.onnxruntime`.

`import torch` finds the device by itself, by the entry points in pyproject.toml; importing this package asks for it
whatever else is there.
"""

from __future__ import annotations

from torchgraft.autoload import choose

__all__: list[str] = []

choose("onnxruntime", "onnxruntime_device.driver:driver")
