"""What the checks of a driver work with: one device, and all that a check makes on it."""

from __future__ import annotations

import ctypes
import functools
import random
import struct
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import pytest

from torchgraft.driver import Capability, CopyKind, DeviceProperties, Driver

MIB = 1 << 20
Kept = TypeVar("Kept")

_counts: WeakKeyDictionary[Driver, int] = WeakKeyDictionary()


def opened(driver: Driver) -> int:
    """The number of the driver's devices; the first call opens them, and a driver is asked once."""
    if driver not in _counts:
        _counts[driver] = driver.device_count()
    return _counts[driver]


def provides(driver: Driver, method: str) -> bool:
    """Whether the driver has an optional method of its own."""
    return not hasattr(getattr(driver, method), "__torchgraft_optional__")


@functools.lru_cache(128)
def noise(nbytes: int, seed: int = 0) -> bytes:
    """Bytes without a pattern that an error could hide in; the same for the same seed."""
    return random.Random(seed * 1_000_003 + nbytes).randbytes(nbytes)


def assert_same(actual: bytes, expected: bytes) -> None:
    """Compares megabytes, and says no more of them than where they begin to differ."""
    if actual != expected:
        assert len(actual) == len(expected)
        differ = [i for i in range(len(actual)) if actual[i] != expected[i]]
        at = differ[0]
        raise AssertionError(
            f"{len(differ)} of {len(actual)} bytes differ, the first at {at}: {actual[at : at + 8].hex(' ')} and not "
            f"{expected[at : at + 8].hex(' ')}"
        )


class HostBuffer:
    """Host memory with an address."""

    def __init__(self, content: bytes | int) -> None:
        self._buffer = (ctypes.c_char * (content if isinstance(content, int) else len(content)))()
        self.address = ctypes.addressof(self._buffer)
        if isinstance(content, bytes):
            self.content = content

    @property
    def content(self) -> bytes:
        return self._buffer.raw

    @content.setter
    def content(self, value: bytes) -> None:
        self._buffer.raw = value


class Bench:
    """One device of a driver. What was made by way of it is destroyed by `close`."""

    def __init__(self, driver: Driver, device: int, busy_bytes: int) -> None:
        self.driver, self.device, self.busy_bytes = driver, device, busy_bytes
        self.properties: DeviceProperties = driver.device_properties(device)
        self._destroy: list[Callable[[], None]] = []
        self._kept: list[Any] = []
        self.stream = self.new_stream()

    def close(self) -> None:
        self.driver.device_synchronize(self.device)
        while self._destroy:
            self._destroy.pop()()
        self._kept.clear()

    def host(self, content: bytes | int) -> HostBuffer:
        """Host memory that stays until the device has been synchronized, whatever a broken driver still does to it."""
        return self.keep(HostBuffer(content))

    def keep(self, thing: Kept) -> Kept:
        """Keeps it alive until the device has been synchronized."""
        self._kept.append(thing)
        return thing

    def when_closed(self, action: Callable[[], None]) -> None:
        """Remembers how to destroy what was made; the last is destroyed first."""
        self._destroy.append(action)

    def has(self, capability: Capability) -> bool:
        return bool(self.properties.capabilities & capability)

    def need(self, capability: Capability) -> None:
        """Skips the check where the device does not claim the capability."""
        if not self.has(capability):
            pytest.skip(f"the device does not claim {capability.name}")

    def allocate(self, nbytes: int, content: bytes | None = None) -> int:
        address = self.driver.allocate(self.device, nbytes)
        self.when_closed(lambda: self.driver.deallocate(self.device, address))
        if content is not None:
            self.write(address, content)
        return address

    def new_stream(self, priority: int = 0) -> Any:
        stream = self.driver.stream_create(self.device, priority)
        self.when_closed(lambda: self.driver.stream_destroy(self.device, stream))
        return stream

    def new_event(self, timing: bool = False) -> Any:
        event = self.driver.event_create(self.device, timing)
        self.when_closed(lambda: self.driver.event_destroy(self.device, event))
        return event

    # Copies: blocking, on the bench's stream, unless another is given

    def write(self, address: int, content: bytes, stream: Any = None) -> None:
        self.submit_write(address, self.host(content), stream, blocking=True)

    def read(self, address: int, nbytes: int, stream: Any = None) -> bytes:
        into = self.host(nbytes)
        self.submit_read(into, address, nbytes, stream, blocking=True)
        return into.content

    def submit_write(self, address: int, source: HostBuffer, stream: Any = None, *, blocking: bool = False) -> None:
        self._copy(address, source.address, len(source.content), CopyKind.HOST_TO_DEVICE, stream, blocking)

    def submit_read(
        self, into: HostBuffer, address: int, nbytes: int, stream: Any = None, *, blocking: bool = False
    ) -> None:
        self._copy(into.address, address, nbytes, CopyKind.DEVICE_TO_HOST, stream, blocking)

    def submit_copy(
        self, destination: int, source: int, nbytes: int, stream: Any = None, *, blocking: bool = False
    ) -> None:
        self._copy(destination, source, nbytes, CopyKind.DEVICE_TO_DEVICE, stream, blocking)

    def _copy(self, destination: int, source: int, nbytes: int, kind: CopyKind, stream: Any, blocking: bool) -> None:
        stream = self.stream if stream is None else stream
        self.driver.copy(self.device, stream, destination, source, nbytes, kind, blocking)

    def fill(self, address: int, pattern: bytes, nbytes: int, stream: Any = None) -> None:
        self.driver.fill(self.device, self.stream if stream is None else stream, address, pattern, nbytes)

    def synchronize(self, stream: Any = None) -> None:
        self.driver.stream_synchronize(self.device, self.stream if stream is None else stream)

    def keep_busy(self, stream: Any, rounds: int = 8) -> tuple[int, bytes]:
        """Submits work that takes a while: a chain of copies, whose last leaves the bytes at the address."""
        nbytes, content = self.busy_bytes, noise(self.busy_bytes)
        first, second = self.allocate(nbytes, content), self.allocate(nbytes, bytes(nbytes))
        last = self.allocate(nbytes, bytes(nbytes))
        for _ in range(rounds):
            self.submit_copy(second, first, nbytes, stream)
            self.submit_copy(first, second, nbytes, stream)
        self.submit_copy(last, second, nbytes, stream)
        return last, content


def floats(data: bytes) -> list[float]:
    return list(struct.unpack(f"{len(data) // 4}f", data))


def packed(*values: float) -> bytes:
    return struct.pack(f"{len(values)}f", *values)
