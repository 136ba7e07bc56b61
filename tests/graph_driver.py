"""A device with a compiler of graphs, for tests: it reads exported programs, and torch's CPU runs them.

It has the operators of `operator_driver` as well, so that a test can tell what is a part and what an op.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import torch
from operator_driver import AWAY, OperatorDriver, views_of

from torchgraft.driver import CompileError, DeviceProperties, ProgramSource, Wish


@dataclass
class Graph:
    source: ProgramSource
    data: bytes
    function: Any


def is_op(name: str) -> bool:
    """Whether PyTorch has an op of this name, as "aten.add.Tensor"."""
    namespace, op, overload = name.split(".")
    return hasattr(getattr(getattr(torch.ops, namespace), op, None), overload)


def loaded(data: bytes) -> Any:
    """What an exported program computes."""
    try:
        return torch.export.load(io.BytesIO(data)).module()
    except Exception as error:
        raise CompileError(f"this is no exported program: {error}") from None


class GraphDriver(OperatorDriver):
    """See above.

    Attributes:
        refuses_nodes: what it has not of graphs, as "aten.relu.default".
        breaks_graphs: whether it cannot prepare what it says that it takes.
        asked, compiled, loaded: names of nodes that it was asked for, and of graphs that it has prepared.
        keeps: whether its programs have binaries.
    """

    name = "graphs"
    program_formats = ("pt2",)

    def __init__(self) -> None:
        super().__init__()
        self.refuses_nodes: set[str] = set()
        self.breaks_graphs = False
        self.keeps = True
        self.asked: list[str] = []
        self.compiled: list[str] = []
        self.loaded: list[str] = []

    def device_properties(self, device: int) -> DeviceProperties:
        properties = super().device_properties(device)
        properties.driver_version = "1"
        return properties

    def program_supports(self, device: int, source: ProgramSource) -> list[Wish] | None:
        if source.format == "operator":
            return super().program_supports(device, source)
        assert source.format == "pt2"
        assert not source.data
        self.asked.append(source.name)
        if source.name in self.refuses_nodes or not is_op(source.name):
            raise NotImplementedError(f"the compiler has no {source.name}")
        return None

    def program_create(self, device: int, source: ProgramSource) -> tuple[Any, int]:
        if source.format == "operator":
            return super().program_create(device, source)
        if self.breaks_graphs:
            raise CompileError("the compiler is broken")
        self.compiled.append(source.name)
        return self._graph(source, source.data), 64

    def _graph(self, source: ProgramSource, data: bytes) -> Graph:
        for tensor in (*source.inputs, *source.outputs):
            assert tensor is not None
            assert torch.empty(tensor.sizes, device="meta").stride() == tensor.strides  # no language has others
        return Graph(source, data, loaded(data))

    def program_binary(self, program: Any) -> bytes:
        if not self.keeps or not isinstance(program, Graph):
            raise NotImplementedError("it has none")
        return b"graph " + program.data

    def program_load(self, device: int, source: ProgramSource, binary: bytes) -> tuple[Any, int]:
        assert not source.data
        if not binary.startswith(b"graph "):
            raise ValueError("no binary of this device")
        self.loaded.append(source.name)
        return self._graph(source, binary.removeprefix(b"graph ")), 64

    def program_run(self, device: int, stream: Any, program: Any, addresses: list[int], scratch: int) -> None:
        if not isinstance(program, Graph):
            return super().program_run(device, stream, program, addresses, scratch)
        views = views_of(program.source, addresses, AWAY)
        count = len(program.source.inputs)
        with torch.no_grad():
            results = program.function(*views[:count])
        for output, result in zip(views[count:], results, strict=True):
            output.copy_(result)
        self.log.append(program.source.name)
        return None
