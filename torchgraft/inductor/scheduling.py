"""Inductor's fused nodes to kernels, and the program that launches them."""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from typing import Any

import sympy
import torch
from torch._inductor import config, ir
from torch._inductor.codegen.common import BackendFeature
from torch._inductor.codegen.simd import SIMDScheduling
from torch._inductor.codegen.wrapper import PythonWrapperCodegen, SubgraphPythonWrapperCodegen
from torch._inductor.utils import IndentedBuffer, aggregate_origins, get_fused_kernel_name
from torch._inductor.virtualized import V
from torch.fx.experimental.symbolic_shapes import free_symbols
from torch.utils._ordered_set import OrderedSet

from torchgraft import backend
from torchgraft.codegen.kernel import Kernel, Pointer
from torchgraft.inductor import options, triton_text, versions
from torchgraft.inductor.kernels import GeneratedKernel
from torchgraft.inductor.lists import Lists, Member, launches, of_list
from torchgraft.inductor.op_by_op import described
from torchgraft.inductor.splitting import SplitPrograms, why_not_recorded

__all__ = ["Scheduling", "Wrapper"]


class Scheduling(SplitPrograms, SIMDScheduling):
    """Makes kernels of what inductor has fused."""

    kernel_type = GeneratedKernel

    def __init__(self, scheduler: Any) -> None:
        super().__init__(scheduler)
        self._lists = Lists(scheduler)
        self._members: list[Member] | None = None  # of the list whose kernels are generated, if it is one

    def get_backend_features(self, device: torch.device) -> OrderedSet[BackendFeature]:
        versions.check_compiler(device)
        return OrderedSet([BackendFeature.INPLACE_BUFFERS, BackendFeature.FOREACH])

    def can_fuse(self: Any, node1: Any, node2: Any) -> bool:
        return not self._lists.mixes_members(node1, node2) and SIMDScheduling.can_fuse(self, node1, node2)

    can_fuse_vertical = can_fuse
    can_fuse_horizontal = can_fuse

    def codegen_node_schedule(self: Any, kernel_features: Any) -> None:
        """As the base class does it, for one kernel that is data and not text."""
        member = self._generated(kernel_features)
        if self._members is not None:
            self._members.append(member)
            return
        self._call(member)
        self.free_buffers_in_scheduler()

    def codegen_combo_kernel(self: Any, combo_kernel_node: Any) -> None:
        """Kernels that have nothing to do with each other, of a list of tensors say: in few launches."""
        members: list[Member] = []
        self._members = members
        try:
            for node in combo_kernel_node.get_subkernel_nodes():
                self.codegen_node(node)
        finally:
            self._members = None
        for tensors, together in launches(members):
            if tensors == 1:
                self._call(together[0])
            else:
                self._call_list(together, tensors)
        self.free_buffers_in_scheduler()

    def _generated(self: Any, kernel_features: Any) -> Member:
        """A kernel with all nodes in it; the program has the memory of what it writes."""
        schedule = kernel_features.node_schedule
        tiling = {"x": kernel_features.numel}
        if kernel_features.is_reduction():
            tiling["r0_"] = kernel_features.reduction_numel
        tiling, scores = self.get_tiling_and_scores(
            schedule, kernel_features.numel, kernel_features.reduction_numel, kernel_features.coalesce_analysis
        )
        kernel = GeneratedKernel(tiling, features=kernel_features, tiling_scores=scores)
        self.codegen_node_schedule_with_kernel(schedule, kernel)
        with V.set_kernel_handler(kernel):
            text, given = kernel.text(), kernel.given()
            for node in kernel_features.scheduler_nodes():
                node.mark_run()
        V.graph.removed_buffers |= kernel.removed_buffers
        V.graph.inplaced_to_remove |= kernel.inplaced_to_remove
        pointers = zip(given, text.parameters[: len(given)], strict=True)
        written = frozenset(name for name, each in pointers if isinstance(each, Pointer) and not each.const)
        return Member(kernel, text, schedule, tuple(given), written)

    def _call(self: Any, member: Member) -> None:
        kernel, schedule = member.kernel, member.schedule
        with V.set_kernel_handler(kernel):
            name = self._defined(_written(member.text.kernel(_name_of(schedule)), kernel), schedule)
            self.codegen_comment([node for node in schedule if hasattr(node, "get_name")], name)
            kernel.call_kernel(name)

    def _call_list(self: Any, members: Sequence[Member], tensors: int) -> None:
        first = members[0]
        schedule = [node for member in members for node in member.schedule]
        made = of_list(first.text, _name_of(first.schedule), tensors)
        with V.set_kernel_handler(first.kernel):
            name = self._defined(_written(made, first.kernel, tensors), schedule)
            self.codegen_comment([node for node in schedule if hasattr(node, "get_name")], name)
            given = [f"({''.join(f'{each}, ' for each in member.called)})" for member in members]
            given.append(f"sizes=({', '.join(member.kernel.sizes_given() for member in members)})")
            V.graph.wrapper_code.generate_kernel_call(
                name, given, device=V.graph.get_current_device_or_throw(), triton=False
            )

    def _defined(self, text: str, schedule: Sequence[Any]) -> str:
        """The name under which the program has the kernel that a text makes."""
        wrapper = V.graph.wrapper_code
        known: dict[str, str] = wrapper.src_to_kernel
        if text not in known:
            known[text] = name = f"tg_kernel_{wrapper.next_kernel_suffix()}"
            wrapper.define_kernel(name, f"{text[:-1]}, origin={_origin_of(schedule)!r})", gpu=False)
        return known[text]


class Wrapper(PythonWrapperCodegen):
    """The program around the kernels, in Python."""

    @staticmethod
    def create(
        is_subgraph: bool, subgraph_name: str | None, parent_wrapper: Any, partition_signatures: Any = None
    ) -> PythonWrapperCodegen:
        made: Any = _SubgraphWrapper if is_subgraph else Wrapper
        return made(subgraph_name, parent_wrapper, partition_signatures) if is_subgraph else made()  # type: ignore[no-any-return]

    def write_header(self) -> None:
        super().write_header()
        self.imports.writeline("from torchgraft.inductor.runtime import compile_ahead as tg_compile_ahead")
        self.imports.writeline("from torchgraft.inductor.runtime import generated as tg_generated")
        self.imports.writeline("from torchgraft.inductor.runtime import without_effect as tg_without_effect")
        self.imports.writeline("from torchgraft.inductor.replay import replayed as tg_replayed")
        self.imports.writeline("from torchgraft.inductor.op_by_op import OpByOp as tg_op_by_op")
        for name in ("triton_dtype", "triton_kernel", "triton_loops"):
            self.imports.writeline(f"from torchgraft.inductor.triton_calls import {name} as tg_{name}")

    def write_async_compile_wait(self: Any) -> None:
        """All kernels of the program are known there."""
        self.prefix.writeline("tg_compile_ahead(globals())")
        PythonWrapperCodegen.write_async_compile_wait(self)

    def generate_after_suffix(self: Any, result: IndentedBuffer) -> None:
        PythonWrapperCodegen.generate_after_suffix(self, result)
        has_parts = options.record and bool(getattr(self, "all_partition_names", ()))
        parts = "runner" if has_parts else "None"
        why_not = why_not_recorded(V.graph.operations) if options.record else "its option says so"
        op_by_op = described(V.graph.module, V.graph.constants, list(map(_strides_of, V.graph.graph_outputs)))
        result.writeline(f"call = tg_replayed(call, globals(), {parts}, {why_not!r}, {op_by_op})")
        if given := [name for name in _WITHOUT_EFFECT if _option(name)]:
            result.writeline(f"tg_without_effect({given!r})")

    def make_allocation(
        self,
        name: str,
        device: torch.device,
        dtype: torch.dtype,
        shape: Any,
        stride: Any,
        allocation_shape: Any = None,
        is_pinned: bool = False,
    ) -> str:
        if device.type != backend.name():
            base: Any = super()
            return str(base.make_allocation(name, device, dtype, shape, stride, allocation_shape, is_pinned))
        size, allocated, strides = map(
            self.codegen_python_shape_tuple, (shape, shape if allocation_shape is None else allocation_shape, stride)
        )
        text = f"{name} = empty_strided({allocated}, {strides}, device='{device}', dtype={dtype})"
        return text if size == allocated else f"{text}.as_strided({size}, {strides})"

    def generate_kernel_call(
        self: Any, kernel_name: str, call_args: Any, *, device: Any = None, triton: bool = True, **options: Any
    ) -> None:
        device = device or V.graph.get_current_device_or_throw()
        if device.type == backend.name():
            if triton:
                call_args = self.prepare_triton_kernel_call(call_args)
                if (names := options.get("raw_keys")) is not None:  # a user's kernel
                    call_args = _by_name(call_args, names, options["raw_args"])
            self.writeline(self.wrap_kernel_call(kernel_name, call_args))
        else:
            PythonWrapperCodegen.generate_kernel_call(
                self, kernel_name, call_args, device=device, triton=triton, **options
            )

    def define_user_defined_triton_kernel(
        self: Any,
        kernel: Any,
        configs: Any,
        kwargs: Any,
        restore_value_args: Any,
        reset_to_zero_args: Any,
        grids: Any,
        epilogue_fusion: Any,
        *others: Any,
    ) -> tuple[str, Any, Any, list[Any]]:
        """The name under which the program has a Triton kernel, nothing twice, and the grids one after the other."""
        if V.graph.get_current_device_or_throw().type != backend.name():
            made: tuple[str, Any, Any, list[Any]] = PythonWrapperCodegen.define_user_defined_triton_kernel(
                self, kernel, configs, kwargs, restore_value_args, reset_to_zero_args, grids, epilogue_fusion, *others
            )
            return made
        definition = triton_text.defined(
            kernel, configs, kwargs, restore_value_args, reset_to_zero_args, epilogue_fusion
        )
        known: dict[str, str] = self.src_to_kernel
        if definition.text not in known:
            known[definition.text] = name = f"tg_triton_{self.next_kernel_suffix()}"
            self.define_kernel(name, definition.text, gpu=False)
        kept = grids if len(grids) == 1 else [grids[place] for place in definition.kept]
        return known[definition.text], {}, {}, [sympy.sympify(size) for grid in kept for size in grid]

    def write_triton_header_once(self) -> None:  # type: ignore[override]
        """What torch's launcher of Triton's kernels needs, which is not used here."""


def _by_name(texts: Sequence[str], names: Sequence[str], values: Sequence[Any]) -> list[str]:
    """Arguments of a call: the sizes of grids, which have no names, three at a time, and what has a name."""
    sizes = [text for text, name in zip(texts, names, strict=True) if not name]
    named = [
        f"{name}={'None' if value is None else text}"
        for text, name, value in zip(texts, names, values, strict=True)
        if name
    ]
    return [*(f"({', '.join(sizes[first : first + 3])})" for first in range(0, len(sizes), 3)), *named]


def _strides_of(result: Any) -> tuple[list[int], bool] | None:
    """Of a program's result, and whether they are numbers: else they are those of sizes like what it was compiled for.
    None where it is none with memory of its own."""
    strides = result.maybe_get_stride() if isinstance(result, ir.IRNode) else None
    if strides is None:
        return None
    found = [int(each) for each in V.graph.sizevars.optimization_hints(strides, fallback=1)]
    return None if 0 in found else (found, all(isinstance(each, (int, sympy.Integer)) for each in strides))


# Options that modes set, and that change nothing here.
_WITHOUT_EFFECT = ("max_autotune", "max_autotune_gemm", "coordinate_descent_tuning", "triton.cudagraphs")


def _option(name: str) -> bool:
    return bool(operator.attrgetter(name)(config))


class _SubgraphWrapper(SubgraphPythonWrapperCodegen, Wrapper):
    """The same for a graph within a graph, or a part of one, which has no head of its own."""

    def codegen_input_symbol_assignment(
        self: Any, name: str, value: Any, bound_vars: OrderedSet[sympy.Symbol], *args: Any, **options: Any
    ) -> None:
        """Also for symbols that have a value, or an expression, since sizes were traced: a part is given what that has
        in it, and the sizes of its inputs have the symbols themselves. torch 2.13 to 2.15 (scheduler.py,
        `Scheduler.get_graph_partition_symbol_inputs`)."""
        SubgraphPythonWrapperCodegen.codegen_input_symbol_assignment(self, name, value, bound_vars, *args, **options)
        if not isinstance(value, ir.TensorBox):
            return
        for symbol in free_symbols([value.get_size(), value.get_stride()]) - bound_vars:
            replaced = V.graph.sizevars.simplify(symbol)
            if replaced != symbol:
                self.prefix.writeline(f"{symbol} = {self.codegen_python_sizevar(replaced)}")
                bound_vars.add(symbol)


# Longer names than this are cut: some compilers make a file of a kernel's name.
_LONGEST_NAME = 100


def _name_of(schedule: Sequence[Any]) -> str:
    """Of the ops that are fused: what a profile shows."""
    name = re.sub(r"\W", "_", get_fused_kernel_name(schedule, "original_aten"))
    return f"tg_{name}"[:_LONGEST_NAME]


# What an error says of the nodes and lines that a kernel was made of, at most.
_MOST_SAID = 12


def _origin_of(schedule: Sequence[Any]) -> str:
    """The graph's nodes, and where the user's program has what they do."""
    nodes = sorted(node for node in aggregate_origins(schedule) if node.op == "call_function")
    frames = re.findall(r'File "(.+)", line (\d+), in (.+)\n\s*(.*)', "\n".join(_last_frame(node) for node in nodes))
    lines = [f"  {file}:{line} in {function}: {text}" for file, line, function, text in dict.fromkeys(frames)]
    names = ", ".join(node.name for node in nodes[:_MOST_SAID])
    return "\n".join([f"  nodes {names}", *lines[:_MOST_SAID]])


def _last_frame(node: torch.fx.Node) -> str:
    trace = node.stack_trace or ""
    return trace[trace.rfind("  File ") :] if trace else ""


def _written(kernel: Kernel, generated: GeneratedKernel, tensors: int = 0) -> str:
    """The Python text that makes the kernel, of a list of so many tensors if it is one."""
    parts = []
    for parameter in kernel.params:
        pointer = isinstance(parameter, Pointer)
        const = "const " if isinstance(parameter, Pointer) and parameter.const else ""
        parts.append(f"{const}{parameter.type}{'*' if pointer else ''} {parameter.name}")
    body = kernel.body.replace("\\", "\\\\").replace("'''", "\\'\\'\\'")
    options = f"form={generated.form!r}, rank={len(generated.sizes)}, cost={generated.cost}, local={kernel.local!r}"
    if index := V.graph.get_current_device_or_throw().index:
        options += f", device={index}"
    if generated.serial:
        options += ", serial=True"
    if generated.has_reduction:
        options += ", multiple=1"
    if generated.team is not None:
        options += ", together=True"
    if generated.messages:
        options += f", messages={generated.messages!r}"
    if tensors:
        options += f", tensors={tensors}"
    if kernel.helpers:
        options += f", helpers={kernel.helpers!r}"
    return f"tg_generated({kernel.name!r}, {'; '.join(parts)!r}, {options}, body='''\n{body}''')"
