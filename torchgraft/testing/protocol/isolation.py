"""Runs the checks of a driver in a process beside pytest's: a driver that crashes fails the check and nothing else.

The process is a pytest of its own, which collects the same file and runs the tests that it is told to, one at a time,
so that fixtures, marks and configuration are what they are everywhere. It stays for the file's other checks; after a
crash the next check starts another. Both sides are called by the plug-in, `pytest_torchgraft`.
"""

from __future__ import annotations

import ast
import contextlib
import faulthandler
import itertools
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from torchgraft.testing.protocol.rules import rule_of

__all__ = ["RULE", "Isolation", "serve"]

RULE = "The rule, in the words of torchgraft/driver.h"
START_TIMEOUT = 600  # seconds, with the import of torch and the collection of the file
#: What the other process must not be told: which tests to choose, when to stop, where pytest itself writes or reads.
OWN = frozenset(
    "file_or_dir keyword markexpr deselect collectonly lf failedfirst newfirst stepwise stepwise_skip stepwise_reset "
    "maxfail usepdb usepdb_cls trace capture plugins xmlpath pastebin durations numprocesses maxprocesses dist tx "
    "distload px looponfail help version cacheshow cacheclear showfixtures show_fixtures_per_test inifilename rootdir "
    "verbose torchgraft_serve".split()
)


class Isolation:
    """The processes of one run of pytest, of which one is alive at a time."""

    def __init__(self, config: pytest.Config, timeout: float) -> None:
        self.config, self.timeout = config, timeout
        self._process: Process | None = None

    def run(self, item: pytest.Item, following: pytest.Item | None) -> None:
        """Runs a test there and reports it here.

        Args:
            item: the test.
            following: the one that comes next, if that is isolated too: its fixtures are kept.
        """
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in self._reports(item, following):
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)

    def _reports(self, item: pytest.Item, following: pytest.Item | None) -> Iterator[pytest.TestReport]:
        passed: list[str] = []
        try:
            if self._process is None or self._process.path != item.path:
                self.close()
                self._process = Process(self.config, item.path)
            for message in self._process.ask(item.nodeid, following.nodeid if following else None, self.timeout):
                report = self.config.hook.pytest_report_from_serializable(config=self.config, data=message)
                passed.append(report.when)
                yield report
        except ProcessEnded as error:
            self.close()
            yield from _ended(item, passed, str(error))

    def close(self) -> None:
        """Ends the process, if there is one."""
        if self._process is not None:
            self._process.close()
            self._process = None


def _ended(item: pytest.Item, passed: list[str], what: str) -> Iterator[pytest.TestReport]:
    """The reports that a test still needs whose process has ended."""
    when = "teardown" if "call" in passed else "call"
    function = getattr(item, "function", None)
    lines = [what]
    if quoted := rule_of(function):
        lines = [what.partition("\n")[0], f'{RULE}: "{quoted}"', *what.split("\n")[1:]]
    for phase in ("setup", "call", "teardown"):
        if phase not in passed and (phase != "call" or when == "call"):
            failed = phase == when
            yield pytest.TestReport(
                nodeid=item.nodeid,
                location=item.location,
                keywords=dict.fromkeys(item.keywords, 1),
                outcome="failed" if failed else "passed",
                longrepr="\n".join(lines) if failed else None,
                when=phase,
            )


class ProcessEnded(Exception):
    """The process died, or was ended since it did not answer."""


class Process:
    """A pytest that runs the tests of one file as it is told to."""

    def __init__(self, config: pytest.Config, path: Path) -> None:
        self.path = path
        self.log = tempfile.TemporaryFile()  # noqa: SIM115  # closed by close()
        read_requests, requests = os.pipe()
        answers, write_answers = os.pipe()
        self.requests, self.answers = os.fdopen(requests, "w"), answers
        self.buffer = b""
        self.process = subprocess.Popen(
            [*_command(config, path), f"--torchgraft-serve={read_requests},{write_answers},{self.log.fileno()}"],
            pass_fds=(read_requests, write_answers, self.log.fileno()),
            cwd=config.invocation_params.dir,
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
        )
        os.close(read_requests)
        os.close(write_answers)
        self.started = False
        self._send(_options(config))

    def ask(self, nodeid: str, following: str | None, timeout: float) -> Iterator[dict[str, Any]]:
        """Yields the reports of a test.

        Raises:
            ProcessEnded: there are no more of them.
        """
        if not self.started:
            self._read(START_TIMEOUT)
            self.started = True
        self._send({"run": nodeid, "following": following})
        end = time.monotonic() + timeout
        while report := self._read(end - time.monotonic()):
            yield report

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self.requests.write(json.dumps(message) + "\n")
            self.requests.flush()
        except BrokenPipeError:
            raise ProcessEnded(self._last_words()) from None

    def _read(self, timeout: float) -> dict[str, Any]:
        with selectors.DefaultSelector() as selector:
            selector.register(self.answers, selectors.EVENT_READ)
            end = time.monotonic() + timeout
            while b"\n" not in self.buffer:
                if not selector.select(max(0.0, end - time.monotonic())):
                    raise ProcessEnded(f"no answer within {timeout:.0f} s")
                part = os.read(self.answers, 1 << 16)
                if not part:
                    raise ProcessEnded(self._last_words())
                self.buffer += part
        line, _, self.buffer = self.buffer.partition(b"\n")
        message: dict[str, Any] = ast.literal_eval(line.decode())
        return message

    def _last_words(self) -> str:
        """How it ended, and what it wrote at last: with a crash that is where each thread was."""
        status = self.process.wait()
        how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        self.log.seek(0)
        said = self.log.read().decode(errors="replace")
        crash = said.rfind("Fatal Python error: ")
        said = said[crash:].partition("Extension modules:")[0] if crash >= 0 else said[-2000:]
        lines = [line for line in said.splitlines() if line.strip()]
        lines = list(itertools.takewhile(lambda line: "/_pytest/" not in line, lines))  # below the check is pytest
        return "\n".join([f"the process of this check ended: {how}", *lines[:40]])

    def close(self) -> None:
        """Ends it: in peace, unless it takes long over that."""
        with contextlib.suppress(BrokenPipeError):
            self.requests.close()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.answers)
        self.log.close()


def _command(config: pytest.Config, path: Path) -> list[str]:
    plugins = [each for given in config.option.plugins for each in ("-p", given)]
    configuration = ["-c", str(config.inipath)] if config.inipath else []
    return [
        *(sys.executable, "-m", "pytest", *plugins, *configuration, "--rootdir", str(config.rootpath)),
        *("-o", "addopts=", "-p", "no:cacheprovider", str(path)),
    ]


def _options(config: pytest.Config) -> dict[str, Any]:
    """What was asked on the command line that the tests may look at, their own options among it."""
    told = {}
    for name, value in vars(config.option).items():
        if name not in OWN and isinstance(value, (str, int, float, list, type(None))):
            told[name] = value
    return told


# ---- The other side ----


def take_options(config: pytest.Config, requests: int) -> None:
    """Makes the options those of the process that asks; this one counts as a worker of pytest-xdist's, so that plug-ins
    leave writing reports to that one."""
    config.__dict__["workerinput"] = {"workerid": "torchgraft"}
    config.option.__dict__.update(json.loads(_line(requests)))


def serve(session: pytest.Session, requests: int, answers: int, log: int) -> None:
    """Runs tests as they are asked for; returns when there are no more requests."""
    faulthandler.enable(log, all_threads=False)  # of the thread that crashes; pytest's own lists a hundred others
    items = {item.nodeid: item for item in session.items}

    def answer(message: dict[str, Any]) -> None:
        data = repr(message).encode() + b"\n"  # in JSON the tuples of a report would become lists
        while data:
            data = data[os.write(answers, data) :]

    class Reporter:
        """Hands on each report as it is made."""

        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            answer(session.config.hook.pytest_report_to_serializable(config=session.config, report=report))

    session.config.pluginmanager.register(Reporter())
    answer({})
    while line := _line(requests):
        request = json.loads(line)
        item, following = items[request["run"]], items.get(request["following"])
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        answer({})


def _line(descriptor: int) -> bytes:
    """A line from a descriptor; empty at its end. One byte at a time: nothing is lost between two readers."""
    line = b""
    while not line.endswith(b"\n") and (part := os.read(descriptor, 1)):
        line += part
    return line
