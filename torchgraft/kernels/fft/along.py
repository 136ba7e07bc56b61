"""Transforms on CPUs whose vectors go along lines, which stay in the first-level cache.

It is Stockham's algorithm, with real and imaginary parts apart. A stage always reads at places that
follow each other; it writes runs of as many numbers as the product of the radices before. So the first radix is no
smaller than a vector, and what its stage gives is turned in registers. Where a run is no multiple of a vector, its last
vector begins earlier and computes some numbers again.

Where runs would be short, some lines are transformed together: number k of the one is followed by number k of the
others. Nothing else is different, since that is the transform of a longer line whose first stages are done.

Columns that lie beside each other are so many lines together as a vector has lanes.
"""

from __future__ import annotations

from torchgraft.codegen.types import BY_NAME
from torchgraft.codegen.vectors import shuffle, shuffle_helpers, transpose_registers
from torchgraft.kernels.fft.butterflies import butterfly
from torchgraft.kernels.fft.lines import Along, Lines, place


def _read(along: Along, vector: str, q: int) -> str:
    """Number q of a butterfly: of each line what lies from `at` on, real and imaginary parts in turn."""
    lanes, lines, numbers = along.lanes, along.lines, along.numbers
    place = f"2 * ({q} * apart + at)"
    picks = [2 * (line * numbers + k) for k in range(numbers) for line in range(lines)]
    if along.columns:
        row = f"x0 + ({q} * apart + at) * jump_x"
        loads = [f"s{q} = row_part({row}, 2 * rest)", f"t{q} = row_part({row} + {lanes}, 2 * rest - {lanes})"]
    elif lines == 1:
        loads = [f"s{q} = LOAD(x0, {place})", f"t{q} = LOAD(x0, {place} + {lanes})"]
    elif lines == 2:
        loads = [f"s{q} = LOAD(x0, {place})", f"t{q} = LOAD(x1, {place})"]
    else:
        a, b, c, d = (f"PART(x{line}, {place})" for line in range(lines))
        loads = [f"s{q} = {shuffle(vector, a, b, range(lanes))}", f"t{q} = {shuffle(vector, c, d, range(lanes))}"]
    real, imag = (shuffle(vector, f"s{q}", f"t{q}", [lane + part for lane in picks]) for part in (0, 1))
    return f"const V {', '.join(loads)};\nconst V x{q}r = {real}, x{q}i = {imag} * sign;"


def _write(along: Along, vector: str, number: str, real: str, imag: str) -> str:
    """Statements that store each line's numbers from `number` on to `z<line>`."""
    lanes, lines, numbers = along.lanes, along.lines, along.numbers
    if along.columns:
        row = f"z0 + ({number}) * jump_z"
        low, high = ([half + i // 2 + i % 2 * lanes for i in range(lanes)] for half in (0, lanes // 2))
        return (
            f"row_store_part({row}, {shuffle(vector, real, imag, low)}, 2 * rest);\n"
            f"row_store_part({row} + {lanes}, {shuffle(vector, real, imag, high)}, 2 * rest - {lanes});"
        )
    text = []
    for line in range(lines):
        picks = [lane for k in range(numbers) for lane in (k * lines + line, lanes + k * lines + line)]
        for begin in range(0, len(picks), lanes):
            some = picks[begin : begin + lanes]
            word = "STORE" if len(some) == lanes else "STORE_PART"
            value = shuffle(f"{vector.rstrip('0123456789')}{len(some)}", real, imag, some)
            text.append(f"{word}(z{line}, 2 * ({number}) + {begin}, {value});")
    return "\n".join(text)


# Of the columns that are there, where a row ends.
_PARTS_OF_ROWS = """WIDE inline V row_part(const GLOBAL T* p, int count) {
  if (count >= LANES) return LOAD(p, 0);
  V v = SPLAT(0);
  for (int i = 0; i < count; ++i) ((T*)&v)[i] = p[i];
  return v;
}
WIDE inline void row_store_part(GLOBAL T* p, V v, int count) {
  if (count >= LANES) { STORE(p, 0, v); return; }
  for (int i = 0; i < count; ++i) p[i] = ((const T*)&v)[i];
}
"""


def _pointers(along: Along, name: str, const: str = "") -> str:
    """To the first elements of lines; for columns, to that of the first, with the distance of its numbers."""
    if along.columns:
        return f"{const}GLOBAL T* {name}0, long jump_{name}"
    return ", ".join(f"{const}GLOBAL T* {name}{line}" for line in range(along.lines))


def _pointers_passed(along: Along, name: str) -> str:
    """The same, for a call."""
    if along.columns:
        return f"{name}0, jump_{name}"
    return ", ".join(f"{name}{line}" for line in range(along.lines))


def _first(radix: int, along: Along, vector: str) -> str:
    """Reads the lines where they lie.

    What number `at + k` of the stage gives is stored for rising k: what vectors have too much is overwritten by the
    next one, or lies behind the line.
    """
    numbers, lines = along.numbers, along.lines
    blocks = range(-(-radix // numbers))
    # A CPU waits for memory that it writes parts of cache lines to.
    fetched = range(lines if 2 * numbers < along.lanes and not along.columns else 0)
    text = [f"PREFETCH_TO_WRITE(z{line} + 2 * ({q} * apart + at));" for q in range(radix) for line in fetched]
    text += [_read(along, vector, q) for q in range(radix)]
    text.append(butterfly(radix))
    for part in "ri":
        text.append(f"V {', '.join(f'{part}{b}_{k}' for b in blocks for k in range(numbers))};")
        for b in blocks:
            rows = [f"y{b * numbers + k if b * numbers + k < radix else 0}{part}" for k in range(numbers)]
            text.append(f"{{ V {', '.join(f'r{k} = {row}' for k, row in enumerate(rows))};")
            text.append(transpose_registers(numbers, "V", lines))
            text.append(f"{' '.join(f'{part}{b}_{k} = r{k};' for k in range(numbers))} }}")
        for k in range(numbers):
            places = [f"{lines} * ({radix} * (at + {k}) + {b * numbers})" for b in blocks]
            text += [f"STORE(y{part}, {place}, {part}{b}_{k});" for b, place in zip(blocks, places, strict=True)]
    body = "\n".join(text)
    ends = f"{_pointers(along, 'x', 'const ')}, {_pointers(along, 'z')}"
    return f"""WIDE inline void {along.name}_first_{radix}({ends}, T sign, GLOBAL T* yr, GLOBAL T* yi, int n,
    int rest) {{
  const int apart = n / {radix};
  for (int start = 0; start < apart; start += {numbers}) {{
    const int at = min(start, apart - {numbers});
    {body}
  }}
}}
"""


def _turned(radix: int, along: Along) -> str:
    """Reads the numbers of a butterfly and multiplies them by `twiddles`: for each but the first the real parts of as
    many as a run has, then the imaginary ones. `n` and `done` are those of all lines together."""
    text = ["const V x0r = LOAD(xr, from), x0i = LOAD(xi, from);"]
    for q in range(1, radix):
        place, turn = f"from + {q} * apart", f"{2 * q - 2} * done + k"
        twiddles = f"w{q}r = LOAD(twiddles, {turn}), w{q}i = LOAD(twiddles, {turn} + done)"
        if along.columns:
            turn = f"({turn}) / {along.lines}"
            twiddles = f"w{q}r = SPLAT(twiddles[{turn}]), w{q}i = SPLAT(twiddles[{turn} + done / {along.lines}])"
        text.append(
            f"const V v{q}r = LOAD(xr, {place}), v{q}i = LOAD(xi, {place});\n"
            f"const V {twiddles};\n"
            f"const V x{q}r = v{q}r * w{q}r - v{q}i * w{q}i, x{q}i = v{q}r * w{q}i + v{q}i * w{q}r;"
        )
    return "\n".join((*text, butterfly(radix)))


def _stage(radix: int, along: Along) -> str:
    lanes = along.lanes
    stores = "\n".join(f"STORE(y{part}, to + {q} * done, y{q}{part});" for q in range(radix) for part in "ri")
    return f"""WIDE inline void {along.name}_stage_{radix}(const GLOBAL T* xr, const GLOBAL T* xi, GLOBAL T* yr,
    GLOBAL T* yi, const GLOBAL T* twiddles, int n, int done) {{
  const int apart = n / {radix};
  for (int first = 0; first < apart; first += done)
    for (int start = 0; start < done; start += {lanes}) {{
      const int k = min(start, done - {lanes}), from = first + k, to = {radix} * first + k;
      {_turned(radix, along)}
      {stores}
    }}
}}
"""


def _last(radix: int, along: Along, vector: str) -> str:
    """The last stage, which writes the lines where they shall lie."""
    numbers, lines = along.numbers, along.lines
    stores = "\n".join(
        f"{{ const V r = y{q}r * by, i = y{q}i * turned;\n"
        f"{_write(along, vector, f'at + {q} * (apart / {lines})', 'r', 'i')} }}"
        for q in range(radix)
    )
    return f"""WIDE inline void {along.name}_last(const GLOBAL T* xr, const GLOBAL T* xi, {_pointers(along, "z")},
    const GLOBAL T* twiddles, T scale, T sign, int n, int done, int rest) {{
  const int apart = n / {radix};
  const V by = SPLAT(scale), turned = SPLAT(scale * sign);
  for (int start = 0; start < apart / {lines}; start += {numbers}) {{
    const int at = min(start, apart / {lines} - {numbers}), k = {lines} * at, from = k;
    {_turned(radix, along)}
    {stores}
  }}
}}
"""


def _store_pairs(along: Along, vector: str) -> str:
    """What the transform of n pairs is to that of the 2 n numbers, as in `across`: half of it, with its middle.
    `twiddles` has the imaginary parts of the powers of w, and their real parts with the other sign."""
    numbers, lines = along.numbers, along.lines
    picks = [(numbers - 1 - k) * lines + line for k in range(numbers) for line in range(lines)]
    return f"""#define REVERSE(v) {shuffle(vector, "v", "v", picks)}
WIDE inline void row_store_pairs(GLOBAL T* xr, GLOBAL T* xi, {_pointers(along, "z")}, const GLOBAL T* twiddles, T scale,
    int n) {{
  const V halved = SPLAT((T)0.5 * scale);
  for (int line = 0; line < {lines}; ++line) {{
    xr[{lines} * n + line] = xr[line];
    xi[{lines} * n + line] = xi[line];
  }}
  for (int start = 0; 2 * start <= n; start += {numbers}) {{
    const int k = min(start, n + 1 - {numbers}), at = n + 1 - {numbers} - k, own = {lines} * k, other = {lines} * at;
    const V ar = LOAD(xr, own), ai = LOAD(xi, own), br = LOAD(xr, other), bi = LOAD(xi, other);
    const V cr = REVERSE(br), ci = REVERSE(bi), wr = LOAD(twiddles, own), wi = LOAD(twiddles, {lines} * (n + 1) + own);
    const V sr = ar + cr, si = ai - ci, dr = ar - cr, di = ai + ci;
    const V pr = wr * dr - wi * di, pi = wr * di + wi * dr;
    const V low_r = halved * (sr + pr), low_i = halved * (si + pi);
    const V high_r = halved * (sr - pr), high_i = halved * (pi - si);
    const V back_r = REVERSE(high_r), back_i = REVERSE(high_i);
    {_write(along, vector, "at", "back_r", "back_i")}
    {_write(along, vector, "k", "low_r", "low_i")}
  }}
}}
"""


def _helpers(type_: str, along: Along, pairs: bool) -> str:
    """The functions, and `transform_rows` or `transform_columns`: the transforms of the n numbers at x0, x1, ... to z0,
    z1, ...; of 2 n real numbers where they are pairs. Of columns there are `rest`. `own` has room as `Along` says."""
    lanes, lines = along.lanes, along.lines
    storage = BY_NAME[type_].storage
    vector = f"{storage}{lanes}"
    words = {"T": storage, "V": vector, "SPLAT": f"SPLAT_{vector}"}
    words |= {"LOAD": f"load_{type_}x{lanes}", "STORE": f"store_{type_}x{lanes}"}
    if along.columns:
        words["LANES"] = str(lanes)
    elif lines > 2:
        words |= {"PART": f"load_{type_}x{2 * along.numbers}", "STORE_PART": f"store_{type_}x{2 * along.numbers}"}
    x, z = (_pointers_passed(along, name) for name in "xz")
    stages = dict.fromkeys((*along.between, along.last) if pairs else along.between)
    go_on = " ".join(f"case {r}: {along.name}_stage_{r}(ar, ai, br, bi, twiddles, whole, done); break;" for r in stages)
    until = "whole" if pairs else f"whole / {along.last}"
    end = f"{along.name}_last(ar, ai, {z}, twiddles, scale, sign, whole, done, rest);"
    texts = [
        *(f"#define {name} {text}\n" for name, text in words.items()),
        f"{shuffle_helpers(lanes, vector)}\n",
        _PARTS_OF_ROWS if along.columns else "",
        _first(along.first, along, vector),
        *(_stage(radix, along) for radix in stages),
        _store_pairs(along, vector) if pairs else _last(along.last, along, vector),
        f"""WIDE inline void transform_{along.name}({_pointers(along, "x", "const ")}, {_pointers(along, "z")},
    const GLOBAL T* twiddles, GLOBAL T* own, int n, ulong low, ulong high, T scale, int backward, int rest) {{
  const int whole = {lines} * n, room = whole + {lanes};
  const T sign = backward ? -1 : 1;
  GLOBAL T *ar = own, *ai = own + room, *br = own + 2 * room, *bi = own + 3 * room;
  {along.name}_first_{along.first}({x}, {z}, sign, ar, ai, n, rest);
  int done = {lines * along.first};
  for (low = low >> 8 | high << 56, high >>= 8; done < {until}; low = low >> 8 | high << 56, high >>= 8) {{
    const int radix = low & 255;
    switch (radix) {{ {go_on} }}
    twiddles += 2 * (radix - 1) * done / {lines // along.twiddle_lines};
    done *= radix;
    GLOBAL T* swap = ar; ar = br; br = swap;
    swap = ai; ai = bi; bi = swap;
  }}
  {f"row_store_pairs(ar, ai, {z}, twiddles, scale, n);" if pairs else end}
}}
""",
        *(f"#undef {name}\n" for name in words),
        "".join(f"#undef tg_{side}_{1 << k}\n" for k in range(lanes.bit_length() - 1) for side in ("low", "high")),
    ]
    return "".join(texts)


def functions(lines: Lines, type_: str) -> str:
    """`lines.name`, which transforms the lines from `start` on, but none from `end` on, and what it calls. Of
    rows the last ones are one several times, if there are fewer than go together; columns end where the last dimension
    of the batch does."""
    along = lines.along
    assert along
    scale = 1 if lines.source == "pairs" else 2
    together = range(1 if along.columns else along.lines)
    places = "\n".join(
        f"""const GLOBAL T* x{i};
    GLOBAL T* z{i};
    {{
      const long line = min(first + {i}, end - 1);
      {place(lines.rank)}
      x{i} = source + {scale} * source_at; z{i} = target + 2 * target_at;
    }}"""
        for i in together
    )
    step = f"const int rest = {along.lines};"
    if along.columns:
        last = f"size{lines.rank - 1}"
        step = f"""const int rest = (int)min(min({along.lines}L, end - first), {last} - first % {last});
    const long jump_x = 2 * source_stride, jump_z = 2 * target_stride;"""
    x, z = (_pointers_passed(along, name) for name in "xz")
    return f"""{_helpers(type_, along, lines.source == "pairs")}#define T {BY_NAME[type_].storage}
WIDE inline void {lines.name}({lines.declared(type_)},
    GLOBAL T* own, long start, long end) {{
  for (long first = start; first < end;) {{
    {step}
    {places}
    transform_{along.name}({x}, {z}, twiddles, own, n, low, high, scale, backward, rest);
    first += rest;
  }}
}}
#undef T
"""
