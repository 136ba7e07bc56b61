"""Several processes that know of each other: how a test starts them, and how programs of checks run in them.

A program of checks (distributed_checks.py, parallel_checks.py) is a module with a `Checks`, which the test imports for
the names, and which each process runs. Its environment: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT as
torch.distributed wants them; CHECKS_DEVICE, CHECKS_BACKEND ("" for none), CHECKS_RESULTS, a folder in which each rank
says what failed, and CHECKS_NAMES, the checks to run.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from processes import environment_of

DEVICE = os.environ.get("CHECKS_DEVICE", "ocl")
RANK, SIZE = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))

Check = Callable[[], None]
Said = dict[str, list[str]]


class Checks(dict[str, Check]):
    """The checks of a program, by name. Each has a group of its own: where one fails, the others go on."""

    def __call__(self, function: Check) -> Check:
        self[function.__name__] = function
        return function

    def run(self) -> None:
        """What each process does."""
        results, said = Path(os.environ["CHECKS_RESULTS"], f"{RANK}.json"), {}
        store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), SIZE, is_master=False)
        for name in os.environ["CHECKS_NAMES"].split(","):
            said[name] = self._run(name, dist.PrefixStore(name, store))
            results.write_text(json.dumps(said))

    def _run(self, name: str, store: dist.Store) -> str:
        """One of them; returns what went wrong."""
        given = {"store": store, "rank": RANK, "world_size": SIZE, "timeout": timedelta(seconds=60)}
        try:
            dist.init_process_group(os.environ.get("CHECKS_BACKEND") or None, **given)
            self[name]()
            return ""
        except BaseException:  # the test of that name fails with it
            return traceback.format_exc()
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()  # a rank that waits for this one in vain is told


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("localhost", 0))
        port: int = found.getsockname()[1]
        return port


@dataclass
class Rank:
    """A process, which prints into a file: one that nobody reads from is not held up."""

    process: subprocess.Popen[bytes]
    printed: Path

    @property
    def returncode(self) -> int | None:
        return self.process.returncode

    def output(self, timeout: float) -> str:
        """What it has printed when it ends.

        Raises:
            subprocess.TimeoutExpired: with what it has printed so far.
        """
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired as late:
            raise subprocess.TimeoutExpired(late.cmd, timeout, self.printed.read_bytes()) from None
        return self.printed.read_text()


@contextlib.contextmanager
def ranks(count: int, *program: str | Path, **environment: str) -> Iterator[list[Rank]]:
    """Processes that know of each other, and meet at a store of this one; those that are left are killed at the end."""
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    where = {
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(store.port),
        "WORLD_SIZE": str(count),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # in what init_process_group() makes of the environment, too
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",  # what a rank has printed is there however it ends
        **environment,
    }
    started: list[Rank] = []
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        try:
            for rank in range(count):
                printed = Path(folder, str(rank))
                with open(printed, "wb") as output:
                    process = subprocess.Popen(
                        [sys.executable, *program],
                        env=environment_of(True, **{"RANK": str(rank), "LOCAL_RANK": str(rank), **where}),
                        stdout=output,
                        stderr=subprocess.STDOUT,
                    )
                started.append(Rank(process, printed))
            yield started
        finally:
            for each in started:
                each.process.kill()
                each.process.wait()


def run_checks(count: int, program: Path, names: Iterable[str], results: Path, **environment: str) -> Said:
    """Runs a program's checks in processes; returns for each check what each rank said, nothing where it did not fail.

    Args:
        count: how many processes.
        names: the checks.
        results: an empty folder.
        environment: of the processes, besides.
    """
    names = list(names)
    told = {
        "CHECKS_DEVICE": torch._C._get_privateuse1_backend_name(),
        "CHECKS_NAMES": ",".join(names),
        "CHECKS_RESULTS": str(results),
        **environment,
    }
    end = time.monotonic() + 600
    with ranks(count, program, **told) as started:
        try:
            outputs = [rank.output(max(1, end - time.monotonic())) for rank in started]
        except subprocess.TimeoutExpired as late:
            hanging = where_they_hang(names, [said_in(results, rank) for rank in range(count)])
            raise AssertionError(f"{hanging}\n{(late.output or b'').decode()[-5000:]}") from None
    assert [rank.returncode for rank in started] == [0] * count, "\n".join(outputs)[-5000:]
    found = [said_in(results, rank) for rank in range(count)]
    return {name: [each[name] for each in found] for name in found[0]}


def said_in(results: Path, rank: int) -> dict[str, str]:
    path = results / f"{rank}.json"
    said: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
    return said


def where_they_hang(names: Sequence[str], said: Iterable[dict[str, str]]) -> str:
    at = {rank: names[len(each)] for rank, each in enumerate(said) if len(each) < len(names)}
    return "; ".join(f"rank {rank} hangs in {name}" for rank, name in at.items())
