"""Passes: what transforms take in one launch, and the launches of one pass, and of two that go plane by plane."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torchgraft.codegen import ceil_div
from torchgraft.kernels.fft.kernel import line_kernel
from torchgraft.kernels.fft.lines import Lines, lanes
from torchgraft.ops.fft import twiddles
from torchgraft.ops.fft.problem import Transform
from torchgraft.ops.fft.radices import RowStages, packed, radices_of


@dataclass(frozen=True)
class Pass:
    """Lines that are read, transformed and written.

    Attributes:
        lines: with a batch of few dimensions.
        stages: how vectors go along the lines; otherwise they go across them.
        local: the longest line for which a GPU's group has local memory; 0: it has none.
    """

    lines: Transform
    stages: RowStages | None = None
    local: int = 0

    @property
    def kinds(self) -> Lines:
        t = self.lines
        return Lines(t.source.kind, t.target.kind, len(t.batch), self.stages.along if self.stages else None)

    @property
    def together(self) -> int:
        """Lines that a work-item takes at once."""
        return self.stages.along.lines if self.stages else lanes(self.lines.name, self.lines.p.form)

    @property
    def room(self) -> int:
        """Elements of scratch that a group has."""
        t = self.lines
        if self.stages:
            return self.stages.along.room(t.length)
        line = t.n if t.length == t.n else max(t.length + 1, t.target.length)
        return 4 * line * self.together

    @property
    def arguments(self) -> dict[str, Any]:
        """Those of a kernel that are the lines' own."""
        t, n, stages = self.lines, self.lines.length, self.stages
        radices = stages.radices if stages else radices_of(n, t.p.form)
        if stages:
            table = t.table(twiddles.of_rows, n, stages.along.twiddle_lines, int(t.source.kind == "pairs"), *radices)
        else:
            table = t.table(twiddles.of_a_line, t.n)
        low, high = packed(radices)
        return {
            **t.source.arguments("source"),
            **t.target.arguments("target"),
            **{f"size{d}": size for d, size in enumerate(t.batch)},
            "twiddles": table,
            "before": t.source.factors,
            "after": t.target.factors,
            "n": n,
            "finer": 0 if stages else t.n // n,
            "lines": t.count,
            "parts": t.parts,
            "full": t.full,
            "low": low,
            "high": high,
            "scale": t.scale,
            "backward": int(t.backward),
            **({"spectrum": t.spectrum} if t.is_cpu else {}),
        }

    def launch(self) -> None:
        t, p = self.lines, self.lines.p
        groups = t.sizes.groups * p.device.compute_units
        if not t.is_cpu:
            groups = t.count if self.local else min(t.count, t.sizes.gpu_groups * p.device.compute_units)
        grid = p.partitioner.share(ceil_div(t.count, self.together), groups)
        p.launch(
            line_kernel(t.name, self.kinds, p.form, self.local),
            grid,
            **self.arguments,
            scratch=None if self.local else p.empty((*grid.groups, self.room), t.type_),
            **({"room": self.room} if t.is_cpu else {}),
        )
