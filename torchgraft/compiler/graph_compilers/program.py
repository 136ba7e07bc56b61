"""A part of a graph as one call, which plans a run of a program of the device's for each set of sizes."""

from __future__ import annotations

import hashlib
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_aggregate

from torchgraft._core import _C
from torchgraft.codegen.cache import KernelCache
from torchgraft.compiler.fused import FusedOps
from torchgraft.compiler.graph_compilers.importer import Importer
from torchgraft.compiler.internals import FakeTensorMode, make_fx
from torchgraft.compiler.outline import boxed, is_free
from torchgraft.plans.builder import PlanBuilder
from torchgraft.plans.programs import ELEMENTS, add_run, created, found, key_on_disk, record_of_tensor
from torchgraft.plans.registry import Options, register
from torchgraft.plans.steps import Unsupported

__all__ = ["GraphProgram", "Made"]

_Result = TypeVar("_Result")

torch.library.define("torchgraft::graph", "(Tensor[] inputs, int graph, int[] sizes) -> Tensor[]")


@dataclass
class Made:
    """What became of a part for one set of sizes.

    Attributes:
        seconds: that it took to write the graph and to prepare the program.
        why_not: why it runs op by op; empty if it does not.
    """

    seconds: float = 0.0
    why_not: str = ""


@dataclass
class Language:
    """How parts become programs: a language with its importer, and for how many sets of sizes."""

    name: str
    importer: Importer
    most_sizes: int


class GraphProgram(FusedOps):
    """Ops that a device's compiler makes one program of, as `FusedOps` are for the plan engine.

    Args:
        graph: of the ops. All its tensors are on one device; others are integers.
        constants: values of inputs that the program has for constants, by the inputs' names.

    Attributes:
        made: what has become of it.
        ops: how many of its nodes compute something.
    """

    __name__ = "graph"

    def __init__(
        self, graph: Graph, device: int, language: Language, name: str, constants: dict[str, torch.Tensor]
    ) -> None:
        text = str(graph)  # before the graph's own text changes
        self._cpus = boxed(_on_the_cpu(graph))
        super().__init__(graph, device)
        self.op = torch.ops.torchgraft.graph.default
        self.name, self.made = name, list[Made]()
        self.ops = sum(not is_free(node) for node in graph.nodes if node.op == "call_function")
        self._text, self._language = text, language
        self._constants = {node: constants[node.name] for node in self._inputs if node.name in constants}
        self._results_of: dict[str, list[tuple[tuple[int, ...], torch.dtype]]] = {}
        _known[self._number] = self

    # ---- what the plan engine asks ----

    def result_specs(self, tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> list[torch.Tensor]:
        key = repr(([(tuple(each.shape), each.dtype) for each in tensors], list(sizes)))
        if key not in self._results_of:
            values = _apart(lambda: self._fake_results(tensors, sizes))
            self._results_of[key] = [(tuple(each.shape), each.dtype) for each in values]
        return [torch.empty(shape, dtype=dtype, device="meta") for shape, dtype in self._results_of[key]]

    def _fake_results(self, tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> Sequence[torch.Tensor]:
        with FakeTensorMode():
            return self._cpus(self._joined([_on_cpu(each) for each in tensors], sizes))

    def plan(
        self, p: PlanBuilder, outs: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor], sizes: Sequence[int]
    ) -> None:
        made = Made()
        self.made.append(made)
        begun = time.perf_counter()
        try:
            if len(self.made) > self._language.most_sizes:
                raise Unsupported(f"there are programs for {self._language.most_sizes} sets of sizes already")
            self._plan(p, outs, tensors, sizes)
        except Unsupported as why:
            made.why_not = str(why)
            raise
        finally:
            made.seconds = time.perf_counter() - begun

    # ---- how the program is made ----

    def _plan(
        self,
        p: PlanBuilder,
        outs: Sequence[torch.Tensor],
        tensors: Sequence[torch.Tensor],
        sizes: Sequence[int],
    ) -> None:
        if any(0 in each.shape for each in [*tensors, *outs]):
            raise Unsupported("a tensor without elements")
        given = [_contiguous(p, spec) for spec, node in zip(tensors, self._tensor_inputs(), strict=True)
                 if node not in self._constants]  # fmt: skip
        records = [record_of_tensor(each) for each in given], [record_of_tensor(each) for each in outs]
        facts = [(tuple(each.shape), str(each.dtype)) for each in tensors]
        key = repr((self._text, facts, list(sizes), self._language.name, self._language.importer.version()))
        key += "".join(f", {node.name}: {_digest(value)}" for node, value in self._constants.items())
        program: _C.Program | str | None = found(self.device, self._source(records, b""), key)
        if program is None:
            written = self._written(tensors, sizes, key)
            program = created(self.device, self.name, self._source(records, written), key)
        if isinstance(program, str):
            raise Unsupported(program)
        add_run(p, program, [*given, *outs])

    def _source(self, records: tuple[list[Any], list[Any]], written: bytes) -> _C.ProgramSource:
        return _C.ProgramSource(self._language.name, self.name, written, {}, *records)

    def _written(self, tensors: Sequence[torch.Tensor], sizes: Sequence[int], key: str) -> bytes:
        """The graph in the language, which takes most of the time: kept on disk as well."""
        disk, name = KernelCache(), key_on_disk(self.device, "graph", key)
        found = disk.read(name)
        if found is not None:
            return found
        try:
            written = _apart(lambda: self._language.importer.write(self._static(tensors, sizes)))
        except Exception as error:  # of others: the ops run one by one instead
            raise Unsupported(f"it cannot be written in {self._language.name}: {_first_line(error)}") from error
        disk.write(name, written)
        return written

    def _static(self, tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> torch.fx.GraphModule:
        """The ops for these sizes, of fake tensors on the CPU. Constants are tensors of the module."""
        given = dict(zip(self._tensor_inputs(), tensors, strict=True))
        variable = [node for node in given if node not in self._constants]
        constants = {node: value.detach().cpu().contiguous() for node, value in self._constants.items()}
        rest = iter(sizes)
        numbers = {node: next(rest) for node in self._inputs if node not in given}

        def run(*values: torch.Tensor) -> list[Any]:
            known = numbers | constants | dict(zip(variable, values, strict=True))
            return list(self._cpus([known[node] for node in self._inputs]))

        with FakeTensorMode(allow_non_fake_inputs=True):
            fakes = [_on_cpu(given[node]) for node in variable]
            return make_fx(run)(*fakes)

    def _tensor_inputs(self) -> list[Node]:
        return [node for node, is_tensor in zip(self._inputs, self._are_tensors, strict=True) if is_tensor]


_known: weakref.WeakValueDictionary[int, GraphProgram] = weakref.WeakValueDictionary()


def _apart(function: Callable[[], _Result]) -> _Result:
    """Calls a function in a thread of its own, where nothing is set of what a call of an op has set for this one:
    dispatch keys, modes, what is being traced. Tracers do not see ops otherwise."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(function).result()


def _on_the_cpu(graph: Graph) -> Graph:
    """The same ops there, by which results' sizes are found and programs are written."""
    copy = Graph()
    copy.output(copy.graph_copy(graph, {}))
    cpu = torch.device("cpu")
    for node in copy.nodes:
        node.args = map_aggregate(node.args, lambda each: cpu if isinstance(each, torch.device) else each)
        node.kwargs = map_aggregate(node.kwargs, lambda each: cpu if isinstance(each, torch.device) else each)
    return copy


def _on_cpu(spec: torch.Tensor) -> torch.Tensor:
    return torch.empty(spec.shape, dtype=spec.dtype, device="cpu")


def _contiguous(p: PlanBuilder, spec: torch.Tensor) -> torch.Tensor:
    """Languages of graphs have no strides."""
    if spec.dtype not in ELEMENTS:
        raise Unsupported(f"elements of {spec.dtype}")
    if spec.is_contiguous() and not spec.is_conj() and not spec.is_neg():
        return spec
    copy = p.empty_like(spec)
    p.copy(copy, spec)
    return copy


def _digest(value: torch.Tensor) -> str:
    return hashlib.sha256(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()).hexdigest()


def _first_line(error: BaseException) -> str:
    """Of what is at the bottom of it."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def _result_specs(inputs: list[torch.Tensor], graph: int, sizes: Sequence[int]) -> list[torch.Tensor]:
    return _known[graph].result_specs(inputs, sizes)


def _plan(
    p: PlanBuilder, out: list[torch.Tensor], inputs: list[torch.Tensor], graph: int, sizes: Sequence[int]
) -> None:
    _known[graph].plan(p, out, inputs, sizes)


def _run_op_by_op(inputs: list[torch.Tensor], graph: int, sizes: list[int]) -> list[torch.Tensor]:
    return list(_known[graph].run_op_by_op(inputs, sizes))


def install() -> None:
    """Gives the device the op."""
    register("torchgraft::graph", _plan, Options(meta=_result_specs, op_by_op=_run_op_by_op))


install()
