"""The ops that are translated, and the translation of a whole kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torchgraft.triton import loops, memory, products, reports
from torchgraft.triton.ir import Function, Op, walk
from torchgraft.triton.team import TeamTranslator
from torchgraft.triton.translate import Translator

__all__ = ["METHODS", "Group", "translated"]

#: What translates ops, beside arithmetic: functions, or names of the translator's methods.
METHODS: dict[str, str | Callable[[Translator, Op], None]] = {
    "arith.constant": "constant",
    "gpu.barrier": "barrier",
    "scf.for": loops.for_loop,
    "scf.if": loops.if_else,
    "scf.while": loops.while_loop,
    "tt.addptr": "addptr",
    "tt.assert": reports.device_assert,
    "tt.atomic_cas": memory.atomic_cas,
    "tt.atomic_rmw": memory.atomic_rmw,
    "tt.broadcast": "broadcast",
    "tt.cat": "cat",
    "tt.debug_barrier": "barrier",
    "tt.dot": products.dot,
    "tt.expand_dims": "expand_dims",
    "tt.gather": "gather",
    "tt.get_num_programs": "program_id",
    "tt.get_program_id": "program_id",
    "tt.histogram": "histogram",
    "tt.join": "join_blocks",
    "tt.load": "load",
    "tt.make_range": "range",
    "tt.print": reports.device_print,
    "tt.reduce": "reduce",
    "tt.reshape": "reshape",
    "tt.scan": "scan",
    "tt.splat": "splat",
    "tt.split": "split",
    "tt.store": "store",
    "tt.trans": "trans",
    "tt.unsplat": "unsplat",
    "ttg.barrier": "barrier",
    "ttg.local_barrier": "barrier",
    "ub.poison": "poison",
}


def translated(function: Function, apart: bool, group: Group | None, lanes: int) -> Translator:
    """A kernel's text, see `Translator`.

    Args:
        group: the work-items that a program has; None if it is one that loops.
        lanes: float32 elements of the vectors that it then has.
    """
    items = 1 if group is None else _items(function, group)
    if group is None or items == 1:
        translator = Translator(function, apart, METHODS, lanes)
    else:
        translator = TeamTranslator(function, apart, METHODS, items, group.local_bytes)
    blocks = function.body.blocks
    if len(blocks) == 1:
        translator.block(blocks[0])
    else:
        loops.branches(translator, function.body, blocks[0], [])
    translator.close()
    return translator


@dataclass(frozen=True)
class Group:
    """What a program may have of a GPU.

    Attributes:
        items: work-items, at most.
        local_bytes: of local memory.
    """

    items: int
    local_bytes: int


def _items(function: Function, group: Group) -> int:
    """As many work-items as the largest block has elements, a power of two."""
    sizes = [value.type.size for op in walk(function.body) for value in op.results]
    return 1 << (min(group.items, max(sizes, default=1)).bit_length() - 1)
