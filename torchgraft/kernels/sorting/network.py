"""The shortest rows on a CPU, sorted by exchanges of neighbours: as many rows at once as vectors have lanes.

Source: odd-even transposition (Knuth, The Art of Computer Programming 3, 5.3.4).
"""

from __future__ import annotations

import functools

from torchgraft.codegen.kernel import Kernel, parameters
from torchgraft.codegen.types import BY_NAME
from torchgraft.codegen.walk import Walk
from torchgraft.kernels.sorting.keys import signed, signed_key, sort_key, storage
from torchgraft.kernels.sorting.selection import Chosen

#: The longest rows.
LONGEST = 8


def _sorted(type_: str, length: int) -> list[str]:
    """Statements that sort row `i`, whose numbers are then `value0`, ... and whose indices `index0`, ...: in as many
    rounds as a row has elements, every second pair of neighbours is put in order, which leaves equal ones as they
    were."""
    lines = [f"const long base = i * {length};"]
    for e in range(length):
        lines.append(f"{signed(type_)} key{e} = {signed_key(type_, f'base + {e}')};")
        lines.append(f"{storage(type_)} value{e} = ((const GLOBAL {storage(type_)}*)x)[base + {e}];")
        lines.append(f"{signed(type_)} index{e} = {e};")
    carried = {"key": signed(type_), "value": storage(type_), "index": signed(type_)}
    for first in (e for turn in range(length) for e in range(turn % 2, length - 1, 2)):
        swaps = " ".join(
            f"const {ctype} {name} = turned ? {name}{first + 1} : {name}{first};"
            f" {name}{first + 1} = turned ? {name}{first} : {name}{first + 1}; {name}{first} = {name};"
            for name, ctype in carried.items()
        )
        lines.append(f"{{ const int turned = key{first} > key{first + 1}; {swaps} }}")
    return lines


def _kernel(name: str, params: str, lines: list[str], helpers: str) -> Kernel:
    walk = Walk("cpu")
    return walk.kernel(name, parameters(params), walk.each("\n".join(lines)), helpers)


@functools.cache
def sort_kernel(type_: str, descending: bool, length: int) -> Kernel:
    """Sorts contiguous rows of `length` elements."""
    lines = _sorted(type_, length)
    for e in range(length):
        lines.append(f"((GLOBAL {storage(type_)}*)values)[base + {e}] = value{e};")
        lines.append(f"indices[base + {e}] = index{e};")
    params = f"{type_}* values; i64* indices; const {type_}* x"
    return _kernel("sort_shortest_rows", params, lines, sort_key(type_, descending))


@functools.cache
def select_kernel(type_: str, chosen: Chosen, length: int, with_index: bool) -> Kernel:
    """One element of each row, as of `selection.select_kernel`."""
    x = [f"load_{type_}(x, i * {length} + {e})" for e in range(length)]
    nans = " + ".join(f"({v} != {v})" for v in x) if BY_NAME[type_].is_float else "0"
    at = {
        "kthvalue": "rank",
        "median": f"nans ? {length} - nans : {(length - 1) // 2}",
        "nanmedian": f"nans < {length} ? ({length - 1} - nans) / 2 : 0",
    }[chosen]
    lines = [f"const {signed(type_)} nans = {nans}; const {signed(type_)} at = {at};", *_sorted(type_, length)]
    for name, ctype in {"value": storage(type_), **({"index": signed(type_)} if with_index else {})}.items():
        lines.append(f"{ctype} my_{name} = {name}0;")
        lines += [f"my_{name} = at == {e} ? {name}{e} : my_{name};" for e in range(1, length)]
    lines.append(f"((GLOBAL {storage(type_)}*)value)[i] = my_value;")
    lines += ["index[i] = my_index;"] if with_index else []
    params = f"{type_}* value; i64* index; const {type_}* x; i64 rank"
    return _kernel("select_from_shortest_rows", params, lines, sort_key(type_, False))
