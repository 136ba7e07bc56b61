"""Compiled programs as graphs with addresses by slot: a call is one call of C++.

The program that a compiler writes allocates, launches and calls ops, in Python. Its first call with arguments of some
sizes does that. The second one is recorded, with memory that is only addresses, and from then on the recording is run
with the addresses of each call: no Python, no dispatcher, no plan, one block of memory for all temporaries.
csrc/graphs/relocatable_graph.h has the rest.

A recording holds what a stream is given and nothing else. So a program is recorded only if all it does is on one device
and by ops that are known to do no more than that. What asks for a value, or runs on the CPU, stays as it is, and the
program is split there: the parts before and after it are functions, each of which is recorded.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch

from torchgraft._core import _C
from torchgraft.codegen.compiler import KernelCompileError
from torchgraft.codegen.dialect import UnsupportedKernel
from torchgraft.device_module.streams import Stream
from torchgraft.device_module.streams import stream as on_stream
from torchgraft.fallback import fallback, warn_user
from torchgraft.plans.splits import splits

__all__ = ["Program", "Replayed", "refusals", "refuse", "splits"]

_log = logging.getLogger("torchgraft.compiler")

Program = Callable[[list[Any]], Sequence[Any]]

#: Why programs, or parts of them, are not replayed, and how many kinds of calls that was.
refusals: Counter[str] = Counter()


class Compilable(Protocol):
    """A kernel that a program launches."""

    def compile(self) -> None:
        """Compiles it, unless it is.

        Raises:
            KernelCompileError: the device's compiler refused it.
            UnsupportedKernel: the device's language cannot express it.
        """


class Replayed:
    """A compiled program, or a part of one, which is called with a list of its arguments; the list is emptied.

    Args:
        program: what is called as long as there is no recording.
        has_parts: whether it calls others that are recorded if it cannot be.
        is_recorded: whether it is itself.
        kernels: those that it launches; they are compiled before anything is run.
        op_by_op: what is called where one of them does not compile.
    """

    def __init__(
        self,
        program: Program,
        has_parts: bool = False,
        is_recorded: bool = True,
        kernels: Sequence[Compilable] = (),
        op_by_op: Program | None = None,
    ) -> None:
        self._program = program
        self._has_parts = has_parts
        self._is_recorded = is_recorded  # False also where its parts are, and the whole cannot be
        self._calls = _C.CompiledCalls()
        self._kernels, self._op_by_op = kernels, op_by_op
        self._compiling = threading.Lock()  # other threads wait until it is known what is run

    def __call__(self, arguments: list[Any]) -> Sequence[Any]:
        if not self._is_recorded:
            return self._by_python(arguments)
        results: Sequence[Any] | None = self._calls.run(arguments)
        return self._by_python(arguments) if results is None else results

    def _by_python(self, arguments: list[Any]) -> Sequence[Any]:
        if self._kernels:
            self._compile()
        if not self._is_recorded:
            return self._program(arguments)
        if self._calls.wants_recording(arguments) and self._record(arguments):
            results: Sequence[Any] | None = self._calls.run(arguments)
            if results is not None:
                return results
        return self._program(arguments)

    def _compile(self) -> None:
        """Compiles the kernels, or has the program run op by op.

        Raises:
            KernelCompileError, UnsupportedKernel: there is none, or it may not be taken.
        """
        with self._compiling:
            try:
                for each in self._kernels:
                    each.compile()
            except (KernelCompileError, UnsupportedKernel) as error:
                if self._op_by_op is None or fallback.get_mode() == "error":
                    raise
                refused: KernelCompileError | UnsupportedKernel | None = error
                self._program, self._is_recorded = self._op_by_op, False
            else:
                refused = None
            self._kernels = ()
        if refused is not None:
            _say_refused(refused)

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
                refuse(why)
                if self._has_parts and self._is_recorded:
                    self._is_recorded = False
                    splits[why] += 1
                self._calls.refuse(arguments)
                return False
            except BaseException:
                graph.abandon()
                raise
        self._calls.keep(arguments, graph, results)
        return True


def _say_refused(error: KernelCompileError | UnsupportedKernel) -> None:
    """As single ops are told of, unless nothing is to be said."""
    why, origin = str(error), ""
    if isinstance(error, KernelCompileError):
        why = f"kernel {error.kernel} does not compile"
        origin = f":\n{error.device} says: {error.log.strip()}\nIt was made of:\n{error.origin}\n"
    refuse(why)
    if fallback.get_mode() == "warn":
        told = f"a program of torch.compile runs op by op, since {why}{origin or '. '}"
        warn_user(f"{told}The result is right, the time is not.")


def refuse(why: str) -> None:
    """Counts that a program, or a part of one, is not replayed."""
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
