"""DLPack for the backend's tensors: what `torch.from_dlpack` and `numpy.from_dlpack` meet (https://dmlc.github.io/dlpack).

A tensor of the backend is a tensor of the device type kDLExtDev with the device's number. No other library knows what
that is, so such a capsule leads back to PyTorch. What others read is host memory: where the device's memory is the
host's too, a consumer that asks for `dl_device=(kDLCPU, 0)` gets the same memory without a copy, after waiting for the
current stream; elsewhere it gets a copy.

`torchgraft/patches/upstream.py` puts these functions where PyTorch has none of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.dlpack import DLDeviceType

from torchgraft import backend
from torchgraft._core import _C
from torchgraft.device_module import streams

__all__ = ["device_of", "export", "refuse_foreign_memory"]

HOST = (DLDeviceType.kDLCPU, 0)
ANY_STREAM = (None, -1)


def device_of(tensor: torch.Tensor) -> tuple[DLDeviceType, int]:
    """`Tensor.__dlpack_device__` of a tensor on the backend."""
    return DLDeviceType.kDLExtDev, tensor.device.index


def export(plain_export: Callable[..., Any], tensor: torch.Tensor, **options: Any) -> Any:
    """`Tensor.__dlpack__` of a tensor on the backend.

    Args:
        plain_export: PyTorch's own, which makes the capsule and refuses what cannot be exported.
        tensor: on the backend.
        options: those of the protocol. `stream` is the `stream_id` of a stream of the device, which then waits for the
            current one; None and -1 mean that the consumer uses the current stream.
    """
    stream, copy = options.pop("stream", None), options.get("copy")
    if options.get("dl_device") == HOST and not copy and not tensor.requires_grad and _is_host_memory(tensor):
        return plain_export(_C.host_view(tensor), **options)
    if stream not in ANY_STREAM:
        _let_wait(stream, tensor.device.index)
    return plain_export(tensor, **options)


def refuse_foreign_memory(tensor: torch.Tensor) -> torch.Tensor:
    """Returns what was made from a capsule, unless it claims to be memory of the backend and is not.

    Another library's kDLExtDev may be quite another device, and using its addresses would end the process.

    Raises:
        BufferError: the device does not exist, or did not allocate the memory.
    """
    if tensor.device.type != backend.name():
        return tensor
    backend.open_devices()
    index, count = tensor.device.index, _C.device_count()
    if index >= count:
        raise BufferError(f"the DLPack capsule is for device '{tensor.device}', and there are {count}")
    if tensor.numel() > 0:
        first = tensor.data_ptr()
        last = first + tensor.element_size() * sum(
            (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
        )
        if not _C.device_of_address(first) == _C.device_of_address(last) == index:
            raise BufferError(
                f"the DLPack capsule says that its memory is of device '{tensor.device}' (kDLExtDev), which did not "
                "allocate it: another library numbers its own devices like that. Export it through host memory."
            )
    return tensor


def _is_host_memory(tensor: torch.Tensor) -> bool:
    return bool(_C.device_properties(tensor.device.index)["unified_memory"])


def _let_wait(stream: int, device: int) -> None:
    """Makes a stream, given by its id, wait for the current one."""
    waiting = streams.Stream(stream_id=stream, device_index=device, device_type=streams.DEVICE_TYPE)
    waiting.wait_stream(streams.current_stream(device))
