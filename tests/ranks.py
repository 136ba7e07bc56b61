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
import traceback
from collections.abc import Callable, Iterable, Iterator
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
        address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = dist.TCPStore(*address, SIZE, is_master=RANK == 0)
        for name in os.environ["CHECKS_NAMES"].split(","):
            said[name] = self._run(name, dist.PrefixStore(name, store))
            results.write_text(json.dumps(said))
        store.set(f"done {RANK}", "")
        store.wait([f"done {rank}" for rank in range(SIZE)])  # the first process is the store's

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
            dist.destroy_process_group()  # a rank that waits for this one in vain is told


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("localhost", 0))
        port: int = found.getsockname()[1]
        return port


@contextlib.contextmanager
def ranks(count: int, *program: str | Path, **environment: str) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that know of each other; those that are left are killed at the end."""
    where = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(count)}
    processes = [
        subprocess.Popen(
            [sys.executable, *program],
            env=environment_of(True, **where, RANK=str(rank), LOCAL_RANK=str(rank), OMP_NUM_THREADS="1", **environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(count)
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def run_checks(count: int, program: Path, names: Iterable[str], results: Path, **environment: str) -> Said:
    """Runs a program's checks in processes; returns for each check what each rank said, nothing where it did not fail.

    Args:
        count: how many processes.
        names: the checks.
        results: an empty folder.
        environment: of the processes, besides.
    """
    told = {
        "CHECKS_DEVICE": torch._C._get_privateuse1_backend_name(),
        "CHECKS_NAMES": ",".join(names),
        "CHECKS_RESULTS": str(results),
        **environment,
    }
    with ranks(count, program, **told) as processes:
        outputs = [process.communicate(timeout=600)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * count, "\n".join(outputs)[-5000:]
    found = [json.loads((results / f"{rank}.json").read_text()) for rank in range(count)]
    return {name: [each[name] for each in found] for name in found[0]}
