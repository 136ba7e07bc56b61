"""One element of each row, of rows as they are or of sorted ones, and the first few."""

from __future__ import annotations

import functools
import re
from typing import Literal

from torchgraft.codegen.kernel import Kernel
from torchgraft.codegen.types import BY_NAME
from torchgraft.kernels.sorting import keys
from torchgraft.kernels.sorting.rank import ranks

Chosen = Literal["kthvalue", "median", "nanmedian", "mode"]

# Rows of so many vectors, of which one element is wanted, are ranked.
_RANKED_VECTORS = 3
# Elements that are passed over at once where none is among the first few.
_PASSED = 32

# Which element in order is chosen; `less` counts keys below another, of which that of NaN is the largest.
_WANTED: dict[Chosen, str] = {
    "kthvalue": "const long wanted = rank;",
    "median": """const long numbers = less(LARGEST);
    const long wanted = numbers < length ? numbers : (length - 1) / 2;""",
    "nanmedian": """const long numbers = less(LARGEST);
    const long wanted = (max(numbers, 1L) - 1) / 2;""",
}


@functools.cache
def select_kernel(type_: str, chosen: Chosen, simd_width: int) -> Kernel:
    """One element of each contiguous row in order, on a CPU: number `rank` from 0 on, or the lower median, for which
    NaN wins or is not counted.

    Its key is found bit by bit from the highest on, by how many keys are below, until no other key begins in the same
    way. Parameters: `value`, `index` or NULL, `x`, `rank`, `length`, and `keys` with `pitch` for each group, which is
    `length` rounded up to 64.
    """
    width, compared, number = keys.lanes(type_, simd_width), keys.signed(type_), keys.unsigned(type_)
    vector, bits = keys.vector(type_, simd_width), 8 * BY_NAME[keys.key_type(type_)].size
    lowest, largest = keys.lowest(type_), keys.highest(type_)
    halves, last, left = "", "sum", width
    while left > 4:
        left //= 2
        half = f"{compared}{left}"
        halves += f"const {half} part{left} = LOW_{half}({last}) + HIGH_{half}({last});\n  "
        last = f"part{left}"
    helpers = f"""{keys.sort_key(type_, False)}
inline long keys_less(GLOBAL const {compared}* keys, long count, {compared} bound) {{
  const {vector} one = SPLAT_{vector}(1), none = SPLAT_{vector}(0), limit = SPLAT_{vector}(bound);
  {vector} sum = none, next = none;
  PLAIN
  for (long e = 0; e < count; e += {2 * width}) {{
    sum += SELECT(*(GLOBAL const {vector}u*)(keys + e) < limit, one, none);
    next += SELECT(*(GLOBAL const {vector}u*)(keys + e + {width}) < limit, one, none);
  }}
  sum += next;
  {halves}return (long)LANE({last}, 0) + LANE({last}, 1) + LANE({last}, 2) + LANE({last}, 3);
}}"""
    by_row = BY_NAME[type_].is_float or chosen == "kthvalue"
    wanted = _WANTED[chosen] if by_row else "const long wanted = (length - 1) / 2;"
    find = (
        f"for (int l = 0; l < {width}; ++l) if ((({compared}*)&rank)[l] == wanted && first + l < count) at = first + l;"
    )
    search = f"""\
    GLOBAL {compared}* key = keys + GROUP_ID(0) * pitch;
    VECTORIZE
    for (long e = 0; e < length; ++e) key[e] = {keys.signed_key(type_, "base + e")};
    for (long e = length; e < pitch; ++e) key[e] = {largest};
    {wanted.replace("less(LARGEST)", f"keys_less(key, pitch, {largest})")}
    long at = 0;
    if (length <= {_RANKED_VECTORS * width}) {{
      const int count = (int)length;
      {ranks(type_, simd_width, f"*(GLOBAL const {vector}u*)(key + first)", find)}
    }} else {{
      // In order, the keys whose bits above `bit` are those of `found` are number `before` up to `behind`.
      {number} found = 0;
      long before = 0, behind = length;
      int bit = {bits - 1};
      for (; bit >= 0 && behind - before > 1; --bit) {{
        const {number} middle = found | (({number})1 << bit);
        const long below = keys_less(key, pitch, ({compared})middle ^ {lowest});
        if (below <= wanted) {{ found = middle; before = below; }} else {{ behind = below; }}
      }}
      const {number} known = bit >= {bits - 1} ? 0 : ~({number})0 << (bit + 1);
      for (long equals = wanted - before; at < length - 1; ++at)
        if (((({number})(key[at] ^ {lowest}) ^ found) & known) == 0 && equals-- == 0) break;
    }}
    {keys.move(type_, "value", "i", "x", "base + at")}
    if (index) index[i] = at;"""
    params = f"{type_}* value; i64* index; const {type_}* x; {keys.key_type(type_)}* keys; i64 rank, pitch"
    return keys.rows_kernel("select_one", params, "cpu", search, helpers)


# Statements that find where in a sorted row the element is. NaN comes last.
_FIND: dict[Chosen, str] = {
    "mode": """\
    long at = 0, most = 0, start = 0;
    for (long e = 0; e < length; ++e) {
      if (e > 0 && LOAD(e) != LOAD(e - 1)) start = e;
      if (e - start + 1 > most) { most = e - start + 1; at = e; }
    }""",
    "nanmedian": """\
    long count = length;
    while (count > 1 && LOAD(count - 1) != LOAD(count - 1)) --count;
    long at = (count - 1) / 2;""",
    "median": """\
    long at = (length - 1) / 2;
    if (LOAD(length - 1) != LOAD(length - 1)) {
      at = length - 1;
      while (at > 0 && LOAD(at - 1) != LOAD(at - 1)) --at;
    }""",
}


@functools.cache
def pick_kernel(type_: str, chosen: Chosen, form: str) -> Kernel:
    """One element of each sorted row, and its index if that is wanted: the lower median, for which NaN wins or is not
    counted, or the most frequent value, the smallest of several, and the last index that it had."""
    find = re.sub(r"LOAD\((.*?)\)", rf"load_{type_}(sorted, base + \1)", _FIND[chosen])
    statements = f"""\
{find}
    {keys.move(type_, "value", "i", "sorted", "base + at")}
    if (index) index[i] = indices[base + at];"""
    params = f"{type_}* value; i64* index; const {type_}* sorted; const i64* indices"
    return keys.rows_kernel("mode" if chosen == "mode" else "median", params, form, statements)


@functools.cache
def top_kernel(type_: str, largest: bool, form: str) -> Kernel:
    """The first `k` elements of each contiguous row in order, by insertion, for small k.

    An element moves in only if it beats the last of them, which soon is rare: then blocks are passed over of which none
    does.
    """
    number, key = keys.unsigned(type_), keys.key_type(type_)
    search = f"""\
    GLOBAL {keys.signed(type_)}* best = keys + i * k;
    GLOBAL long* at = indices + i * k;
    long found = 0;
    {number} last = 0;
    for (long e = 0; e < length;) {{
      if (found == k)
        for (; e + {_PASSED} <= length; e += {_PASSED}) {{
          int better = 0;
          for (int l = 0; l < {_PASSED}; ++l) better |= sort_key(load_{type_}(x, base + e + l)) < last;
          if (better) break;
        }}
      for (const long end = min(length, e + {_PASSED}); e < end; ++e) {{
        {number} own = sort_key(load_{type_}(x, base + e));
        if (found == k && own >= last) continue;
        long j = found < k ? found++ : k - 1;
        for (; j > 0 && ({number})best[j - 1] > own; --j) {{ best[j] = best[j - 1]; at[j] = at[j - 1]; }}
        best[j] = own;
        at[j] = e;
        last = best[found - 1];
      }}
    }}
    for (long j = 0; j < k; ++j) {keys.move(type_, "values", "i * k + j", "x", "base + at[j]")}"""
    params = f"{type_}* values; i64* indices; const {type_}* x; {key}* keys; i64 k"
    return keys.rows_kernel("top", params, form, search, keys.sort_key(type_, largest))
