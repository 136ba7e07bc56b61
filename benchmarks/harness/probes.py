"""Measures what the machine can do at best, and how many launches a call has."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from harness.case import Call
from harness.ceilings import Ceilings
from harness.clock import seconds, settle, synchronize

MEGABYTE = 1 << 20
# Formats of 16 bits, which can always be computed with in float32.
NARROW = (torch.float16, torch.bfloat16)


def footprints() -> list[int]:
    """From what each core's own cache holds to twice what the last one does, within reason."""
    largest = min(max(256 * MEGABYTE, 2 * last_cache()), 1024 * MEGABYTE)
    return [size for size in (MEGABYTE >> 2 << 2 * step for step in range(6)) if size < largest] + [largest]


def last_cache() -> int:
    """Bytes of the largest cache, 0 if the system does not tell. A virtual machine shares it with others."""
    units = {"K": 1 << 10, "M": MEGABYTE}
    texts = [path.read_text().strip() for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    return max((int(text[:-1]) * units[text[-1]] for text in texts), default=0)


def streams(device: str, footprint: int) -> Iterator[tuple[Call, int]]:
    """Calls that do little but move memory, each with the bytes that it moves."""
    count = footprint // 4
    whole = torch.ones(count, device=device)
    a, b = whole[: count // 2], whole[count // 2 : count // 2 * 2]
    x, y, z = (whole[start : start + count // 3] for start in range(0, count // 3 * 3, count // 3))
    yield lambda: whole.sum(), footprint
    yield lambda: whole.zero_(), footprint
    yield lambda: whole.mul_(1.0), 2 * footprint
    yield lambda: a.copy_(b), footprint
    yield lambda: torch.add(x, y, out=z), footprint


def bandwidths(devices: Iterable[str], at_least: float) -> dict[int, float]:
    found: dict[int, float] = {}
    for footprint in footprints():
        for device in devices:
            settle()
            for call, nbytes in streams(device, footprint):
                call()
                rate = nbytes / seconds(call, device, at_least)
                found[footprint] = max(found.get(footprint, 0), rate)
    return found


def peak(devices: Iterable[str], dtype: torch.dtype, at_least: float) -> float:
    """Flops a second of square products; where one takes long, larger ones are left out."""
    best = 0.0
    for device in devices:
        settle()
        for size in (256, 512, 1024, 2048):
            a, b = (torch.randn(size, size).to(dtype).to(device) for _ in range(2))
            multiply: Call = functools.partial(torch.matmul, a, b)
            multiply()
            if seconds(multiply, device, 0) > 0.5:
                break
            best = max(best, 2 * size**3 / seconds(multiply, device, at_least))
    return best


def launch(device: str, launches: int = 1000) -> float:
    """Seconds of a launch on a single number, of a graph that has many of them."""
    module = torch.get_device_module(device)
    number, graph = torch.zeros(1, device=device), module.Graph()
    number.neg_()
    with module.graph(graph):
        for _ in range(launches):
            number.neg_()
    graph.replay()
    settle()
    return min(seconds(graph.replay, device, 0.02) for _ in range(5)) / launches


def probe(device: str, dtypes: set[torch.dtype], at_least: float) -> Ceilings:
    """The better of the device and torch's CPU with a warm heap."""
    sides = ("cpu", device)
    peaks = {dtype: peak(sides, dtype, at_least) for dtype in dtypes | {torch.float32}}
    for dtype in dtypes.intersection(NARROW):
        peaks[dtype] = max(peaks[dtype], peaks[torch.float32])
    rates = bandwidths(sides, at_least)
    torch.get_device_module(device).empty_cache()  # of the largest buffers
    names = {str(dtype).removeprefix("torch."): rate for dtype, rate in peaks.items()}
    return Ceilings(rates, names, launch(device))


def count_launches(call: Call, device: str) -> int:
    """Kernels, copies and fills of a call, as the profiler sees them; one at least."""
    activity = getattr(ProfilerActivity, device.partition(":")[0].upper())
    with profile(activities=[ProfilerActivity.CPU, activity]) as profiled:
        call()
        synchronize(device)
    return max(1, sum(len(event.kernels) for event in profiled.events()))
