"""Fourier transforms. One counts as 5 n log2 n operations, whatever it takes; one of real numbers as half of that."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from harness.case import Call, Case, computing, on, randn
from torch import fft

SINGLE, DOUBLE = torch.complex64, torch.complex128


def of_complex(
    name: str,
    function: Callable[[torch.Tensor], object],
    *shape: int,
    dims: int = 1,
    length: int = 0,
    dtype: torch.dtype = SINGLE,
) -> Case:
    """A transform of the last `dims` dimensions, or of another that is so long."""
    count = math.prod(shape)
    flops = 5 * count * math.log2(length or math.prod(shape[-dims:]))
    nbytes = 2 * dtype.itemsize * count
    return computing(f"transform/{name}", on(function, shape, dtype=dtype), flops, nbytes, dtype.to_real())


def of_real(name: str, function: Callable[[torch.Tensor], object], *shape: int, dims: int = 1) -> Case:
    """Its other side, half of the complex numbers, has as many bytes."""
    count = math.prod(shape)
    flops = 5 * count * math.log2(math.prod(shape[-dims:])) / 2
    return computing(f"transform/{name}", on(function, shape), flops, 8 * count)


def to_real(name: str, function: Callable[[torch.Tensor], object], *shape: int, dims: int = 1) -> Case:
    """The shape is the result's, and what is transformed has half as many complex numbers in rows."""
    count = math.prod(shape)
    flops = 5 * count * math.log2(math.prod(shape[-dims:])) / 2
    half = (*shape[:-1], shape[-1] // 2 + 1)
    return computing(f"transform/{name}", on(function, half, dtype=SINGLE), flops, 8 * count)


def tuned() -> Iterator[Case]:
    rows = (1024, 1024)
    yield of_complex("rows of 1024", lambda x: fft.fft(x), *rows)
    yield of_complex("rows of 1024, float64", lambda x: fft.fft(x), *rows, dtype=DOUBLE)
    yield of_complex("columns of 1024", lambda x: fft.fft(x, dim=0), *rows)
    yield of_complex("2**20", lambda x: fft.fft(x), 1 << 20)
    yield of_complex("rows of 1009", lambda x: fft.fft(x), 1000, 1009)
    yield of_complex("16 images", lambda x: fft.fft2(x), 16, 256, 256, dims=2)
    yield of_real("24 real images", lambda x: fft.rfft2(x), 24, 224, 224, dims=2)
    yield to_real("to 24 real images", lambda x: fft.irfft2(x), 24, 224, 224, dims=2)
    yield of_real("2000 frames", lambda x: fft.rfft(x), 2000, 400)


def others() -> Iterator[Case]:
    yield of_complex("rows of 1000", lambda x: fft.fft(x), 300, 1000)
    yield of_complex("rows of 64", lambda x: fft.fft(x), 5000, 64)
    yield of_complex("columns of 300", lambda x: fft.fft(x, dim=0), 300, 700, length=300)
    yield of_complex("10007", lambda x: fft.fft(x), 10007)
    yield of_complex("3 volumes", lambda x: fft.fftn(x, dim=(1, 2, 3)), 3, 48, 50, 60, dims=3)
    yield of_complex("10 images 100x90, float64", lambda x: fft.fft2(x), 10, 100, 90, dims=2, dtype=DOUBLE)
    yield of_real("real 16000", lambda x: fft.rfft(x), 16000)
    yield of_real("8 real images 101x97", lambda x: fft.rfft2(x), 8, 101, 97, dims=2)
    yield to_real("to real rows of 1000", lambda x: fft.irfft(x), 300, 1000)
    yield spectrum()


def spectrum(samples: int = 64000, width: int = 512, hop: int = 128) -> Case:
    """Of overlapping frames, as of four seconds of speech."""
    frames = samples // hop + 1

    def make(device: str) -> Call:
        x, window = randn(device, samples), torch.hann_window(width).to(device)
        return lambda: torch.stft(x, width, hop, window=window, return_complex=True)

    flops = 2.5 * frames * width * math.log2(width)
    return computing("transform/stft of 4 s", make, flops, 4 * samples + 8 * frames * (width // 2 + 1))
