"""Ops that run on the CPU because the device has no kernel for them: whether that is permitted, and what it costs.

    torchgraft.fallback.set_mode("error")           # from now on: an error instead of slow results
    with torchgraft.fallback("silent"): ...         # for these lines
    print(torchgraft.fallback_report())             # which ops, how often, bytes each way, seconds, and from where

The environment variable TORCHGRAFT_FALLBACK (`warn`, `silent` or `error`) sets the mode at the start; without it, it is
`warn`.

The mode belongs to the process, not to a thread: backward runs on threads of autograd and obeys what surrounds the call
of `backward()`. So a context entered by one thread holds for the others too, and of several that are open, the last one
entered decides.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FrameType, TracebackType
from typing import Literal, get_args

import torch

from torchgraft._core import _C

__all__ = ["FallbackReport", "FallbackRow", "Mode", "fallback", "fallback_report", "reset_fallback_report"]

Mode = Literal["warn", "silent", "error"]

_MODES: tuple[str, ...] = get_args(Mode)
_LIBRARIES = tuple(os.path.dirname(os.path.abspath(path)) + os.sep for path in (torch.__file__, __file__))

# Whose ops are warned of as one: printing a tensor calls a dozen that no program is slow for.
_PRINTING = os.path.join(os.path.dirname(os.path.abspath(torch.__file__)), "_tensor_str.py")

_lock = threading.Lock()
_default: str = "warn"
_open: list[fallback] = []  # contexts, in the order in which they were entered
_told_of_printing = threading.Event()


def _check(mode: str) -> str:
    if mode not in _MODES:
        raise ValueError(f"the fallback mode is one of {', '.join(map(repr, _MODES))}, not {mode!r}")
    return mode


def _apply() -> None:
    mode = _open[-1].mode if _open else _default
    _C.fallback_set_mode(_MODES.index(mode))
    _C.fallback_record_places(any(context.places for context in _open))


class fallback(contextlib.ContextDecorator):
    """A context manager, or decorator, within which ops without a kernel of the device

    * `"warn"`: run on the CPU, with one UserWarning for each op that names your line;
    * `"silent"`: run on the CPU;
    * `"error"`: raise NotImplementedError.

    With `places=True` the report tells from which lines *every* call came, not only the first of each op (slower).
    """

    def __init__(self, mode: Mode, *, places: bool = False) -> None:
        self.mode: str = _check(mode)
        self.places = places

    def __enter__(self) -> fallback:
        with _lock:
            _open.append(self)
            _apply()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with _lock:
            # Not always the last one: another thread may have entered its own in the meantime.
            last = max(i for i, context in enumerate(_open) if context is self)
            del _open[last]
            _apply()

    @staticmethod
    def set_mode(mode: Mode) -> None:
        """Sets the mode that holds outside of all contexts."""
        global _default
        with _lock:
            _default = _check(mode)
            _apply()

    @staticmethod
    def get_mode() -> str:
        """The mode that holds now."""
        return _MODES[_C.fallback_mode()]


# ---- the report ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FallbackRow:
    """What one op has cost."""

    op: str
    calls: int
    bytes_to_host: int
    """Copied for the CPU. Memory that the host reads in place costs nothing and is not counted."""
    bytes_to_device: int
    """Copied back: results and written arguments."""
    seconds: float
    places: dict[str, int] = field(default_factory=dict)
    """Your lines from which it was called ("train.py:42"), each with how often it was seen there."""
    reasons: dict[str, int] = field(default_factory=dict)
    """Why the device did not do it, each with how often; "" where it has no kernel for the op at all."""

    @property
    def reason(self) -> str:
        """The reason of most calls, in one line."""
        if not self.reasons:
            return ""
        most = max(self.reasons, key=lambda each: self.reasons[each])
        return most.partition("\n")[0].rstrip(":") or "no kernel for this op"


@dataclass(frozen=True)
class FallbackReport:
    """The ops that ran on the CPU, the most expensive first. Printed, it is a table."""

    rows: tuple[FallbackRow, ...]

    def __iter__(self) -> Iterator[FallbackRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __contains__(self, op: object) -> bool:
        return any(row.op == op for row in self.rows)

    def __getitem__(self, op: str) -> FallbackRow:
        for row in self.rows:
            if row.op == op:
                return row
        raise KeyError(f"{op} has not run on the CPU")

    @property
    def calls(self) -> int:
        return sum(row.calls for row in self.rows)

    @property
    def seconds(self) -> float:
        return sum(row.seconds for row in self.rows)

    def __str__(self) -> str:
        if not self.rows:
            return "no op has run on the CPU for lack of a kernel"
        lines = [("op", "calls", "to host", "to device", "time", "why", "called at")]
        for row in self.rows:
            moved = (_bytes(row.bytes_to_host), _bytes(row.bytes_to_device))
            why = row.reason + _and_more(row.reasons)
            place = max(row.places, key=lambda each: row.places[each], default="") + _and_more(row.places)
            lines.append((row.op, str(row.calls), *moved, _time(row.seconds), why, place))
        widths = [max(len(line[i]) for line in lines) for i in range(6)]
        table = [
            "  ".join(
                [
                    line[0].ljust(widths[0]),
                    *(line[i].rjust(widths[i]) for i in range(1, 5)),
                    line[5].ljust(widths[5]),
                    line[6],
                ]
            ).rstrip()
            for line in lines
        ]
        table.append(f"{len(self.rows)} ops, {self.calls} calls, {_time(self.seconds)}")
        return "\n".join(table)


def _and_more(seen: dict[str, int]) -> str:
    return f" and {len(seen) - 1} more" if len(seen) > 1 else ""


def _bytes(number: int) -> str:
    amount = float(number)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} GiB"


def _time(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def fallback_report() -> FallbackReport:
    """What has run on the CPU since the start, or since `reset_fallback_report()`."""
    rows = [FallbackRow(*row) for row in _C.fallback_report()]
    return FallbackReport(tuple(sorted(rows, key=lambda row: (-row.seconds, row.op))))


def reset_fallback_report(*, warnings: bool = False) -> None:
    """Counts from zero again. With `warnings`, each op is warned of once more, too."""
    _C.fallback_reset(warnings)
    if warnings:
        _told_of_printing.clear()


# ---- what the C++ core asks ------------------------------------------------------------------------------------------


def _user_frame() -> FrameType | None:
    """The innermost frame that is neither torch's nor ours; there is none on autograd's threads."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        # Programs that inductor writes lie elsewhere, and are modules of torch by their names.
        is_generated = frame.f_globals.get("__name__", "").startswith("torch._inductor.")
        if not is_generated and not path.startswith((*_LIBRARIES, "<frozen ", "<eval_with_key>")):
            return frame
        frame = frame.f_back
    return None


def _is_printing() -> bool:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != _PRINTING:
        frame = frame.f_back
    return frame is not None


def _place() -> str:
    frame = _user_frame()
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def warn_user(message: str) -> None:
    """Warns at the user's line."""
    frame = _user_frame()
    if frame is None:
        warnings.warn(message, UserWarning, stacklevel=1)
    else:
        warnings.warn_explicit(message, UserWarning, frame.f_code.co_filename, frame.f_lineno)


def _warn_of_fallback(message: str, of_op: bool) -> bool:
    """Warns of an op, or of a device; returns whether the op is to be warned of no more."""
    if not (of_op and _is_printing()):
        warn_user(message)
        return True
    if not _told_of_printing.is_set():
        _told_of_printing.set()
        warn_user(f"to print a tensor, {message} Of other ops that printing calls there is no warning.")
    return False


def _set_up() -> None:
    _C.fallback_set_hooks(_place, _warn_of_fallback)
    chosen = os.environ.get("TORCHGRAFT_FALLBACK", "warn").strip().lower() or "warn"
    # Of others there is a warning when the devices are opened: this runs while torch itself is imported.
    fallback.set_mode(chosen if chosen in _MODES else "warn")  # type: ignore[arg-type]


_set_up()
