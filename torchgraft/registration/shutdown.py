"""What is to be done before the interpreter ends."""

from __future__ import annotations

import atexit
import time
from pathlib import Path

__all__ = ["wait_at_exit", "wait_for_autograd"]

_THREADS = Path("/proc/self/task")


def wait_at_exit() -> None:
    """Arranges that autograd's threads are waited for. Called once, when the devices are opened."""
    atexit.register(wait_for_autograd)


def wait_for_autograd(limit: float = 1.0) -> None:
    """Lets autograd's threads finish what they do, for at most `limit` seconds.

    `backward()` returns when the gradients are there, but the device's thread of autograd then still takes its graph
    apart, and for that it needs the GIL, since torch keeps the caller's context in the graph. A program that ends at
    once would leave it waiting for the GIL, where the ending interpreter stops it inside a destructor: "terminate
    called without an active exception". Threads that sleep while the GIL is free wait for work, and have finished.
    """
    end = time.monotonic() + limit
    asleep = 0
    while asleep < 2 and time.monotonic() < end:
        time.sleep(1e-3)  # without the GIL
        asleep = asleep + 1 if all(state == "S" for state in _states()) else 0


def _states() -> list[str]:
    """The state of each thread of autograd, as Linux tells it: "S" asleep, "R" runnable, "D" waiting for a disk."""
    states = []
    for thread in _THREADS.glob("*/stat"):
        try:
            name, _, rest = thread.read_text().partition("(")[2].rpartition(")")
        except (FileNotFoundError, ProcessLookupError):  # it has ended
            continue
        if name.startswith("pt_autograd"):
            states.append(rest.split()[0])
    return states
