"""The device's memory and queues as PyOpenCL objects, for kernels of one's own.

    from torchgraft_opencl import interop

    x = torch.arange(4.0, device="ocl")
    program = pyopencl.Program(interop.context(), SOURCE).build()
    program.double_it(interop.queue(), (4,), None, interop.buffer(x))
    x.cpu()                                          # waits for the kernel

PyTorch's own context and queues are used, not others beside them: what you submit to `queue()` runs after what PyTorch
has submitted to its current stream, and before what it submits next. So nothing needs to be waited for in between.

Needs PyOpenCL (`pip install pyopencl`), which finds OpenCL for itself; it must find the same implementation.
"""

from __future__ import annotations

import ctypes
import weakref
from dataclasses import dataclass
from enum import IntEnum
from functools import cache, partial
from typing import Any, cast

import numpy
import torch

from torchgraft import backend
from torchgraft._core import _C
from torchgraft.backend import DeviceLike
from torchgraft_opencl import driver_library

try:
    import pyopencl
    import pyopencl.array
    import pyopencl.tools
except ImportError as error:
    raise ImportError(f"torchgraft_opencl.interop needs PyOpenCL (pip install pyopencl): {error}") from error

__all__ = ["allocator", "array", "buffer", "context", "device", "queue", "tensor"]


class MemoryModel(IntEnum):
    """How the driver makes an argument of an address; see opencl/csrc/memory.h."""

    HOST = 0
    SVM = 1
    BUFFER = 2


@dataclass(frozen=True)
class Native:
    """What the driver tells of a device: the addresses of OpenCL's objects."""

    ordinal: int
    context: int
    device: int
    model: MemoryModel


class _Driver:
    """The functions that the driver exports beside its table (opencl/csrc/interop.cpp)."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(str(driver_library()))
        self.library.torchgraft_opencl_last_error.restype = ctypes.c_char_p

    def call(self, function: str, *arguments: Any) -> None:
        if getattr(self.library, f"torchgraft_opencl_{function}")(*arguments) != 0:
            raise RuntimeError(self.library.torchgraft_opencl_last_error().decode())


_driver = cache(_Driver)


# ---- OpenCL's objects ----


def context(device: DeviceLike = None) -> pyopencl.Context:
    """The context in which a device's memory is: programs and other buffers made in it can be used with tensors."""
    return pyopencl.Context.from_int_ptr(_native(_index(device)).context)


def device(device: DeviceLike = None) -> pyopencl.Device:
    """The OpenCL device behind a device."""
    return pyopencl.Device.from_int_ptr(_native(_index(device)).device)


def queue(device: DeviceLike = None) -> pyopencl.CommandQueue:
    """The in-order queue of a device's current stream.

    Ask again after changing the stream. From the first call on, waiting for that stream takes some microseconds longer,
    since commands may be in it that PyTorch has not counted. `torch.ocl.Stream.query` counts them, too.
    """
    index = _index(device)
    stream = torch.accelerator.current_stream(torch.device(backend.name(), index))
    handle, found = _C.stream_handle(index, stream.stream_id), ctypes.c_void_p()
    _driver().call("queue", _native(index).ordinal, ctypes.c_void_p(handle), ctypes.byref(found))
    assert found.value is not None
    return pyopencl.CommandQueue.from_int_ptr(found.value)


def allocator(device: DeviceLike = None) -> Any:
    """For `allocator=` of PyOpenCL's arrays: memory of the kind that the device's tensors have, for `tensor(array)`."""
    native = _native(_index(device))
    if native.model is MemoryModel.BUFFER:
        return pyopencl.tools.ImmediateAllocator(queue(device))
    return pyopencl.tools.SVMAllocator(context(device), queue=queue(device))


# ---- tensors for OpenCL ----


def buffer(tensor: torch.Tensor) -> pyopencl.Buffer | pyopencl.SVMPointer:
    """The memory of a tensor as an argument for kernels: `global T*` to its first element.

    A `pyopencl.Buffer` on devices whose memory is buffers, otherwise a `pyopencl.SVM`; kernels cannot tell. It keeps
    the tensor's memory from being used for something else. Elements are where the tensor's strides say.

    Raises:
        ValueError: not on a device of this driver; no elements; conjugate or negative bit; or a view that begins where
            no buffer of this device can begin (pass `tensor.clone()`, or `array(tensor)` with its offset).
    """
    native, size = _checked(tensor), _bytes(tensor)
    if size == 0:
        raise ValueError("a tensor without elements has no memory that could be passed to a kernel")
    if native.model is not MemoryModel.BUFFER:
        return _svm(tensor, size)
    whole, offset = _place(native, tensor)
    align = device(tensor.device).mem_base_addr_align // 8
    if offset % align:
        raise ValueError(
            f"the tensor begins {offset} bytes into its buffer, and on this device a buffer can only begin at a "
            f"multiple of {align}: pass a clone, or use array(tensor), which has an offset"
        )
    part = whole.get_sub_region(offset, size)
    _keep(part, tensor)
    return part


def array(tensor: torch.Tensor) -> pyopencl.array.Array:
    """A `pyopencl.array.Array` over the memory of a tensor, on the queue of the current stream: writes to the one are
    seen in the other. Bools are int8, as PyOpenCL has them.

    Raises:
        ValueError: not on a device of this driver, or conjugate or negative bit.
        TypeError: NumPy has no such dtype (bfloat16, float8).
        RuntimeError: the tensor requires gradients.
    """
    native = _checked(tensor)
    if tensor.requires_grad:
        raise RuntimeError("the array of a tensor that requires gradients would escape autograd: use tensor.detach()")
    dtype, size = _numpy_dtype(tensor.dtype), _bytes(tensor)
    memory: Any = None
    offset = 0
    if size and native.model is MemoryModel.BUFFER:
        memory, offset = _place(native, tensor)
        _keep(memory, tensor)
    elif size:
        memory = _svm(tensor, size)
    strides = tuple(stride * tensor.element_size() for stride in tensor.stride())
    return pyopencl.array.Array(
        queue(tensor.device), tuple(tensor.shape), dtype, strides=strides, data=memory, offset=offset
    )


def tensor(array: pyopencl.array.Array, device: DeviceLike = None) -> torch.Tensor:
    """A tensor over the memory of a PyOpenCL array: writes to the one are seen in the other.

    On devices whose memory is buffers, any array of this context will do. On those that work with addresses (CPUs, and
    devices with shared virtual memory) the array must be in shared virtual memory. `allocator()` serves both.

    Work submitted to the array's queue must be done, or that queue be `interop.queue()`.

    Args:
        array: any shape, strides and dtype that PyTorch has too.
        device: that of the array's context; the current one by default.

    Raises:
        ValueError: the array is in another context, or its memory cannot be shared with this device: copy it then, by
            `torch.from_numpy(array.get())`.
    """
    index = _index(device)
    native = _native(index)
    if array.context is None or array.context.int_ptr != native.context:
        raise ValueError(
            f"the array is in another OpenCL context than '{backend.name()}:{index}': allocate it in "
            "interop.context(), or copy it: torch.from_numpy(array.get())"
        )
    dtype = torch.from_numpy(numpy.empty(0, array.dtype)).dtype
    strides = [stride // array.dtype.itemsize for stride in array.strides]
    if array.size == 0:
        return torch.empty_strided(array.shape, strides, dtype=dtype, device=f"{backend.name()}:{index}")
    address, size, owner = _address(native, array)
    memory = _C.adopt_memory(index, address, size, owner).untyped_storage()
    empty = torch.empty(0, dtype=dtype, device=f"{backend.name()}:{index}")
    return empty.set_(memory, array.offset // array.dtype.itemsize, array.shape, strides)


# ---- what they are made of ----


class _Bytes:
    """Device memory as NumPy takes it, without looking at it; keeps the tensor."""

    def __init__(self, tensor: torch.Tensor, size: int) -> None:
        self.tensor = tensor
        self.__array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (tensor.data_ptr(), False),
            "version": 3,
        }


class _Adopted:
    """Keeps a PyOpenCL buffer, and the address that the driver gave it, until nobody uses them."""

    def __init__(self, native: Native, buffer: pyopencl.MemoryObject) -> None:
        address = ctypes.c_void_p()
        _driver().call(
            "adopt",
            native.ordinal,
            ctypes.c_void_p(buffer.int_ptr),
            ctypes.c_uint64(buffer.size),
            ctypes.byref(address),
        )
        assert address.value is not None
        self.address = address.value
        release = partial(_driver().call, "release", native.ordinal, address)
        weakref.finalize(self, release).atexit = False  # at the end of the process all of it goes


def _index(device: DeviceLike) -> int:
    """The device's number; the backend's devices are open afterwards."""
    backend.open_devices()
    return backend.device_index(device)


@cache
def _native(index: int) -> Native:
    properties = _C.device_properties(index)
    if properties["driver"] != "opencl":
        raise ValueError(f"'{backend.name()}:{index}' is a device of the driver {properties['driver']}, not of OpenCL")
    context, found, model = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int32()
    references = [ctypes.byref(each) for each in (context, found, model)]
    _driver().call("device", properties["ordinal"], *references)
    assert context.value is not None
    assert found.value is not None
    return Native(properties["ordinal"], context.value, found.value, MemoryModel(model.value))


def _checked(tensor: torch.Tensor) -> Native:
    if tensor.device.type != backend.name():
        raise ValueError(f"expected a tensor on '{backend.name()}', and this one is on '{tensor.device}'")
    if tensor.is_conj() or tensor.is_neg():
        raise ValueError(
            "the tensor's memory holds other numbers than the tensor, since its conjugate or negative bit is set: use "
            "tensor.resolve_conj().resolve_neg()"
        )
    return _native(tensor.device.index)


def _bytes(tensor: torch.Tensor) -> int:
    """How many bytes the tensor spans, from its first element to its last."""
    if tensor.numel() == 0:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


def _svm(tensor: torch.Tensor, size: int) -> pyopencl.SVMPointer:
    return pyopencl.SVM(numpy.asarray(_Bytes(tensor, size)))


def _place(native: Native, tensor: torch.Tensor) -> tuple[pyopencl.Buffer, int]:
    """The buffer that a tensor is in, and how many bytes into it."""
    found, offset = ctypes.c_void_p(), ctypes.c_uint64()
    where = ctypes.c_void_p(tensor.data_ptr()), ctypes.c_uint64(_bytes(tensor))
    _driver().call("place", native.ordinal, *where, ctypes.byref(found), ctypes.byref(offset))
    assert found.value is not None
    return cast(pyopencl.Buffer, pyopencl.Buffer.from_int_ptr(found.value)), offset.value


def _keep(buffer: Any, tensor: torch.Tensor) -> None:
    """Lets a tensor's memory live as long as the buffer: PyTorch would use it for something else."""
    buffer.tensor = tensor


def _address(native: Native, array: pyopencl.array.Array) -> tuple[int, int, object]:
    """The address of an array's memory as PyTorch's, its bytes, and what keeps it."""
    memory: Any = array.base_data
    if native.model is MemoryModel.BUFFER and isinstance(memory, pyopencl.MemoryObject):
        adopted = _Adopted(native, memory)
        return adopted.address, memory.size, adopted
    if native.model is not MemoryModel.BUFFER and isinstance(memory, pyopencl.SVMPointer):
        return memory.svm_ptr, _reach(array), memory
    needed = "a buffer" if native.model is MemoryModel.BUFFER else "shared virtual memory"
    raise ValueError(
        f"the array is in a {type(memory).__name__}, and this device's tensors have to be in {needed}: allocate it "
        "with allocator=interop.allocator(), or copy it: torch.from_numpy(array.get())"
    )


def _reach(array: pyopencl.array.Array) -> int:
    """The bytes of its memory, from the first, that an array uses; not every kind of memory tells its size."""
    last = sum((size - 1) * stride for size, stride in zip(array.shape, array.strides, strict=True))
    return int(array.offset + last + array.dtype.itemsize)


def _numpy_dtype(dtype: torch.dtype) -> numpy.dtype[Any]:
    if dtype is torch.bool:
        return numpy.dtype(numpy.int8)
    try:
        return torch.empty(0, dtype=dtype).numpy().dtype
    except TypeError as error:
        raise TypeError(f"PyOpenCL has no arrays of {dtype}, since NumPy has not: use buffer(tensor)") from error
