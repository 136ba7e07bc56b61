"""The rules of programs that are whole graphs, and of programs on disk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from torchgraft.compiler.graph_compilers.languages import importer
from torchgraft.compiler.internals import make_fx
from torchgraft.driver import Capability, CompileError, Driver, ProgramSource
from torchgraft.testing.protocol.bench import Bench, provides
from torchgraft.testing.protocol.checks import Checks
from torchgraft.testing.protocol.operator_calls import Call
from torchgraft.testing.protocol.program_runs import Block, Prepared, prepared, record_of, source_of
from torchgraft.testing.protocol.rules import rule

__all__ = ["ProgramChecks", "from_its_binary", "refuses_foreign_binaries"]

FOREIGN = (b"no binary of this device's", bytes(4096))


def network(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = torch.relu(x @ weight + bias)
    return y, y.sum(1)


def graph_of_network() -> tuple[torch.fx.GraphModule, list[torch.Tensor]]:
    """The network's ops, and what it is given."""
    generator = torch.Generator().manual_seed(5)
    inputs = [torch.randn(shape, generator=generator) for shape in ((4, 6), (6, 5), (5,))]
    return make_fx(network, tracing_mode="fake")(*inputs), inputs


def nodes_of(graph: torch.fx.GraphModule, format: str) -> Iterator[ProgramSource]:
    """What a driver is asked of each node."""
    for node in graph.graph.nodes:
        if node.op == "call_function":
            inputs = tuple(record_of(each.meta["val"]) for each in node.all_input_nodes)
            yield ProgramSource(format, str(node.target), b"", {}, inputs, (record_of(node.meta["val"]),))


def from_its_binary(bench: Bench, program: Prepared) -> None:
    """Raises AssertionError where a program that is loaded again does not do the same."""
    driver = bench.driver
    source = replace(source_of(program.call, program.outputs), data=b"")
    binary = _binary(driver, program)
    loaded, scratch_bytes = driver.program_load(bench.device, source, binary)
    bench.when_closed(lambda: driver.program_destroy(loaded))
    block = Block(bench, replace(program, program=loaded, scratch_bytes=scratch_bytes))
    block.check(block.run(block.allocate()))


def refuses_foreign_binaries(bench: Bench, program: Prepared) -> None:
    """Raises AssertionError where it takes what it has not made, or takes harm."""
    driver = bench.driver
    source = replace(source_of(program.call, program.outputs), data=b"")
    _binary(driver, program)  # or there is none
    for foreign in FOREIGN:
        try:
            driver.program_load(bench.device, source, foreign)
        except Exception:  # of any kind: the program is created then
            continue
        raise AssertionError(f"it has loaded {len(foreign)} bytes that are not its own")
    block = Block(bench, program)
    block.check(block.run(block.allocate()))


def _binary(driver: Driver, program: Prepared) -> bytes:
    if not provides(driver, "program_load"):
        pytest.skip("the driver keeps no programs on disk")
    try:
        return driver.program_binary(program.program)
    except NotImplementedError as error:
        pytest.skip(f"the program has no binary: {error}")


class ProgramChecks(Checks):
    """Checks of graphs, which are skipped where the driver has no `program_formats`."""

    @pytest.fixture
    def bench(self, driver: Driver, count: int) -> Iterator[Bench]:
        if count <= self.device:
            pytest.skip(f"the driver '{driver.name}' finds {count} devices here")
        bench = Bench(driver, self.device, self.busy_bytes)
        bench.need(Capability.PROGRAMS)
        yield bench
        bench.close()

    @pytest.fixture
    def language(self, bench: Bench) -> tuple[str, Any]:
        """The first of the driver's that there is an importer for, and that."""
        if not bench.driver.program_formats:
            pytest.skip("the device has no compiler of graphs")
        try:
            return importer(bench.driver.program_formats)
        except NotImplementedError as error:
            pytest.skip(str(error))

    @pytest.fixture
    def graph(self, bench: Bench, language: tuple[str, Any]) -> Iterator[Prepared]:
        """A program that is a graph of a few ops."""
        traced, inputs = graph_of_network()
        for source in nodes_of(traced, language[0]):
            if (reason := _refusal(bench, source)) is not None:
                pytest.skip(f"the compiler has no {source.name}: {reason}")
        call = Call(
            "a graph",
            list(inputs),
            {},
            torch.float32,
            format=language[0],
            data=language[1].write(traced),
            function=network,
        )
        with prepared(bench, call) as program:
            yield program

    @rule("it is first asked for single nodes of a graph: without bytes, and the name is that of an op of PyTorch's")
    def test_nodes_are_asked_for_without_bytes(self, bench: Bench, language: tuple[str, Any]) -> None:
        """It has each, or says why not; what is no op it has not."""
        nodes = list(nodes_of(graph_of_network()[0], language[0]))
        for source in nodes:
            assert _refusal(bench, source) != "", f"a refusal of {source.name} says why"
        nobodys = replace(nodes[0], name="aten.an_op_that_nobody_has.default")
        assert _refusal(bench, nobodys), "it has an op that nobody has"

    @rule("A description is an operator with its attributes (torchgraft's are in docs/operators.md), or a whole graph")
    def test_a_graph(self, bench: Bench, graph: Prepared) -> None:
        """Beside torch's CPU, and nothing beside its results is written."""
        block = Block(bench, graph)
        bench.keep_busy(bench.stream, rounds=1)
        block.check(block.run(block.allocate()))

    @rule("TG_ERROR_COMPILE means that it should have worked, and `log`, as of module_compile, says why not.")
    def test_bytes_that_are_no_graph(self, bench: Bench, graph: Prepared) -> None:
        source = source_of(graph.call, graph.outputs)
        for data in (b"no graph", source.data[: len(source.data) // 2]):
            with pytest.raises((NotImplementedError, CompileError)) as error:
                bench.driver.program_create(bench.device, replace(source, data=data))
            assert str(error.value), "it says why not"
        block = Block(bench, graph)
        block.check(block.run(block.allocate()))

    @rule("as program_create, of a binary in place of the source's bytes, which are not given")
    def test_a_graph_from_its_binary(self, bench: Bench, graph: Prepared) -> None:
        from_its_binary(bench, graph)

    @rule("It refuses what is no binary of the device's, and the program is created then.")
    def test_no_binary_of_a_graph(self, bench: Bench, graph: Prepared) -> None:
        refuses_foreign_binaries(bench, graph)


def _refusal(bench: Bench, source: ProgramSource) -> str | None:
    """Why the driver has it not; None if it has."""
    try:
        bench.driver.program_supports(bench.device, source)
    except NotImplementedError as error:
        return str(error)
    return None
