"""A line on the terminal while many kernels are compiled, so that the first step of a program is not taken for a hang.

It comes when a second has been spent on compiling, and goes when nothing has been compiled for a while. There is none
where standard error is no terminal, nor with TORCHGRAFT_PROGRESS=0. tqdm draws it where that is installed.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, Protocol, TextIO

__all__ = ["Progress", "progress"]

#: Seconds: spent on compiling before there is a line, and without compiling before it goes.
PATIENCE = 1.0
IDLE = 0.5

_WHAT = "compiling kernels"


class _Line(Protocol):
    def update(self) -> Any: ...
    def close(self) -> Any: ...


class _PlainLine:
    """What there is without tqdm."""

    def __init__(self, done: int, stream: TextIO) -> None:
        self.done, self.stream = done, stream
        self._draw(f"{_WHAT}: {done}")

    def update(self) -> None:
        self.done += 1
        self._draw(f"{_WHAT}: {self.done}")

    def close(self) -> None:
        self._draw("")

    def _draw(self, text: str) -> None:
        self.stream.write(f"\r\x1b[K{text}")
        self.stream.flush()


class Progress:
    """Counts what is compiled at a stretch, by any thread.

    Args:
        stream: where the line is; standard error, if None.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._forget()

    def leave_to_parent(self) -> None:
        """In a forked process: the line, and the thread that takes it away, are the parent's."""
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self._line: _Line | None = None
        self._running = self._done = 0
        self._spent = self._last = 0.0

    @contextlib.contextmanager
    def compiling(self) -> Iterator[None]:
        """Around the compilation of one kernel."""
        start = time.monotonic()
        with self._lock:
            if self._running == 0 and start - self._last > IDLE:
                self._close()
            self._running += 1
            if self._line is None and self._spent >= PATIENCE:
                self._show()
        try:
            yield
        finally:
            with self._lock:
                self._running -= 1
                self._done += 1
                self._last = time.monotonic()
                self._spent += self._last - start
                with contextlib.suppress(OSError, ValueError):  # a terminal that has gone, a closed stream
                    if self._line is not None:
                        self._line.update()

    def close(self) -> None:
        """Takes the line away."""
        with self._lock:
            self._close()

    def _show(self) -> None:
        stream = self._stream or sys.stderr
        with contextlib.suppress(OSError, ValueError):
            if os.environ.get("TORCHGRAFT_PROGRESS", "1") == "0" or stream is None or not stream.isatty():
                return
            self._line = _new_line(self._done, stream)
            threading.Thread(target=self._close_when_idle, name="torchgraft-progress", daemon=True).start()

    def _close_when_idle(self) -> None:
        while self._line is not None:
            time.sleep(IDLE / 5)
            with self._lock:
                if self._running == 0 and time.monotonic() - self._last > IDLE:
                    self._close()

    def _close(self) -> None:
        line, running = self._line, self._running
        self._forget()
        self._running = running
        if line is not None:
            with contextlib.suppress(OSError, ValueError):
                line.close()


def _new_line(done: int, stream: TextIO) -> _Line:
    try:
        from tqdm import tqdm
    except ImportError:
        return _PlainLine(done, stream)
    line: _Line = tqdm(desc=_WHAT, initial=done, leave=False, file=stream, bar_format="{desc}: {n_fmt}, {elapsed}")
    return line


progress = Progress()
atexit.register(progress.close)
os.register_at_fork(after_in_child=progress.leave_to_parent)
