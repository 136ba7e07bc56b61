"""DLPack both ways: to and from PyTorch itself, NumPy, and capsules that others made."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch
import torch.utils.dlpack
from torch.utils.dlpack import DLDeviceType

from torchgraft import _C

pytestmark = pytest.mark.filterwarnings("ignore:.* runs on the CPU")

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.int64, torch.uint8]
DTYPES += [torch.bool]


class Managed(ctypes.Structure):
    """DLManagedTensor of DLPack 0.8, of one dimension of float32."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


DELETER = ctypes.CFUNCTYPE(None, ctypes.POINTER(Managed))
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype, _new_capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_alive: dict[int, Any] = {}


@DELETER
def _delete(managed: Any) -> None:
    _alive.pop(ctypes.addressof(managed.contents))


def make_capsule(address: int, elements: int, device: tuple[int, int]) -> Any:
    """A capsule as another library makes it; it is in `_alive` until its deleter has been called."""
    shape, strides = (ctypes.c_int64 * 1)(elements), (ctypes.c_int64 * 1)(1)
    deleter = ctypes.cast(_delete, ctypes.c_void_p)
    managed = Managed(address, *device, 1, 2, 32, 1, shape, strides, 0, None, deleter)
    _alive[ctypes.addressof(managed)] = managed, shape, strides
    return _new_capsule(ctypes.addressof(managed), b"dltensor", None)


@pytest.fixture(autouse=True)
def _everything_is_freed() -> Iterator[None]:
    _alive.clear()
    yield
    assert not _alive


@pytest.fixture
def unified(device: str) -> bool:
    return bool(_C.device_properties(torch.accelerator.current_device_index())["unified_memory"])


# ---- with PyTorch ----


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_to_itself(device: str, dtype: torch.dtype) -> None:
    base = torch.arange(24).view(4, 6).to(dtype).to(device)
    for tensor in (base, base[1:, ::2], base.t(), base[2, 3], base[:0]):
        for again in (
            torch.from_dlpack(tensor),
            torch.from_dlpack(torch.utils.dlpack.to_dlpack(tensor)),
            torch.utils.dlpack.from_dlpack(tensor.__dlpack__()),
            torch.from_dlpack(tensor.__dlpack__(max_version=(1, 0))),
        ):
            assert again.device == tensor.device and again.dtype == dtype
            assert again.shape == tensor.shape and again.stride() == tensor.stride()
            assert again.data_ptr() == tensor.data_ptr()
            assert torch.equal(again.cpu(), tensor.cpu())
    assert base.__dlpack_device__() == (DLDeviceType.kDLExtDev, base.device.index)


def test_the_memory_lives_as_long_as_its_last_user(device: str) -> None:
    other = torch.from_dlpack(torch.full((1000,), 7.0, device=device))
    for _ in range(3):
        torch.zeros(1000, device=device)
    assert torch.equal(other.cpu(), torch.full((1000,), 7.0))
    torch.utils.dlpack.to_dlpack(other)  # a capsule that nobody takes


def test_to_another_device(device: str) -> None:
    host, tensor = torch.arange(5.0), torch.arange(5.0, device=device)
    assert torch.equal(torch.from_dlpack(tensor, device="cpu"), host)
    moved = torch.from_dlpack(host, device=tensor.device)
    assert moved.device == tensor.device and torch.equal(moved.cpu(), host)
    moved = torch.from_dlpack(numpy.arange(5.0, dtype=numpy.float32), device=tensor.device)
    assert torch.equal(moved.cpu(), host)
    with pytest.raises(ValueError, match="copy"):
        torch.from_dlpack(tensor, device="cpu", copy=False)
    copied = torch.from_dlpack(tensor, copy=True)
    assert copied.device == tensor.device and copied.data_ptr() != tensor.data_ptr()


def test_to_another_device_of_the_backend(device: str) -> None:
    if torch.accelerator.device_count() < 2:
        pytest.skip("one device here; the NumPy driver, for which this file runs too, has two")
    kind = torch.device(device).type
    tensor = torch.arange(5.0, device=f"{kind}:1")
    assert torch.from_dlpack(tensor).device.index == 1
    moved = torch.from_dlpack(tensor, device=f"{kind}:0")
    assert moved.device.index == 0 and torch.equal(moved.cpu(), tensor.cpu())


def test_what_cannot_be_exported(device: str) -> None:
    for tensor, message in (
        (torch.ones(2, device=device, requires_grad=True), "require gradient"),
        (torch.ones(2, dtype=torch.complex64, device=device).conj(), "conjugate"),
    ):
        for host in (None, (1, 0)):
            with pytest.raises(BufferError, match=message):
                tensor.__dlpack__(dl_device=host)


def test_a_consumer_on_another_stream(device: str) -> None:
    kind = torch.device(device).type
    stream = torch.Stream(device=kind)
    tensor = torch.ones(100_000, device=device).cumsum(0)
    capsule = tensor.__dlpack__(stream=stream.stream_id)
    with stream:
        total = torch.from_dlpack(capsule).amax()
    stream.synchronize()
    assert total.item() == 100_000
    with pytest.raises(TypeError):
        tensor.__dlpack__(stream="first")


# ---- with NumPy ----


def test_numpy_on_request(device: str, unified: bool) -> None:
    tensor = torch.arange(6.0, device=device).view(2, 3)
    tensor += 1  # perhaps still under way
    array = numpy.from_dlpack(tensor, device="cpu")
    assert array.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert (array.ctypes.data == tensor.data_ptr()) == unified
    assert numpy.from_dlpack(tensor.t(), device="cpu").tolist() == [[1, 4], [2, 5], [3, 6]]
    copied = numpy.from_dlpack(tensor, device="cpu", copy=True)
    assert copied.ctypes.data != tensor.data_ptr() and copied.tolist() == array.tolist()
    if unified:
        array[0, 0] = 9
        assert tensor[0, 0].item() == 9
        assert numpy.from_dlpack(tensor, device="cpu", copy=False).ctypes.data == tensor.data_ptr()
    else:
        with pytest.raises(ValueError, match="copy"):
            numpy.from_dlpack(tensor, device="cpu", copy=False)


def test_numpy_keeps_the_memory(device: str) -> None:
    array = numpy.from_dlpack(torch.full((1000,), 7.0, device=device), device="cpu")
    for _ in range(3):
        torch.zeros(1000, device=device)
    assert (array == 7).all()


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")
def test_numpy_without_request(device: str) -> None:
    """As with CUDA: what looks free of cost and is a copy is to be written down by the user."""
    tensor = torch.ones(2, device=device)
    with pytest.raises((RuntimeError, BufferError), match=r"[Uu]nsupported device"):
        numpy.from_dlpack(tensor)
    for convert in (numpy.asarray, numpy.array, torch.Tensor.numpy):
        with pytest.raises(TypeError, match=r"Use Tensor\.cpu\(\)"):
            convert(tensor)
    assert not hasattr(tensor, "__array_interface__")


# ---- capsules that others made ----


def test_memory_of_ours(device: str) -> None:
    tensor = torch.arange(8.0, device=device)
    ours = DLDeviceType.kDLExtDev, tensor.device.index
    again = torch.from_dlpack(make_capsule(tensor.data_ptr() + 8, 3, ours))
    assert again.device == tensor.device and again.tolist() == [2, 3, 4]
    del again


def test_memory_that_is_not_ours(device: str) -> None:
    host = torch.arange(8.0)
    index = torch.accelerator.current_device_index()
    for make in (torch.from_dlpack, torch.utils.dlpack.from_dlpack):
        with pytest.raises(BufferError, match="did not allocate"):
            make(make_capsule(host.data_ptr(), 8, (DLDeviceType.kDLExtDev, index)))


def test_memory_that_is_too_short(device: str) -> None:
    tensor = torch.arange(8.0, device=device)
    ours = DLDeviceType.kDLExtDev, tensor.device.index
    with pytest.raises(BufferError, match="did not allocate"):
        torch.from_dlpack(make_capsule(tensor.data_ptr(), 1 << 40, ours))


def test_devices_that_do_not_exist(device: str) -> None:
    tensor = torch.arange(8.0, device=device)
    count = torch.accelerator.device_count()
    with pytest.raises(BufferError, match=f"and there are {count}"):
        torch.from_dlpack(make_capsule(tensor.data_ptr(), 8, (DLDeviceType.kDLExtDev, count)))


def test_no_memory_at_all(device: str) -> None:
    index = torch.accelerator.current_device_index()
    assert torch.from_dlpack(make_capsule(0, 0, (DLDeviceType.kDLExtDev, index))).numel() == 0


def test_host_memory_of_others_is_the_cpus(device: str) -> None:
    host = torch.arange(8.0)
    again = torch.from_dlpack(make_capsule(host.data_ptr(), 8, (DLDeviceType.kDLCPU, 0)))
    assert again.device.type == "cpu" and again.tolist() == host.tolist()
    del again
