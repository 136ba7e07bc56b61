"""Plans: what the core does for a call, decided once in Python."""

from __future__ import annotations

from dataclasses import dataclass

from torchgraft._core import _C
from torchgraft.codegen import Kernel, Pointer, Value, element_type
from torchgraft.codegen.compiler import KernelCompileError
from torchgraft.codegen.compiler import counts as _kernel_counts
from torchgraft.codegen.kernel import parameters
from torchgraft.codegen.teams import Layout, Team
from torchgraft.codegen.walk import Walk
from torchgraft.plans.builder import PlanBuilder
from torchgraft.plans.device import DeviceTraits, device_traits, kernel_form
from torchgraft.plans.host import on_host
from torchgraft.plans.refusals import OtherOut, only, other_out, within
from torchgraft.plans.registry import ENTRIES, composite, planner, recomposed
from torchgraft.plans.scalar import Scalar
from torchgraft.plans.splits import splits
from torchgraft.plans.steps import Unsupported
from torchgraft.plans.trace import decompose, decomposition

__all__ = [
    "ENTRIES",
    "DeviceTraits",
    "Kernel",
    "KernelCompileError",
    "Layout",
    "OtherOut",
    "PlanBuilder",
    "Pointer",
    "Scalar",
    "Stats",
    "Team",
    "Unsupported",
    "Value",
    "Walk",
    "clear",
    "composite",
    "decompose",
    "decomposition",
    "device_traits",
    "element_type",
    "kernel_form",
    "on_host",
    "only",
    "other_out",
    "parameters",
    "planner",
    "recomposed",
    "show",
    "stats",
    "within",
]


@dataclass(frozen=True)
class Stats:
    """What the plan engine has done in this process.

    Attributes:
        plans: plans kept now.
        hits: calls served by a plan that was there.
        misses: calls for which Python made a plan.
        kernels_compiled: kernels compiled from source.
        kernels_loaded: kernels read from the cache on disk.
        graphs: graphs that there are now.
        graph_nodes: commands, marks and waits in them.
        replays: how often graphs were replayed.
        compiled_graphs: programs of torch.compile, or parts of them, that are replayed, each for some sizes of its
            arguments.
        compiled_replays: how often they were.
        compiled_splits: programs of torch.compile that are made of parts, since not all in them can be recorded.
    """

    plans: int
    hits: int
    misses: int
    kernels_compiled: int
    kernels_loaded: int
    graphs: int
    graph_nodes: int
    replays: int
    compiled_graphs: int
    compiled_replays: int
    compiled_splits: int


def stats() -> Stats:
    """Counts over all ops."""
    counts = _C.plan_counts()
    graphs, nodes, replays = _C.graph_counts()
    compiled_graphs, compiled_replays = _C.compiled_counts()
    return Stats(
        plans=sum(c[1] for c in counts),
        hits=sum(c[2] for c in counts),
        misses=sum(c[3] for c in counts),
        kernels_compiled=_kernel_counts.compiled,
        kernels_loaded=_kernel_counts.loaded,
        graphs=graphs,
        graph_nodes=nodes,
        replays=replays,
        compiled_graphs=compiled_graphs,
        compiled_replays=compiled_replays,
        compiled_splits=splits.total(),
    )


def show(op: str, source: bool = False) -> str:
    """The plans of an op as text, to print.

    Args:
        op: an overload's name, such as "aten::add.Tensor"; "add" stands for all overloads.
        source: with the source of their kernels.

    Raises:
        ValueError: no planned op has that name.
    """
    wanted = op if "::" in op else f"aten::{op}"
    names = [name for name, *_ in _C.plan_counts() if name == wanted or name.split(".")[0] == wanted]
    if not names:
        raise ValueError(f"no planned op is called {op}")
    return "".join(plan.describe(source) for name in names for plan in _C.plans_of(name))


def clear() -> None:
    """Forgets all plans; kernels stay compiled."""
    _C.clear_plans()
