"""Device memory: `torch.<name>.memory_*`, with the names and meanings of `torch.cuda`'s."""

from __future__ import annotations

from typing import Any

import torch

from torchgraft import _C, _backend
from torchgraft._backend import DeviceLike

__all__ = [
    "empty_cache",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "memory_summary",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
    "set_per_process_memory_fraction",
]


def empty_cache() -> None:
    """Gives back to the device all cached memory that no tensor uses."""
    if _backend.is_opened():
        torch._C._accelerator_emptyCache()


def memory_stats(device: DeviceLike = None) -> dict[str, Any]:
    """The allocator's statistics, by `torch.cuda.memory_stats`' keys; empty before the device's first use."""
    if not _backend.is_opened():
        return {}
    return dict(torch.accelerator.memory_stats(_backend.device_index(device)))


def _statistic(key: str, device: DeviceLike) -> int:
    return int(memory_stats(device).get(key, 0))


def memory_allocated(device: DeviceLike = None) -> int:
    """Bytes that tensors occupy."""
    return _statistic("allocated_bytes.all.current", device)


def max_memory_allocated(device: DeviceLike = None) -> int:
    """The most bytes that tensors occupied at once, since the start or `reset_peak_memory_stats`."""
    return _statistic("allocated_bytes.all.peak", device)


def memory_reserved(device: DeviceLike = None) -> int:
    """Bytes held by the caching allocator: in use, or kept for later."""
    return _statistic("reserved_bytes.all.current", device)


def max_memory_reserved(device: DeviceLike = None) -> int:
    """The most bytes that the caching allocator held."""
    return _statistic("reserved_bytes.all.peak", device)


def reset_peak_memory_stats(device: DeviceLike = None) -> None:
    """Makes the peaks begin again from the present values."""
    if _backend.is_opened():
        torch._C._accelerator_resetPeakStats(_backend.device_index(device))


def reset_accumulated_memory_stats(device: DeviceLike = None) -> None:
    """Sets the counters of all that was ever allocated and freed to zero."""
    if _backend.is_opened():
        torch._C._accelerator_resetAccumulatedStats(_backend.device_index(device))


def mem_get_info(device: DeviceLike = None) -> tuple[int, int]:
    """Free and total bytes of the device, as its driver tells them."""
    _backend.open_devices()
    return _C.memory_info(_backend.device_index(device))


def set_per_process_memory_fraction(fraction: float, device: DeviceLike = None) -> None:
    """Limits this process to a part of the device's memory; beyond it `torch.OutOfMemoryError` is raised."""
    if not 0.0 <= fraction <= 1.0:
        raise ValueError(f"fraction must be between 0 and 1, not {fraction}")
    _backend.open_devices()
    _C.set_memory_fraction(fraction, _backend.device_index(device))


def memory_summary(device: DeviceLike = None, abbreviated: bool = False) -> str:
    """The statistics as a table to print."""
    stats = memory_stats(device)
    rows = [
        ("allocated memory", "allocated_bytes"),
        ("reserved memory", "reserved_bytes"),
        ("active memory", "active_bytes"),
    ]
    rows += [] if abbreviated else [("allocations", "allocation"), ("segments", "segment")]
    columns = ("current", "peak", "allocated", "freed")
    where = torch.device(_backend.name(), _backend.device_index(device)) if stats else _backend.name()
    lines = [f"memory of {where}", f"{'':18}" + "".join(f"{column:>14}" for column in columns)]
    for label, key in rows:
        values = (int(stats.get(f"{key}.all.{column}", 0)) for column in columns)
        in_bytes = key.endswith("bytes")
        lines.append(f"{label:18}" + "".join(f"{_readable(value) if in_bytes else value:>14}" for value in values))
    retries, failures = stats.get("num_alloc_retries", 0), stats.get("num_ooms", 0)
    lines.append(f"freed the cache and tried again: {retries}; out of memory: {failures}")
    return "\n".join(lines)


def _readable(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
