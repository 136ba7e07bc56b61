"""Whether Triton's kernels run on a device: one of each kind, in each dtype, beside the CPU.

Triton is imported when a sample is run, and has to be there.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points, version
from typing import Any

import torch

from torchgraft.driver import Capability

__all__ = ["SAMPLES", "Sample", "absent", "active", "is_active", "samples_of"]

#: Runs a kernel on a device in a dtype.
#: Raises AssertionError where the values are not the CPU's.
Sample = Callable[[torch.device, torch.dtype], None]

_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_INTEGERS = (torch.int32, torch.int64, torch.int16, torch.int8, torch.uint8)

#: By names, with the dtypes that they are for.
SAMPLES: dict[str, tuple[Sample, tuple[torch.dtype, ...]]] = {}


def _sample(name: str, *dtypes: torch.dtype) -> Callable[[Sample], Sample]:
    def add(sample: Sample) -> Sample:
        SAMPLES[name] = sample, dtypes
        return sample

    return add


def samples_of(properties: dict[str, Any]) -> Iterator[tuple[str, torch.dtype]]:
    """The samples for a device of these properties: by those dtypes that its kernels have."""
    wide = bool(properties["capabilities"] & Capability.ATOMIC_INT64)
    for name, (_, dtypes) in SAMPLES.items():
        for dtype in dtypes:
            without = dtype == torch.float64 and not properties["has_float64"]
            if not without and not (name == "atomic sums" and dtype.itemsize == 8 and not wide):
                yield name, dtype


def absent() -> str:
    """Why Triton's kernels cannot run at all; empty where they can."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed: pip install 'torchgraft[triton]'"
    if not any(entry.value == "torchgraft_triton" for entry in entry_points(group="triton.backends")):
        return f"triton {version('triton')} does not find torchgraft, which was installed otherwise than by pip"
    return ""


def is_active() -> bool:
    """Whether the devices are those that Triton launches on by default."""
    from torchgraft_triton.driver import Driver

    return Driver.is_active()


@contextlib.contextmanager
def active() -> Iterator[None]:
    """Triton launches on the devices here, also where another accelerator is there, whose turn it is again behind."""
    from triton.runtime import driver

    from torchgraft_triton.driver import Driver

    if is_active():
        yield
        return
    driver.set_active(Driver())
    try:
        yield
    finally:
        driver.reset_active()


def _close(mine: torch.Tensor, expected: torch.Tensor, error: float = 0) -> None:
    torch.testing.assert_close(mine.cpu(), expected, rtol=error, atol=error)


def _numbers(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Few bits, so that sums of some are exact."""
    return torch.randint(0 if dtype == torch.uint8 else -4, 5, shape).to(dtype)


_ERROR = {torch.float32: 1e-5, torch.float64: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}


@_sample("elementwise", *_FLOATS, *_INTEGERS)
def _elementwise(device: torch.device, dtype: torch.dtype) -> None:
    from torchgraft.diagnosis.triton_kernels import affine

    x, y = _numbers(2, 1000, dtype=dtype)
    out = torch.empty_like(x, device=device)
    affine[(8,)](x.to(device), y.to(device), out, 1000, BLOCK=128)
    _close(out, x * 2 + y)


@_sample("softmax", *_FLOATS)
def _softmax(device: torch.device, dtype: torch.dtype) -> None:
    from torchgraft.diagnosis.triton_kernels import softmax

    x = torch.randn(13, 100).to(dtype)
    out = torch.empty_like(x, device=device)
    softmax[(4,)](x.to(device), out, 13, 100, BLOCK=128)
    _close(out, x.double().softmax(1).to(dtype), _ERROR[dtype])


@_sample("product", torch.float32, torch.float16, torch.bfloat16)
def _product(device: torch.device, dtype: torch.dtype) -> None:
    from torchgraft.diagnosis.triton_kernels import product

    a, b = _numbers(50, 40, dtype=dtype), _numbers(40, 33, dtype=dtype)
    out = torch.empty(50, 33, device=device)
    product[(2, 2)](a.to(device), b.to(device), out, 50, 33, 40, BM=32, BN=32, BK=16)
    _close(out, a.float() @ b.float())


@_sample("scan", *_FLOATS, torch.int32, torch.int64)
def _scan(device: torch.device, dtype: torch.dtype) -> None:
    from torchgraft.diagnosis.triton_kernels import running_sums

    x = _numbers(4, 32, dtype=dtype)
    out = torch.empty_like(x, device=device)
    running_sums[(1,)](x.to(device), out, M=4, N=32)
    _close(out, x.double().cumsum(1).to(dtype))


@_sample("sort and argmax", *_FLOATS, *_INTEGERS)
def _sort(device: torch.device, dtype: torch.dtype) -> None:
    from torchgraft.diagnosis.triton_kernels import sorted_rows

    x = _numbers(4, 8, dtype=dtype)
    out, places = torch.empty_like(x, device=device), torch.empty(4, dtype=torch.int32, device=device)
    sorted_rows[(1,)](x.to(device), out, places, M=4, N=8)
    _close(out, x.sort(1)[0])
    _close(places, (x == x.amax(1, keepdim=True)).int().argmax(1).int())


@_sample("atomic sums", *_FLOATS, torch.int32, torch.int64)
def _atomics(device: torch.device, dtype: torch.dtype) -> None:
    from torchgraft.diagnosis.triton_kernels import bins

    x, index = _numbers(1000, dtype=dtype).sign(), torch.randint(0, 7, (1000,), dtype=torch.int32)
    out = torch.zeros(7, dtype=dtype, device=device)
    bins[(8,)](x.to(device), index.to(device), out, 1000, BLOCK=128)
    _close(out, torch.zeros(7).index_add(0, index.long(), x.float()).to(dtype))


@_sample("conversion", *_FLOATS, *_INTEGERS)
def _conversion(device: torch.device, dtype: torch.dtype) -> None:
    from torchgraft.diagnosis.triton_kernels import conversion

    x = torch.randn(64) * 3
    x = x.abs().to(dtype) if dtype == torch.uint8 else x.to(dtype)
    for target in (torch.float32, torch.float16, torch.bfloat16, torch.int32):
        out = torch.empty(64, dtype=target, device=device)
        conversion[(1,)](x.to(device), out, BLOCK=64)
        _close(out, x.to(target))
