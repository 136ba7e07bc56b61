"""Which sizes to measure, and which to keep."""

from __future__ import annotations

import contextlib
import json
import math
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from torchgraft.codegen.tuning import CANDIDATES, Room, Tuning, as_json, changed, from_json, is_possible
from torchgraft.diagnosis.child import environment
from torchgraft.tuning.workloads import WORKLOADS

__all__ = ["Bench", "Child", "ChildError", "Found", "search"]

Times = Mapping[str, float]

# Sizes that decide a shape together are tried together.
_TOGETHER = (("rows", "vectors"), ("side", "item"))

_SECONDS = 0.05  # of a measurement of a workload
_ROUNDS = 3
# What has to be gained, as the mean of the workloads, and what none may lose: machines are not quiet.
_GAIN = 1.03
_LOSS = 0.92


class ChildError(RuntimeError):
    """The sizes cannot be measured: an error of the compiler or the driver, a wrong result, or no answer."""


class Bench(Protocol):
    """What `search` asks."""

    def times(self, family: str, tuning: Tuning) -> Times:
        """Seconds of each workload of the family.

        Raises:
            ChildError: there are none.
        """


class Child:
    """The process that measures; another one where the last did not survive.

    Raises:
        ChildError: the device cannot be used.
    """

    def __init__(self, index: int, backend: str | None, modules: Sequence[str], patience: float = 60.0) -> None:
        self._command = [sys.executable, "-m", "torchgraft.tuning.child", str(index), *modules]
        self._environment = environment(backend, modules)
        self._patience = patience
        self._process: subprocess.Popen[str] | None = None
        facts = self._start()
        self.properties: dict[str, Any] = facts["properties"]
        self.form = str(facts["form"])
        self.room = Room.of(self.properties)
        self.tuning, self.usual = (from_json(facts[name], self.room) for name in ("tuning", "usual"))
        self.device_class = str(facts["class"])
        self.families: dict[str, list[str]] = facts["families"]

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def times(self, family: str, tuning: Tuning) -> Times:
        if self._process is None:
            self._start()
        request = {"family": family, "tuning": as_json(tuning), "seconds": _SECONDS}
        times: dict[str, float] = self._ask(json.dumps(request))["times"]
        return times

    def _start(self) -> dict[str, Any]:
        self._process = subprocess.Popen(
            self._command, env=self._environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        return self._ask("")

    def _ask(self, line: str) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        text = ""
        try:
            if line:
                print(line, file=self._process.stdin, flush=True)
            if select.select([self._process.stdout], [], [], self._patience)[0]:
                text = self._process.stdout.readline()
            else:
                self._process.kill()
        except BrokenPipeError:
            pass  # it has ended
        if not text:
            status = self._stop()
            raise ChildError(f"the process that measures ended with status {status}")
        answer: dict[str, Any] = json.loads(text)
        if "error" in answer:
            raise ChildError(answer["error"])
        return answer

    def _stop(self) -> int:
        if self._process is None:
            return 0
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):  # what was not sent to one that has ended
                    pipe.close()
        try:
            status = self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        self._process = None
        return status


@dataclass(frozen=True)
class Found:
    """What was found for a part of a tuning.

    Attributes:
        family: the part.
        sizes: those that are better than those before, by name; none if nothing is.
        before, after: seconds of each workload, from the last comparison.
        tried: how many sizes were measured.
        failures: what could not be measured, and why.
        complete: whether all that there is was tried before the time was over.
    """

    family: str
    sizes: Mapping[str, float]
    before: Times
    after: Times
    tried: int
    failures: tuple[str, ...]
    complete: bool

    @property
    def gain(self) -> float:
        return _gain(self.before, self.after)


def search(
    bench: Bench,
    families: Mapping[str, Sequence[str]],
    start: Tuning,
    room: Room,
    deadline: float,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Found]:
    """Looks for better sizes, family by family, one size (or pair of sizes) after the other.

    Args:
        bench: measures.
        families: the parts of a tuning, and of each the sizes to be chosen.
        start: what there is now.
        room: of the device.
        deadline: when to stop, by `clock`; the families share the time by how much there is to try.
    """
    left = {
        family: len(WORKLOADS[family])
        * sum(math.prod(len(CANDIDATES[family][name]) for name in step) for step in _steps(names))
        for family, names in families.items()
    }
    for family, names in families.items():
        now = clock()
        share = (deadline - now) * left[family] / sum(left.values())
        del left[family]
        yield _Search(bench, family, room, now + share, clock).run(start, names)


class _Search:
    def __init__(self, bench: Bench, family: str, room: Room, deadline: float, clock: Callable[[], float]) -> None:
        self.bench, self.family, self.room, self.deadline, self.clock = bench, family, room, deadline, clock
        self.tried, self.failures = 0, list[str]()

    def run(self, start: Tuning, names: Sequence[str]) -> Found:
        best, complete = start, True
        for together in _steps(names):
            for sizes in self._candidates(best, together):
                if self.clock() > self.deadline:
                    complete = False
                    break
                candidate = changed(best, self.family, **sizes)
                if self._is_better(candidate, best):
                    best = candidate
        found = Found(self.family, {}, {}, {}, self.tried, (), complete)
        if best != start:
            before, after = self._compared(start, best, _ROUNDS)
            found = replace(found, before=before, after=after)
            if _is_gain(before, after):
                old, new = as_json(start)[self.family], as_json(best)[self.family]
                found = replace(found, sizes={name: new[name] for name in names if new[name] != old[name]})
        return replace(found, failures=tuple(self.failures))

    def _candidates(self, best: Tuning, together: Sequence[str]) -> list[dict[str, float]]:
        """All that differ from the best of now and that the device can have."""
        sizes: list[dict[str, float]] = [{}]
        for name in together:
            sizes = [{**known, name: size} for known in sizes for size in CANDIDATES[self.family][name]]
        tunings = ((each, changed(best, self.family, **each)) for each in sizes)
        return [each for each, tuning in tunings if tuning != best and is_possible(tuning, self.room)]

    def _is_better(self, candidate: Tuning, best: Tuning) -> bool:
        self.tried += 1
        try:
            return _is_gain(*self._compared(best, candidate, 1))
        except ChildError as error:
            self.failures.append(f"{as_json(candidate)[self.family]}: {error}")
            return False

    def _compared(self, old: Tuning, new: Tuning, rounds: int) -> tuple[Times, Times]:
        """Both in turns: what slows the machine down for a while then slows both."""
        before, after = dict[str, float](), dict[str, float]()
        for _ in range(rounds):
            for times, tuning in ((before, old), (after, new)):
                for name, seconds in self.bench.times(self.family, tuning).items():
                    times[name] = min(seconds, times.get(name, math.inf))
        return before, after


def _steps(names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    for name in names:
        pair = next((pair for pair in _TOGETHER if name in pair and set(pair) <= set(names)), (name,))
        if pair[0] == name:
            yield pair


def _gain(before: Times, after: Times) -> float:
    """The geometric mean of how many times as fast it is."""
    if not before:
        return 1.0
    return math.exp(sum(math.log(before[name] / after[name]) for name in before) / len(before))


def _is_gain(before: Times, after: Times) -> bool:
    return _gain(before, after) >= _GAIN and min(before[name] / after[name] for name in before) >= _LOSS
