"""Accumulators: blocks that a loop adds blocks to, and of which only the sum is asked for afterwards.

One work-item keeps no more of such a block than as many partial sums as any reduction has. The same goes for every op
that is associative and commutative and that the reduction is by, too; floats are added in another order, as reductions
add them.
"""

from __future__ import annotations

from torchgraft.triton.blocks import Computed, Splat
from torchgraft.triton.elements import literal
from torchgraft.triton.groups import LANES
from torchgraft.triton.ir import Op, Type, Value
from torchgraft.triton.translate import Translator

__all__ = ["narrowed"]

_SUMS = {"arith.addf", "arith.addi"}
# What a block begins with may be combined with itself.
_EXTREMES = {f"arith.{name}" for name in ("maxnumf", "minnumf", "maximumf", "minimumf", "maxsi", "minsi", "maxui",
                                          "minui")}  # fmt: skip
# Of the types in which reductions compute without rounding after each op.
_ELEMENTS = {"f32", "f64", "i32", "i64"}


def narrowed(t: Translator, argument: Value, start: Value, result: Value, passed: Value) -> Computed | None:
    """Makes a block that a loop carries an array of partial results, if it is an accumulator.

    Args:
        argument: the block, in the loop.
        start: what it is at first.
        result: what one turn makes of it.
        passed: what the loop makes of it.
    """
    kind, first, update = argument.type, t.values[start], result.owner
    if t.items > 1 or len(kind.shape) != 1 or kind.size <= LANES or kind.is_pointer or kind.element not in _ELEMENTS:
        return None
    if update is None or argument.users != [update] or len(result.users) != 1 or not _is_reduced(passed, update):
        return None
    if not isinstance(first, Splat) or not _may_begin(first, update):
        return None
    partial = Type((LANES,), kind.element)
    array = t.array(kind.element, LANES)
    t.in_array(Splat(partial, first.text), array)
    (other,) = (each for each in update.operands if each is not argument)
    t.accumulate(update, other, array)
    return Computed(partial, array)


def _may_begin(first: Splat, update: Op) -> bool:
    """Whether it matters not how often the results are combined with what they begin with."""
    if update.name in _SUMS:
        return first.text == literal("0", first.type.element)
    return update.name in _EXTREMES


def _is_reduced(value: Value, update: Op) -> bool:
    """Whether all that becomes of a block are reductions by an op."""
    return bool(value.users) and all(_reduces_by(user, update.name) for user in value.users)


def _reduces_by(user: Op, name: str) -> bool:
    if user.name != "tt.reduce" or len(user.operands) != 1:
        return False
    block = user.regions[0].only
    return [op.name for op in block.ops[:-1]] == [name] and set(block.ops[0].operands) == set(block.arguments)
