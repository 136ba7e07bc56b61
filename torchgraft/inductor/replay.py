"""Compiled programs as graphs with addresses by slot: a call is one call of C++.

The program that inductor writes allocates, launches and calls ops, in Python. Its first call with arguments of some
sizes does that. The second one is recorded, with memory that is only addresses, and from then on the recording is run
with the addresses of each call: no Python, no dispatcher, no plan, one block of memory for all temporaries.
csrc/dispatch/relocatable_graph.h has the rest.

A recording holds what a stream is given and nothing else. So a program is recorded only if all it does is on one device
and by ops that are known to do no more than that. What asks for a value, or runs on the CPU, stays as it is, and the
program is split there: the parts before and after it are functions (splitting.py), each of which is recorded.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from torchgraft import _C
from torchgraft.plans.splits import splits
from torchgraft.streams import Stream
from torchgraft.streams import stream as on_stream

__all__ = ["Replayed", "refusals", "replayed", "splits"]

_log = logging.getLogger("torchgraft.inductor")

Program = Callable[[list[Any]], Sequence[Any]]

#: Why programs, or parts of them, are not replayed, and how many kinds of calls that was.
refusals: Counter[str] = Counter()


class Replayed:
    """A compiled program, or a part of one, which is called with a list of its arguments; the list is emptied.

    Args:
        program: what is called as long as there is no recording.
        has_parts: whether it calls others that are recorded if it cannot be.
    """

    def __init__(self, program: Program, has_parts: bool = False) -> None:
        self._program = program
        self._has_parts = has_parts
        self._is_in_parts = False  # they are recorded, and the whole is not
        self._calls = _C.CompiledCalls()

    def __call__(self, arguments: list[Any]) -> Sequence[Any]:
        if self._is_in_parts:
            return self._program(arguments)
        results: Sequence[Any] | None = self._calls.run(arguments)
        return self._by_python(arguments) if results is None else results

    def _by_python(self, arguments: list[Any]) -> Sequence[Any]:
        if self._calls.wants_recording(arguments) and self._record(arguments):
            results: Sequence[Any] | None = self._calls.run(arguments)
            if results is not None:
                return results
        return self._program(arguments)

    def _record(self, arguments: list[Any]) -> bool:
        """False if the call cannot be recorded, now or ever."""
        graph = _C.RelocatableGraph()
        tensors = [each for each in arguments if isinstance(each, torch.Tensor)]
        with _recording(tensors[0].device) as is_free:
            if not is_free:
                return False
            graph.begin(tensors)
            try:
                results = self._program(list(arguments))
                graph.end([each for each in results if isinstance(each, torch.Tensor)])
            except Exception as error:  # a true one comes again when Python runs the program
                graph.abandon()
                why = str(error).partition("\n")[0]
                _refuse(why)
                if self._has_parts and not self._is_in_parts:
                    self._is_in_parts = True
                    splits[why] += 1
                self._calls.refuse(arguments)
                return False
            except BaseException:
                graph.abandon()
                raise
        self._calls.keep(arguments, graph, results)
        return True


def replayed(program: Program, runner: Any = None, why_not: str = "") -> Program:
    """What a generated program puts in the place of its entry.

    Args:
        program: the entry.
        runner: inductor's, which has the functions that the entry calls, if the program is split.
        why_not: what in it cannot be recorded; the entry then stays, and what it calls is recorded.
    """
    if runner is not None:
        runner.recursively_apply_fns([Replayed] * len(runner.partitions))
    if not why_not:
        return Replayed(program, has_parts=runner is not None)
    if runner is not None:
        splits[why_not] += 1
    _refuse(why_not)
    return program


def _refuse(why: str) -> None:
    refusals[why] += 1
    _log.info("a compiled program is run by Python: %s", why)


# One stream for all recordings of a device: what other threads give their streams is not recorded.
_one_at_a_time = threading.Lock()
_streams: dict[torch.device, Stream] = {}


@contextlib.contextmanager
def _recording(device: torch.device) -> Iterator[bool]:
    """The device's stream for recordings is the current one; False where another thread records."""
    if not _one_at_a_time.acquire(blocking=False):
        yield False
        return
    try:
        if device not in _streams:
            _streams[device] = Stream(device=device)
        with on_stream(_streams[device]):
            yield True
    finally:
        _one_at_a_time.release()
