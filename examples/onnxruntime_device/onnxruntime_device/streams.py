"""Streams that run by themselves: a thread and a queue each; and events, which are marks in the queues."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

Work = Callable[[], object]


class Stream:
    """Work in the order of its submission. What fails is told by the next wait, once; the stream goes on."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._queue: deque[Work | None] = deque()
        self._pending = 0
        self._failure: Exception | None = None
        # The driver waits for its streams before Python ends.
        threading.Thread(target=self._run, name="onnxruntime stream", daemon=True).start()

    def submit(self, work: Work | None) -> None:
        """Appends work; None ends the thread."""
        with self._changed:
            self._queue.append(work)
            self._pending += 1
            self._changed.notify_all()

    def wait(self) -> None:
        """Returns when all work is done. Raises what has failed."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending == 0)
            self._tell()

    def is_idle(self) -> bool:
        with self._changed:
            if self._pending == 0:
                self._tell()
            return self._pending == 0

    def _tell(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _next(self) -> Work | None:
        with self._changed:
            self._changed.wait_for(lambda: self._queue)
            return self._queue.popleft()

    def _run(self) -> None:
        while (work := self._next()) is not None:
            failure = None
            try:
                work()
            except Exception as error:
                failure = error
            with self._changed:
                self._failure = self._failure or failure
                self._pending -= 1
                self._changed.notify_all()


class Mark:
    """A place in a stream's queue, passed once."""

    def __init__(self) -> None:
        self._passed = threading.Event()
        self.time = 0.0  # seconds

    def pass_by(self) -> None:
        self.time = time.perf_counter()
        self._passed.set()

    def has_passed(self) -> bool:
        return self._passed.is_set()

    def wait(self, seconds: float | None = None) -> bool:
        return self._passed.wait(seconds)


class Event:
    """The mark of its last recording."""

    def __init__(self) -> None:
        self.mark = Mark()
        self.mark.pass_by()
        self.recorded = False

    def record(self, stream: Stream) -> None:
        mark = Mark()
        stream.submit(mark.pass_by)
        self.mark, self.recorded = mark, True
