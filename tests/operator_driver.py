"""A device that has operators and no compiler, for tests: torch's CPU computes them.

Its addresses are not the host's, so that nobody can use its memory but by its functions. Each run is given scratch of
exactly the size that it asked for, which it fills.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from typing import Any

import torch

from torchgraft.driver import (
    Capability,
    CompileError,
    CopyKind,
    DeviceProperties,
    Driver,
    ProgramSource,
    ProgramTensor,
    Wish,
)
from torchgraft.testing.operator_reference import KINDS, OPERATORS, compute, overload

AWAY = 1 << 44
SCRATCH = 96


@dataclass
class Prepared:
    source: ProgramSource
    runs: int = 0


class OperatorDriver(Driver):
    """See above.

    Attributes:
        refuses: names of operators that it has not.
        wishes: what it wishes for each tensor of an operator, by its name.
        breaks: names of operators that it says that it has, and cannot prepare.
        log: the names of what has been run.
    """

    name = "operators"
    has_programs = True

    def __init__(self) -> None:
        self.memory: dict[int, Any] = {}
        self.refuses: set[str] = set()
        self.wishes: dict[str, Wish] = {}
        self.breaks: set[str] = set()
        self.log: list[str] = []
        self.prepared = 0
        self.overruns = 0

    def device_properties(self, device: int) -> DeviceProperties:
        return DeviceProperties(
            name="A device with operators",
            total_memory=1 << 32,
            capabilities=Capability.PROGRAMS | Capability.FLOAT64,
        )

    def allocate(self, device: int, nbytes: int) -> int:
        block = ctypes.create_string_buffer(nbytes + 64)
        start = (ctypes.addressof(block) + 63) // 64 * 64 + AWAY
        self.memory[start] = block
        return start

    def deallocate(self, device: int, address: int) -> None:
        del self.memory[address]

    def copy(
        self, device: int, stream: Any, destination: int, source: int, nbytes: int, kind: CopyKind | int, blocking: bool
    ) -> None:
        to = destination - (AWAY if kind != CopyKind.DEVICE_TO_HOST else 0)
        by = source - (AWAY if kind != CopyKind.HOST_TO_DEVICE else 0)
        ctypes.memmove(to, by, nbytes)

    # ---- programs ----

    def program_supports(self, device: int, source: ProgramSource) -> list[Wish] | None:
        if source.format != "operator" or source.name not in OPERATORS:
            raise NotImplementedError(f"the library has no {source.name}")
        kind = str(source.attributes.get("kind", ""))
        refused = {source.name, f"{source.name} {kind}"} & self.refuses
        if refused or kind not in KINDS.get(source.name, [kind]):
            raise NotImplementedError(f"the library has no {source.name} {kind}".strip())
        tensors = [*source.inputs, *source.outputs]
        if any(t is not None and t.dtype.startswith("complex") for t in tensors):
            raise NotImplementedError("the library has no complex numbers")
        if source.name == "pointwise":
            others = {name: False for name in source.attributes if name not in ("kind", "names")}
            names = str(source.attributes["names"]).split()
            given = {n: t is not None and not t.is_number for n, t in zip(names, source.inputs, strict=True)}
            overload(kind, given | others)
        wish = self.wishes.get(source.name)
        return None if wish is None else [Wish.NONE if t is None else wish for t in tensors]

    def program_create(self, device: int, source: ProgramSource) -> tuple[Prepared, int]:
        if source.name in self.breaks:
            raise CompileError("the library is broken")
        self.prepared += 1
        return Prepared(source), SCRATCH

    def program_run(self, device: int, stream: Any, program: Prepared, addresses: list[int], scratch: int) -> None:
        source = program.source
        views = views_of(source, addresses, AWAY)
        ctypes.memset(scratch - AWAY, 0xA5, SCRATCH)
        write_results(source, views)
        program.runs += 1
        self.log.append(f"{source.name} {source.attributes.get('kind', '')}".strip())


def views_of(source: ProgramSource, addresses: list[int], away: int) -> list[Any]:
    """Inputs and outputs as CPU tensors over the device's memory, whose addresses are so far away from the host's."""
    tensors = [*source.inputs, *source.outputs]
    return [_view(tensor, address, away) for tensor, address in zip(tensors, addresses, strict=True)]


def write_results(source: ProgramSource, views: list[Any]) -> None:
    """Computes the operator."""
    inputs, outputs = views[: len(source.inputs)], views[len(source.inputs) :]
    results = compute(source.name, inputs, source.attributes, outputs)
    for output, result in zip(outputs, results, strict=False):
        if output is not None and result is not None:
            output.copy_(result) if isinstance(result, torch.Tensor) else output.fill_(result)


class GraphDriver(OperatorDriver):
    """The same with graphs of its own, which copy numbers when they are made."""

    def graph_create(self, device: int, commands: list[tuple[str, tuple[Any, ...]]]) -> list[tuple[str, list[Any]]]:
        return [(name, self._kept(*given) if name == "program_run" else list(given)) for name, given in commands]

    def _kept(self, program: Prepared, addresses: list[int], scratch: int) -> list[Any]:
        tensors = [*program.source.inputs, *program.source.outputs]
        places = [
            ctypes.string_at(address, 8) if tensor is not None and tensor.is_number else address
            for tensor, address in zip(tensors, addresses, strict=True)
        ]
        return [program, *places, scratch]

    def graph_set_argument(self, device: int, graph: Any, command: int, argument: int, value: int | bytes) -> None:
        name, arguments = graph[command]
        assert name == "program_run" and type(arguments[1 + argument]) is type(value), (arguments, value)
        arguments[1 + argument] = value

    def graph_launch(self, device: int, stream: Any, graph: Any) -> None:
        for name, arguments in graph:
            if name == "program_run":
                program, *places, scratch = arguments
                numbers = [ctypes.create_string_buffer(p, 8) if isinstance(p, bytes) else p for p in places]
                addresses = [n if isinstance(n, int) else ctypes.addressof(n) for n in numbers]
                arguments = (program, addresses, scratch)
            getattr(self, name)(device, stream, *arguments)

    def graph_destroy(self, device: int, graph: Any) -> None:
        graph.clear()


def _view(tensor: ProgramTensor | None, address: int, away: int) -> Any:
    """A CPU tensor over the device's memory; a number as such."""
    if tensor is None:
        return None
    if tensor.is_number:
        return (ctypes.c_double if tensor.dtype == "float64" else ctypes.c_int64).from_address(address).value
    dtype = getattr(torch, tensor.dtype)
    if math.prod(tensor.sizes) == 0:
        return torch.empty(tensor.sizes, dtype=dtype)
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.sizes, tensor.strides, strict=True))
    itemsize = torch.empty(0, dtype=dtype).element_size()
    flat = torch.frombuffer((ctypes.c_char * (span * itemsize)).from_address(address - away), dtype=dtype)
    return flat.as_strided(tensor.sizes, tensor.strides)
