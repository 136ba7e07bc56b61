"""Lines of Python in a process of their own: a new interpreter, or a fork of one that has imported torch.

An import of torch is nearly two seconds of work, which a fork saves. The process that forks has imported nothing else,
so a script sees torchgraft's first import, its own environment, and a whole end of the interpreter.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

TESTS = Path(__file__).parent
# The lines of a script are the rest of this program, in the process that `serve` returns them in.
PROGRAM = "import processes\nexec(compile(processes.serve(), '<string>', 'exec'))"


def environment_of(autoload: bool = False, **changes: str) -> dict[str, str]:
    """What a script finds in `os.environ`; modules are found where this process finds them, and among the tests."""
    path = os.pathsep.join([str(TESTS), *filter(None, sys.path)])
    return {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "01"[autoload], "PYTHONPATH": path, **changes}


def run_in_new_interpreter(text: str, environment: dict[str, str], timeout: float) -> tuple[int, str]:
    """Runs the lines; returns the exit status (less than zero: the signal's number) and what was printed."""
    done = subprocess.run(
        [sys.executable, "-c", text],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
    )
    return done.returncode, done.stdout


class ForkServer:
    """Runs scripts in forks of one process, which starts with the first of them."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._turn = threading.Lock()

    def run(self, text: str, environment: dict[str, str], timeout: float) -> tuple[int, str]:
        """The same as `run_in_new_interpreter`, one script after the other."""
        with self._turn:
            return self._run(text, environment, timeout)

    def _run(self, text: str, environment: dict[str, str], timeout: float) -> tuple[int, str]:
        process = self._process = self._process or self._start()
        assert process.stdin is not None
        with tempfile.NamedTemporaryFile(prefix="script-") as printed:
            request = {"text": text, "environment": environment, "folder": os.getcwd(), "printed": printed.name}
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            child = self._answer()
            try:
                status = self._answer(timeout)
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
                self._answer()
                raise subprocess.TimeoutExpired("a script", timeout, Path(printed.name).read_bytes()) from None
            return status, Path(printed.name).read_text()

    @staticmethod
    def _start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-c", PROGRAM], env=environment_of(), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def _answer(self, timeout: float | None = None) -> int:
        assert self._process is not None and self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(timeout):
                raise TimeoutError
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the process that forks for scripts has ended")
        return int(line)

    def close(self) -> None:
        """Ends the process."""
        if self._process is not None:
            assert self._process.stdin is not None and self._process.stdout is not None
            self._process.stdin.close()
            self._process.wait(60)
            self._process.stdout.close()
            self._process = None


def serve() -> str:
    """What the process does that forks: it answers each request with the child's number and then its exit status.

    Returns:
        In each child the lines to run; in the process itself, when there are no more requests, none.
    """
    import torch  # noqa: F401  # what this is all for

    answers = os.fdopen(os.dup(1), "w")
    while line := sys.stdin.readline():
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            answers.close()
            _become(request)
            return str(request["text"])
        print(child, file=answers, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=answers, flush=True)
    return ""


def _become(request: dict[str, str]) -> None:
    """Gives this process the environment, the folder and the output of a script."""
    os.environ.clear()
    os.environ.update(request["environment"])  # type: ignore[arg-type]
    os.chdir(request["folder"])
    nothing, printed = os.open(os.devnull, os.O_RDONLY), os.open(request["printed"], os.O_WRONLY | os.O_APPEND)
    for descriptor, standard in ((nothing, 0), (printed, 1), (printed, 2)):
        os.dup2(descriptor, standard)
    os.close(nothing)
    os.close(printed)
