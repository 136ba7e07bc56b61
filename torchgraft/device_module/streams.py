"""Streams and events: `torch.<name>.Stream`, `Event` and what goes with them."""

from __future__ import annotations

from types import TracebackType
from typing import Any, cast

import torch

from torchgraft import backend
from torchgraft._core import _C
from torchgraft.backend import DeviceLike

__all__ = ["Event", "Stream", "StreamContext", "current_stream", "default_stream", "set_stream", "stream"]

DEVICE_TYPE = 20  # c10::DeviceType::PrivateUse1


class Stream(torch.Stream):
    """A queue of work on one device.

    Args:
        device: the device; the current one by default.
        priority: lower is more urgent. A hint.
    """

    def __new__(cls, device: DeviceLike = None, priority: int = 0, **ids: int) -> Stream:
        if ids:  # stream_id, device_index and device_type: an existing stream
            return super().__new__(cls, **ids)
        backend.open_devices()
        where = torch.device(backend.name(), backend.device_index(device))
        return super().__new__(cls, device=where, priority=priority)

    def record_event(self, event: torch.Event | None = None) -> torch.Event:
        """Marks the present end of this stream with `event`, or with a new one of this module's class."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def __repr__(self) -> str:
        return f"<torch.{backend.name()}.Stream device={self.device} id={self.stream_id}>"


class Event(torch.Event):
    """A point in a stream's work, to wait for or to measure from.

    Args:
        enable_timing: whether `elapsed_time` will be asked for.
        blocking, interprocess: accepted for likeness with `torch.cuda.Event`.
    """

    def __new__(cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> Event:
        options = {"enable_timing": enable_timing, "blocking": blocking, "interprocess": interprocess}
        return super().__new__(cls, device=backend.name(), **options)

    def record(self, stream: torch.Stream | None = None) -> Event:  # type: ignore[override]  # returns itself, as FSDP expects
        """Marks the present end of `stream` (by default the current one)."""
        super().record(current_stream() if stream is None else stream)
        return self

    def wait(self, stream: torch.Stream | None = None) -> None:
        """Makes `stream` (by default the current one) wait for this event; the host goes on."""
        super().wait(current_stream() if stream is None else stream)

    def elapsed_time(self, other: torch.Event) -> float:
        """Milliseconds from this event to a later one.

        Raises:
            ValueError: one of them was made without `enable_timing=True`, or has not been recorded.
            NotImplementedError: the device's events take no times.
        """
        # torch's own refuses an `other` whose class is derived from torch.Event.
        return _C.elapsed_time(self.event_id, other.event_id)

    def __repr__(self) -> str:
        state = f"device={self.device} id={self.event_id:#x}" if self.event_id else "not recorded"
        return f"<torch.{backend.name()}.Event {state}>"


def _stream(index: int, stream_id: int) -> Stream:
    return Stream(stream_id=stream_id, device_index=index, device_type=DEVICE_TYPE)


def current_stream(device: DeviceLike = None) -> Stream:
    """The stream that this thread's work on the device goes to."""
    backend.open_devices()
    found = torch._C._accelerator_getStream(backend.device_index(device))
    return _stream(found.device_index, found.stream_id)


def default_stream(device: DeviceLike = None) -> Stream:
    """The stream that is current where no other was chosen."""
    return _stream(current_stream(device).device_index, 0)


def set_stream(stream: torch.Stream | None) -> None:
    """Makes a stream, and its device, current for this thread. The context manager `stream` is to be preferred."""
    if stream is not None:
        torch._C._accelerator_setStream(stream)


class StreamContext:
    """Makes a stream current for a while; nothing happens for None."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is not None:
            self.stream.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.stream is not None:
            cast(Any, self.stream).__exit__(kind, error, trace)


def stream(stream: torch.Stream | None) -> StreamContext:
    """`with torch.<name>.stream(s):` sends the work of the block to `s`."""
    return StreamContext(stream)
