"""Drivers whose operators are broken on purpose, one fault each, and the check of the protocol that finds it.

As a file of tests it runs on each of them the checks that must find the fault and one that shows the rest to be in
order, or with TORCHGRAFT_TEST_PROTOCOL=whole all of the protocol; test_protocol.py looks at what failed.
"""

from __future__ import annotations

import ctypes
import math
import os
import time
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from graph_driver import is_op, loaded
from operator_driver import OperatorDriver, views_of, write_results
from sound_driver import Sound, Stream

from torchgraft import Driver
from torchgraft.driver import Capability, CompileError, CopyKind, DeviceProperties, ProgramSource, ProgramTensor, Wish
from torchgraft.testing.protocol import OperatorProtocol

SCRATCH = 96  # bytes
BUSY = 300_000  # bytes; Stream takes its time as it is


@dataclass
class Program:
    source: ProgramSource


@dataclass
class Graph(Program):
    function: Any


class SoundOperators(Sound):
    """A few operators, which run on streams of their own and late, and without a fault."""

    #: Names of operators, of pointwise ones with their kinds.
    has: ClassVar[tuple[str, ...]] = ("copy", "matmul", "gather", "pointwise add", "pointwise mul", "pointwise relu")
    has_programs = True

    def __init__(self) -> None:
        super().__init__()
        self.capabilities |= Capability.PROGRAMS
        self.failures: dict[Stream, Exception] = {}

    def device_properties(self, device: int) -> DeviceProperties:
        return replace(super().device_properties(device), address_align=64)

    # Failures of work that was submitted are told by the next wait.

    def tell(self, stream: Stream) -> None:
        if (failure := self.failures.pop(stream, None)) is not None:
            raise failure

    def stream_synchronize(self, device: int, stream: Any) -> None:
        super().stream_synchronize(device, stream)
        self.tell(stream)

    def stream_query(self, device: int, stream: Any) -> bool:
        idle = super().stream_query(device, stream)
        if idle:
            self.tell(stream)
        return idle

    def copy(
        self, device: int, stream: Any, destination: int, source: int, nbytes: int, kind: CopyKind | int, blocking: bool
    ) -> None:
        super().copy(device, stream, destination, source, nbytes, kind, blocking)
        if blocking:
            self.tell(stream)

    # Programs

    refuses: ClassVar[set[str]] = set()
    wishes: ClassVar[dict[str, Wish]] = {"matmul": Wish.CONTIGUOUS}

    def program_supports(self, device: int, source: ProgramSource) -> list[Wish] | None:
        name = f"{source.name} {source.attributes['kind']}" if source.name == "pointwise" else source.name
        if source.format != "operator" or name not in self.has:
            raise NotImplementedError(f"the library has no {name}")
        return OperatorDriver.program_supports(self, device, source)  # type: ignore[arg-type]

    def program_create(self, device: int, source: ProgramSource) -> tuple[Program, int]:
        return Program(source), SCRATCH

    def program_run(self, device: int, stream: Any, program: Program, addresses: list[int], scratch: int) -> None:
        source, views = program.source, views_of(program.source, addresses, 0)
        self.later(stream, source.name, lambda: self.work(source, views, scratch))

    def later(self, stream: Any, name: str, work: Any) -> None:
        def guarded() -> None:
            try:
                work()
            except Exception as error:
                self.failures.setdefault(stream, RuntimeError(f"operator {name}: {error}"))

        stream.submit(guarded)

    def work(self, source: ProgramSource, views: list[Any], scratch: int) -> None:
        ctypes.memset(scratch, 0xA5, SCRATCH)
        write_results(source, views)

    # Graphs keep the numbers that they were made with.

    def graph_create(self, device: int, commands: list[tuple[str, tuple[Any, ...]]]) -> Any:
        return [(name, self.kept(name, list(arguments))) for name, arguments in commands]

    def kept(self, name: str, arguments: list[Any]) -> list[Any]:
        if name == "program_run":
            program, addresses, scratch = arguments
            numbers = {}
            for i, (tensor, address) in enumerate(zip(program.source.inputs, addresses, strict=False)):
                if tensor is not None and tensor.is_number:
                    numbers[i] = ctypes.create_string_buffer(ctypes.string_at(address, 8), 8)
            addresses = [ctypes.addressof(numbers[i]) if i in numbers else each for i, each in enumerate(addresses)]
            self.numbers = [*getattr(self, "numbers", []), numbers]
            return [program, addresses, scratch]
        return arguments

    def graph_set_argument(self, device: int, graph: Any, command: int, argument: int, value: int | bytes) -> None:
        name, arguments = graph[command]
        if name != "program_run":
            super().graph_set_argument(device, graph, command, argument, value)
            return
        program, addresses, scratch = arguments
        given = [*addresses, scratch]
        given[argument] = value
        arguments[:] = program, given[:-1], given[-1]


# Single runs


class OverrunsItsScratch(SoundOperators):
    found_by = ("scratch_is_as_large_as_was_asked_for",)

    def work(self, source: ProgramSource, views: list[Any], scratch: int) -> None:
        super().work(source, views, scratch)
        ctypes.memset(scratch, 0, SCRATCH + 8)


class OverrunsItsResult(SoundOperators):
    """Writes whole vectors."""

    found_by = ("nothing_beside_results_is_written",)

    def work(self, source: ProgramSource, views: list[Any], scratch: int) -> None:
        super().work(source, views, scratch)
        result = views[-1]
        if result.is_contiguous():
            ctypes.memset(result.data_ptr() + result.numel() * result.element_size(), 0, 16)


class WritesBetweenElements(SoundOperators):
    """Of a result with gaps."""

    found_by = ("nothing_beside_results_is_written",)

    def work(self, source: ProgramSource, views: list[Any], scratch: int) -> None:
        result = views[-1]
        reach = sum((size - 1) * stride for size, stride in zip(result.shape, result.stride(), strict=True))
        ctypes.memset(result.data_ptr(), 0, (reach + 1) * result.element_size())
        super().work(source, views, scratch)


class IgnoresStrides(SoundOperators):
    """Reads each input as if it were contiguous."""

    found_by = ("values",)
    wishes: ClassVar[dict[str, Wish]] = {}

    def program_create(self, device: int, source: ProgramSource) -> tuple[Program, int]:
        return super().program_create(device, replace(source, inputs=tuple(map(self.contiguous, source.inputs))))

    @staticmethod
    def contiguous(tensor: ProgramTensor | None) -> ProgramTensor | None:
        if tensor is None or tensor.is_number:
            return tensor
        strides = [math.prod(tensor.sizes[d + 1 :]) for d in range(len(tensor.sizes))]
        return replace(tensor, strides=tuple(strides))


class RoundsToFloat32(SoundOperators):
    """Computes float64 in float32."""

    found_by = ("values",)

    def work(self, source: ProgramSource, views: list[Any], scratch: int) -> None:
        super().work(source, views, scratch)
        if views[-1].dtype is torch.float64:
            views[-1].copy_(views[-1].float())


class LosesWhatIsNotFinite(SoundOperators):
    """max(x, 0) of NaN is 0."""

    found_by = ("values",)

    def work(self, source: ProgramSource, views: list[Any], scratch: int) -> None:
        super().work(source, views, scratch)
        if source.attributes.get("kind") == "relu":
            views[-1].nan_to_num_(posinf=math.inf)


class WritesAnInput(SoundOperators):
    """Scales a factor where it is."""

    found_by = ("inputs_are_not_written",)

    def work(self, source: ProgramSource, views: list[Any], scratch: int) -> None:
        super().work(source, views, scratch)
        if source.name == "matmul":
            views[0].mul_(source.attributes["alpha"]).add_(1)


class SumsIn16Bits(SoundOperators):
    found_by = ("sums_of_16_bit_floats",)

    def work(self, source: ProgramSource, views: list[Any], scratch: int) -> None:
        if source.name != "matmul" or views[0].element_size() != 2 or views[0].dim() != 2 or views[2] is not None:
            super().work(source, views, scratch)
            return
        a, b, _, c = views
        c.zero_()
        for k in range(a.shape[1]):
            c.add_(a[:, k, None] * b[k])


# Asking


class WishesForEver(SoundOperators):
    """Wherever a factor is contiguous it is to have channels last, and the other way round."""

    found_by = ("wishes_end",)

    def program_supports(self, device: int, source: ProgramSource) -> list[Wish] | None:
        super().program_supports(device, source)
        if source.name != "matmul" or len(source.inputs[0].sizes) != 3:  # type: ignore[union-attr]
            return None
        a = source.inputs[0]
        assert a is not None
        wish = Wish.CHANNELS_LAST if a.strides[-1] == 1 else Wish.CONTIGUOUS
        return [wish] + [Wish.NONE] * 3


class NoReason(SoundOperators):
    found_by = ("refusals_have_reasons",)

    def program_supports(self, device: int, source: ProgramSource) -> list[Wish] | None:
        try:
            return super().program_supports(device, source)
        except NotImplementedError:
            raise NotImplementedError from None


class HasEveryKind(SoundOperators):
    """It looks at the name alone."""

    found_by = ("kinds_that_nobody_has",)

    def program_supports(self, device: int, source: ProgramSource) -> list[Wish] | None:
        if source.attributes.get("kind") == "a kind that nobody has":
            return None
        return super().program_supports(device, source)


class HasEverything(SoundOperators):
    """And finds out when it is too late."""

    found_by = ("what_nobody_has", "kinds_that_nobody_has")

    def program_supports(self, device: int, source: ProgramSource) -> list[Wish] | None:
        return None


# Runs in streams


class RunsTooEarly(SoundOperators):
    """At once, whatever waits in the stream."""

    found_by = ("runs_and_copies_keep_the_order",)

    def later(self, stream: Any, name: str, work: Any) -> None:
        work()


class RunsTooLate(SoundOperators):
    """On a stream of its own, for which nothing waits."""

    delay = 0.004
    found_by = ("runs_and_copies_keep_the_order",)

    def __init__(self) -> None:
        super().__init__()
        self.own = Stream(self.delay)

    def later(self, stream: Any, name: str, work: Any) -> None:
        self.own.submit(work)


class KeepsTheRecord(SoundOperators):
    """Looks at the addresses when the run's turn has come."""

    found_by = ("the_record_is_the_callers",)

    def program_run(self, device: int, stream: Any, program: Program, addresses: list[int], scratch: int) -> None:
        source, given = program.source, views_of(program.source, addresses, 0)
        are_numbers = [isinstance(each, (int, float)) for each in given]  # read now: theirs is another fault

        def work() -> None:
            tensors = zip([*source.inputs, *source.outputs], are_numbers, strict=True)
            known = [None if is_number else tensor for tensor, is_number in tensors]
            late = views_of(replace(source, inputs=tuple(known[: len(source.inputs)])), addresses, 0)
            views = [old if is_number else new for old, new, is_number in zip(given, late, are_numbers, strict=True)]
            self.work(source, views, scratch)

        self.later(stream, source.name, work)


class ReadsNumbersLate(SoundOperators):
    """They are other ones by then."""

    found_by = ("numbers_are_new_in_each_run",)

    def program_run(self, device: int, stream: Any, program: Program, addresses: list[int], scratch: int) -> None:
        given, source = list(addresses), program.source
        self.later(stream, source.name, lambda: self.work(source, views_of(source, given, 0), scratch))


class TheFirstAddressesStay(SoundOperators):
    """A program is bound to what it was run with first."""

    found_by = ("other_addresses",)

    def program_run(self, device: int, stream: Any, program: Program, addresses: list[int], scratch: int) -> None:
        self.bound = getattr(self, "bound", {})
        first = self.bound.setdefault(id(program.source), (program.source, list(addresses)))[1]
        super().program_run(device, stream, program, list(first), scratch)


class DiesWithItsProgram(SoundOperators):
    """What is still to run finds nothing to do."""

    found_by = ("a_program_that_is_destroyed_finishes",)

    def program_run(self, device: int, stream: Any, program: Program, addresses: list[int], scratch: int) -> None:
        source, views = program.source, views_of(program.source, addresses, 0)
        alive = program.__dict__
        self.later(stream, source.name, lambda: None if alive.get("dead") else self.work(source, views, scratch))

    def program_destroy(self, program: Any) -> None:
        program.dead = True


class SharesItsScratch(SoundOperators):
    """All runs put what they have found so far into one place of the driver's."""

    found_by = ("threads_that_share_a_program",)

    def work(self, source: ProgramSource, views: list[Any], scratch: int) -> None:
        super().work(source, views, scratch)
        result = views[-1]
        if not hasattr(self, "between"):
            self.between = torch.empty(1 << 16, dtype=torch.uint8)
        part = self.between[: result.numel() * result.element_size()].view(result.dtype).view(result.shape)
        part.copy_(result)
        time.sleep(0.001)  # for the others to come between
        result.copy_(part)


class GraphsKeepTheirAddresses(SoundOperators):
    found_by = ("a_graph_with_a_run",)

    def graph_set_argument(self, device: int, graph: Any, command: int, argument: int, value: int | bytes) -> None:
        pass


class TimesInMicroseconds(SoundOperators):
    found_by = ("times_of_a_run",)

    def event_times(self, device: int, event: Any) -> tuple[int, int]:
        begin, end = super().event_times(device, event)
        return begin // 1000, end // 1000


# Failures


class WritesBeforeItRefuses(SoundOperators):
    """Looks at indices within the call, and clears the result before that."""

    found_by = ("a_run_that_is_refused_changes_nothing",)

    def program_run(self, device: int, stream: Any, program: Program, addresses: list[int], scratch: int) -> None:
        if program.source.name == "gather":
            stream.wait()
            x, indices, result = views_of(program.source, addresses, 0)
            if int(indices.max()) >= x.shape[program.source.attributes["dim"]]:  # type: ignore[index]
                result.zero_()
                raise IndexError("index out of range in gather")
        super().program_run(device, stream, program, addresses, scratch)


class FailsForEver(SoundOperators):
    found_by = ("a_failure_that_comes_later_is_told_once",)

    def tell(self, stream: Stream) -> None:
        if stream in self.failures:
            raise self.failures[stream]


class FailsWithoutAName(SoundOperators):
    found_by = ("a_failure_that_comes_later_is_told_once",)

    def later(self, stream: Any, name: str, work: Any) -> None:
        super().later(stream, "", lambda: self.anonymous(work))

    @staticmethod
    def anonymous(work: Any) -> None:
        try:
            work()
        except IndexError:
            raise IndexError("something is out of range") from None


# Graphs


class SoundGraphs(SoundOperators):
    """A compiler of PyTorch's exported programs, and nearly no operators."""

    has: ClassVar[tuple[str, ...]] = ("copy",)
    program_formats = ("pt2",)

    def program_supports(self, device: int, source: ProgramSource) -> list[Wish] | None:
        if source.format == "operator":
            return super().program_supports(device, source)
        if source.format not in self.program_formats or not is_op(source.name):
            raise NotImplementedError(f"there is no {source.name}")
        return None

    def program_create(self, device: int, source: ProgramSource) -> tuple[Program, int]:
        if source.format == "operator":
            return super().program_create(device, source)
        return Graph(source, loaded(source.data)), SCRATCH

    def program_binary(self, program: Any) -> bytes:
        if not isinstance(program, Graph):
            raise NotImplementedError("operators are made quickly")
        return b"binary " + program.source.data

    def program_load(self, device: int, source: ProgramSource, binary: bytes) -> tuple[Program, int]:
        if not binary.startswith(b"binary "):
            raise CompileError("no binary of this device")
        data = binary.removeprefix(b"binary ")
        return Graph(replace(source, data=data), loaded(data)), SCRATCH

    def program_run(self, device: int, stream: Any, program: Program, addresses: list[int], scratch: int) -> None:
        if not isinstance(program, Graph):
            super().program_run(device, stream, program, addresses, scratch)
            return
        views, count = views_of(program.source, addresses, 0), len(program.source.inputs)

        def work() -> None:
            for output, result in zip(views[count:], self.computed(program, views[:count]), strict=True):
                output.copy_(result)

        self.later(stream, program.source.name, work)

    def computed(self, program: Graph, inputs: list[Any]) -> Any:
        with torch.no_grad():
            return program.function(*inputs)


class WantsBytesOfNodes(SoundGraphs):
    found_by = ("nodes_are_asked_for_without_bytes",)

    def program_supports(self, device: int, source: ProgramSource) -> list[Wish] | None:
        if source.format != "operator":
            loaded(source.data)
        return super().program_supports(device, source)


class HasEveryNode(SoundGraphs):
    found_by = ("nodes_are_asked_for_without_bytes",)

    def program_supports(self, device: int, source: ProgramSource) -> list[Wish] | None:
        return super().program_supports(device, source) if source.format == "operator" else None


class ComputesInBfloat16(SoundGraphs):
    """As some compilers do unless they are told."""

    found_by = ("a_graph",)

    def computed(self, program: Graph, inputs: list[Any]) -> Any:
        return [each.bfloat16() for each in super().computed(program, inputs)]


class ReadsGraphsLate(SoundGraphs):
    """When they run."""

    found_by = ("bytes_that_are_no_graph",)

    def program_create(self, device: int, source: ProgramSource) -> tuple[Program, int]:
        if source.format == "operator":
            return super().program_create(device, source)
        return Graph(source, lambda *inputs: loaded(source.data)(*inputs)), SCRATCH


class LoadsNothing(SoundGraphs):
    """Constants are not in the binary."""

    found_by = ("a_graph_from_its_binary",)

    def program_load(self, device: int, source: ProgramSource, binary: bytes) -> tuple[Program, int]:
        graph, scratch = super().program_load(device, source, binary)
        function = graph.function
        graph.function = lambda *inputs: [torch.zeros_like(each) for each in function(*inputs)]
        return graph, scratch


class TakesEveryBinary(SoundGraphs):
    found_by = ("no_binary_of_a_graph",)

    def program_load(self, device: int, source: ProgramSource, binary: bytes) -> tuple[Program, int]:
        return Graph(source, lambda *inputs: loaded(binary.removeprefix(b"binary "))(*inputs)), SCRATCH


class GivesOperatorsBinaries(SoundOperators):
    """And forgets its attributes."""

    found_by = ("a_program_from_its_binary", "no_binary")
    has: ClassVar[tuple[str, ...]] = ("matmul",)

    def program_binary(self, program: Any) -> bytes:
        return b"matmul"

    def program_load(self, device: int, source: ProgramSource, binary: bytes) -> tuple[Program, int]:
        return Program(replace(source, attributes={"alpha": 0.0, "beta": 0.0})), SCRATCH


SOUND: list[type[SoundOperators]] = [SoundOperators, SoundGraphs]
OPERATOR_FAULTS = [kind for sound in SOUND for kind in sound.__subclasses__() if kind not in SOUND]
# What every driver is asked where not all of the protocol is: a fault must not keep all else from being looked at.
CORE = ("inputs_are_not_written",)


def _protocol_of(kind: type[SoundOperators]) -> type[OperatorProtocol]:
    class Checked(OperatorProtocol):
        busy_bytes = BUSY
        patience = 0.3

        @pytest.fixture
        def driver(self) -> Driver:
            return drivers[kind]

    whole = kind in SOUND or os.environ.get("TORCHGRAFT_TEST_PROTOCOL") == "whole"
    checks = [name for name in dir(OperatorProtocol) if name.startswith("test_")]
    asked = {f"test_{name}" for name in (*kind.found_by, *CORE)}
    # A test that is None is none, to pytest.
    return type(f"Test{kind.__name__}", (Checked,), {name: None for name in checks if not (whole or name in asked)})


drivers = {kind: kind() for kind in [*SOUND, *OPERATOR_FAULTS]}
for _kind in drivers:
    globals()[f"Test{_kind.__name__}"] = _protocol_of(_kind)
