"""Runs cases in processes of their own: a crash or a hang is a result, not the end of the run.

Results are appended to a file as they come, one JSON object a line, so that an interrupted run goes on where it
stopped.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import queue
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchgraft.testing.conformance.cases import Case
from torchgraft.testing.needs import need

__all__ = ["Options", "WorkerError", "progress_bar", "read_results", "run", "store_results"]

Record = dict[str, Any]

START_TIMEOUT = 600  # seconds


class WorkerError(RuntimeError):
    """The processes that run cases do not start."""


@dataclass(frozen=True)
class Options:
    """How to run.

    Attributes:
        device: the device's name.
        mode: of the fallback: "silent" lets ops run on the CPU and counts them, "error" forbids it.
        samples: for each check at most; None: all.
        jobs: processes.
        timeout: seconds for one case.
        compiled: the backend of torch.compile through which it goes, in place of the other checks; by default none.
        imports: modules that a worker imports first, for a backend that torch does not load by itself.
    """

    device: str
    mode: str = "silent"
    samples: int | None = None
    jobs: int = 1
    timeout: float = 600
    compiled: str = ""
    imports: tuple[str, ...] = ()


def read_results(path: Path) -> dict[str, Record]:
    """The records of a results file by case (gzip, if its name ends in .gz); the last one counts.

    A line that was cut off by an interruption is left out.
    """
    records: dict[str, Record] = {}
    if path.exists():
        data = path.read_bytes()
        *whole, _ = (gzip.decompress(data) if path.suffix == ".gz" else data).decode().split("\n")
        for line in whole:
            record = json.loads(line)
            records[record["case"]] = record
    return records


def store_results(records: Iterable[Record], path: Path) -> None:
    """Writes what the figures and the tables need, as one compressed file: without messages and times, in the order
    of the names. Equal results give equal files."""
    lines = []
    for record in sorted(records, key=lambda record: record["case"]):
        kept = {name: value for name, value in record.items() if name not in ("message", "seconds")}
        kept["checks"] = {
            name: {key: value for key, value in check.items() if key != "message"}
            for name, check in record["checks"].items()
        }
        lines.append(json.dumps(kept, sort_keys=True) + "\n")
    path.write_bytes(gzip.compress("".join(lines).encode(), mtime=0))


def run(cases: Iterable[Case], options: Options, path: Path, progress: Callable[[Record], None]) -> dict[str, Record]:
    """Runs the cases that the results file lacks, and returns the records of all in the file.

    Args:
        cases: which.
        options: how.
        path: the results file (JSON lines).
        progress: called with each new record.
    """
    done = read_results(path)
    _drop_cut_line(path)
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    for case in cases:
        if str(case) not in done:
            waiting.put(str(case))
    lock = threading.Lock()
    failures: list[BaseException] = []
    with path.open("a") as file:

        def finish(record: Record) -> None:
            with lock:
                file.write(json.dumps(record) + "\n")
                file.flush()
                done[record["case"]] = record
                progress(record)

        def serve() -> None:
            try:
                _serve(waiting, options, finish)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=serve, daemon=True) for _ in range(options.jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if failures:
        raise failures[0]
    return done


@contextlib.contextmanager
def progress_bar(total: int, path: Path, cases: Iterable[Case]) -> Iterator[Callable[[Record], None]]:
    """A bar on the terminal, which starts with what the results file has already."""
    need("the bar that shows how far the run is", "tqdm")
    from tqdm import tqdm

    done = read_results(path)
    with tqdm(total=total, initial=sum(str(case) in done for case in cases), unit="case", smoothing=0.05) as bar:

        def advance(record: Record) -> None:
            bar.set_postfix_str(record["case"], refresh=False)
            bar.update()

        yield advance


def _drop_cut_line(path: Path) -> None:
    """Takes away the part of a line with which an interrupted run ended."""
    if path.exists():
        text = path.read_bytes()
        path.write_bytes(text[: text.rfind(b"\n") + 1])


def _serve(waiting: queue.SimpleQueue[str], options: Options, finish: Callable[[Record], None]) -> None:
    """Hands cases to one worker after the other: a new one where the last has died."""
    worker: Worker | None = None
    try:
        while True:
            try:
                case = waiting.get_nowait()
            except queue.Empty:
                return
            worker = worker or Worker(options)
            record = worker.ask(case)
            if record["status"] != "ran":
                worker.close()
                worker = None
            finish(record)
    finally:
        if worker is not None:
            worker.close()


class Worker:
    """A process of `worker.py`."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.started = False
        self.phase = tempfile.NamedTemporaryFile(prefix="torchgraft-phase-")  # noqa: SIM115  # closed by close()
        self.phase.write(b"-")
        self.phase.flush()
        self.log = tempfile.TemporaryFile()  # noqa: SIM115
        given = [options.device, options.mode, str(options.samples or 0), options.compiled, self.phase.name]
        given.append(",".join(options.imports))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "torchgraft.testing.conformance.worker", *given],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            start_new_session=True,
        )

    def ask(self, case: str) -> Record:
        """The record of a case; its `status` is "ran", "crash" or "timeout".

        Raises:
            WorkerError: the worker did not come up: there is no such device, or torch has no operator database.
        """
        started = time.monotonic()
        line = b""
        try:
            assert self.process.stdin is not None
            self.process.stdin.write(case.encode() + b"\n")
            self.process.stdin.flush()
            if not self.started:  # starting, with the import of the database, is no case's time
                self._wait_until_started()
            line = self._read_line(self.options.timeout)
        except BrokenPipeError:
            pass
        except TimeoutError:
            return self._ended(case, "timeout", started, f"no answer within {self.options.timeout:.0f} s")
        if not line:
            status = self.process.wait()
            message = signal.Signals(-status).name if status < 0 else f"exit status {status}: {self._last_words()}"
            return self._ended(case, "crash", started, message)
        return {**json.loads(line), "status": "ran"}

    def _wait_until_started(self) -> None:
        if not self._read_line(START_TIMEOUT):
            self.process.wait()
            raise WorkerError(f"cases cannot be run on {self.options.device!r}: {self._last_words()}")
        self.started = True

    def _read_line(self, timeout: float) -> bytes:
        assert self.process.stdout is not None
        end, line = time.monotonic() + timeout, b""
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                if not selector.select(max(0.0, end - time.monotonic())):
                    raise TimeoutError
                part = os.read(self.process.stdout.fileno(), 1 << 16)
                if not part:
                    return b""
                line += part
        return line

    def _last_words(self) -> str:
        self.log.seek(0)
        return self.log.read().decode(errors="replace").strip().rpartition("\n")[2]

    def _ended(self, case: str, status: str, started: float, message: str) -> Record:
        phase = Path(self.phase.name).read_text()
        blame = {"c": "cpu", "d": "device"}.get(phase, "")
        seconds = round(time.monotonic() - started, 3)
        return {"case": case, "status": status, "phase": blame, "message": message, "checks": {}, "seconds": seconds}

    def close(self) -> None:
        """Ends the process, whatever it is doing."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.close()
            self.process.wait(timeout=0.2 if self.process.poll() is None else 5)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.process.stdout.close()
        self.phase.close()
        self.log.close()
