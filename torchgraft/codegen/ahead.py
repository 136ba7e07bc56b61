"""Compiling ahead of need, in other processes: a compiler such as PoCL's works for one thread of a process at a time.

Kernels are sent to helpers (`codegen.helper`), which leave them on disk; whoever needs one meanwhile waits for the
helper that has begun it, as for any process (`KernelCache.claim`), or compiles it. So nothing depends on a helper: one
that ends, or does nothing, costs time; if none can do anything, that is warned of once. There are helpers only for CPU
devices of drivers in shared libraries, where kernels are kept on disk, and only while something is compiled at all.

Environment: TORCHGRAFT_COMPILE_HELPERS is how many there are at most, by default one for each core but one, up to 3.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO

from torchgraft import backend
from torchgraft.codegen.helper import USELESS

__all__ = ["Job", "helper_limit", "is_possible", "later", "send"]

Job = dict[str, object]
"""key, source, options, and the device: driver, ordinal, device (name and version)."""

_work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
_thread: threading.Thread | None = None
_starting = threading.Lock()
_helpers: list[subprocess.Popen[bytes]] = []  # of the thread alone, as what follows is
_errors: list[IO[bytes]] = []  # what each helper says
_is_useless = False
_turns = itertools.count()
_is_ending = False


def helper_limit() -> int:
    """How many helpers there may be.

    Raises:
        ValueError: TORCHGRAFT_COMPILE_HELPERS is no number.
    """
    text = os.environ.get("TORCHGRAFT_COMPILE_HELPERS", "")
    if not text:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return min(3, cores - 1)
    if not text.isdecimal():
        raise ValueError(f"TORCHGRAFT_COMPILE_HELPERS is a number of processes, not {text!r}")
    return int(text)


def is_possible() -> bool:
    """Whether there can be helpers."""
    return bool(backend.libraries and sys.executable) and helper_limit() > 0


def send(jobs: Iterable[Job]) -> None:
    """Has helpers compile, the last of what they have been sent first."""
    lines = [json.dumps(job).encode() + b"\n" for job in jobs]
    if lines:
        later(lambda: _send(lines))


def later(task: Callable[[], None]) -> None:
    """Has a thread beside run something that may fail; it is lost if the process ends before."""
    global _thread
    with _starting:
        if _thread is None:
            thread = threading.Thread(target=_run, name="torchgraft-ahead", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the interpreter ends, or there can be no more threads
                return
            _thread = thread
            atexit.register(_stop, thread)
    _work.put(task)


def _run() -> None:
    while (task := _work.get()) is not None:
        with contextlib.suppress(Exception):
            task()


def _stop(thread: threading.Thread) -> None:
    """Before the interpreter ends: what the thread is doing, it finishes. Python ends a thread that it finds later by
    unwinding its stack, which C++ takes for an exception that nobody has thrown, and aborts the process."""
    global _is_ending
    _is_ending = True
    while True:
        try:
            _work.get_nowait()
        except queue.Empty:
            break
    _work.put(None)
    thread.join(timeout=2)
    if thread.is_alive():
        for helper in list(_helpers):  # it may be writing to one that does not read
            helper.kill()
        thread.join()


def _send(lines: list[bytes]) -> None:
    for line in lines:
        if _is_ending or _is_useless:
            return
        helper = _helper(next(_turns) % helper_limit())
        assert helper.stdin is not None
        with contextlib.suppress(OSError):  # it has just ended
            helper.stdin.write(line)
            helper.stdin.flush()


def _helper(number: int) -> subprocess.Popen[bytes]:
    """A helper that runs."""
    while len(_helpers) <= number:
        errors = _unnamed_file()
        _helpers.append(_start(errors))
        _errors.append(errors)
    ended = _helpers[number].poll()
    if ended == USELESS:
        _give_up(_errors[number])
    elif ended is not None:
        _helpers[number] = _start(_errors[number])
    return _helpers[number]


def _unnamed_file() -> IO[bytes]:
    """For what a helper says; without a folder for such it is lost."""
    try:
        return tempfile.TemporaryFile()
    except OSError:
        return open(os.devnull, "w+b")


def _give_up(errors: IO[bytes]) -> None:
    global _is_useless
    _is_useless = True
    errors.seek(0)
    reason = errors.read().decode(errors="replace") or "for a reason that could not be told"
    warnings.warn(
        f"kernels are compiled by this process alone, one after the other: those that were to help cannot ({reason})",
        RuntimeWarning,
        stacklevel=1,
    )


def _start(errors: IO[bytes]) -> subprocess.Popen[bytes]:
    program = Path(__file__).with_name("helper.py")
    command = [sys.executable, "-I", "-S", str(program), *(f"{path}:{symbol}" for path, symbol in backend.libraries)]
    silent = subprocess.DEVNULL
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=silent, stderr=errors, start_new_session=True)


def _forget() -> None:
    """In a forked process, to which neither the thread nor the helpers belong."""
    global _thread, _work, _starting
    _thread, _work, _starting = None, queue.SimpleQueue(), threading.Lock()
    _helpers.clear()
    _errors.clear()


os.register_at_fork(after_in_child=_forget)
