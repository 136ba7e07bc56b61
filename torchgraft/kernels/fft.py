"""Fast Fourier transforms along one axis: Stockham's algorithm in mixed radix.

A *line* is the data of one transform. Each stage reads a line at n/R places that lie evenly apart, turns them by powers
of w = exp(-2 pi i / n), transforms these R numbers and writes them so that the result comes out in order, without a
permutation at the end (see Govindaraju et al., "High performance discrete Fourier transforms on graphics processors",
SC 2008). The transform back is the one forth with real and imaginary parts exchanged.

A walk deals the work out to groups, which take their parts one after the other. On CPUs a work-item takes as many lines
at once as a vector has lanes, and lines lie beside each other in its scratch, where they are transformed forth and back
if they are convolved; rows and columns as they mostly are, complete and a product of small primes, have a quicker way
(`kernels.fft_rows`). On GPUs a work-group takes one line, in local memory if it is short.

A real line of even length is one of half the length whose numbers are *pairs* of neighbours; what its transform has to
do with that of the line, forth and back, is in `_UNPAIR` (see Numerical Recipes, section 12.3). Two lines in one would
be as quick, but each would have the other's rounding errors, infinities and NaNs.

What a longer transform is made of - the two steps of n = n1 n2, Bluestein's convolution - differs only in where a
line's elements come from, where they go, and by what they are multiplied on the way: see `LINE_PARAMETERS`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from torchgraft.codegen.kernel import Kernel, Parameter, Pointer, Value, parameters
from torchgraft.codegen.loops import Walk
from torchgraft.codegen.types import BY_NAME, value_ctype
from torchgraft.codegen.vectors import shuffle_helpers, transpose_registers
from torchgraft.kernels.butterflies import butterfly
from torchgraft.kernels.fft_rows import Along, pointers_passed, row_helpers

Source = Literal["complex", "real", "hermitian", "pairs"]
Target = Literal["complex", "real", "pairs"]

GPU_LOCAL = 64
_GPU_LOCAL_BYTES = 32768  # the least that OpenCL promises

GPU_RADICES = (8, 4, 2, 3, 5, 7)
CPU_RADICES = (16, 10, 9, 8, 7, 6, 5, 4, 3, 2)
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


# ---- Stages: x to y, both with parts apart. ----


def _stage_text(radix: int, is_first: bool, x: Sequence[str], y: Sequence[str], turn: str) -> str:
    """Reads, turns, transforms and writes: the places of number q's parts, and its turn's."""
    lines = []
    for q in range(radix):
        real, imag = (part.format(q=q) for part in x)
        if q == 0 or is_first:
            lines.append(f"const V x{q}r = {real}, x{q}i = {imag};")
            continue
        lines.append(
            f"const T w{q}r = turns[{turn.format(q=q)}], w{q}i = turns[{turn.format(q=q)} + 1];\n"
            f"const V v{q}r = {real}, v{q}i = {imag};\n"
            f"const V x{q}r = v{q}r * w{q}r - v{q}i * w{q}i, x{q}i = v{q}r * w{q}i + v{q}i * w{q}r;"
        )
    lines.append(butterfly(radix))
    for q in range(radix):
        real, imag = (part.format(q=q) for part in y)
        lines.append(f"{real} = y{q}r; {imag} = y{q}i;")
    return "\n".join(lines)


_GPU_PARAMETERS = (
    "const SPACE V* xr, const SPACE V* xi, SPACE V* yr, SPACE V* yi, const GLOBAL T* turns, int n, int finer, int done"
)
_GPU_LOOP = """const int apart = n / {radix}, step = finer * (apart / done);
  for (int from = LOCAL_ID(0); from < apart; from += LOCAL_SIZE(0)) {{
    const int k = from % done, to = (from - k) * {radix} + k;"""


def _gpu_stage(radix: int, is_first: bool) -> str:
    """`done` is the product of the radices before, and k / done what is turned."""
    x = ("xr[from + {q} * apart]", "xi[from + {q} * apart]")
    y = ("yr[to + {q} * done]", "yi[to + {q} * done]")
    text = _stage_text(radix, is_first, x, y, "2 * ({q} * k * step)")
    return f"""static inline void {"first" if is_first else "stage"}_{radix}({_GPU_PARAMETERS}) {{
  {_GPU_LOOP.format(radix=radix)}
{text}
  }}
}}
"""


_CPU_PARAMETERS = (
    "const SPACE V* a, SPACE V* b, const GLOBAL T* turns, long n, long finer, long done, const GLOBAL T* fetch"
)


def _cpu_stage(radix: int, is_first: bool) -> str:
    """Real and imaginary parts take turns in memory, and so each number has two lines of cache. Meanwhile as many are
    fetched as the numbers have, from `fetch` on, if that is given: to be read after the first stage, to be written
    after others.
    """
    x = ("x[{q} * read_apart]", "x[{q} * read_apart + 1]")
    y = ("y[{q} * write_apart]", "y[{q} * write_apart + 1]")
    text = _stage_text(radix, is_first, x, y, "{q} * turn")
    word = "PREFETCH" if is_first else "PREFETCH_TO_WRITE"
    fetch = f"""if (fetch)
        for (int q = 0; q < {2 * radix}; ++q, fetch += WIDTH) {word}(fetch);"""
    loops = (
        f"""for (long k = 0; k < apart; ++k) {{
      const SPACE V* const x = a + 2 * k;
      SPACE V* const y = b + {2 * radix} * k;
      {fetch}"""
        if is_first
        else f"""for (long first = 0; first < apart; first += done)
    for (long k = 0; k < done; ++k) {{
      const SPACE V* const x = a + 2 * (first + k);
      SPACE V* const y = b + 2 * ({radix} * first + k);
      const long turn = k * step;
      {fetch}"""
    )
    return f"""WIDE inline void {"first" if is_first else "stage"}_{radix}({_CPU_PARAMETERS}) {{
  const long apart = n / {radix}, step = 2 * finer * (apart / done), read_apart = 2 * apart;
  const long write_apart = {"2" if is_first else "2 * done"};
  {loops}
{text}
    }}
}}
"""


_CPU_LOOP = """const int apart = n / radix, step = finer * (apart / done);
  for (int first = 0; first < apart; first += done)
    for (int k = 0; k < done; ++k) {
      const int from = first + k, to = first * radix + k;
      {"""


def _any_stage(form: str) -> str:
    """Any other radix: the numbers are turned where they are, which nobody else reads, and then summed up R times."""
    close = "}}" if form == "cpu" else "}"
    parameters = _GPU_PARAMETERS.replace("const SPACE", "SPACE")
    return f"""WIDE inline void stage_any({parameters}, int radix) {{
  {_CPU_LOOP if form == "cpu" else _GPU_LOOP.format(radix="radix")}
    for (int q = 1; q < radix; ++q) {{
      const T wr = turns[2 * (q * k * step)], wi = turns[2 * (q * k * step) + 1];
      const V vr = xr[AT(from + q * apart)], vi = xi[AT(from + q * apart)];
      xr[AT(from + q * apart)] = vr * wr - vi * wi;
      xi[AT(from + q * apart)] = vr * wi + vi * wr;
    }}
    for (int m = 0; m < radix; ++m) {{
      V sr = xr[AT(from)], si = xi[AT(from)];
      for (int q = 1, at = m; q < radix; ++q, at = at + m < radix ? at + m : at + m - radix) {{
        const T wr = turns[2 * (at * apart * finer)], wi = turns[2 * (at * apart * finer) + 1];
        const V vr = xr[AT(from + q * apart)], vi = xi[AT(from + q * apart)];
        sr += vr * wr - vi * wi;
        si += vr * wi + vi * wr;
      }}
      yr[AT(to + m * done)] = sr;
      yi[AT(to + m * done)] = si;
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

# Number `number` of the radices, which are bytes; `low` has the first eight of them.
_RADIX = "(int)((number < 8 ? low >> (8 * number) : high >> (8 * (number - 8))) & 255)"

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
  const T sr = ((const SPACE T*)ar)[{source}] * scale, si = ((const SPACE T*)ai)[{source}] * scale;
  T vr = sr, vi = si;
  if (after) {{
    const T wr = after[2 * ({first} + j * target_step)], wi = after[2 * ({first} + j * target_step) + 1];
    vr = sr * wr - si * wi; vi = sr * wi + si * wr;
  }}
  {_WRITE[target].format(at=at)}
}}"""


# ---- On GPUs. ----


def _place(rank: int) -> str:
    """Where the line numbered `line` lies."""
    lines = ["const long part = parts == 1 ? 0 : line % parts;"]
    lines.append("long batch = parts == 1 ? line : line / parts, source_at = 0, target_at = 0;")
    for d in reversed(range(rank)):
        index = f"batch % size{d}" if d else "batch"
        lines.append(f"{{ const long index = {index}; batch /= size{d};")
        lines.append(f"  source_at += index * source_apart{d}; target_at += index * target_apart{d}; }}")
    return "\n".join(lines)


def _gpu_stages() -> str:
    """Runs through the radices, the lowest byte first."""
    calls = [(r, f"stage_{r}") for r in GPU_RADICES] + [(-r, f"first_{r}") for r in GPU_RADICES]
    cases = "\n    ".join(f"case {r}: {stage}(ar, ai, br, bi, turns, n, finer, done); break;" for r, stage in calls)
    return f"""
for (int done = 1, number = 0; done < n; ++number) {{
  const int radix = {_RADIX};
  BARRIER;
  switch (done == 1 ? -radix : radix) {{
    {cases}
    default: stage_any(ar, ai, br, bi, turns, n, finer, done, radix);
  }}
  done *= radix;
  SPACE V* swap = ar; ar = br; br = swap;
  swap = ai; ai = bi; bi = swap;
}}
BARRIER;
"""


_EXCHANGE = "if (backward) { SPACE V* swap = ar; ar = ai; ai = swap; }"


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
  {_gpu_stages()}
  {_EXCHANGE}
  for (int j = LOCAL_ID(0); j < n; j += LOCAL_SIZE(0)) {{
    const long jump = target_step * target_stride;
    {_store(target, "j", "target_from", "target_place")}
  }}
  BARRIER;"""


# ---- On CPUs: which lines a work-item has, and where they lie. ----

# Lines from `count` on are the last one again, so that vectors have all their lanes.
_LINES = """typedef struct {
  long base[WIDTH], from[WIDTH], place[WIDTH]; // of the axis, of element 0 on it, and where that lies
  long next, shortest;
  int count, split, beside, whole;
} Lines;

// Lines lie beside each other, `next` (0 or `most`) apart on their axis, up to `split`, and so do the others from there
// on. They may be taken in blocks if they are `whole`: multiplied by the same.
inline void compare(Lines* s, int count, int factors, int most, long length) {
  s->count = count;
  s->next = s->from[1] - s->from[0];
  int split = 1, beside = s->next == 0 || s->next == most;
  while (split < count && s->place[split] == s->place[0] + split && s->from[split] == s->from[0] + split * s->next)
    ++split;
  for (int l = split; l < count; ++l) {
    beside &= s->next == 0 && s->from[l] == s->from[0] && s->place[l] == s->place[split] + l - split;
    if (!beside) break;
  }
  long last = s->from[0];
  for (int l = 1; l < WIDTH; ++l) last = max(last, s->from[l]);
  s->split = split;
  s->beside = beside;
  s->whole = !factors || last == s->from[0] && s->next == 0;
  s->shortest = length - last;
}
"""


def _places(rank: int) -> str:
    """Where `count` lines from `start` on lie. Only the first one's place takes divisions."""
    lines = ["long part = parts == 1 ? 0 : start % parts, batch = parts == 1 ? start : start / parts;"]
    lines.append("long source_at = 0, target_at = 0;")
    for d in reversed(range(rank)):
        lines.append(f"long index{d} = {f'batch % size{d}' if d else 'batch'};")
        lines.append(f"batch /= size{d};" if d else "")
        lines.append(f"source_at += index{d} * source_apart{d}; target_at += index{d} * target_apart{d};")
    step = ""
    for d in range(rank):
        wrap = f"""if (++index{d} == size{d}) {{
        index{d} = 0; source_at -= size{d} * source_apart{d}; target_at -= size{d} * target_apart{d}; {step}
      }}"""
        step = f"source_at += source_apart{d}; target_at += target_apart{d}; {wrap if d else ''}"
    lines.append(f"""for (int l = 0; l < WIDTH; ++l) {{
    sources.base[l] = source_at; sources.from[l] = part * source_first;
    sources.place[l] = source_at + sources.from[l] * source_stride;
    targets.from[l] = part * target_first; targets.place[l] = target_at + targets.from[l] * target_stride;
    if (l < count - 1 && ++part == parts) {{
      part = 0; {step}
    }}
  }}""")
    return "\n  ".join(lines)


# ---- On CPUs: reading and writing. ----

# Numbers of all lines at one place of them: those up to `split` lie at p, the others at q.
_ACROSS = """
WIDE inline void read_across(V* v, int vectors, const GLOBAL T* p, const GLOBAL T* q, int split, int count) {
  T* const one = (T*)v;
  for (int i = 0; i < vectors * split; ++i) one[i] = p[i];
  for (int i = vectors * split; i < vectors * count; ++i) one[i] = q[i - vectors * split];
  for (int i = vectors * count; i < vectors * WIDTH; ++i) one[i] = one[i - vectors];
}
WIDE inline void write_across(const V* v, int vectors, GLOBAL T* p, GLOBAL T* q, int split, int count) {
  const T* const one = (const T*)v;
  for (int i = 0; i < vectors * split; ++i) p[i] = one[i];
  for (int i = vectors * split; i < vectors * count; ++i) q[i - vectors * split] = one[i];
}
"""


def _read_across(at: str, *to: str) -> str:
    """Into vectors that are not there yet."""
    count = len(to)
    near, far = (f"source + {count} * ({at.format(lines=lines)})" for lines in ("near", "far"))
    loads = " ".join(f"{v} = LOAD({near}, WIDTH * {i});" for i, v in enumerate(to))
    takes = " ".join(f"{v} = v[{i}];" for i, v in enumerate(to))
    return f"""V {", ".join(to)};
if (split == WIDTH) {{ {loads} }}
else {{ V v[{count}]; read_across(v, {count}, {near}, {far}, split, count); {takes} }}"""


def _write_across(at: str, *vectors: str) -> str:
    count = len(vectors)
    near, far = (f"target + {count} * ({at.format(lines=lines)})" for lines in ("near", "far"))
    stores = " ".join(f"STORE({near}, WIDTH * {i}, {v});" for i, v in enumerate(vectors))
    puts = " ".join(f"v[{i}] = {v};" for i, v in enumerate(vectors))
    return f"""if (split == WIDTH) {{ {stores} }}
else {{ V v[{count}]; {puts} write_across(v, {count}, {near}, {far}, split, count); }}"""


_READ_ACROSS = {
    "complex": f"""{_read_across("{lines} + j * jump", "s0", "s1")}
V vr = EVEN(s0, s1), vi = ODD(s0, s1);""",
    "real": f"""{_read_across("{lines} + j * jump", "vr")}
V vi = SPLAT(0);""",
    "pairs": f"""{_read_across("{lines} + 2 * j * jump", "vr")}
{_read_across("{lines} + (2 * j + 1) * jump", "vi")}""",
    "hermitian": f"""const long mirrored = from <= full - from ? from : full - from;
{_read_across("base_{lines} + mirrored * source_stride", "s0", "s1")}
V vr = EVEN(s0, s1), vi = ODD(s0, s1);
vi = mirrored == 0 || 2 * mirrored == full ? SPLAT(0) : from == mirrored ? vi : -vi;""",
}
_WRITE_ACROSS = {
    "complex": f"""const V t0 = ZIP_LOW(vr, vi), t1 = ZIP_HIGH(vr, vi);
{_write_across("{lines} + j * jump", "t0", "t1")}""",
    "real": _write_across("{lines} + j * jump", "vr"),
    "pairs": f"""{_write_across("{lines} + 2 * j * jump", "vr")}
{_write_across("{lines} + (2 * j + 1) * jump", "vi")}""",
}


# Elements of columns lie too far apart for a CPU to foresee which are next.
_FETCH_COLUMNS = """{word}({name} + 2 * (near + (j + 8) * jump));
{word}({name} + 2 * (near + (j + 8) * jump) + WIDTH);
if ({factors} && lines->next) {{
  PREFETCH({factors} + 2 * (from + 8 * {name}_step));
  PREFETCH({factors} + 2 * (from + 8 * {name}_step) + WIDTH);
}}
"""


def _times_across(factors: str) -> str:
    return f"""if ({factors}) {{
  const GLOBAL T* w = {factors} + 2 * from;
  V wr = SPLAT(w[0]), wi = SPLAT(w[1]);
  if (lines->next) {{
    const V w0 = LOAD(w, 0), w1 = LOAD(w, WIDTH);
    wr = EVEN(w0, w1); wi = ODD(w0, w1);
  }}
  const V turned = vr * wr - vi * wi;
  vi = vr * wi + vi * wr; vr = turned;
}}"""


_FACTORS = """if ({factors}) {{
  const GLOBAL T* w = {factors} + 2 * (lines->from[0] + j);
  const V wr = SPLAT(w[0]), wi = SPLAT(w[1]);
  const V turned = vr * wr - vi * wi;
  vi = vr * wi + vi * wr; vr = turned;
}}"""


def _pointers(side: str, kind: Source | Target, block: int) -> str:
    """To the first elements of lines."""
    scale = "" if kind in ("real", "pairs") else "2 * "
    const = "const " if side == "source" else ""
    return "\n".join(f"{const}GLOBAL T* const p{i} = {side} + {scale}lines->place[{i}];" for i in range(block))


# A block is a square: as many parts of numbers as lines. Real numbers have one part, others two.


def _load_block(source: Source, block: int) -> str:
    parts = 1 if source == "real" else 2
    lines = [f"V r{i} = LOAD(p{i}, {parts} * block);" for i in range(block)]
    lines.append(transpose_registers(block, "V"))
    for k in range(block // parts):
        imaginary = "SPLAT(0)" if parts == 1 else f"r{2 * k + 1}"
        ends = "if (j == 0 || 2 * j == full) vi = SPLAT(0);" if source == "hermitian" else ""
        lines.append(
            f"{{ const int j = block + {k}; V vr = r{parts * k}, vi = {imaginary};\n"
            f"{ends}\n{_FACTORS.format(factors='before')}\n"
            "ar[2 * j] = vr; ai[2 * j] = vi; }"
        )
    return "\n".join(lines)


def _store_block(target: Target, block: int) -> str:
    parts = 1 if target == "real" else 2
    lines = [f"V r{i};" for i in range(block)]
    for k in range(block // parts):
        imaginary = "" if parts == 1 else f"r{2 * k + 1} = vi;"
        lines.append(
            f"{{ const int j = block + {k};\n"
            "V vr = ar[2 * j] * scale, vi = ai[2 * j] * scale;\n"
            f"{_FACTORS.format(factors='after')}\nr{parts * k} = vr; {imaginary} }}"
        )
    lines.append(transpose_registers(block, "V"))
    lines += [f"STORE(p{i}, {parts} * block, r{i});" for i in range(block)]
    return "\n".join(lines)


def _lines_text(name: str, kind: Source | Target, extra: str, one: str, across: str, block: str, width: int) -> str:
    """Functions that read or write the elements of all lines up to `end`.

    Lines that lie side by side are read and written across, those that have no gaps in blocks, others along, eight
    elements of each at a time: whole cache lines. A last block that is not full begins earlier.

    Args:
        name: "source" or "target".
        extra: a parameter.
        one, across, block: texts for an element of a line, for one of all lines, and for a block.
    """
    reads = name == "source"
    verb, factors = ("load", "before") if reads else ("store", "after")
    memory, scratch = ("const GLOBAL", "SPACE") if reads else ("GLOBAL", "const SPACE")
    step = width if kind == "real" else width // 2
    passed = f"lines, {name}, {factors}, {name}_step, {name}_stride, {name}_length, {extra.split()[-1]}, ar, ai"
    parameters = (
        f"const Lines* lines, {memory} T* {name}, const GLOBAL T* {factors}, long {name}_step, long {name}_stride, "
        f"long {name}_length, {extra}, {scratch} V* ar, {scratch} V* ai"
    )
    bases = "const long base_near = lines->base[0], base_far = lines->base[rest];" if reads else ""
    blocks = f"""if (jump == 1 && lines->whole) {{
    {_pointers(name, kind, width)}
    const int there = (int)min((long)end, lines->shortest);
    if (there >= {step})
      for (; next < there; next += {step}) {{
        const int block = min(next, there - {step});
        {block}
      }}
    next = min(next, max(0, there));
  }}"""
    return f"""inline void {verb}_each_{kind}({parameters}, int begin, int end) {{
  const long jump = {name}_step * {name}_stride;
  for (int start = begin; start < end; start += 8)
    for (int l = 0; l < {"WIDTH" if reads else "lines->count"}; ++l)
      for (int j = start; j < min(end, start + 8); ++j) {{
        {one}
      }}
}}
WIDE inline void {verb}_lines_{kind}({parameters}, int end) {{
  const long jump = {name}_step * {name}_stride;
  if (lines->beside) {{
    const int split = lines->split, count = lines->count, rest = min(split, WIDTH - 1);
    const long near = lines->place[0], far = lines->place[rest];
    {bases}
    for (int j = 0; j < end; ++j) {{
      const long from = lines->from[0] + j * {name}_step;
      if (from + lines->next * (WIDTH - 1) < {name}_length) {{
        {across}
      }} else {verb}_each_{kind}({passed}, j, j + 1);
    }}
    return;
  }}
  int next = 0;
  {blocks if block else ""}
  {verb}_each_{kind}({passed}, next, end);
}}
"""


def _load_text(source: Source, target: Target, width: int) -> str:
    places = {"base": "lines->base[l]", "first": "lines->from[l]", "at": "lines->place[l]"}
    one = _load(source, "2 * j * WIDTH + l", **places)
    fetch = _FETCH_COLUMNS.format(word="PREFETCH", name="source", factors="before") if source == "complex" else ""
    across = f"{fetch}{_READ_ACROSS[source]}\n{_times_across('before')}\nar[2 * j] = vr; ai[2 * j] = vi;"
    block = "" if source == "hermitian" and target != "pairs" else _load_block(source, width)
    return _lines_text("source", source, "long full", one, across, block, width)


def _store_text(target: Target, width: int) -> str:
    one = _store(target, "2 * j * WIDTH + l", "lines->from[l]", "lines->place[l]")
    fetch = ""
    if target == "complex":
        fetch = _FETCH_COLUMNS.format(word="PREFETCH_TO_WRITE", name="target", factors="after")
    across = f"""{fetch}V vr = ar[2 * j] * scale, vi = ai[2 * j] * scale;
{_times_across("after")}
{_WRITE_ACROSS[target]}"""
    return _lines_text("target", target, "T scale", one, across, _store_block(target, width), width)


# ---- On CPUs: the whole. ----

# Between the transform z of m pairs and that of the line, x, which has 2 m numbers: forth
#     x[k] = (s + p) / 2, x[m - k] = conj(s - p) / 2 where s, d = z[k] +- conj(z[m - k]), p = -i w^k d, z[m] = z[0],
# and back, without the halves, p = i w^-k d.
_UNPAIR = """
for (int k = 0; 2 * k <= n; ++k) {{
  const int at = {partner};
  const V xr = ar[2 * k], xi = ai[2 * k], yr = ar[2 * at], yi = ai[2 * at];
  const V wr = SPLAT(turns[2 * k + 1]), wi = SPLAT({sign}turns[2 * k]);
  const V sr = xr + yr, si = xi - yi, dr = xr - yr, di = xi + yi;
  const V pr = wr * dr - wi * di, pi = wr * di + wi * dr;
  ar[2 * k] = {half}(sr + pr); ai[2 * k] = {half}(si + pi);
  ar[2 * (n - k)] = {half}(sr - pr); ai[2 * (n - k)] = {half}(pi - si);
}}
"""
_AFTER_PAIRS = f"""{_UNPAIR.format(partner="k == 0 ? 0 : n - k", sign="-", half="(T)0.5 * ")}
for (int k = n + 1; k < stored; ++k) {{ ar[2 * k] = ar[2 * (full - k)]; ai[2 * k] = -ai[2 * (full - k)]; }}"""
_BEFORE_PAIRS = _UNPAIR.format(partner="n - k", sign="", half="")


_SWAP = "{ SPACE V* swap = a; a = b; b = swap; }"


def _cpu_stages() -> str:
    """Runs through the radices, the lowest byte first. Returns whether what the last has written lies in b.

    The first stage fetches the memory from `ahead` on, which is read next, and the last the one from `fetch` on, where
    its results go.
    """
    calls = [(r, f"stage_{r}", "fetched") for r in CPU_RADICES] + [(-r, f"first_{r}", "ahead") for r in CPU_RADICES]
    cases = "\n    ".join(f"case {r}: {stage}(a, b, turns, n, finer, done, {at}); break;" for r, stage, at in calls)
    return f"""WIDE inline int stages(SPACE V* a, SPACE V* b, const GLOBAL T* turns, int n,
    int finer, ulong low, ulong high, const GLOBAL T* ahead, const GLOBAL T* fetch) {{
  int number = 0;
  for (int done = 1; done < n; ++number) {{
    const int radix = {_RADIX};
    const GLOBAL T* const fetched = done * radix == n ? fetch : 0;
    switch (done == 1 ? -radix : radix) {{
      {cases}
      default: stage_any(a, a + 1, b, b + 1, turns, n, finer, done, radix);
    }}
    done *= radix;
    {_SWAP}
  }}
  return number & 1;
}}
"""


# Where lines go that follow each other: memory that is not there yet when it is written holds up what comes after.
_FETCHED = """inline GLOBAL T* fetched(const Lines* lines, GLOBAL T* target, int parts, long jump, long length) {
  const long apart = parts * (lines->place[1] - lines->place[0]);
  const int adjacent = jump == 1 && apart >= length && apart < length + WIDTH;
  return adjacent ? target + parts * lines->place[0] : 0;
}
// Where the lines lie that are read next, if all lines follow each other: a CPU does not foresee it where it reads many
// at once.
inline const GLOBAL T* next_lines(const Lines* lines, const GLOBAL T* source, int parts, long jump, long length) {
  const long apart = lines->place[1] - lines->place[0];
  const int adjacent = jump == 1 && apart >= length && apart < length + WIDTH;
  return adjacent ? source + parts * (lines->place[0] + WIDTH * apart) : 0;
}
"""


def _cpu_lines(source: Source, target: Target, type_: str, rank: int) -> str:
    """A function that transforms the lines from `start` on, but none from `end` on, with scratch of its own. Real parts
    lie at a + back, and imaginary ones at a + 1 - back.
    """
    load = "source, before, source_step, source_stride, source_length, full, ar, ai, read"
    store = "target, after, target_step, target_stride, target_length, scale, ar, ai, written"
    # Half an axis is read forth and back, so its lines must be at one place of it.
    most = 0 if source == "hermitian" else 1
    parts = 1 if target in ("real", "pairs") else 2
    read_parts = 1 if source in ("real", "pairs") else 2
    read_length = {"pairs": "2 * source_length", "hermitian": "full / 2 + 1"}.get(source, "source_length")
    length = f"{2 if target == 'pairs' else parts} * target_length"
    return f"""WIDE inline void {_lines_name(source, target, rank)}({_declared(_line_parameters(type_, rank))},
    GLOBAL T* own, long start, long end) {{
  const int loaded = n + {int(target == "pairs")};
  const int stored = {"max(n + 1, (int)target_length)" if source == "pairs" else "n"};
  // Elements that no line has are not looked for.
  const int read = (int)min((long)loaded, (source_length + source_step - 1) / source_step);
  const int written = (int)min((long)stored, (target_length + target_step - 1) / target_step);
  const int count = (int)min((long)WIDTH, end - start);
  Lines sources, targets;
  {_places(rank)}
  compare(&sources, count, before != 0, {most}, source_length);
  compare(&targets, count, after != 0, 1, target_length);
  SPACE V *a = (SPACE V*)own, *b = a + 2 * max(loaded, stored);
  int back = backward;
  {{
    SPACE V *const ar = a + back, *const ai = a + 1 - back;
    load_lines_{source}(&sources, {load});
    for (int j = read; j < loaded; ++j) ar[2 * j] = ai[2 * j] = SPLAT(0);
    {_BEFORE_PAIRS if target == "pairs" else ""}
  }}
  const GLOBAL T* const ahead = start + WIDTH < end
    ? next_lines(&sources, source, {read_parts}, source_step * source_stride, {read_length}) : 0;
  GLOBAL T* const fetch = fetched(&targets, target, {parts}, target_step * target_stride, {length});
  if (spectrum) {{
    if (stages(a, b, turns, n, finer, low, high, ahead, 0)) {_SWAP}
    for (int j = 0; j < n; ++j) {{
      const T wr = spectrum[2 * j], wi = spectrum[2 * j + 1];
      const V vr = a[2 * j], vi = a[2 * j + 1];
      a[2 * j] = vr * wi + vi * wr; a[2 * j + 1] = vr * wr - vi * wi;
    }}
    back = !back;
  }}
  if (stages(a, b, turns, n, finer, low, high, spectrum ? 0 : ahead, fetch)) {_SWAP}
  {{
    SPACE V *const ar = a + back, *const ai = a + 1 - back;
    {_AFTER_PAIRS if source == "pairs" else ""}
    store_lines_{target}(&targets, {store});
  }}
}}
"""


def _cpu_rows(source: Source, target: Target, type_: str, rank: int, along: Along) -> str:
    """The same for lines along which vectors go (`kernels.fft_rows`). `turns` has what that asks for. Of rows the last
    ones are one several times, if there are fewer than go together; columns end where the last dimension of the batch
    does."""
    scale = 1 if source == "pairs" else 2
    together = range(1 if along.columns else along.lines)
    places = "\n".join(
        f"""const GLOBAL T* x{i};
    GLOBAL T* z{i};
    {{
      const long line = min(first + {i}, end - 1);
      {_place(rank)}
      x{i} = source + {scale} * source_at; z{i} = target + 2 * target_at;
    }}"""
        for i in together
    )
    step = f"const int rest = {along.lines};"
    if along.columns:
        last = f"size{rank - 1}"
        step = f"""const int rest = (int)min(min({along.lines}L, end - first), {last} - first % {last});
    const long jump_x = 2 * source_stride, jump_z = 2 * target_stride;"""
    x, z = (pointers_passed(along, name) for name in "xz")
    return f"""WIDE inline void {_lines_name(source, target, rank, along)}({_declared(_line_parameters(type_, rank))},
    GLOBAL T* own, long start, long end) {{
  for (long first = start; first < end;) {{
    {step}
    {places}
    transform_{along.name}({x}, {z}, turns, own, n, low, high, scale, backward, rest);
    first += rest;
  }}
}}
"""


def _lines_name(source: Source, target: Target, rank: int, along: Along | None = None) -> str:
    return f"{along.name if along else 'lines'}_{source}_{target}_{rank}"


def _line_parameters(type_: str, rank: int, form: str = "cpu") -> tuple[Parameter, ...]:
    batch = "".join(f", size{d}, source_apart{d}, target_apart{d}" for d in range(rank))
    return parameters(
        f"{type_}* target; const {type_}* source, turns, before, after{', spectrum' if form == 'cpu' else ''}; "
        "i32 n, finer; i64 lines, parts, source_first, source_step, source_length, source_stride; "
        f"i64 target_first, target_step, target_length, target_stride, full{batch}; "
        f"u64 low, high; {type_} scale; i32 backward"
    )


def _declared(params: Sequence[Parameter]) -> str:
    """As a function declares them."""
    return ", ".join(
        f"{'const ' if p.const else ''}GLOBAL T* {p.name}"
        if isinstance(p, Pointer)
        else f"{value_ctype(p.type)} {p.name}"
        for p in params
    )


def _passed(params: Sequence[Parameter], suffix: str = "") -> str:
    return ", ".join(p.name + suffix for p in params)


def _definitions(type_: str, form: str, space: str) -> str:
    """What the texts call the types and the words for vectors of lines."""
    width, storage = lanes(type_, form), BY_NAME[type_].storage
    vector = f"{storage}{width}" if width > 1 else storage
    words = {
        "T": storage,
        "V": vector,
        "SPACE": space,
        "AT(i)": "(i)" if form == "gpu" else "(2 * (i))",
        "WIDTH": str(width),
        "LOAD": f"load_{type_}x{width}",
        "STORE": f"store_{type_}x{width}",
        "SPLAT": f"SPLAT_{vector}" if width > 1 else "",
        **{word: f"{word}_{vector}" for word in ("EVEN", "ODD", "ZIP_LOW", "ZIP_HIGH")},
    }
    shuffles = shuffle_helpers(width, vector) + "\n" if form == "cpu" else ""
    return "".join(f"#define {name} {text}\n" for name, text in words.items()) + shuffles


def _stages(form: str) -> str:
    stage, radices = (_gpu_stage, GPU_RADICES) if form == "gpu" else (_cpu_stage, CPU_RADICES)
    return "".join(stage(radix, is_first) for radix in radices for is_first in (True, False)) + _any_stage(form)


Pass = tuple[Source, Target, int, Along | None]
"""What lies in memory, the rank of the batch, and how vectors go along lines: not where they go across them."""


def _cpu_helpers(type_: str, passes: Sequence[Pass]) -> str:
    """All functions for some kinds of lines."""
    width = lanes(type_, "cpu")
    passes = list(dict.fromkeys(passes))
    storage, texts = BY_NAME[type_].storage, []
    for source, target, rank, along in passes:
        if along:
            rows = _cpu_rows(source, target, type_, rank, along)
            texts += [row_helpers(type_, along, source == "pairs"), f"#define T {storage}\n{rows}#undef T\n"]
    across = [p for p in passes if not p[3]]
    if across:
        loads = {source: _load_text(source, target, width) for source, target, _, _ in across}.values()
        stores = [_store_text(target, width) for target in dict.fromkeys(target for _, target, _, _ in across)]
        lines = [_cpu_lines(source, target, type_, rank) for source, target, rank, _ in across]
        common = [_definitions(type_, "cpu", "GLOBAL"), _stages("cpu"), _cpu_stages(), _LINES, _ACROSS, _FETCHED]
        texts += [*common, *loads, *stores, *lines]
    return "".join(texts)


@functools.cache
def plane_kernel(type_: str, first: Pass, second: Pass) -> Kernel:
    """Transforms planes along one axis and then along the other, while they lie in a CPU's cache. Each pass has its
    kinds and the rank of its batch. The walk is over shares of `share` lines of the first pass and `share_2` of the
    second, which are those of the same planes.

    Parameters: those of `line_kernel`, and the second pass's, whose names end in _2, but for `scratch`, of which each
    group has `room` elements.
    """
    passes = [(first, ""), (second, "_2")]
    params = (*parameters(f"{type_}* scratch; i64 room"),)
    body = f"GLOBAL {BY_NAME[type_].storage}* const own = scratch + GROUP_ID(0) * room;\n"
    for (source, target, rank, along), suffix in passes:
        own = _line_parameters(type_, rank)
        params += (*(replace(p, name=p.name + suffix) for p in own), Value(f"share{suffix}", "i64"))
        step = "end - start" if along else "WIDTH"
        body += f"""{{
    const long end = min(lines{suffix}, (tg_i + 1) * share{suffix});
    for (long start = tg_i * share{suffix}; start < end; start += {step})
      {_lines_name(source, target, rank, along)}({_passed(own, suffix)}, own, start, end);
  }}
  """
    walk = Walk("cpu", prefix="tg_")
    return walk.kernel("fft_planes", params, walk.each(body, vectorize=False), _cpu_helpers(type_, [first, second]))


@functools.cache
def line_kernel(
    type_: str, source: Source, target: Target, rank: int, form: str, local: int = 0, along: Along | None = None
) -> Kernel:
    """Transforms lines; `LINE_PARAMETERS` says which. The walk is over lines, or over as many at once as `lanes` where
    vectors go across them.

    Parameters: `target`, `source`, `turns` (powers of w), `before`, `after`, those, `scale`, `backward`, `scratch`. For
    CPUs also `spectrum`: what the transform is multiplied by before it is transformed back, if it is.

    Args:
        type_: of real parts, "f32" or "f64".
        source, target: what lies in memory. Of a Hermitian axis there are the elements 0 to full / 2.
        rank: dimensions of the batch.
        form: "cpu" or "gpu". Each group has 4 * lanes numbers of scratch for each element that is transformed, read or
            written: on CPUs `room` of them.
        local: the longest line for which a GPU's group has local memory in place of scratch; 0: it has none.
        along: how vectors go along lines; on CPUs they go across them otherwise.
    """
    own = _line_parameters(type_, rank, form)
    params = (*own, *parameters(f"{type_}* scratch" if form == "gpu" else f"{type_}* scratch; i64 room"))
    walk, head = Walk("cpu", prefix="tg_"), ""
    if form == "gpu":
        head = f"LOCAL {BY_NAME[type_].storage} own[{4 * local}];\n" if local else ""
        helpers = _definitions(type_, form, "LOCAL" if local else "GLOBAL") + _stages(form)
        body = _gpu_body(source, target, rank, local)
    else:
        helpers = _cpu_helpers(type_, [(source, target, rank, along)])
        those = "tg_i * WIDTH, min(lines, tg_end * WIDTH)"
        if along:
            those = f"tg_i * {along.lines}, min(lines, tg_i * {along.lines} + {along.lines})"
        body = f"{_lines_name(source, target, rank, along)}({_passed(own)}, scratch + GROUP_ID(0) * room, {those});"
    kernel = walk.kernel(f"fft_{source}_{target}", params, head + walk.each(body, vectorize=False), helpers)
    # The members of a GPU's group go through its lines together.
    return replace(kernel, local=(GPU_LOCAL if form == "gpu" else 1,))
