"""Device memory: `torch.<name>.memory_*`, with the names and meanings of `torch.cuda`'s."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from typing_extensions import deprecated

from torchgraft import backend
from torchgraft._core import _C
from torchgraft.backend import DeviceLike

__all__ = [
    "empty_cache",
    "get_per_process_memory_fraction",
    "host_memory_stats",
    "host_memory_stats_as_nested_dict",
    "max_memory_allocated",
    "max_memory_cached",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_cached",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "reset_accumulated_host_memory_stats",
    "reset_accumulated_memory_stats",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "reset_peak_host_memory_stats",
    "reset_peak_memory_stats",
    "set_per_process_memory_fraction",
]


def empty_cache() -> None:
    """Gives back to the device all cached memory that no tensor uses."""
    if backend.is_opened():
        torch._C._accelerator_emptyCache()


def memory_stats(device: DeviceLike = None) -> dict[str, Any]:
    """The allocator's statistics, by `torch.cuda.memory_stats`' keys; empty before the device's first use."""
    return dict(sorted(_flat(memory_stats_as_nested_dict(device))))


def memory_stats_as_nested_dict(device: DeviceLike = None) -> dict[str, Any]:
    """The same as dictionaries of dictionaries: `["allocated_bytes"]["all"]["current"]`."""
    if not backend.is_opened():
        return {}
    return torch._C._accelerator_getDeviceStats(backend.device_index(device))


def _flat(nested: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in nested.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


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
    if backend.is_opened():
        torch._C._accelerator_resetPeakStats(backend.device_index(device))


def reset_accumulated_memory_stats(device: DeviceLike = None) -> None:
    """Sets the counters of all that was ever allocated and freed to zero."""
    if backend.is_opened():
        torch._C._accelerator_resetAccumulatedStats(backend.device_index(device))


def host_memory_stats() -> dict[str, Any]:
    """The statistics of pinned host memory, by `torch.cuda.host_memory_stats`' keys; times are in microseconds."""
    return dict(sorted(_flat(host_memory_stats_as_nested_dict())))


def host_memory_stats_as_nested_dict() -> dict[str, Any]:
    """The same as dictionaries of dictionaries; empty before the device's first use."""
    return _C.host_memory_stats() if backend.is_opened() else {}


def reset_accumulated_host_memory_stats() -> None:
    """Sets the counters of all pinned memory that was ever allocated and freed to zero."""
    _C.reset_accumulated_host_memory_stats()


def reset_peak_host_memory_stats() -> None:
    """Makes the peaks of pinned memory begin again from the present values."""
    _C.reset_peak_host_memory_stats()


def memory_snapshot() -> list[dict[str, Any]]:
    """The segments that the allocators of all devices have got from their drivers, and what they are cut into.

    Returns:
        For each segment "device", "address", "stream" (an id), "segment_type" ("large" or "small"), "total_size",
        "allocated_size", "active_size", "requested_size" (bytes) and "blocks", each with "address", "size",
        "requested_size" and "state": "active_allocated" (a tensor's), "active_awaiting_free" (freed, but another stream
        may still use it) or "inactive". The keys are `torch.cuda.memory_snapshot`'s; "frames" is always empty, since
        where memory was allocated is not recorded.
    """
    return _C.memory_snapshot() if backend.is_opened() else []


def mem_get_info(device: DeviceLike = None) -> tuple[int, int]:
    """Free and total bytes of the device, as its driver tells them."""
    backend.open_devices()
    return _C.memory_info(backend.device_index(device))


def set_per_process_memory_fraction(fraction: float, device: DeviceLike = None) -> None:
    """Limits this process to a part of the device's memory; beyond it `torch.OutOfMemoryError` is raised.

    Raises:
        TypeError: `fraction` is not a number.
        ValueError: `fraction` is not between 0 and 1.
    """
    if not isinstance(fraction, int | float):
        raise TypeError(f"fraction must be a number, not {type(fraction).__name__}")
    if not 0.0 <= fraction <= 1.0:
        raise ValueError(f"fraction must be between 0 and 1, not {fraction}")
    backend.open_devices()
    _C.set_memory_fraction(fraction, backend.device_index(device))


def get_per_process_memory_fraction(device: DeviceLike = None) -> float:
    """The part of the device's memory that this process is limited to; 1.0 where it is not."""
    backend.open_devices()
    return _C.memory_fraction(backend.device_index(device))


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
    where = torch.device(backend.name(), backend.device_index(device)) if stats else backend.name()
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


# Older names that programs still use.


@deprecated("`memory_cached` has been renamed to `memory_reserved`", category=FutureWarning)
def memory_cached(device: DeviceLike = None) -> int:
    """`memory_reserved`."""
    return memory_reserved(device)


@deprecated("`max_memory_cached` has been renamed to `max_memory_reserved`", category=FutureWarning)
def max_memory_cached(device: DeviceLike = None) -> int:
    """`max_memory_reserved`."""
    return max_memory_reserved(device)


@deprecated("`reset_max_memory_allocated` resets all peaks: use `reset_peak_memory_stats`", category=FutureWarning)
def reset_max_memory_allocated(device: DeviceLike = None) -> None:
    """`reset_peak_memory_stats`."""
    reset_peak_memory_stats(device)


@deprecated("`reset_max_memory_cached` resets all peaks: use `reset_peak_memory_stats`", category=FutureWarning)
def reset_max_memory_cached(device: DeviceLike = None) -> None:
    """`reset_peak_memory_stats`."""
    reset_peak_memory_stats(device)
