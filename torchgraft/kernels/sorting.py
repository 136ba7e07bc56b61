"""Sorting by digits, and the largest few of a row.

Elements are mapped to unsigned keys of the same order: NaN is the largest, the two zeros are equal. Sorting goes over
the keys' bytes from the lowest to the highest, each pass keeping the order that it finds, so equal elements stay in
order. `row_kernel` sorts a row with one work-item; for few long rows `count_kernel`, `scan_kernel` and `deal_kernel`
share each pass among several, each of which has a part of a row. On a CPU `exchange_kernel` sorts the shortest rows,
many at once, and `rank_kernel` short ones; `select_kernel` finds one element of a row without sorting it, and
`exchange_select_kernel` one of each of the shortest rows.
"""

from __future__ import annotations

import functools
from typing import Literal

from torchgraft.codegen.kernel import Kernel, parameters
from torchgraft.codegen.loops import FEW, Layout, Team, Walk
from torchgraft.codegen.types import BY_NAME, MOVES
from torchgraft.codegen.vectors import vector_lanes

INSERTED = 32
"""Rows of at most so many elements are sorted by insertion."""
EXCHANGED = 8
"""Rows of at most so many elements are sorted by exchanges of neighbours on a CPU, whose vectors go across rows."""

# Elements that are passed over at once where none is among the first few.
_PASSED = 32
# Rows of so many vectors, of which one element is wanted, are ranked.
_RANKED_VECTORS = 3


def key_type(type_: str) -> str:
    """The element type that a key lies in."""
    return "i64" if BY_NAME[type_].size == 8 else "i32"


def passes(type_: str) -> int:
    """Bytes of a key that may differ."""
    return {"f16": 4, "bf16": 4}.get(type_, BY_NAME[type_].size)


def _key(type_: str, descending: bool) -> str:
    """The function `sort_key`, which gives the key of a value."""
    if type_ in ("f32", "f16", "bf16"):
        body = "uint u = AS_uint(v == 0 ? 0.0f : v); uint k = v != v ? ~0u : u >> 31 ? ~u : u | 0x80000000u;"
        value, key = "float", "uint"
    elif type_ == "f64":
        body = "ulong u = AS_ulong(v == 0 ? 0.0 : v); ulong k = v != v ? ~0ul : u >> 63 ? ~u : u | (1ul << 63);"
        value, key = "double", "ulong"
    elif type_ == "i64":
        body, value, key = "ulong k = (ulong)v ^ (1ul << 63);", "long", "ulong"
    else:
        bias = {"i32": "0x80000000u", "i16": "0x8000u", "i8": "0x80u"}.get(type_, "0u")
        body, value, key = f"uint k = (uint)((int)v) + {bias};", "int", "uint"
    used = (1 << (8 * passes(type_))) - 1 if passes(type_) < 4 else None
    turned = "~k" if used is None else f"k ^ {used}u"
    return f"inline {key} sort_key({value} v) {{ {body} return {turned if descending else 'k'}; }}\n"


def _unsigned(type_: str) -> str:
    return "ulong" if key_type(type_) == "i64" else "uint"


def _move(type_: str, to: str, at: str, source: str, source_at: str) -> str:
    """A statement that copies an element as it is, also of types that kernels cannot hold."""
    storage = BY_NAME[MOVES[BY_NAME[type_].size]].storage
    return f"((GLOBAL {storage}*){to})[{at}] = ((const GLOBAL {storage}*){source})[{source_at}];"


def _rows_kernel(name: str, params: str, form: str, statements: str, helpers: str = "") -> Kernel:
    """A work-item takes a row of `length` elements, number ``i``, which begins at ``base``."""
    walk = Walk(form, group=FEW)
    body = walk.each(f"    const long base = i * length;\n{statements}", vectorize=False)
    return walk.kernel(name, parameters(f"{params}; i64 length"), body, helpers)


def _signed(type_: str) -> str:
    """What keys are compared as in vectors, after their highest bit is turned."""
    return "long" if key_type(type_) == "i64" else "int"


_LOWEST = {"long": "LONG_MIN", "int": "INT_MIN"}
_LARGEST = {"long": "LONG_MAX", "int": "INT_MAX"}


@functools.cache
def row_kernel(type_: str, descending: bool, form: str) -> Kernel:
    """Sorts contiguous rows: values and their places. Each group of a CPU has two rows of keys and places as scratch,
    each row on a GPU."""
    key, count = key_type(type_), passes(type_)
    stored, unsigned = BY_NAME[key].storage, _unsigned(type_)
    digits = "\n".join(f"        ++counts[{p * 256} + ((k >> {8 * p}) & 255)];" for p in range(count))
    sort = f"""\
    const long scratch = {"i" if form == "gpu" else "(long)GROUP_ID(0)"} * 2 * length;
    GLOBAL {stored}* from = keys + scratch;
    GLOBAL {stored}* to = from + length;
    GLOBAL int* from_order = orders + scratch;
    GLOBAL int* to_order = from_order + length;
    if (length <= {INSERTED}) {{
      for (int e = 0; e < (int)length; ++e) {{
        {unsigned} k = sort_key(load_{type_}(x, base + e));
        int j = e;
        for (; j > 0 && ({unsigned})from[j - 1] > k; --j) {{
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
        {unsigned} k = sort_key(load_{type_}(x, base + e));
        from[e] = k;
        from_order[e] = e;
{digits}
      }}
      for (int p = 0; p < {count}; ++p) {{
        int shift = 8 * p;
        if (counts[p * 256 + ((({unsigned})from[0] >> shift) & 255)] == (uint)length) continue;
        uint sum = 0;
        for (int d = 0; d < 256; ++d) {{ uint c = counts[p * 256 + d]; counts[p * 256 + d] = sum; sum += c; }}
        for (long e = 0; e < length; ++e) {{
          {unsigned} k = from[e];
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
      {_move(type_, "values", "base + e", "x", "base + at")}
      places[base + e] = at;
    }}"""
    params = f"{type_}* values; i64* places; const {type_}* x; {key}* keys; i32* orders"
    return _rows_kernel("sort_rows", params, form, sort, _key(type_, descending))


def ranked(type_: str, simd_width: int) -> int:
    """Rows of at most so many elements are sorted by ranks on a CPU: the work is a row's square, a vector at once."""
    return 16 * _lanes(type_, simd_width)


def _lanes(type_: str, simd_width: int) -> int:
    """Keys that a vector has."""
    return max(4, vector_lanes(simd_width) // (2 if key_type(type_) == "i64" else 1))


def _vector(type_: str, simd_width: int) -> str:
    return f"{_signed(type_)}{_lanes(type_, simd_width)}"


def _ranks(vector: str, load: str, use: str) -> str:
    """Statements that find the ranks of the keys ``key[0]`` up to ``key[count]``, in vectors from number `first` on:
    how many keys are less, and how many equal ones stand before. `load` loads a vector of keys, and `use` says what is
    done with `rank`."""
    width = int(vector.lstrip("intlog"))

    def add(begin: str, end: str, before: str) -> str:
        step = f"rank += SELECT({before.format(f'SPLAT_{vector}(key[j])')}, one, none);"
        return f"UNROLL_4\n      for (int j = {begin}; j < {end}; ++j) {step}"

    return f"""\
    const {vector} one = SPLAT_{vector}(1), none = SPLAT_{vector}(0);
    for (int first = 0; first < count; first += {width}) {{
      const {vector} k = {load};
      const {vector} own = MAKE_{vector}({", ".join(map(str, range(width)))}) + first;
      const int behind = min(first + {width}, count);
      {vector} rank = none;
      {add("0", "first", "{} <= k")}
      {add("first", "behind", "({0} < k) | (({0} == k) & (own > j))")}
      {add("behind", "count", "{} < k")}
      {use}
    }}"""


def _exchanged(type_: str, length: int) -> list[str]:
    """Statements that sort row `i` of so few elements, whose numbers are then `value0`, ... and whose places `place0`,
    ...: in as many rounds as a row has elements, every second pair of neighbours is put in order, which leaves equal
    ones as they were.

    Source: odd-even transposition (Knuth, The Art of Computer Programming 3, 5.3.4).
    """
    signed, stored = _signed(type_), BY_NAME[MOVES[BY_NAME[type_].size]].storage
    lines = [f"const long base = i * {length};"]
    for e in range(length):
        lines.append(f"{signed} key{e} = ({signed})sort_key(load_{type_}(x, base + {e})) ^ {_LOWEST[signed]};")
        lines.append(f"{stored} value{e} = ((const GLOBAL {stored}*)x)[base + {e}];")
        lines.append(f"{signed} place{e} = {e};")
    carried = {"key": signed, "value": stored, "place": signed}
    for first in (e for turn in range(length) for e in range(turn % 2, length - 1, 2)):
        swaps = " ".join(
            f"const {ctype} {name} = turned ? {name}{first + 1} : {name}{first};"
            f" {name}{first + 1} = turned ? {name}{first} : {name}{first + 1}; {name}{first} = {name};"
            for name, ctype in carried.items()
        )
        lines.append(f"{{ const int turned = key{first} > key{first + 1}; {swaps} }}")
    return lines


@functools.cache
def exchange_kernel(type_: str, descending: bool, length: int) -> Kernel:
    """Sorts contiguous rows of so few elements on a CPU, as many rows at once as vectors have lanes. Parameters:
    `values`, `places`, `x`."""
    stored, lines = BY_NAME[MOVES[BY_NAME[type_].size]].storage, _exchanged(type_, length)
    for e in range(length):
        lines.append(f"((GLOBAL {stored}*)values)[base + {e}] = value{e};")
        lines.append(f"places[base + {e}] = place{e};")
    walk = Walk("cpu")
    params = parameters(f"{type_}* values; i64* places; const {type_}* x")
    return walk.kernel("sort_shortest_rows", params, walk.each("\n".join(lines)), _key(type_, descending))


@functools.cache
def exchange_select_kernel(type_: str, chosen: Chosen, length: int, with_place: bool) -> Kernel:
    """As `select_kernel`, of rows as of `exchange_kernel`. Parameters: `value`, `place`, `x`, `rank`."""
    signed, stored = _signed(type_), BY_NAME[MOVES[BY_NAME[type_].size]].storage
    x = [f"load_{type_}(x, i * {length} + {e})" for e in range(length)]
    nans = " + ".join(f"({v} != {v})" for v in x) if BY_NAME[type_].is_float else "0"
    at = {
        "kth": "rank",
        "median": f"nans ? {length} - nans : {(length - 1) // 2}",
        "nanmedian": f"nans < {length} ? ({length - 1} - nans) / 2 : 0",
    }[chosen]
    lines = [f"const {signed} nans = {nans}; const {signed} at = {at};", *_exchanged(type_, length)]
    for name, ctype in {"value": stored, **({"place": signed} if with_place else {})}.items():
        lines.append(f"{ctype} my_{name} = {name}0;")
        lines += [f"my_{name} = at == {e} ? {name}{e} : my_{name};" for e in range(1, length)]
    lines.append(f"((GLOBAL {stored}*)value)[i] = my_value;")
    lines += ["place[i] = my_place;"] if with_place else []
    walk = Walk("cpu")
    params = parameters(f"{type_}* value; i64* place; const {type_}* x; i64 rank")
    return walk.kernel("select_from_shortest_rows", params, walk.each("\n".join(lines)), _key(type_, False))


@functools.cache
def rank_kernel(type_: str, descending: bool, simd_width: int) -> Kernel:
    """Sorts contiguous short rows on a CPU: an element's rank is its place."""
    size, signed, vector = ranked(type_, simd_width), _signed(type_), _vector(type_, simd_width)
    own = f"({signed})sort_key(load_{type_}(x, base + e)) ^ {_LOWEST[signed]}"
    sort = f"""\
    {signed} key[{size}] ALIGN(64);
    {signed} order[{size}] ALIGN(64);
    const int count = (int)length;
    VECTORIZE
    for (int e = 0; e < count; ++e) key[e] = {own};
    {_ranks(vector, f"*({vector}*)(key + first)", f"*({vector}*)(order + first) = rank;")}
    for (int e = 0; e < count; ++e) {{
      const long at = base + order[e];
      {_move(type_, "values", "at", "x", "base + e")}
      places[at] = e;
    }}"""
    params = f"{type_}* values; i64* places; const {type_}* x"
    return _rows_kernel("sort_short_rows", params, "cpu", sort, _key(type_, descending))


Chosen = Literal["kth", "median", "nanmedian"]

# Which element in order is chosen; `less` counts keys below another, of which that of NaN is the largest.
_CHOOSE: dict[Chosen, str] = {
    "kth": "const long wanted = rank;",
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
    way. Parameters: `value`, `place` or NULL, `x`, `rank`, `length`, and `keys` with `pitch` for each group, which is
    `length` rounded up to 64.
    """
    width, signed, unsigned = _lanes(type_, simd_width), _signed(type_), _unsigned(type_)
    vector, bits = _vector(type_, simd_width), 8 * BY_NAME[key_type(type_)].size
    lowest, largest = _LOWEST[signed], _LARGEST[signed]
    halves, last, lanes = "", "sum", width
    while lanes > 4:
        lanes //= 2
        half = f"{signed}{lanes}"
        halves += f"const {half} part{lanes} = LOW_{half}({last}) + HIGH_{half}({last});\n  "
        last = f"part{lanes}"
    helpers = f"""{_key(type_, False)}
inline long keys_less(GLOBAL const {signed}* keys, long count, {signed} bound) {{
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
    choose = _CHOOSE[chosen] if BY_NAME[type_].is_float or chosen == "kth" else "const long wanted = (length - 1) / 2;"
    choose = choose.replace("less(LARGEST)", f"keys_less(key, pitch, {largest})")
    find = (
        f"for (int l = 0; l < {width}; ++l) if ((({signed}*)&rank)[l] == wanted && first + l < count) at = first + l;"
    )
    search = f"""\
    GLOBAL {signed}* key = keys + GROUP_ID(0) * pitch;
    VECTORIZE
    for (long e = 0; e < length; ++e) key[e] = ({signed})sort_key(load_{type_}(x, base + e)) ^ {lowest};
    for (long e = length; e < pitch; ++e) key[e] = {largest};
    {choose}
    long at = 0;
    if (length <= {_RANKED_VECTORS * width}) {{
      const int count = (int)length;
      {_ranks(vector, f"*(GLOBAL const {vector}u*)(key + first)", find)}
    }} else {{
      // In order, the keys whose bits above `bit` are those of `found` are number `before` up to `behind`.
      {unsigned} found = 0;
      long before = 0, behind = length;
      int bit = {bits - 1};
      for (; bit >= 0 && behind - before > 1; --bit) {{
        const {unsigned} middle = found | (({unsigned})1 << bit);
        const long below = keys_less(key, pitch, ({signed})middle ^ {lowest});
        if (below <= wanted) {{ found = middle; before = below; }} else {{ behind = below; }}
      }}
      const {unsigned} known = bit >= {bits - 1} ? 0 : ~({unsigned})0 << (bit + 1);
      for (long equals = wanted - before; at < length - 1; ++at)
        if (((({unsigned})(key[at] ^ {lowest}) ^ found) & known) == 0 && equals-- == 0) break;
    }}
    {_move(type_, "value", "i", "x", "base + at")}
    if (place) place[i] = at;"""
    params = f"{type_}* value; i64* place; const {type_}* x; {key_type(type_)}* keys; i64 rank, pitch"
    return _rows_kernel("select_one", params, "cpu", search, helpers)


# ---- rows of several work-items ----


def _parts(form: str, statements: str) -> tuple[Walk, str]:
    """A work-item takes part ``i`` of row ``row``, which is `part` elements."""
    walk = Walk(form, group=FEW)
    head = "const long row = GROUP_ID(1), first = i * part, last = length - first < part ? length : first + part;"
    return walk, walk.each(f"    {head}\n{statements}", vectorize=False)


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
_DIGIT_OF_SPAN = "((({unsigned})keys[e] - least) >> shift & 255)"


@functools.cache
def key_kernel(type_: str, descending: bool) -> Kernel:
    """Keys of contiguous rows and their places, on GPUs."""
    walk = Walk("gpu", 2)
    statements = f"""\
      keys[start + j] = sort_key(load_{type_}(x, start + j));
      orders[start + j] = (int)(i1 + j);"""
    body = walk.each(statements, "    const long start = i0 * n1 + i1;")
    params = f"{key_type(type_)}* keys; i32* orders; const {type_}* x"
    return walk.kernel("sort_keys", parameters(params), body, _key(type_, descending))


@functools.cache
def bounded_key_kernel(type_: str, descending: bool) -> Kernel:
    """The same on CPUs, part by part, with `bounds` of the parts, three for each."""
    unsigned = _unsigned(type_)
    walk, body = _parts(
        "cpu",
        f"""\
    const long start = row * length;
    const {unsigned} one = sort_key(load_{type_}(x, start));
    {unsigned} differ = 0, least = ~({unsigned})0, most = 0;
    for (long e = first; e < last; ++e) {{
      const {unsigned} k = sort_key(load_{type_}(x, start + e));
      keys[start + e] = k;
      orders[start + e] = (int)e;
      differ |= k ^ one;
      least = min(least, k);
      most = max(most, k);
    }}
    bounds[(row * n + i) * 3] = (ulong)differ;
    bounds[(row * n + i) * 3 + 1] = (ulong)least;
    bounds[(row * n + i) * 3 + 2] = (ulong)most;""",
    )
    params = f"{key_type(type_)}* keys; i32* orders; i64* bounds; const {type_}* x; i64 length, part"
    return walk.kernel("sort_keys", parameters(params), body, _key(type_, descending), dims=2)


def _pass(name: str, key: str, pointers: str, statements: str) -> Kernel:
    """A pass of CPUs over part ``i`` of ``row``, from element `begin` to `end` of all, where there is something to do;
    `own` is for the part's numbers of each digit, and DIGIT an element's."""
    stored, unsigned = BY_NAME[key].storage, "ulong" if key == "i64" else "uint"
    digit = _DIGIT_OF_SPAN.format(unsigned=unsigned)
    walk, body = _parts(
        "cpu",
        f"""\
    ulong lowest;
    const ulong bits = sort_bits(bounds + row * n * 3, n, &lowest);
    if (((bits >> shift) & 255) == 0) continue;
    const {unsigned} least = ({unsigned})lowest;
    const int side = sort_side(bits, shift);
    const long begin = row * length + first, end = row * length + last;
    GLOBAL const {stored}* keys = side ? keys_1 : keys_0;
    int own[256];
{statements.replace("DIGIT", digit)}""",
    )
    params = f"{pointers}; i32* counts; const i64* bounds; i64 length, part; i32 shift"
    return walk.kernel(name, parameters(params), body, _BOUNDS, dims=2)


def _gpu_pass(name: str, params: str, statements: str) -> Kernel:
    """A pass of GPUs over part ``i`` of ``row``: ``e`` is an element's place in memory."""
    walk, body = _parts(
        "gpu", f"    for (long e = row * length + first; e < row * length + last; ++e) {{ {statements} }}"
    )
    return walk.kernel(name, parameters(f"{params}; i64 length, part; i32 shift"), body, dims=2)


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
    """Turns the counts of each row into the places where each part's digits begin; with `totals` the rows are a digit's
    counts, and what they sum up to is kept."""
    team = Team(Layout(form))
    before = f"counts[{team.at}] = sum - counts[{team.at}];"
    if totals:
        before = f"if (c == size - 1) totals[row] = sum; {before}"
    scan = team.scan({"sum": ("i32", "0")}, f"B.sum = counts[{team.at}];", "A.sum += B.sum;", before)
    return team.kernel("sort_scan", parameters(f"i32* counts{', totals' if totals else ''}"), scan)


@functools.cache
def deal_kernel(key: str, form: str) -> Kernel:
    """Moves keys and places to where their digits go: on a CPU from one of two buffers to the other. On a GPU counts
    are within a digit, which has `starts`."""
    if form == "gpu":
        deal = f"""const long at = row * length + starts[row * 256 + {_DIGIT}] + {_COUNT}++;
to[at] = keys[e];
to_order[at] = orders[e];"""
        params = f"{key}* to; i32* to_order; const {key}* keys; const i32* orders; i32* counts; const i32* starts"
        return _gpu_pass("sort_deal", params, deal)
    stored = BY_NAME[key].storage
    deal = f"""\
    GLOBAL {stored}* to = side ? keys_0 : keys_1;
    GLOBAL const int* orders = side ? orders_1 : orders_0;
    GLOBAL int* to_order = side ? orders_0 : orders_1;
    for (int d = 0; d < 256; ++d) own[d] = counts[(row * 256 + d) * n + i];
    for (long e = begin; e < end; ++e) {{
      const long at = row * length + own[DIGIT]++;
      to[at] = keys[e];
      to_order[at] = orders[e];
    }}"""
    return _pass("sort_deal", key, f"{key}* keys_0, keys_1; i32* orders_0, orders_1", deal)


@functools.cache
def finish_kernel(move: str, form: str) -> Kernel:
    """Values and places in the order found, which on a CPU lies in one of two buffers: `bits` is how many a key has."""
    walk = Walk(form, 2)
    statements = """\
      const long at = orders[start + j];
      values[start + j] = x[i0 * n1 + at];
      places[start + j] = at;"""
    row, pointers, helpers = "    const long start = i0 * n1 + i1;", "const i32* orders", ""
    if form == "cpu":
        row += """
    ulong least;
    const ulong found = sort_bits(bounds + i0 * parts * 3, parts, &least);
    GLOBAL const int* orders = sort_side(found, bits) ? orders_1 : orders_0;"""
        pointers, helpers = "const i32* orders_0, orders_1; const i64* bounds; i64 parts; i32 bits", _BOUNDS
    body = walk.each(statements, row, vectorize=False)
    params = f"{move}* values; i64* places; const {move}* x; {pointers}"
    return walk.kernel("sort_finish", parameters(params), body, helpers)


# ---- a few elements of each row ----


@functools.cache
def top_kernel(type_: str, largest: bool, form: str) -> Kernel:
    """The first `k` elements of each contiguous row in sorted order, by insertion: for small k.

    An element moves in only if it beats the last of them, which soon is rare: then blocks are passed over of which none
    does.
    """
    unsigned, key = _unsigned(type_), key_type(type_)
    search = f"""\
    GLOBAL {BY_NAME[key].storage}* best = keys + i * k;
    GLOBAL long* at = places + i * k;
    long found = 0;
    {unsigned} last = 0;
    for (long e = 0; e < length;) {{
      if (found == k)
        for (; e + {_PASSED} <= length; e += {_PASSED}) {{
          int better = 0;
          for (int l = 0; l < {_PASSED}; ++l) better |= sort_key(load_{type_}(x, base + e + l)) < last;
          if (better) break;
        }}
      for (const long end = min(length, e + {_PASSED}); e < end; ++e) {{
        {unsigned} own = sort_key(load_{type_}(x, base + e));
        if (found == k && own >= last) continue;
        long j = found < k ? found++ : k - 1;
        for (; j > 0 && ({unsigned})best[j - 1] > own; --j) {{ best[j] = best[j - 1]; at[j] = at[j - 1]; }}
        best[j] = own;
        at[j] = e;
        last = best[found - 1];
      }}
    }}
    for (long j = 0; j < k; ++j) {_move(type_, "values", "i * k + j", "x", "base + at[j]")}"""
    params = f"{type_}* values; i64* places; const {type_}* x; {key}* keys; i64 k"
    return _rows_kernel("top", params, form, search, _key(type_, largest))


def _pick(name: str, type_: str, form: str, choose: str) -> Kernel:
    """One element of each sorted row, ``at`` which the statements choose: its value, and its place if that is
    wanted."""
    statements = f"""\
{choose}
    {_move(type_, "value", "i", "sorted", "base + at")}
    if (place) place[i] = places[base + at];"""
    params = f"{type_}* value; i64* place; const {type_}* sorted; const i64* places"
    return _rows_kernel(name, params, form, statements)


@functools.cache
def mode_kernel(type_: str, form: str) -> Kernel:
    """The most frequent value of each sorted row, the smallest of several, and the last place that it had."""
    choose = f"""\
    long at = 0, most = 0, start = 0;
    for (long e = 0; e < length; ++e) {{
      if (e > 0 && load_{type_}(sorted, base + e) != load_{type_}(sorted, base + e - 1)) start = e;
      if (e - start + 1 > most) {{ most = e - start + 1; at = e; }}
    }}"""
    return _pick("mode", type_, form, choose)


@functools.cache
def middle_kernel(type_: str, skip_nan: bool) -> Kernel:
    """The lower median of each sorted row, on GPUs; NaN, which comes last, wins or is not counted."""
    nan = f"load_{type_}(sorted, base + {{0}}) != load_{type_}(sorted, base + {{0}})"
    if skip_nan:
        choose = f"""\
    long count = length;
    while (count > 1 && {nan.format("count - 1")}) --count;
    long at = (count - 1) / 2;"""
    else:
        choose = f"""\
    long at = (length - 1) / 2;
    if ({nan.format("length - 1")}) {{
      at = length - 1;
      while (at > 0 && {nan.format("at - 1")}) --at;
    }}"""
    return _pick("median", type_, "gpu", choose)
