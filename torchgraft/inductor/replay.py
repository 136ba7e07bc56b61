"""The programs that inductor generates are recorded and replayed: `torchgraft.compiler.replay`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchgraft.compiler.replay import Program, Replayed, refusals, refuse, splits
from torchgraft.inductor.runtime import kernels_of

__all__ = ["Replayed", "refusals", "replayed", "splits"]


def replayed(
    program: Program,
    names: Mapping[str, Any],
    runner: Any = None,
    why_not: str = "",
    op_by_op: Program | None = None,
) -> Program:
    """What a generated program puts in the place of its entry.

    Args:
        program: the entry.
        names: the program's names, its kernels among them.
        runner: inductor's, which has the functions that the entry calls, if the program is split.
        why_not: what in it cannot be recorded; then what the entry calls is recorded.
        op_by_op: what is called where a kernel does not compile.
    """
    if runner is not None:
        runner.recursively_apply_fns([Replayed] * len(runner.partitions))
    if why_not:
        if runner is not None:
            splits[why_not] += 1
        refuse(why_not)
    return Replayed(program, runner is not None, not why_not, kernels_of(names), op_by_op)
