"""Transforms on CPUs whose vectors go across lines: a work-item takes as many lines at once as a vector has lanes, and
they lie beside each other in its scratch.
"""

from __future__ import annotations

from torchgraft.codegen.vectors import transpose_registers
from torchgraft.kernels.fft.lines import Kind, Lines, definitions, lanes, load, store
from torchgraft.kernels.fft.stages import SWAP, cpu_run, stages

# ---- Which lines a work-item has, and where they lie. ----

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


# ---- Reading and writing. ----

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


def _times(factors: str, first: str, beside: str = "") -> str:
    """Multiplies by the factors from one on, if there are any: all lines by the same but for `beside`."""
    return f"""if ({factors}) {{
  const GLOBAL T* w = {factors} + 2 * {first};
  V wr = SPLAT(w[0]), wi = SPLAT(w[1]);
  {beside}
  const V turned = vr * wr - vi * wi;
  vi = vr * wi + vi * wr; vr = turned;
}}"""


_BESIDE = """if (lines->next) {
    const V w0 = LOAD(w, 0), w1 = LOAD(w, WIDTH);
    wr = EVEN(w0, w1); wi = ODD(w0, w1);
  }"""


def _pointers(side: str, kind: Kind, block: int) -> str:
    """To the first elements of lines."""
    scale = "" if kind in ("real", "pairs") else "2 * "
    const = "const " if side == "source" else ""
    return "\n".join(f"{const}GLOBAL T* const p{i} = {side} + {scale}lines->place[{i}];" for i in range(block))


# A block is a square: as many parts of numbers as lines. Real numbers have one part, others two.


def _load_block(source: Kind, block: int) -> str:
    parts = 1 if source == "real" else 2
    lines = [f"V r{i} = LOAD(p{i}, {parts} * block);" for i in range(block)]
    lines.append(transpose_registers(block, "V"))
    for k in range(block // parts):
        imaginary = "SPLAT(0)" if parts == 1 else f"r{2 * k + 1}"
        ends = "if (j == 0 || 2 * j == full) vi = SPLAT(0);" if source == "hermitian" else ""
        lines.append(
            f"{{ const int j = block + {k}; V vr = r{parts * k}, vi = {imaginary};\n"
            f"{ends}\n{_times('before', '(lines->from[0] + j)')}\n"
            "ar[2 * j] = vr; ai[2 * j] = vi; }"
        )
    return "\n".join(lines)


def _store_block(target: Kind, block: int) -> str:
    parts = 1 if target == "real" else 2
    lines = [f"V r{i};" for i in range(block)]
    for k in range(block // parts):
        imaginary = "" if parts == 1 else f"r{2 * k + 1} = vi;"
        lines.append(
            f"{{ const int j = block + {k};\n"
            "V vr = ar[2 * j] * scale, vi = ai[2 * j] * scale;\n"
            f"{_times('after', '(lines->from[0] + j)')}\nr{parts * k} = vr; {imaginary} }}"
        )
    lines.append(transpose_registers(block, "V"))
    lines += [f"STORE(p{i}, {parts} * block, r{i});" for i in range(block)]
    return "\n".join(lines)


def _lines_text(name: str, kind: Kind, extra: str, one: str, across: str, block: str, width: int) -> str:
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


def _load_text(source: Kind, target: Kind, width: int) -> str:
    places = {"base": "lines->base[l]", "first": "lines->from[l]", "at": "lines->place[l]"}
    one = load(source, "2 * j * WIDTH + l", **places)
    fetch = _FETCH_COLUMNS.format(word="PREFETCH", name="source", factors="before") if source == "complex" else ""
    across = f"{fetch}{_READ_ACROSS[source]}\n{_times('before', 'from', _BESIDE)}\nar[2 * j] = vr; ai[2 * j] = vi;"
    block = "" if source == "hermitian" and target != "pairs" else _load_block(source, width)
    return _lines_text("source", source, "long full", one, across, block, width)


def _store_text(target: Kind, width: int) -> str:
    one = store(target, "2 * j * WIDTH + l", "lines->from[l]", "lines->place[l]")
    fetch = ""
    if target == "complex":
        fetch = _FETCH_COLUMNS.format(word="PREFETCH_TO_WRITE", name="target", factors="after")
    across = f"""{fetch}V vr = ar[2 * j] * scale, vi = ai[2 * j] * scale;
{_times("after", "from", _BESIDE)}
{_WRITE_ACROSS[target]}"""
    return _lines_text("target", target, "T scale", one, across, _store_block(target, width), width)


# ---- The whole. ----

# Between the transform z of m pairs and that of the line, x, which has 2 m numbers: forth
#     x[k] = (s + p) / 2, x[m - k] = conj(s - p) / 2 where s, d = z[k] +- conj(z[m - k]), p = -i w^k d, z[m] = z[0],
# and back, without the halves, p = i w^-k d.
_UNPAIR = """
for (int k = 0; 2 * k <= n; ++k) {{
  const int at = {partner};
  const V xr = ar[2 * k], xi = ai[2 * k], yr = ar[2 * at], yi = ai[2 * at];
  const V wr = SPLAT(twiddles[2 * k + 1]), wi = SPLAT({sign}twiddles[2 * k]);
  const V sr = xr + yr, si = xi - yi, dr = xr - yr, di = xi + yi;
  const V pr = wr * dr - wi * di, pi = wr * di + wi * dr;
  ar[2 * k] = {half}(sr + pr); ai[2 * k] = {half}(si + pi);
  ar[2 * (n - k)] = {half}(sr - pr); ai[2 * (n - k)] = {half}(pi - si);
}}
"""
_AFTER_PAIRS = f"""{_UNPAIR.format(partner="k == 0 ? 0 : n - k", sign="-", half="(T)0.5 * ")}
for (int k = n + 1; k < stored; ++k) {{ ar[2 * k] = ar[2 * (full - k)]; ai[2 * k] = -ai[2 * (full - k)]; }}"""
_BEFORE_PAIRS = _UNPAIR.format(partner="n - k", sign="", half="")


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


def _lines_function(lines: Lines, type_: str) -> str:
    """`lines.name`, which transforms the lines from `start` on, but none from `end` on, with scratch of its own. Real
    parts lie at a + back, and imaginary ones at a + 1 - back.
    """
    source, target = lines.source, lines.target
    loads = "source, before, source_step, source_stride, source_length, full, ar, ai, read"
    stores = "target, after, target_step, target_stride, target_length, scale, ar, ai, written"
    # Half an axis is read forth and back, so its lines must be at one place of it.
    most = 0 if source == "hermitian" else 1
    parts = 1 if target in ("real", "pairs") else 2
    read_parts = 1 if source in ("real", "pairs") else 2
    read_length = {"pairs": "2 * source_length", "hermitian": "full / 2 + 1"}.get(source, "source_length")
    length = f"{2 if target == 'pairs' else parts} * target_length"
    return f"""WIDE inline void {lines.name}({lines.declared(type_)},
    GLOBAL T* own, long start, long end) {{
  const int loaded = n + {int(target == "pairs")};
  const int stored = {"max(n + 1, (int)target_length)" if source == "pairs" else "n"};
  // Elements that no line has are not looked for.
  const int read = (int)min((long)loaded, (source_length + source_step - 1) / source_step);
  const int written = (int)min((long)stored, (target_length + target_step - 1) / target_step);
  const int count = (int)min((long)WIDTH, end - start);
  Lines sources, targets;
  {_places(lines.rank)}
  compare(&sources, count, before != 0, {most}, source_length);
  compare(&targets, count, after != 0, 1, target_length);
  SPACE V *a = (SPACE V*)own, *b = a + 2 * max(loaded, stored);
  int back = backward;
  {{
    SPACE V *const ar = a + back, *const ai = a + 1 - back;
    load_lines_{source}(&sources, {loads});
    for (int j = read; j < loaded; ++j) ar[2 * j] = ai[2 * j] = SPLAT(0);
    {_BEFORE_PAIRS if target == "pairs" else ""}
  }}
  const GLOBAL T* const ahead = start + WIDTH < end
    ? next_lines(&sources, source, {read_parts}, source_step * source_stride, {read_length}) : 0;
  GLOBAL T* const fetch = fetched(&targets, target, {parts}, target_step * target_stride, {length});
  if (spectrum) {{
    if (stages(a, b, twiddles, n, finer, low, high, ahead, 0)) {SWAP}
    for (int j = 0; j < n; ++j) {{
      const T wr = spectrum[2 * j], wi = spectrum[2 * j + 1];
      const V vr = a[2 * j], vi = a[2 * j + 1];
      a[2 * j] = vr * wi + vi * wr; a[2 * j + 1] = vr * wr - vi * wi;
    }}
    back = !back;
  }}
  if (stages(a, b, twiddles, n, finer, low, high, spectrum ? 0 : ahead, fetch)) {SWAP}
  {{
    SPACE V *const ar = a + back, *const ai = a + 1 - back;
    {_AFTER_PAIRS if source == "pairs" else ""}
    store_lines_{target}(&targets, {stores});
  }}
}}
"""


def functions(kinds: Lines, type_: str) -> str:
    """The one of these lines, and what it calls."""
    width = lanes(type_, "cpu")
    common = [definitions(type_, "cpu", "GLOBAL"), stages("cpu"), cpu_run(), _LINES, _ACROSS, _FETCHED]
    own = [
        _load_text(kinds.source, kinds.target, width),
        _store_text(kinds.target, width),
        _lines_function(kinds, type_),
    ]
    return "".join((*common, *own))
