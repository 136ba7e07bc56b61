"""Sorting by digits, and the largest few of a row.

Elements are mapped to unsigned keys of the same order: NaN is the largest, the two zeros are equal. Sorting goes over
    the keys' bytes from the lowest
to the highest, each pass keeping the order that it finds, so equal elements stay in order. `row_kernel` sorts a row
with one work-item; for few long rows `count_kernel`, `scan_kernel` and `deal_kernel` share each pass among several.
"""

from __future__ import annotations

import functools

from torchgraft.codegen.kernel import Kernel, Parameter, Pointer, Value
from torchgraft.codegen.types import BY_NAME
from torchgraft.kernels.indexing import MOVES

GPU_LOCAL = 64
INSERTED = 32
"""Rows of at most so many elements are sorted by insertion."""


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


@functools.cache
def row_kernel(type_: str, descending: bool, form: str) -> Kernel:
    """Sorts contiguous rows: values and their places. Each group of a CPU has two rows of keys and places as scratch,
    each row on a GPU."""
    key, count = key_type(type_), passes(type_)
    params: tuple[Parameter, ...] = (
        Pointer("values", type_),
        Pointer("places", "i64"),
        Pointer("x", type_, const=True),
        Pointer("keys", key),
        Pointer("orders", "i32"),
        *(Value(v, "i64") for v in ("length", "n", "chunk")),
    )
    unsigned = _unsigned(type_)
    digits = "\n".join(f"        ++counts[{p * 256} + ((k >> {8 * p}) & 255)];" for p in range(count))
    sort = f"""\
    if (length <= {INSERTED}) {{
      for (int i = 0; i < (int)length; ++i) {{
        {unsigned} k = sort_key(load_{type_}(x, base + i));
        int j = i;
        for (; j > 0 && ({unsigned})from[j - 1] > k; --j) {{
          from[j] = from[j - 1];
          from_order[j] = from_order[j - 1];
        }}
        from[j] = k;
        from_order[j] = i;
      }}
    }} else {{
      uint counts[{count * 256}];
      for (int i = 0; i < {count * 256}; ++i) counts[i] = 0;
      for (long i = 0; i < length; ++i) {{
        {unsigned} k = sort_key(load_{type_}(x, base + i));
        from[i] = k;
        from_order[i] = i;
{digits}
      }}
      for (int p = 0; p < {count}; ++p) {{
        int shift = 8 * p;
        if (counts[p * 256 + ((({unsigned})from[0] >> shift) & 255)] == (uint)length) continue;
        uint sum = 0;
        for (int d = 0; d < 256; ++d) {{ uint c = counts[p * 256 + d]; counts[p * 256 + d] = sum; sum += c; }}
        for (long i = 0; i < length; ++i) {{
          {unsigned} k = from[i];
          uint at = counts[p * 256 + ((k >> shift) & 255)]++;
          to[at] = k;
          to_order[at] = from_order[i];
        }}
        GLOBAL {BY_NAME[key].storage}* swap = from; from = to; to = swap;
        GLOBAL int* swap_order = from_order; from_order = to_order; to_order = swap_order;
      }}
    }}
    for (long i = 0; i < length; ++i) {{
      long at = from_order[i];
      {_move(type_, "values", "base + i", "x", "base + at")}
      places[base + i] = at;
    }}"""
    if form == "gpu":
        rows = (
            f"  long r = (long)GROUP_ID(0) * {GPU_LOCAL} + LOCAL_ID(0);\n"
            "  if (r >= n) return;\n  {\n    long scratch = r * 2 * length;"
        )
    else:
        rows = (
            "  long begin = (long)GROUP_ID(0) * chunk, end = n - begin < chunk ? n : begin + chunk;\n"
            "  for (long r = begin; r < end; ++r) {\n    long scratch = (long)GROUP_ID(0) * 2 * length;"
        )
    body = f"""\
{rows}
    long base = r * length;
    GLOBAL {BY_NAME[key].storage}* from = keys + scratch;
    GLOBAL {BY_NAME[key].storage}* to = from + length;
    GLOBAL int* from_order = orders + scratch;
    GLOBAL int* to_order = from_order + length;
{sort}
  }}"""
    return Kernel(
        "sort_rows", params, body, helpers=_key(type_, descending), local=(GPU_LOCAL,) if form == "gpu" else (1,)
    )


def _part(form: str) -> str:
    """The elements of a row that a work-item has: parts are numbered along dimension 0, rows along dimension 1."""
    part = f"(long)GROUP_ID(0) * {GPU_LOCAL} + LOCAL_ID(0)" if form == "gpu" else "GROUP_ID(0)"
    return f"""\
  long part = {part}, row = GROUP_ID(1);
  if (part >= parts) return;
  long begin = part * chunk, end = length - begin < chunk ? length : begin + chunk;
"""


def _local(form: str) -> tuple[int, ...]:
    return (GPU_LOCAL, 1) if form == "gpu" else (1, 1)


_PARTS = tuple(Value(v, "i64") for v in ("length", "parts", "chunk"))


@functools.cache
def key_kernel(type_: str, descending: bool, form: str) -> Kernel:
    """Keys of contiguous rows, and their places."""
    params: tuple[Parameter, ...] = (
        Pointer("keys", key_type(type_)),
        Pointer("orders", "i32"),
        Pointer("x", type_, const=True),
        *_PARTS,
    )
    body = f"""\
{_part(form)}  for (long i = begin; i < end; ++i) {{
    keys[row * length + i] = sort_key(load_{type_}(x, row * length + i));
    orders[row * length + i] = i;
  }}"""
    return Kernel("sort_keys", params, body, helpers=_key(type_, descending), local=_local(form))


@functools.cache
def count_kernel(key: str, form: str) -> Kernel:
    """How often each digit occurs in each part: counts[row][digit][part], zero before."""
    params: tuple[Parameter, ...] = (
        Pointer("counts", "i32"),
        Pointer("keys", key, const=True),
        *_PARTS,
        Value("shift", "i32"),
    )
    body = f"""\
{_part(form)}  for (long i = begin; i < end; ++i)
    ++counts[(row * 256 + ((keys[row * length + i] >> shift) & 255)) * parts + part];"""
    return Kernel("sort_count", params, body, local=_local(form))


@functools.cache
def scan_kernel() -> Kernel:
    """Turns counts into the places where each part's digits begin. One work-item a row."""
    params: tuple[Parameter, ...] = (Pointer("counts", "i32"), Value("parts", "i64"))
    body = """\
  GLOBAL int* own = counts + (long)GROUP_ID(0) * 256 * parts;
  int sum = 0;
  for (long i = 0; i < 256 * parts; ++i) { int c = own[i]; own[i] = sum; sum += c; }"""
    return Kernel("sort_scan", params, body)


@functools.cache
def deal_kernel(key: str, form: str) -> Kernel:
    """Moves keys and places to where their digits go."""
    params: tuple[Parameter, ...] = (
        Pointer("to", key),
        Pointer("to_order", "i32"),
        Pointer("from", key, const=True),
        Pointer("from_order", "i32", const=True),
        Pointer("counts", "i32"),
        *_PARTS,
        Value("shift", "i32"),
    )
    body = f"""\
{_part(form)}  for (long i = row * length + begin; i < row * length + end; ++i) {{
    {BY_NAME[key].storage} k = from[i];
    long at = row * length + counts[(row * 256 + ((k >> shift) & 255)) * parts + part]++;
    to[at] = k;
    to_order[at] = from_order[i];
  }}"""
    return Kernel("sort_deal", params, body, local=_local(form))


@functools.cache
def finish_kernel(move: str, form: str) -> Kernel:
    """Values and places in the order found."""
    params: tuple[Parameter, ...] = (
        Pointer("values", move),
        Pointer("places", "i64"),
        Pointer("x", move, const=True),
        Pointer("orders", "i32", const=True),
        *_PARTS,
    )
    body = f"""\
{_part(form)}  for (long i = row * length + begin; i < row * length + end; ++i) {{
    long at = orders[i];
    values[i] = x[row * length + at];
    places[i] = at;
  }}"""
    return Kernel("sort_finish", params, body, local=_local(form))


@functools.cache
def top_kernel(type_: str, largest: bool, form: str) -> Kernel:
    """The first `k` elements of each contiguous row in sorted order, by insertion: for small k.

    An element moves in only if it beats the last of them, which soon is rare.
    """
    unsigned, key = _unsigned(type_), key_type(type_)
    params: tuple[Parameter, ...] = (
        Pointer("values", type_),
        Pointer("places", "i64"),
        Pointer("x", type_, const=True),
        Pointer("keys", key),
        *(Value(v, "i64") for v in ("k", "length", "n", "chunk")),
    )
    if form == "gpu":
        rows = f"  long r = (long)GROUP_ID(0) * {GPU_LOCAL} + LOCAL_ID(0);\n  if (r >= n) return;\n  {{"
    else:
        rows = (
            "  long begin = (long)GROUP_ID(0) * chunk, end = n - begin < chunk ? n : begin + chunk;\n"
            "  for (long r = begin; r < end; ++r) {"
        )
    body = f"""\
{rows}
    long base = r * length;
    GLOBAL {BY_NAME[key].storage}* best = keys + r * k;
    GLOBAL long* at = places + r * k;
    long found = 0;
    {unsigned} last = 0;
    for (long i = 0; i < length; ++i) {{
      {unsigned} own = sort_key(load_{type_}(x, base + i));
      if (found == k && own >= last) continue;
      long j = found < k ? found++ : k - 1;
      for (; j > 0 && ({unsigned})best[j - 1] > own; --j) {{ best[j] = best[j - 1]; at[j] = at[j - 1]; }}
      best[j] = own;
      at[j] = i;
      last = best[found - 1];
    }}
    for (long j = 0; j < k; ++j) {_move(type_, "values", "r * k + j", "x", "base + at[j]")}
  }}"""
    return Kernel("top", params, body, helpers=_key(type_, largest), local=(GPU_LOCAL,) if form == "gpu" else (1,))


@functools.cache
def mode_kernel(type_: str) -> Kernel:
    """The most frequent value of each sorted row, the smallest of several, and the last place that it had."""
    params: tuple[Parameter, ...] = (
        Pointer("value", type_),
        Pointer("place", "i64"),
        Pointer("sorted", type_, const=True),
        Pointer("places", "i64", const=True),
        Value("length", "i64"),
    )
    body = f"""\
  long r = GROUP_ID(0), base = r * length;
  long best = 0, most = 0, start = 0;
  for (long i = 0; i < length; ++i) {{
    if (i > 0 && load_{type_}(sorted, base + i) != load_{type_}(sorted, base + i - 1)) start = i;
    if (i - start + 1 > most) {{ most = i - start + 1; best = i; }}
  }}
  {_move(type_, "value", "r", "sorted", "base + best")}
  place[r] = places[base + best];"""
    return Kernel("mode", params, body)


@functools.cache
def middle_kernel(type_: str, skip_nan: bool) -> Kernel:
    """The lower median of each sorted row; NaN, which comes last, wins or is not counted."""
    params: tuple[Parameter, ...] = (
        Pointer("value", type_),
        Pointer("place", "i64"),
        Pointer("sorted", type_, const=True),
        Pointer("places", "i64", const=True),
        Value("length", "i64"),
    )
    nan = f"load_{type_}(sorted, base + {{0}}) != load_{type_}(sorted, base + {{0}})"
    if skip_nan:
        choose = (
            f"  long count = length;\n  while (count > 1 && {nan.format('count - 1')}) --count;\n"
            "  long at = (count - 1) / 2;"
        )
    else:
        choose = f"""\
  long at = (length - 1) / 2;
  if ({nan.format("length - 1")}) {{
    at = length - 1;
    while (at > 0 && {nan.format("at - 1")}) --at;
  }}"""
    body = f"""\
  long r = GROUP_ID(0), base = r * length;
{choose}
  {_move(type_, "value", "r", "sorted", "base + at")}
  if (place) place[r] = places[base + at];"""
    return Kernel("median", params, body)
