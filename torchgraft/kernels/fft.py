"""Fast Fourier transforms along one axis: Stockham's algorithm in mixed radix.

A *line* is the data of one transform. Each stage reads a line at n/R places that lie evenly apart, turns them by powers
of w = exp(-2 pi i / n), transforms these R numbers and writes them so that the result comes out in order, without a
permutation at the end (see Govindaraju et al., "High performance discrete Fourier transforms on graphics processors",
SC 2008). The transform back is the one forth with real and imaginary parts exchanged.

A walk deals the work out to groups, which take their parts one after the other. On CPUs a work-item takes as many lines
at once as a vector has lanes, and lines lie beside each other in its scratch; on GPUs a work-group takes one line, in
local memory if it is short.

A real line of even length is one of half the length whose numbers are *pairs* of neighbours; what its transform has to
do with that of the line, forth and back, is in `_UNPAIR` (see Numerical Recipes, section 12.3). Two lines in one would
be as quick, but each would have the other's rounding errors, infinities and NaNs.

What a longer transform is made of - the two steps of n = n1 n2, Bluestein's convolution - differs only in where a
line's elements come from, where they go, and by what they are multiplied on the way: see `LINE_PARAMETERS`.
"""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import Literal

from torchgraft.codegen.kernel import Kernel, parameters
from torchgraft.codegen.loops import Walk
from torchgraft.codegen.types import BY_NAME
from torchgraft.codegen.vectors import shuffle_helpers, transpose_registers

Source = Literal["complex", "real", "hermitian", "pairs"]
Target = Literal["complex", "real", "pairs"]

GPU_LOCAL = 64
_GPU_LOCAL_BYTES = 32768  # the least that OpenCL promises

RADICES = (8, 4, 2, 3, 5, 7)
"""Radices that have a text of their own; others are summed up term by term."""


def lanes(type_: str, form: str) -> int:
    """Lines that a work-item has at once: those of a cache line, which is what columns are read in. Half as many fit
    into the registers better, and rows are a fifth quicker with them, columns a third slower.

    `type_` is the type of a real part, "f32" or "f64".
    """
    return 64 // BY_NAME[type_].size if form == "cpu" else 1


def local_length(type_: str) -> int:
    """The longest line that a GPU's work-group keeps in local memory: two complex numbers for each element."""
    return _GPU_LOCAL_BYTES // (4 * BY_NAME[type_].size)


# ---- Butterflies: x[k] and y[k] are the k-th number's parts, replaced by those of its transform. ----


def _add(to: str, a: str, b: str, sign: str = "+") -> str:
    return f"const V {to}r = {a}r {sign} {b}r, {to}i = {a}i {sign} {b}i;"


def _odd(radix: int) -> str:
    """Pairs k and R - k share their products, since their factors are conjugate."""
    half = range(1, (radix + 1) // 2)
    lines = []
    for k in half:
        lines += [_add(f"a{k}", f"x{k}", f"x{radix - k}"), _add(f"b{k}", f"x{k}", f"x{radix - k}", "-")]
    for part in "ri":
        lines.append(f"const V y0{part} = x0{part} + " + " + ".join(f"a{k}{part}" for k in half) + ";")
    for m in half:
        for part in "ri":
            cosines = [f"(T){math.cos(2 * math.pi * (k * m % radix) / radix)!r} * a{k}{part}" for k in half]
            sines = [f"(T){math.sin(2 * math.pi * (k * m % radix) / radix)!r} * b{k}{part}" for k in half]
            lines.append(f"const V c{m}{part} = x0{part} + {' + '.join(cosines)}, s{m}{part} = {' + '.join(sines)};")
        lines.append(f"const V y{m}r = c{m}r + s{m}i, y{m}i = c{m}i - s{m}r;")
        lines.append(f"const V y{radix - m}r = c{m}r - s{m}i, y{radix - m}i = c{m}i + s{m}r;")
    return "\n".join(lines)


def _two(out: tuple[str, str], x: tuple[str, str]) -> list[str]:
    return [_add(out[0], *x), _add(out[1], *x, "-")]


def _four(out: tuple[str, ...], x: tuple[str, ...], name: str) -> list[str]:
    t = [f"{name}{k}" for k in range(4)]
    return [
        *_two((t[0], t[1]), (x[0], x[2])),
        *_two((t[2], t[3]), (x[1], x[3])),
        *_two((out[0], out[2]), (t[0], t[2])),
        f"const V {out[1]}r = {t[1]}r + {t[3]}i, {out[1]}i = {t[1]}i - {t[3]}r;",
        f"const V {out[3]}r = {t[1]}r - {t[3]}i, {out[3]}i = {t[1]}i + {t[3]}r;",
    ]


def _eight() -> str:
    root = f"(T){math.sqrt(0.5)!r}"
    even, odd = [tuple(f"{name}{k}" for k in range(4)) for name in ("e", "o")]
    lines = _four(even, ("x0", "x2", "x4", "x6"), "p") + _four(odd, ("x1", "x3", "x5", "x7"), "q")
    lines += [  # times the powers of (1 - i) / sqrt(2)
        f"const V u1r = {root} * (o1r + o1i), u1i = {root} * (o1i - o1r);",
        "const V u2r = o2i, u2i = -o2r;",
        f"const V u3r = {root} * (o3i - o3r), u3i = -{root} * (o3r + o3i);",
    ]
    for k in range(4):
        lines += _two((f"y{k}", f"y{k + 4}"), (f"e{k}", f"u{k}" if k else "o0"))
    return "\n".join(lines)


def _butterfly(radix: int) -> str:
    if radix == 2:
        return "\n".join(_two(("y0", "y1"), ("x0", "x1")))
    if radix == 4:
        return "\n".join(_four(("y0", "y1", "y2", "y3"), ("x0", "x1", "x2", "x3"), "t"))
    return _eight() if radix == 8 else _odd(radix)


# A stage: x to y, both with parts apart. `done` is the product of the radices before, and k / done what is turned.
_STAGE_PARAMETERS = (
    "const SPACE V* xr, const SPACE V* xi, SPACE V* yr, SPACE V* yi, const GLOBAL T* turns, int n, int finer, int done"
)
_LOOPS = {
    "cpu": """const int apart = n / {radix}, step = finer * (apart / done);
  for (int first = 0; first < apart; first += done)
    for (int k = 0; k < done; ++k) {{
      const int from = first + k, to = first * {radix} + k;""",
    "gpu": """const int apart = n / {radix}, step = finer * (apart / done);
  for (int from = LOCAL_ID(0); from < apart; from += LOCAL_SIZE(0)) {{
      const int k = from % done, to = (from - k) * {radix} + k;
      {{""",
}


# The first stage of all: nothing is turned.
_FIRST_LOOPS = {
    "cpu": """const int apart = n / {radix};
  for (int from = 0; from < apart; ++from) {{
      const int to = from * {radix};""",
    "gpu": """const int apart = n / {radix};
  for (int from = LOCAL_ID(0); from < apart; from += LOCAL_SIZE(0)) {{
      const int to = from * {radix}; {{""",
}


def _stage(radix: int, form: str, is_first: bool) -> str:
    read = []
    for q in range(radix):
        at = f"from + {q} * apart"
        if q == 0 or is_first:
            read.append(f"const V x{q}r = xr[{at}], x{q}i = xi[{at}];")
            continue
        read.append(
            f"const T w{q}r = turns[2 * ({q} * k * step)], w{q}i = turns[2 * ({q} * k * step) + 1];\n"
            f"const V v{q}r = xr[{at}], v{q}i = xi[{at}];\n"
            f"const V x{q}r = v{q}r * w{q}r - v{q}i * w{q}i, x{q}i = v{q}r * w{q}i + v{q}i * w{q}r;"
        )
    write = [f"yr[to + {q} * done] = y{q}r; yi[to + {q} * done] = y{q}i;" for q in range(radix)]
    text = "\n".join([*read, _butterfly(radix), *write])
    close = "}" if form == "cpu" else "}}"
    name, loops = (f"first_{radix}", _FIRST_LOOPS) if is_first else (f"stage_{radix}", _LOOPS)
    return f"""inline void {name}({_STAGE_PARAMETERS}) {{
  {loops[form].format(radix=radix)}
{text}
  {close}
}}
"""


# Any other radix: the numbers are turned where they are, which nobody else reads, and then summed up R times.
def _any_stage(form: str) -> str:
    close = "}" if form == "cpu" else "}}"
    parameters = _STAGE_PARAMETERS.replace("const SPACE", "SPACE")
    return f"""inline void stage_any({parameters}, int radix) {{
  {_LOOPS[form].format(radix="radix")}
    for (int q = 1; q < radix; ++q) {{
      const T wr = turns[2 * (q * k * step)], wi = turns[2 * (q * k * step) + 1];
      const V vr = xr[from + q * apart], vi = xi[from + q * apart];
      xr[from + q * apart] = vr * wr - vi * wi;
      xi[from + q * apart] = vr * wi + vi * wr;
    }}
    for (int m = 0; m < radix; ++m) {{
      V sr = xr[from], si = xi[from];
      for (int q = 1, at = m; q < radix; ++q, at = at + m < radix ? at + m : at + m - radix) {{
        const T wr = turns[2 * (at * apart * finer)], wi = turns[2 * (at * apart * finer) + 1];
        const V vr = xr[from + q * apart], vi = xi[from + q * apart];
        sr += vr * wr - vi * wi;
        si += vr * wi + vi * wr;
      }}
      yr[to + m * done] = sr;
      yi[to + m * done] = si;
    }}
  {close}
}}
"""


# ---- The kernel. ----

LINE_PARAMETERS = """
Element j of line g is element from = u * source_first + j * source_step of the axis that is read, and element k of its
transform is element to = u * target_first + k * target_step of the axis that is written, where u = g % parts. Elements
from `source_length` on are zero, and none is written from `target_length` on. Where `before` and `after` are given,
what is read is multiplied by before[from], and what is written by after[to] and by `scale`. Element 0 of line g's axes
is found by g / parts in the batch's dimensions: `size<d>`, `source_apart<d>` and `target_apart<d>`. `full` is the
length of a Hermitian axis of which half is there, and of one of pairs. `turns` has `finer` powers of w for each element
of a line. The radices of the stages are the bytes of `low` and `high`.
"""


def _place(rank: int) -> str:
    """Where the line numbered `line` lies."""
    lines = ["const long part = parts == 1 ? 0 : line % parts;"]
    lines.append("long batch = parts == 1 ? line : line / parts, source_at = 0, target_at = 0;")
    for d in reversed(range(rank)):
        index = f"batch % size{d}" if d else "batch"
        lines.append(f"{{ const long index = {index}; batch /= size{d};")
        lines.append(f"  source_at += index * source_apart{d}; target_at += index * target_apart{d}; }}")
    return "\n".join(lines)


_READ = {
    "complex": "const T vr = source[2 * ({at} + j * jump)], vi = source[2 * ({at} + j * jump) + 1];",
    "real": "const T vr = source[{at} + j * jump], vi = 0;",
    # The parts that a real signal's transform does not have are not read.
    "hermitian": """const long from = {first} + j * source_step, mirrored = from <= full - from ? from : full - from;
const long place = {base} + mirrored * source_stride;
const T vr = source[2 * place], imag = source[2 * place + 1];
const T vi = mirrored == 0 || 2 * mirrored == full ? 0 : from == mirrored ? imag : -imag;
""",
    "pairs": "const T vr = source[{at} + 2 * j * jump], vi = source[{at} + (2 * j + 1) * jump];",
}
_WRITE = {
    "complex": "target[2 * ({at} + j * jump)] = vr; target[2 * ({at} + j * jump) + 1] = vi;",
    "real": "target[{at} + j * jump] = vr;",
    "pairs": "target[{at} + 2 * j * jump] = vr; target[{at} + (2 * j + 1) * jump] = vi;",
}


def _load(source: Source, to: str, base: str, first: str, at: str) -> str:
    return f"""T sr = 0, si = 0;
if ({first} + j * source_step < source_length) {{
  {_READ[source].format(base=base, first=first, at=at)}
  sr = vr; si = vi;
  if (before) {{
    const T wr = before[2 * ({first} + j * source_step)], wi = before[2 * ({first} + j * source_step) + 1];
    sr = vr * wr - vi * wi; si = vr * wi + vi * wr;
  }}
}}
((SPACE T*)ar)[{to}] = sr; ((SPACE T*)ai)[{to}] = si;"""


def _store(target: Target, source: str, first: str, at: str) -> str:
    return f"""if ({first} + j * target_step < target_length) {{
  const T sr = ((SPACE T*)ar)[{source}] * scale, si = ((SPACE T*)ai)[{source}] * scale;
  T vr = sr, vi = si;
  if (after) {{
    const T wr = after[2 * ({first} + j * target_step)], wi = after[2 * ({first} + j * target_step) + 1];
    vr = sr * wr - si * wi; vi = sr * wi + si * wr;
  }}
  {_WRITE[target].format(at=at)}
}}"""


# Runs through the radices, the lowest byte first; `low` has the first eight of them.
_STAGES = """
for (int done = 1, number = 0; done < n; ++number) {{
  const int radix = (number < 8 ? low >> (8 * number) : high >> (8 * (number - 8))) & 255;
  {sync}
  switch (done == 1 ? -radix : radix) {{
    {cases}
    default: stage_any(ar, ai, br, bi, turns, n, finer, done, radix);
  }}
  done *= radix;
  SPACE V* swap = ar; ar = br; br = swap;
  swap = ai; ai = bi; bi = swap;
}}
{sync}
"""


def _stages(form: str) -> str:
    calls = [(r, f"stage_{r}") for r in RADICES] + [(-r, f"first_{r}") for r in RADICES]
    cases = "\n    ".join(f"case {r}: {stage}(ar, ai, br, bi, turns, n, finer, done); break;" for r, stage in calls)
    return _STAGES.format(cases=cases, sync="BARRIER;" if form == "gpu" else "")


_EXCHANGE = "if (backward) { SPACE V* swap = ar; ar = ai; ai = swap; }"


# The same for as many lines as a vector has lanes, which lie side by side: `next` apart on their axis, 0 or 1.
_READ_ACROSS = {
    "complex": """const GLOBAL T* s = source + 2 * (source_place[0] + j * jump);
const V s0 = LOAD(s, 0), s1 = LOAD(s, WIDTH);
V vr = EVEN(s0, s1), vi = ODD(s0, s1);""",
    "real": "V vr = LOAD(source, source_place[0] + j * jump), vi = SPLAT(0);",
    "pairs": """V vr = LOAD(source, source_place[0] + 2 * j * jump);
V vi = LOAD(source, source_place[0] + (2 * j + 1) * jump);""",
    "hermitian": """const long mirrored = from <= full - from ? from : full - from;
const GLOBAL T* s = source + 2 * (source_base[0] + mirrored * source_stride);
const V s0 = LOAD(s, 0), s1 = LOAD(s, WIDTH);
V vr = EVEN(s0, s1), vi = ODD(s0, s1);
vi = mirrored == 0 || 2 * mirrored == full ? SPLAT(0) : from == mirrored ? vi : -vi;""",
}
_WRITE_ACROSS = {
    "complex": """GLOBAL T* t = target + 2 * (target_place[0] + j * jump);
STORE(t, 0, ZIP_LOW(vr, vi)); STORE(t, WIDTH, ZIP_HIGH(vr, vi));""",
    "real": "STORE(target, target_place[0] + j * jump, vr);",
    "pairs": """STORE(target, target_place[0] + 2 * j * jump, vr);
STORE(target, target_place[0] + (2 * j + 1) * jump, vi);""",
}


def _times_across(factors: str, side: str) -> str:
    return f"""if ({factors}) {{
  const GLOBAL T* w = {factors} + 2 * from;
  V wr = SPLAT(w[0]), wi = SPLAT(w[1]);
  if ({side}_next) {{
    const V w0 = LOAD(w, 0), w1 = LOAD(w, WIDTH);
    wr = EVEN(w0, w1); wi = ODD(w0, w1);
  }}
  const V turned = vr * wr - vi * wi;
  vi = vr * wi + vi * wr; vr = turned;
}}"""


def _lanes(side: str, one: str, many: str, blocks: str, end: str) -> str:
    """Lines that lie side by side are read and written across, those that have no gaps in blocks, others along, eight
    elements of each at a time: whole cache lines.

    Args:
        one: for an element of any line. `many`: for an element of all lines. `blocks`: for blocks of elements of all
            lines, from `block` on, which it takes on.
        end: how many elements there are.
    """
    return f"""if ({side}_beside) {{
  for (int j = 0; j < {end}; ++j) {{
    const long from = {side}_from[0] + j * {side}_step;
    if (from + {side}_next * (WIDTH - 1) < {side}_length) {{
      {many}
    }} else {{
      for (int l = 0; l < WIDTH; ++l) {{ {one} }}
    }}
  }}
}} else {{
  int block = 0;
  if (jump == 1 && {side}_whole) {{
    const int there = (int)min((long){end}, {side}_shortest);
    {blocks}
  }}
  for (; block < {end}; block += 8)
    for (int l = 0; l < count; ++l)
      for (int j = block; j < min({end}, block + 8); ++j) {{ {one} }}
}}"""


# A block is a square: as many parts of numbers as lines. Real numbers have one part, others two.
_FACTORS = """if ({factors}) {{
  const GLOBAL T* w = {factors} + 2 * ({side}_from[0] + j);
  const V wr = SPLAT(w[0]), wi = SPLAT(w[1]);
  const V turned = vr * wr - vi * wi;
  vi = vr * wi + vi * wr; vr = turned;
}}"""


def _pointers(side: str, kind: Source | Target, block: int) -> str:
    """To the first elements of lines."""
    scale = "" if kind in ("real", "pairs") else "2 * "
    const = "const " if side == "source" else ""
    return "\n".join(f"{const}GLOBAL T* p{i} = {side} + {scale}{side}_place[{i}];" for i in range(block))


def _load_blocks(source: Source, block: int) -> str:
    parts = 1 if source == "real" else 2
    lines = [f"V r{i} = LOAD(p{i}, {parts} * block);" for i in range(block)]
    lines.append(transpose_registers(block, "V"))
    for k in range(block // parts):
        imaginary = "SPLAT(0)" if parts == 1 else f"r{2 * k + 1}"
        ends = "if (j == 0 || 2 * j == full) vi = SPLAT(0);" if source == "hermitian" else ""
        lines.append(
            f"{{ const int j = block + {k}; V vr = r{parts * k}, vi = {imaginary};\n"
            f"{ends}\n{_FACTORS.format(side='source', factors='before')}\n"
            "ar[j] = vr; ai[j] = vi; }"
        )
    return _pointers("source", source, block) + _each_block("\n".join(lines), block, parts)


def _store_blocks(target: Target, block: int) -> str:
    parts = 1 if target == "real" else 2
    step = block // parts
    lines = [f"V r{i};" for i in range(block)]
    for k in range(step):
        imaginary = "" if parts == 1 else f"r{2 * k + 1} = vi;"
        lines.append(
            f"{{ const int j = block + {k};\n"
            "V vr = ar[j] * scale, vi = ai[j] * scale;\n"
            f"{_FACTORS.format(side='target', factors='after')}\nr{parts * k} = vr; {imaginary} }}"
        )
    lines.append(transpose_registers(block, "V"))
    lines += [f"STORE(p{i}, {parts} * block, r{i});" for i in range(block)]
    return _pointers("target", target, block) + _each_block("\n".join(lines), block, parts)


def _each_block(body: str, block: int, parts: int) -> str:
    step = block // parts
    return f"""for (; block + {step} <= there; block += {step}) {{
    {body}
  }}"""


# Between the transform z of m pairs and that of the line, x, which has 2 m numbers: forth
#     x[k] = (s + p) / 2, x[m - k] = conj(s - p) / 2 where s, d = z[k] +- conj(z[m - k]), p = -i w^k d, z[m] = z[0],
# and back, without the halves, p = i w^-k d.
_UNPAIR = """
for (int k = 0; 2 * k <= n; ++k) {{
  const int at = {partner};
  const V xr = ar[k], xi = ai[k], yr = ar[at], yi = ai[at];
  const V wr = SPLAT(turns[2 * k + 1]), wi = SPLAT({sign}turns[2 * k]);
  const V sr = xr + yr, si = xi - yi, dr = xr - yr, di = xi + yi;
  const V pr = wr * dr - wi * di, pi = wr * di + wi * dr;
  ar[k] = {half}(sr + pr); ai[k] = {half}(si + pi);
  ar[n - k] = {half}(sr - pr); ai[n - k] = {half}(pi - si);
}}
"""
_AFTER_PAIRS = f"""{_UNPAIR.format(partner="k == 0 ? 0 : n - k", sign="-", half="(T)0.5 * ")}
for (int k = n + 1; k < stored; ++k) {{ ar[k] = ar[full - k]; ai[k] = -ai[full - k]; }}"""
_BEFORE_PAIRS = _UNPAIR.format(partner="n - k", sign="", half="")


def _compared(side: str, factors: str, steps: str) -> str:
    """Whether this line and those before lie beside each other, and may be taken in blocks. In the loop that finds
    where they lie: to read that again at once, in vectors, would wait for it.
    """
    return f"""{{
  if (l == 1) {side}_next = {side}_from[1] - {side}_from[0];
  {side}_beside &= {steps} && {side}_place[l] == {side}_place[0] + l;
  {side}_beside &= {side}_from[l] == {side}_from[0] + l * {side}_next;
  {side}_whole &= !{factors} || {side}_from[l] == {side}_from[0];
  {side}_shortest = min({side}_shortest, {side}_length - {side}_from[l]);
}}"""


def _cpu_body(source: Source, target: Target, rank: int, block: int) -> str:
    own, places = "j * WIDTH + l", {"base": "source_base[l]", "first": "source_from[l]", "at": "source_place[l]"}
    load = _lanes(
        "source",
        _load(source, own, **places),
        f"{_READ_ACROSS[source]}\n{_times_across('before', 'source')}\nar[j] = vr; ai[j] = vi;",
        "" if source == "hermitian" and target != "pairs" else _load_blocks(source, block),
        "loaded",
    )
    store = _lanes(
        "target",
        _store(target, own, "target_from[l]", "target_place[l]"),
        f"V vr = ar[j] * scale, vi = ai[j] * scale;\n{_times_across('after', 'target')}\n{_WRITE_ACROSS[target]}",
        _store_blocks(target, block),
        "stored",
    )
    # Half an axis is read forth and back, so its lines must be at one place of it.
    steps = "source_next == 0" if source == "hermitian" else "(source_next == 0 || source_next == 1)"
    return f"""
  const int loaded = n + {int(target == "pairs")};
  const int stored = {"max(n + 1, (int)target_length)" if source == "pairs" else "n"};
  const int room = max(loaded, stored);
  SPACE V* const own = (SPACE V*)scratch + (long)GROUP_ID(0) * 4 * room;
  const long start = tg_i * WIDTH;
  const int count = (int)min((long)WIDTH, lines - start);
  long source_base[WIDTH], source_from[WIDTH], source_place[WIDTH], target_from[WIDTH], target_place[WIDTH];
  int source_beside = count == WIDTH, target_beside = count == WIDTH;
  int source_whole = count == WIDTH, target_whole = count == WIDTH;
  long source_next = 0, target_next = 0, source_shortest = source_length, target_shortest = target_length;
  for (int l = 0; l < count; ++l) {{
    const long line = start + l;
    {_place(rank)}
    source_base[l] = source_at;
    source_from[l] = part * source_first;
    source_place[l] = source_at + source_from[l] * source_stride;
    target_from[l] = part * target_first;
    target_place[l] = target_at + target_from[l] * target_stride;
    {_compared("source", "before", steps)}
    {_compared("target", "after", "(target_next == 0 || target_next == 1)")}
  }}
  SPACE V *ar = own, *ai = own + room, *br = own + 2 * room, *bi = own + 3 * room;
  {_EXCHANGE}
  {{
  const long jump = source_step * source_stride;
  {load}
  {_BEFORE_PAIRS if target == "pairs" else ""}
  }}
  {_EXCHANGE}
  {_stages("cpu")}
  {_EXCHANGE}
  {{
  const long jump = target_step * target_stride;
  {_AFTER_PAIRS if source == "pairs" else ""}
  {store}
  }}"""


def _gpu_body(source: Source, target: Target, rank: int, local: int) -> str:
    return f"""
  {"" if local else "GLOBAL T* const own = scratch + GROUP_ID(0) * 4 * n;"}
  const long line = tg_i;
  {_place(rank)}
  SPACE V *ar = own, *ai = own + n, *br = own + 2 * n, *bi = own + 3 * n;
  const long source_from = part * source_first, source_place = source_at + source_from * source_stride;
  const long target_from = part * target_first, target_place = target_at + target_from * target_stride;
  {_EXCHANGE}
  for (int j = LOCAL_ID(0); j < n; j += LOCAL_SIZE(0)) {{
    const long jump = source_step * source_stride;
    {_load(source, "j", "source_at", "source_from", "source_place")}
  }}
  {_EXCHANGE}
  {_stages("gpu")}
  {_EXCHANGE}
  for (int j = LOCAL_ID(0); j < n; j += LOCAL_SIZE(0)) {{
    const long jump = target_step * target_stride;
    {_store(target, "j", "target_from", "target_place")}
  }}
  BARRIER;"""


@functools.cache
def line_kernel(type_: str, source: Source, target: Target, rank: int, form: str, local: int = 0) -> Kernel:
    """Transforms lines; `LINE_PARAMETERS` says which. The walk is over lines, or over as many at once as `lanes`.

    Parameters: `target`, `source`, `turns` (powers of w), `before`, `after`, `scratch`, those, `scale`, `backward`.

    Args:
        type_: of real parts, "f32" or "f64".
        source, target: what lies in memory. Of a Hermitian axis there are the elements 0 to full / 2.
        rank: dimensions of the batch.
        form: "cpu" or "gpu". Each group has 4 * lanes numbers of scratch for each element that is transformed, read or
            written.
        local: the longest line for which a GPU's group has local memory in place of scratch; 0: it has none.
    """
    batch = "".join(f", size{d}, source_apart{d}, target_apart{d}" for d in range(rank))
    params = parameters(
        f"{type_}* target; const {type_}* source, turns, before, after; {type_}* scratch; i32 n, finer; "
        "i64 lines, parts, source_first, source_step, source_length, source_stride; "
        f"i64 target_first, target_step, target_length, target_stride, full{batch}; "
        f"u64 low, high; {type_} scale; i32 backward"
    )
    width = lanes(type_, form)
    storage = BY_NAME[type_].storage
    vector = f"{storage}{width}" if width > 1 else storage
    stages = "".join(_stage(radix, form, is_first) for radix in RADICES for is_first in (True, False)) + _any_stage(
        form
    )
    words = {
        "T": storage,
        "V": vector,
        "SPACE": "LOCAL" if local else "GLOBAL",
        "WIDTH": str(width),
        "LOAD": f"load_{type_}x{width}",
        "STORE": f"store_{type_}x{width}",
        "SPLAT": f"SPLAT_{vector}" if width > 1 else "",
        **{word: f"{word}_{vector}" for word in ("EVEN", "ODD", "ZIP_LOW", "ZIP_HIGH")},
    }
    helpers = "".join(f"#define {name} {text}\n" for name, text in words.items())
    helpers += (shuffle_helpers(width, vector) if form == "cpu" else "") + "\n" + stages
    gpu, walk = form == "gpu", Walk("cpu", prefix="tg_")
    body = _gpu_body(source, target, rank, local) if gpu else _cpu_body(source, target, rank, width)
    head = f"LOCAL {storage} own[{4 * local}];\n" if local else ""
    kernel = walk.kernel(f"fft_{source}_{target}", params, head + walk.each(body, vectorize=False), helpers)
    # The members of a GPU's group go through its lines together.
    return replace(kernel, local=(GPU_LOCAL if gpu else 1,))
