"""A process that compiles kernels for another one and leaves them on disk; see `codegen.ahead`.

Run as a file, with the paths of drivers' libraries as arguments, "<path>:<symbol>": a job is a line of JSON on its
input. It imports neither torch nor the core, so that it starts in a moment. A kernel that does not compile is left to
whoever needs it, and so are those of drivers that do not load here. If no job can be done the program ends with status
`USELESS`, and its errors say why.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import sys
import types
from pathlib import Path
from typing import Any

PATIENCE = 30.0
"""Seconds without a job, after which the process ends: it holds the memory of a compiler."""
USELESS = 77
"""The exit status after `_FAILURES` jobs, one after the other, that failed otherwise than by the compiler's refusal."""
_FAILURES = 3


def _without_torch() -> None:
    """Lets modules of torchgraft be imported without the packages that they are in, which import torch."""
    root = Path(__file__).resolve().parents[1]
    for name in ("torchgraft", "torchgraft.codegen"):
        package = types.ModuleType(name)
        package.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = package


def _tables(libraries: list[str]) -> list[Any]:
    from torchgraft.driver_table import TableDriver

    drivers = []
    for library in libraries:
        path, _, symbol = library.rpartition(":")
        with contextlib.suppress(OSError, AttributeError):
            drivers.append(TableDriver.load(path, symbol))
    return drivers


def _driver_of(job: dict[str, Any], drivers: list[Any]) -> Any:
    """The driver that has the very device: the key of what is compiled names it."""
    for driver in drivers:
        if driver.name != job["driver"] or driver.device_count() <= job["ordinal"]:
            continue
        properties = driver.device_properties(job["ordinal"])
        if [properties.name, properties.driver_version] == job["device"]:
            return driver
    return None


def _compile(job: dict[str, Any], drivers: list[Any], cache: Any) -> None:
    if not drivers:
        raise RuntimeError("no driver's library loads in a process of its own")
    driver = _driver_of(job, drivers)
    if driver is None:
        return
    with cache.claim(job["key"]):
        if cache.read(job["key"]) is not None:
            return
        module = driver.module_compile(job["ordinal"], job["source"], job["options"])
        cache.write(job["key"], driver.module_binary(module))
        driver.module_destroy(module)


class _Jobs:
    """What has been asked for, the last first: a backward pass begins where the forward pass has ended, and what a
    plan's own kernels are is asked for when they are needed."""

    def __init__(self) -> None:
        self._rest, self._waiting, self._open = b"", list[bytes](), True

    def next(self) -> dict[str, Any] | None:
        """None after the end of the input, or when nothing has come for long."""
        while self._open and select.select([0], [], [], 0 if self._waiting else PATIENCE)[0]:
            more = os.read(0, 1 << 20)
            self._open = bool(more)
            *lines, self._rest = (self._rest + more).split(b"\n")
            self._waiting += lines
        if not self._open or not self._waiting:
            return None
        job: dict[str, Any] = json.loads(self._waiting.pop())
        return job


def main() -> None:
    # What drivers and compilers say goes nowhere: only why this process is useless is of interest.
    said = os.dup(2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    _without_torch()
    from torchgraft.codegen.cache import KernelCache
    from torchgraft.driver import CompileError

    cache, drivers, jobs, failures = KernelCache(), _tables(sys.argv[1:]), _Jobs(), 0
    while (job := jobs.next()) is not None:
        try:
            _compile(job, drivers, cache)
            failures = 0
        except CompileError:  # whoever needs it compiles it again
            failures = 0
        except Exception as error:
            failures += 1
            if failures == _FAILURES:
                os.write(said, f"{type(error).__name__}: {error}".splitlines()[0].encode())
                sys.exit(USELESS)


if __name__ == "__main__":
    # Ended with the thread that started it, whatever else holds the other end of its input.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, 15)  # PR_SET_PDEATHSIG, SIGTERM
    main()
