"""The ops that are translated, and the translation of a whole kernel."""

from __future__ import annotations

from collections.abc import Callable

from torchgraft.triton import loops, memory, products, reports
from torchgraft.triton.ir import Function, Op
from torchgraft.triton.translate import Translator

__all__ = ["METHODS", "translated"]

#: What translates ops, beside arithmetic.
METHODS: dict[str, Callable[[Translator, Op], None]] = {
    "arith.constant": Translator.constant,
    "scf.for": loops.for_loop,
    "scf.if": loops.if_else,
    "scf.while": loops.while_loop,
    "tt.addptr": Translator.addptr,
    "tt.assert": reports.device_assert,
    "tt.atomic_cas": memory.atomic_cas,
    "tt.atomic_rmw": memory.atomic_rmw,
    "tt.broadcast": Translator.broadcast,
    "tt.cat": Translator.cat,
    "tt.dot": products.dot,
    "tt.expand_dims": Translator.expand_dims,
    "tt.gather": Translator.gather,
    "tt.get_num_programs": Translator.program_id,
    "tt.get_program_id": Translator.program_id,
    "tt.histogram": Translator.histogram,
    "tt.join": Translator.join_blocks,
    "tt.load": Translator.load,
    "tt.make_range": Translator.range,
    "tt.print": reports.device_print,
    "tt.reduce": Translator.reduce,
    "tt.reshape": Translator.reshape,
    "tt.scan": Translator.scan,
    "tt.splat": Translator.splat,
    "tt.split": Translator.split,
    "tt.store": Translator.store,
    "tt.trans": Translator.trans,
    "tt.unsplat": Translator.unsplat,
    "ub.poison": Translator.poison,
}


def translated(function: Function, apart: bool) -> Translator:
    """A kernel's text, see `Translator`."""
    translator = Translator(function, apart, METHODS)
    blocks = function.body.blocks
    if len(blocks) == 1:
        translator.block(blocks[0])
    else:
        loops.branches(translator, function.body, blocks[0], [])
    translator.close()
    return translator
