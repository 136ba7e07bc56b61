"""Sorting by the bytes of keys, from the lowest to the highest: each pass keeps the order that it finds.

A row is one work-item's, or, if it is long, several work-items have a part of it each: for each pass they count the
digits of their parts, the counts become the indices where the digits begin, and keys are scattered to there.
"""

from __future__ import annotations

import functools

from torchgraft.codegen.kernel import Kernel, parameters
from torchgraft.codegen.teams import Layout, Team
from torchgraft.codegen.walk import FEW, Walk
from torchgraft.kernels.sorting.keys import key_type, move, passes, rows_kernel, signed, sort_key, unsigned

# Rows of at most so many elements are sorted by insertion.
_INSERTED = 32


@functools.cache
def row_kernel(type_: str, descending: bool, form: str) -> Kernel:
    """Sorts contiguous rows. Each group of a CPU has two rows of keys and indices as scratch, each row on a GPU."""
    stored, count, number = signed(type_), passes(type_), unsigned(type_)
    digits = "\n".join(f"        ++counts[{p * 256} + ((k >> {8 * p}) & 255)];" for p in range(count))
    sort = f"""\
    const long scratch = {"i" if form == "gpu" else "(long)GROUP_ID(0)"} * 2 * length;
    GLOBAL {stored}* from = keys + scratch;
    GLOBAL {stored}* to = from + length;
    GLOBAL int* from_order = orders + scratch;
    GLOBAL int* to_order = from_order + length;
    if (length <= {_INSERTED}) {{
      for (int e = 0; e < (int)length; ++e) {{
        {number} k = sort_key(load_{type_}(x, base + e));
        int j = e;
        for (; j > 0 && ({number})from[j - 1] > k; --j) {{
          from[j] = from[j - 1];
          from_order[j] = from_order[j - 1];
        }}
        from[j] = k;
        from_order[j] = e;
      }}
    }} else {{
      uint counts[{count * 256}];
      for (int d = 0; d < {count * 256}; ++d) counts[d] = 0;
      for (long e = 0; e < length; ++e) {{
        {number} k = sort_key(load_{type_}(x, base + e));
        from[e] = k;
        from_order[e] = e;
{digits}
      }}
      for (int p = 0; p < {count}; ++p) {{
        int shift = 8 * p;
        if (counts[p * 256 + ((({number})from[0] >> shift) & 255)] == (uint)length) continue;
        uint sum = 0;
        for (int d = 0; d < 256; ++d) {{ uint c = counts[p * 256 + d]; counts[p * 256 + d] = sum; sum += c; }}
        for (long e = 0; e < length; ++e) {{
          {number} k = from[e];
          uint at = counts[p * 256 + ((k >> shift) & 255)]++;
          to[at] = k;
          to_order[at] = from_order[e];
        }}
        GLOBAL {stored}* swap = from; from = to; to = swap;
        GLOBAL int* swap_order = from_order; from_order = to_order; to_order = swap_order;
      }}
    }}
    for (long e = 0; e < length; ++e) {{
      long at = from_order[e];
      {move(type_, "values", "base + e", "x", "base + at")}
      indices[base + e] = at;
    }}"""
    params = f"{type_}* values; i64* indices; const {type_}* x; {key_type(type_)}* keys; i32* orders"
    return rows_kernel("sort_rows", params, form, sort, sort_key(type_, descending))


# ---- Rows of several work-items. ----


def _parts_kernel(name: str, form: str, params: str, statements: str, helpers: str = "") -> Kernel:
    """A work-item takes part ``i`` of row ``row``, which is `part` elements."""
    walk = Walk(form, group=FEW)
    head = "const long row = GROUP_ID(1), first = i * part, last = length - first < part ? length : first + part;"
    body = walk.each(f"    {head}\n{statements}", vectorize=False)
    return walk.kernel(name, parameters(params), body, helpers, dims=2)


# What passes of CPUs know by the keys of a row, of which each part has the bits in which its keys are other than the
# row's first, the least and the largest: what keys are counted from, and the bits above the lowest in which they differ
# and below the highest of the span. A byte without such bits needs no pass, and each other pass moves the keys to the
# other of two buffers.
_BOUNDS = """inline ulong sort_bits(GLOBAL const long* bounds, long parts, ulong* least) {
  ulong differ = 0, low = ~(ulong)0, high = 0;
  for (long p = 0; p < parts; ++p) {
    differ |= (ulong)bounds[3 * p];
    low = min(low, (ulong)bounds[3 * p + 1]);
    high = max(high, (ulong)bounds[3 * p + 2]);
  }
  *least = low;
  ulong span = high - low;
  for (int s = 1; s < 64; s *= 2) span |= span >> s;
  return span & ~((differ & (0 - differ)) - 1);
}
inline int sort_side(ulong bits, int shift) {
  int moved = 0;
  for (int s = 0; s < shift; s += 8) moved ^= ((bits >> s) & 255) != 0;
  return moved;
}"""
_DIGIT = "((keys[e] >> shift) & 255)"


@functools.cache
def key_kernel(type_: str, descending: bool) -> Kernel:
    """Keys of contiguous rows and their indices, on GPUs."""
    walk = Walk("gpu", 2)
    statements = f"""\
      keys[start + j] = sort_key(load_{type_}(x, start + j));
      orders[start + j] = (int)(i1 + j);"""
    body = walk.each(statements, "    const long start = i0 * n1 + i1;")
    params = f"{key_type(type_)}* keys; i32* orders; const {type_}* x"
    return walk.kernel("sort_keys", parameters(params), body, sort_key(type_, descending))


@functools.cache
def bounded_key_kernel(type_: str, descending: bool) -> Kernel:
    """The same on CPUs, part by part, with `bounds` of the parts, three for each."""
    number = unsigned(type_)
    statements = f"""\
    const long start = row * length;
    const {number} one = sort_key(load_{type_}(x, start));
    {number} differ = 0, least = ~({number})0, most = 0;
    for (long e = first; e < last; ++e) {{
      const {number} k = sort_key(load_{type_}(x, start + e));
      keys[start + e] = k;
      orders[start + e] = (int)e;
      differ |= k ^ one;
      least = min(least, k);
      most = max(most, k);
    }}
    bounds[(row * n + i) * 3] = (ulong)differ;
    bounds[(row * n + i) * 3 + 1] = (ulong)least;
    bounds[(row * n + i) * 3 + 2] = (ulong)most;"""
    params = f"{key_type(type_)}* keys; i32* orders; i64* bounds; const {type_}* x; i64 length, part"
    return _parts_kernel("sort_keys", "cpu", params, statements, sort_key(type_, descending))


def _pass(name: str, key: str, pointers: str, statements: str) -> Kernel:
    """A pass of CPUs over part ``i`` of ``row``, from element `begin` to `end` of all, where there is something to do;
    `own` is for the part's numbers of each digit, and DIGIT an element's."""
    number = unsigned(key)
    head = f"""\
    ulong lowest;
    const ulong bits = sort_bits(bounds + row * n * 3, n, &lowest);
    if (((bits >> shift) & 255) == 0) continue;
    const {number} least = ({number})lowest;
    const int side = sort_side(bits, shift);
    const long begin = row * length + first, end = row * length + last;
    GLOBAL const {signed(key)}* keys = side ? keys_1 : keys_0;
    int own[256];
"""
    statements = statements.replace("DIGIT", f"((({number})keys[e] - least) >> shift & 255)")
    params = f"{pointers}; i32* counts; const i64* bounds; i64 length, part; i32 shift"
    return _parts_kernel(name, "cpu", params, head + statements, _BOUNDS)


def _gpu_pass(name: str, pointers: str, statements: str) -> Kernel:
    """A pass of GPUs over part ``i`` of ``row``: ``e`` is an element's index in memory."""
    loop = f"    for (long e = row * length + first; e < row * length + last; ++e) {{ {statements} }}"
    return _parts_kernel(name, "gpu", f"{pointers}; i64 length, part; i32 shift", loop)


# Where the elements of a digit are counted: counts[row][digit][part], zero before on GPUs.
_COUNT = f"counts[(row * 256 + {_DIGIT}) * n + i]"


@functools.cache
def count_kernel(key: str, form: str) -> Kernel:
    """How often each digit occurs in each part."""
    if form == "gpu":
        return _gpu_pass("sort_count", f"i32* counts; const {key}* keys", f"++{_COUNT};")
    count = """\
    for (int d = 0; d < 256; ++d) own[d] = 0;
    for (long e = begin; e < end; ++e) ++own[DIGIT];
    for (int d = 0; d < 256; ++d) counts[(row * 256 + d) * n + i] = own[d];"""
    return _pass("sort_count", key, f"const {key}* keys_0, keys_1", count)


@functools.cache
def scan_kernel(form: str, totals: bool = False) -> Kernel:
    """Turns the counts of each row into the indices where each part's digits begin; with `totals` the rows are a
    digit's counts, and what they sum up to is kept."""
    team = Team(Layout(form))
    before = f"counts[{team.at}] = sum - counts[{team.at}];"
    if totals:
        before = f"if (c == size - 1) totals[row] = sum; {before}"
    scan = team.scan({"sum": ("i32", "0")}, f"B.sum = counts[{team.at}];", "A.sum += B.sum;", before)
    return team.kernel("sort_scan", parameters(f"i32* counts{', totals' if totals else ''}"), scan)


@functools.cache
def scatter_kernel(key: str, form: str) -> Kernel:
    """Moves keys and indices to where their digits go: on a CPU from one of two buffers to the other. On a GPU counts
    are within a digit, which has `starts`."""
    if form == "gpu":
        scatter = f"""const long at = row * length + starts[row * 256 + {_DIGIT}] + {_COUNT}++;
to[at] = keys[e];
to_order[at] = orders[e];"""
        params = f"{key}* to; i32* to_order; const {key}* keys; const i32* orders; i32* counts; const i32* starts"
        return _gpu_pass("sort_deal", params, scatter)
    scatter = f"""\
    GLOBAL {signed(key)}* to = side ? keys_0 : keys_1;
    GLOBAL const int* orders = side ? orders_1 : orders_0;
    GLOBAL int* to_order = side ? orders_0 : orders_1;
    for (int d = 0; d < 256; ++d) own[d] = counts[(row * 256 + d) * n + i];
    for (long e = begin; e < end; ++e) {{
      const long at = row * length + own[DIGIT]++;
      to[at] = keys[e];
      to_order[at] = orders[e];
    }}"""
    return _pass("sort_deal", key, f"{key}* keys_0, keys_1; i32* orders_0, orders_1", scatter)


@functools.cache
def finish_kernel(move: str, form: str) -> Kernel:
    """Values and indices in the order found, which on a CPU lies in one of two buffers; `bits` is how many a key
    has."""
    walk = Walk(form, 2)
    statements = """\
      const long at = orders[start + j];
      values[start + j] = x[i0 * n1 + at];
      indices[start + j] = at;"""
    row, pointers, helpers = "    const long start = i0 * n1 + i1;", "const i32* orders", ""
    if form == "cpu":
        row += """
    ulong least;
    const ulong found = sort_bits(bounds + i0 * parts * 3, parts, &least);
    GLOBAL const int* orders = sort_side(found, bits) ? orders_1 : orders_0;"""
        pointers, helpers = "const i32* orders_0, orders_1; const i64* bounds; i64 parts; i32 bits", _BOUNDS
    body = walk.each(statements, row, vectorize=False)
    params = f"{move}* values; i64* indices; const {move}* x; {pointers}"
    return walk.kernel("sort_finish", parameters(params), body, helpers)
