"""Fast Fourier transforms along one axis: Stockham's algorithm in mixed radix.

A *line* is the data of one transform. Each stage reads a line at n/R places that lie evenly apart, turns them by powers
of w = exp(-2 pi i / n), transforms these R numbers and writes them so that the result comes out in order, without a
permutation at the end (see Govindaraju et al., "High performance discrete Fourier transforms on graphics processors",
SC 2008). The transform back is the one forth with real and imaginary parts exchanged.

A walk deals the work out to groups, which take their parts one after the other. On CPUs a work-item takes as many lines
at once as a vector has lanes, and lines lie beside each other in its scratch; on GPUs a work-group takes one line, in
local memory if it is short.

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

Source = Literal["complex", "real", "hermitian"]
Target = Literal["complex", "real"]

GPU_LOCAL = 64
_GPU_LOCAL_BYTES = 32768  # the least that OpenCL promises

RADICES = (8, 4, 2, 3, 5, 7)
"""Radices that have a text of their own; others are summed up term by term."""


def lanes(type_: str, form: str) -> int:
    """Lines that a work-item has at once. `type_` is the type of a real part, "f32" or "f64"."""
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
    "const SPACE V* xr, const SPACE V* xi, SPACE V* yr, SPACE V* yi, const GLOBAL T* turns, int n, int done"
)
_LOOPS = {
    "cpu": """const int apart = n / {radix}, step = apart / done;
  for (int first = 0; first < apart; first += done)
    for (int k = 0; k < done; ++k) {{
      const int from = first + k, to = first * {radix} + k;""",
    "gpu": """const int apart = n / {radix}, step = apart / done;
  for (int from = LOCAL_ID(0); from < apart; from += LOCAL_SIZE(0)) {{
      const int k = from % done, to = (from - k) * {radix} + k;
      {{""",
}


def _stage(radix: int, form: str) -> str:
    read = []
    for q in range(radix):
        at = f"from + {q} * apart"
        if q == 0:
            read.append(f"const V x0r = xr[{at}], x0i = xi[{at}];")
            continue
        read.append(
            f"const T w{q}r = turns[2 * ({q} * k * step)], w{q}i = turns[2 * ({q} * k * step) + 1];\n"
            f"const V v{q}r = xr[{at}], v{q}i = xi[{at}];\n"
            f"const V x{q}r = v{q}r * w{q}r - v{q}i * w{q}i, x{q}i = v{q}r * w{q}i + v{q}i * w{q}r;"
        )
    write = [f"yr[to + {q} * done] = y{q}r; yi[to + {q} * done] = y{q}i;" for q in range(radix)]
    text = "\n".join([*read, _butterfly(radix), *write])
    close = "}" if form == "cpu" else "}}"
    return f"""inline void stage_{radix}({_STAGE_PARAMETERS}) {{
  {_LOOPS[form].format(radix=radix)}
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
        const T wr = turns[2 * (at * apart)], wi = turns[2 * (at * apart) + 1];
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
length of a Hermitian axis of which half is there. The radices of the stages are the bytes of `low` and `high`.
"""


def _place(rank: int) -> str:
    """Where the line numbered `line` lies."""
    lines = ["const long part = line % parts; long batch = line / parts, source_at = 0, target_at = 0;"]
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
}
_WRITE = {
    "complex": "target[2 * ({at} + j * jump)] = vr; target[2 * ({at} + j * jump) + 1] = vi;",
    "real": "target[{at} + j * jump] = vr;",
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
  switch (radix) {{
    {cases}
    default: stage_any(ar, ai, br, bi, turns, n, done, radix);
  }}
  done *= radix;
  SPACE V* swap = ar; ar = br; br = swap;
  swap = ai; ai = bi; bi = swap;
}}
{sync}
"""


def _stages(form: str) -> str:
    cases = "\n    ".join(f"case {r}: stage_{r}(ar, ai, br, bi, turns, n, done); break;" for r in RADICES)
    return _STAGES.format(cases=cases, sync="BARRIER;" if form == "gpu" else "")


_EXCHANGE = "if (backward) { SPACE V* swap = ar; ar = ai; ai = swap; }"


# The same for as many lines as a vector has lanes, which lie side by side: `next` apart on their axis, 0 or 1.
_READ_ACROSS = {
    "complex": """const GLOBAL T* s = source + 2 * (source_place[0] + j * jump);
const V s0 = LOAD(s, 0), s1 = LOAD(s, WIDTH);
V vr = EVEN(s0, s1), vi = ODD(s0, s1);""",
    "real": "V vr = LOAD(source, source_place[0] + j * jump), vi = SPLAT(0);",
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


def _lanes(side: str, factors: str, one: str, plain: str, many: str) -> str:
    """Lines that lie side by side are read and written across, others along, eight elements of each at a time: whole
    cache lines.

    Args:
        one: for an element of any line. `plain`: where it is there and there are no factors. `many`: for an element of
            all lines.
    """
    return f"""if ({side}_beside) {{
  for (int j = 0; j < n; ++j) {{
    const long from = {side}_from[0] + j * {side}_step;
    if (from + {side}_next * (WIDTH - 1) < {side}_length) {{
      {many}
    }} else {{
      for (int l = 0; l < WIDTH; ++l) {{ {one} }}
    }}
  }}
}} else {{
  for (int block = 0; block < n; block += 8)
    for (int l = 0; l < count; ++l) {{
      if (block + 8 <= n && !{factors} && {side}_from[l] + (block + 7) * {side}_step < {side}_length) {{
        UNROLL for (int k = 0; k < 8; ++k) {{ const int j = block + k; {plain} }}
      }} else {{
        for (int j = block; j < min(n, block + 8); ++j) {{ {one} }}
      }}
    }}
}}"""


def _cpu_body(source: Source, target: Target, rank: int) -> str:
    own, places = "j * WIDTH + l", {"base": "source_base[l]", "first": "source_from[l]", "at": "source_place[l]"}
    load = _lanes(
        "source",
        "before",
        _load(source, own, **places),
        f"{_READ[source].format(**places)} ((SPACE T*)ar)[{own}] = vr; ((SPACE T*)ai)[{own}] = vi;",
        f"{_READ_ACROSS[source]}\n{_times_across('before', 'source')}\nar[j] = vr; ai[j] = vi;",
    )
    parts = f"const T vr = ((SPACE T*)ar)[{own}] * scale, vi = ((SPACE T*)ai)[{own}] * scale;"
    store = _lanes(
        "target",
        "after",
        _store(target, own, "target_from[l]", "target_place[l]"),
        f"{parts} {_WRITE[target].format(at='target_place[l]')}",
        f"V vr = ar[j] * scale, vi = ai[j] * scale;\n{_times_across('after', 'target')}\n{_WRITE_ACROSS[target]}",
    )
    # Half an axis is read forth and back, so its lines must be at one place of it.
    steps = "source_next == 0" if source == "hermitian" else "(source_next == 0 || source_next == 1)"
    return f"""
  SPACE V* const own = (SPACE V*)scratch + (long)GROUP_ID(0) * 4 * n;
  const long start = tg_i * WIDTH;
  const int count = (int)min((long)WIDTH, lines - start);
  long source_base[WIDTH], source_from[WIDTH], source_place[WIDTH], target_from[WIDTH], target_place[WIDTH];
  for (int l = 0; l < count; ++l) {{
    const long line = start + l;
    {_place(rank)}
    source_base[l] = source_at;
    source_from[l] = part * source_first;
    source_place[l] = source_at + source_from[l] * source_stride;
    target_from[l] = part * target_first;
    target_place[l] = target_at + target_from[l] * target_stride;
  }}
  const long source_next = count > 1 ? source_from[1] - source_from[0] : 0;
  const long target_next = count > 1 ? target_from[1] - target_from[0] : 0;
  int source_beside = count == WIDTH && {steps};
  int target_beside = count == WIDTH && (target_next == 0 || target_next == 1);
  for (int l = 1; l < count; ++l) {{
    source_beside &= source_place[l] == source_place[0] + l && source_from[l] == source_from[0] + l * source_next;
    target_beside &= target_place[l] == target_place[0] + l && target_from[l] == target_from[0] + l * target_next;
  }}
  SPACE V *ar = own, *ai = own + n, *br = own + 2 * n, *bi = own + 3 * n;
  {_EXCHANGE}
  {{
  const long jump = source_step * source_stride;
  {load}
  }}
  {_EXCHANGE}
  {_stages("cpu")}
  {_EXCHANGE}
  {{
  const long jump = target_step * target_stride;
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
        form: "cpu" or "gpu". Each group has 4 * n * lanes numbers of scratch.
        local: the longest line for which a GPU's group has local memory in place of scratch; 0: it has none.
    """
    batch = "".join(f", size{d}, source_apart{d}, target_apart{d}" for d in range(rank))
    params = parameters(
        f"{type_}* target; const {type_}* source, turns, before, after; {type_}* scratch; i32 n; "
        "i64 lines, parts, source_first, source_step, source_length, source_stride; "
        f"i64 target_first, target_step, target_length, target_stride, full{batch}; "
        f"u64 low, high; {type_} scale; i32 backward"
    )
    width = lanes(type_, form)
    storage = BY_NAME[type_].storage
    vector = f"{storage}{width}" if width > 1 else storage
    stages = "".join(_stage(radix, form) for radix in RADICES) + _any_stage(form)
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
    helpers = "".join(f"#define {name} {text}\n" for name, text in words.items()) + stages
    gpu, walk = form == "gpu", Walk("cpu", prefix="tg_")
    body = _gpu_body(source, target, rank, local) if gpu else _cpu_body(source, target, rank)
    head = f"LOCAL {storage} own[{4 * local}];\n" if local else ""
    kernel = walk.kernel(f"fft_{source}_{target}", params, head + walk.each(body, vectorize=False), helpers)
    # The members of a GPU's group go through its lines together.
    return replace(kernel, local=(GPU_LOCAL if gpu else 1,))
