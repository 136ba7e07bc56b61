"""A device in a process of its own: torch alone with its CPU, with the heap as torch ships it or with a warm one, or
with another device of torch's; or one of ours, in another environment.

glibc's heap cannot be told to be as it was; and beside other pools of threads OpenMP's wait for work no longer and take
tens of microseconds to begin. So neither is measured in the process of the device.

`TorchProcess` starts the process and tells it what to do; `python -m harness.torch_process MODULE FUNCTION HEAP DEVICE`
is the process. They speak in lines of JSON. It answers when its threads sleep, and is idle until the next line.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from harness.case import Case
from harness.clock import seconds, settle, turn

BENCHMARKS = Path(__file__).resolve().parent.parent
TORCH_ALONE = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}


class TorchProcess:
    """The other process; `cases` is a function of a module of this folder, from which it knows the workloads."""

    def __init__(
        self,
        cases: Callable[[], Iterator[Case]],
        heap: str = "shipped",
        device: str = "cpu",
        python: str = sys.executable,
        environment: Mapping[str, str] = TORCH_ALONE,
    ) -> None:
        """`heap` is "shipped" or "warm"; `python` may be one with another build of torch; `environment` is what its
        environment has besides this one's."""
        self._side = f"{device}, {heap} heap"
        module = cases.__module__ if cases.__module__ != "__main__" else Path(sys.argv[0]).stem
        path = os.pathsep.join([str(BENCHMARKS), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._process = subprocess.Popen(
            [python, "-m", "harness.torch_process", module, cases.__name__, heap, device],
            env={**os.environ, "PYTHONPATH": path, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def prepare(self, case: Case) -> None:
        self._ask({"prepare": case.name})

    def turn(self, at_least: float) -> tuple[float, bool]:
        answer = self._ask({"seconds": at_least})
        return answer["seconds"], answer["settled"]

    def close(self) -> None:
        stdin, stdout = self._pipes()
        with contextlib.suppress(BrokenPipeError):  # what was written last may not have been read
            stdin.close()
        self._process.wait(30)
        stdout.close()

    def _pipes(self) -> tuple[IO[str], IO[str]]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        return self._process.stdin, self._process.stdout

    def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """Waits for the answer."""
        stdin, stdout = self._pipes()
        with contextlib.suppress(BrokenPipeError):  # then there is no answer either
            print(json.dumps(message), file=stdin, flush=True)
        line = stdout.readline()
        if not line:
            raise RuntimeError(f"the process of {self._side} ended with status {self._process.wait(30)}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"in the process of {self._side}:\n{answer['error']}")
        return answer


def answers(cases: dict[str, Case], device: str, lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """What is answered to each line."""
    for line in lines:
        message = json.loads(line)
        if "prepare" in message:
            call = None  # lets the last one's memory go
            call = cases[message["prepare"]].make(device)
            call()
            seconds(call, device, 0.02)
            settle()
            yield {}
        else:
            assert call is not None
            took = turn(call, device, message["seconds"])
            yield {"seconds": took, "settled": settle()}


def keep_heap() -> None:
    """Makes glibc reuse freed blocks instead of returning them: otherwise each large result costs page faults."""
    libc = ctypes.CDLL(None)
    m_trim_threshold, m_mmap_max = -1, -4
    libc.mallopt(m_mmap_max, 0)
    libc.mallopt(m_trim_threshold, 2**31 - 1)


def serve(module: str, function: str, heap: str, device: str) -> None:
    """Answers on what was the standard output; whatever else is printed goes where errors go."""
    if heap == "warm":
        keep_heap()
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        cases = {case.name: case for case in getattr(importlib.import_module(module), function)()}
        if "torchgraft" in sys.modules and TORCH_ALONE.items() <= os.environ.items():
            raise RuntimeError("torchgraft was imported: torch alone is to be measured")
        for answer in answers(cases, device, iter(sys.stdin.readline, "")):
            print(json.dumps(answer), file=replies, flush=True)
    except Exception:
        print(json.dumps({"error": traceback.format_exc()}), file=replies, flush=True)
        sys.exit(1)


if __name__ == "__main__":
    serve(*sys.argv[1:])
