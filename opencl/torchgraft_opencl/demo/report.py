"""The tables at the end, and whether all is well."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from rich.table import Column, Table

from torchgraft_opencl.demo.task import Task
from torchgraft_opencl.demo.training import Run

# The loss curves are compared over so many steps. They cannot agree for ever: devices round differently, and every
# step of training amplifies the difference.
COMPARED_STEPS = 10
# By the type of mixed precision; with one, ten steps have amplified a rounding of 1e-3 or 8e-3.
AGREEMENT = {None: 1e-5, torch.float16: 5e-2, torch.bfloat16: 5e-2}


@dataclass
class Comparison:
    """One task on the device and, unless left out, on the CPU."""

    task: Task
    device: Run
    cpu: Run | None
    amp: torch.dtype | None = None  # of the run on the device; the CPU's is in float32

    def difference(self) -> float | None:
        """The largest relative difference of the two loss curves over their first steps."""
        if self.cpu is None:
            return None
        pairs = zip(self.device.losses[:COMPARED_STEPS], self.cpu.losses[:COMPARED_STEPS], strict=True)
        return max(abs(ours - theirs) / abs(theirs) for ours, theirs in pairs)


@dataclass
class Work:
    """What the toolkit counted while the device trained."""

    hits: int
    misses: int
    kernels_compiled: int
    kernels_loaded: int
    fallbacks: int

    @staticmethod
    def so_far() -> Work:
        import torchgraft

        stats = torchgraft.plans.stats()
        return Work(
            hits=stats.hits,
            misses=stats.misses,
            kernels_compiled=stats.kernels_compiled,
            kernels_loaded=stats.kernels_loaded,
            fallbacks=torchgraft.fallback_report().calls,
        )


def results_table(comparisons: list[Comparison]) -> Table:
    """Each task on the device beside the CPU."""
    columns = [(each, run) for each in comparisons for run in (each.device, each.cpu) if run]
    table = Table("", *(Column(f"{each.task.name}\n{run.device}", justify="right") for each, run in columns))

    def row(label: str, describe: Callable[[Run], str]) -> None:
        table.add_row(label, *(describe(run) for _, run in columns))

    row("training loss, first step", lambda run: f"{run.losses[0]:.6f}")
    row("training loss, last step", lambda run: f"{run.losses[-1]:.4f}")
    row("held-out loss", lambda run: f"{run.held_out_loss:.4f}")
    row("held-out accuracy", lambda run: f"{run.accuracy:.2%}")
    row("training time", lambda run: f"{run.seconds:.2f} s")
    return table


def work_table(work: Work) -> Table:
    """How the device did it."""
    table = Table("the device's work", Column("", justify="right"))
    table.add_row("plans made", f"{work.misses:,}")
    table.add_row("calls served by a plan", f"{work.hits:,}")
    table.add_row("kernels compiled", f"{work.kernels_compiled:,}")
    table.add_row("kernels from the cache on disk", f"{work.kernels_loaded:,}")
    table.add_row("fallbacks to the CPU", f"{work.fallbacks:,}")
    return table


def complaints(comparisons: list[Comparison], work: Work | None) -> list[str]:
    """What is not as it should be."""
    found = []
    for each in comparisons:
        difference, most = each.difference(), AGREEMENT[each.amp]
        if difference is not None and not difference <= most:
            found.append(
                f"{each.task.name}: the loss curves differ by {difference:.1e}; at most {most:.0e} is rounding"
            )
        if each.device.accuracy < each.task.least_accuracy:
            least = f"{each.task.least_accuracy:.0%}"
            found.append(f"{each.task.name}: accuracy is {each.device.accuracy:.2%}, and should be {least} or more")
    if work is not None and work.fallbacks:
        found.append(f"{work.fallbacks} operations fell back to the CPU; torchgraft.fallback_report() tells which")
    return found


def describe_device(device: torch.device) -> str:
    """The device's full name."""
    module = torch.get_device_module(device)
    if device.type == "cpu" or not hasattr(module, "get_device_properties"):
        return str(device)
    properties = module.get_device_properties(device)
    return f"{device} is {properties.name} ({properties.platform})"
