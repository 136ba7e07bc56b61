"""Short rows on a CPU, sorted by ranks: an element's place is how many are less, which vectors count. The work is a
row's square of comparisons, a vector of them at once."""

from __future__ import annotations

import functools

from torchgraft.codegen.kernel import Kernel
from torchgraft.kernels.sorting.keys import highest, lanes, move, rows_kernel, signed, signed_key, sort_key, vector


def longest(type_: str, simd_width: int) -> int:
    """The longest rows."""
    return 16 * lanes(type_, simd_width)


def ranks(type_: str, simd_width: int, load: str, use: str) -> str:
    """Statements that find the ranks of the keys ``key[0]`` up to ``key[count]``, in vectors from number `first` on:
    how many keys are less, and how many equal ones stand before. Behind them whole vectors are filled up with the
    largest key. `load` loads a vector of keys, and `use` says what is done with `rank`."""
    width, keys = lanes(type_, simd_width), vector(type_, simd_width)

    def add(begin: str, end: str, before: str) -> str:
        step = f"rank += SELECT({before.format(f'SPLAT_{keys}(key[j])')}, one, none);"
        return f"UNROLL_4\n      for (int j = {begin}; j < {end}; ++j) {step}"

    return f"""\
    // Over whole vectors: PoCL 7.1's compiler crashes on an unrolled loop that has a rest.
    const {keys} one = SPLAT_{keys}(1), none = SPLAT_{keys}(0);
    const int filled = (count + {width - 1}) / {width} * {width};
    for (int first = 0; first < count; first += {width}) {{
      const {keys} k = {load};
      const {keys} own = MAKE_{keys}({", ".join(map(str, range(width)))}) + first;
      const int behind = first + {width};
      {keys} rank = none;
      {add("0", "first", "{} <= k")}
      {add("first", "behind", "({0} < k) | (({0} == k) & (own > j))")}
      {add("behind", "filled", "{} < k")}
      {use}
    }}"""


@functools.cache
def sort_kernel(type_: str, descending: bool, simd_width: int) -> Kernel:
    """Sorts contiguous rows."""
    size, width, keys = longest(type_, simd_width), lanes(type_, simd_width), vector(type_, simd_width)
    sort = f"""\
    {signed(type_)} key[{size}] ALIGN(64);
    {signed(type_)} order[{size}] ALIGN(64);
    const int count = (int)length;
    VECTORIZE
    for (int e = 0; e < count; ++e) key[e] = {signed_key(type_, "base + e")};
    for (int e = count; e % {width} != 0; ++e) key[e] = {highest(type_)};
    {ranks(type_, simd_width, f"*({keys}*)(key + first)", f"*({keys}*)(order + first) = rank;")}
    for (int e = 0; e < count; ++e) {{
      const long at = base + order[e];
      {move(type_, "values", "at", "x", "base + e")}
      indices[at] = e;
    }}"""
    params = f"{type_}* values; i64* indices; const {type_}* x"
    return rows_kernel("sort_short_rows", params, "cpu", sort, sort_key(type_, descending))
