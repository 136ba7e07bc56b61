"""How long calls take, and waiting until threads that have nothing to do sleep."""

from __future__ import annotations

import math
import time

import torch

from harness.case import Call

# The clock is looked at about once a millisecond. On a device four calls at least, since to wait after each would
# measure the waiting; not too many, since a queue without end would measure how quickly work is submitted.
BATCH_SECONDS, FEWEST, MOST = 1e-3, 4, 100


def synchronize(device: str) -> None:
    if device != "cpu":
        torch.accelerator.synchronize()


def seconds(call: Call, device: str, at_least: float, fewest: int = 1) -> float:
    """Seconds a call, over as many calls as fill `at_least` seconds, between waits at least so many."""
    count, batch = 0, fewest
    synchronize(device)
    start = time.perf_counter()
    while True:
        for _ in range(batch):
            call()
        synchronize(device)
        count += batch
        elapsed = time.perf_counter() - start
        if elapsed > at_least:
            return elapsed / count
        batch = max(fewest, min(MOST, math.ceil(BATCH_SECONDS * count / elapsed)))


def turn(call: Call, device: str, at_least: float) -> float:
    """Seconds a call, after some that bring data and threads back from the other sides' turns."""
    seconds(call, device, at_least / 10)
    return seconds(call, device, at_least, 1 if device == "cpu" else FEWEST)


def settle(limit: float = 1.0, step: float = 0.004) -> bool:
    """Waits until this process's threads sleep: those of OpenMP wait actively for milliseconds after their work, which
    would take a core from the side whose turn is next. Returns whether they do before the limit is reached.
    """
    end = time.perf_counter() + limit
    while time.perf_counter() < end:
        start, used = time.perf_counter(), time.process_time()
        time.sleep(step)
        if time.process_time() - used < 0.1 * (time.perf_counter() - start):
            return True
    return False
