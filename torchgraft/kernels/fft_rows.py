"""Fourier transforms of lines that are rows, for CPUs: vectors go along lines, which stay in the first-level cache.

It is Stockham's algorithm as in `kernels.fft`, with real and imaginary parts apart. A stage always reads at places that
follow each other; it writes runs of as many numbers as the product of the radices before. So the first radix is no
smaller than a vector, and what its stage gives is turned in registers. Where a run is no multiple of a vector, its last
vector begins earlier and computes some numbers again.

Where runs would be short, some lines are transformed together: number k of the one is followed by number k of the
others. Nothing else is different, since that is the transform of a longer line whose first stages are done.

Columns that lie beside each other are so many lines together as a vector has lanes.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchgraft.codegen.types import BY_NAME
from torchgraft.codegen.vectors import shuffle, shuffle_helpers, transpose_registers
from torchgraft.kernels.butterflies import butterfly

RADICES = (16, 10, 9, 8, 7, 6, 5, 4, 3, 2)


@dataclass(frozen=True)
class Along:
    """How vectors go along lines.

    Attributes:
        lanes: of a vector.
        lines: how many are transformed together: one, two or four rows.
        first, between, last: the radices of the stages; those in between as they rise, each once.
        columns: whether the lines lie beside each other in memory, as many as there are lanes; otherwise the numbers of
            a line do.
    """

    lanes: int
    lines: int
    first: int = 0
    between: tuple[int, ...] = ()
    last: int = 0
    columns: bool = False

    @property
    def numbers(self) -> int:
        """Of each line, in a vector. The first radix is no smaller."""
        return self.lanes // self.lines

    @property
    def name(self) -> str:
        """Of what is transformed."""
        return "columns" if self.columns else "rows"

    @property
    def turned_apart(self) -> int:
        """For how many lines there is what they are turned by: columns have it from one place."""
        return 1 if self.columns else self.lines

    def room(self, n: int) -> int:
        """Elements of scratch for transforms of length n."""
        return 4 * (n * self.lines + self.lanes)


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


def pointers_passed(along: Along, name: str) -> str:
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
    """Reads the numbers of a butterfly and turns them by what lies at `turns`: for each but the first the real parts of
    as many as a run has, then the imaginary ones. `n` and `done` are those of all lines together."""
    text = ["const V x0r = LOAD(xr, from), x0i = LOAD(xi, from);"]
    for q in range(1, radix):
        place, turn = f"from + {q} * apart", f"{2 * q - 2} * done + k"
        turns = f"w{q}r = LOAD(turns, {turn}), w{q}i = LOAD(turns, {turn} + done)"
        if along.columns:
            turn = f"({turn}) / {along.lines}"
            turns = f"w{q}r = SPLAT(turns[{turn}]), w{q}i = SPLAT(turns[{turn} + done / {along.lines}])"
        text.append(
            f"const V v{q}r = LOAD(xr, {place}), v{q}i = LOAD(xi, {place});\n"
            f"const V {turns};\n"
            f"const V x{q}r = v{q}r * w{q}r - v{q}i * w{q}i, x{q}i = v{q}r * w{q}i + v{q}i * w{q}r;"
        )
    return "\n".join((*text, butterfly(radix)))


def _stage(radix: int, along: Along) -> str:
    lanes = along.lanes
    stores = "\n".join(f"STORE(y{part}, to + {q} * done, y{q}{part});" for q in range(radix) for part in "ri")
    return f"""WIDE inline void {along.name}_stage_{radix}(const GLOBAL T* xr, const GLOBAL T* xi, GLOBAL T* yr,
    GLOBAL T* yi, const GLOBAL T* turns, int n, int done) {{
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
    const GLOBAL T* turns, T scale, T sign, int n, int done, int rest) {{
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
    """What the transform of n pairs is to that of the 2 n numbers, as in `kernels.fft`: half of it, with its middle.
    `turns` has the imaginary parts of the powers of w, and their real parts with the other sign."""
    numbers, lines = along.numbers, along.lines
    picks = [(numbers - 1 - k) * lines + line for k in range(numbers) for line in range(lines)]
    return f"""#define REVERSE(v) {shuffle(vector, "v", "v", picks)}
WIDE inline void row_store_pairs(GLOBAL T* xr, GLOBAL T* xi, {_pointers(along, "z")}, const GLOBAL T* turns, T scale,
    int n) {{
  const V halved = SPLAT((T)0.5 * scale);
  for (int line = 0; line < {lines}; ++line) {{
    xr[{lines} * n + line] = xr[line];
    xi[{lines} * n + line] = xi[line];
  }}
  for (int start = 0; 2 * start <= n; start += {numbers}) {{
    const int k = min(start, n + 1 - {numbers}), at = n + 1 - {numbers} - k, own = {lines} * k, other = {lines} * at;
    const V ar = LOAD(xr, own), ai = LOAD(xi, own), br = LOAD(xr, other), bi = LOAD(xi, other);
    const V cr = REVERSE(br), ci = REVERSE(bi), wr = LOAD(turns, own), wi = LOAD(turns, {lines} * (n + 1) + own);
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


def row_helpers(type_: str, along: Along, pairs: bool) -> str:
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
    x, z = (pointers_passed(along, name) for name in "xz")
    stages = dict.fromkeys((*along.between, along.last) if pairs else along.between)
    go_on = " ".join(f"case {r}: {along.name}_stage_{r}(ar, ai, br, bi, turns, whole, done); break;" for r in stages)
    until = "whole" if pairs else f"whole / {along.last}"
    end = f"{along.name}_last(ar, ai, {z}, turns, scale, sign, whole, done, rest);"
    functions = [
        *(f"#define {name} {text}\n" for name, text in words.items()),
        f"{shuffle_helpers(lanes, vector)}\n",
        _PARTS_OF_ROWS if along.columns else "",
        _first(along.first, along, vector),
        *(_stage(radix, along) for radix in stages),
        _store_pairs(along, vector) if pairs else _last(along.last, along, vector),
        f"""WIDE inline void transform_{along.name}({_pointers(along, "x", "const ")}, {_pointers(along, "z")},
    const GLOBAL T* turns, GLOBAL T* own, int n, ulong low, ulong high, T scale, int backward, int rest) {{
  const int whole = {lines} * n, room = whole + {lanes};
  const T sign = backward ? -1 : 1;
  GLOBAL T *ar = own, *ai = own + room, *br = own + 2 * room, *bi = own + 3 * room;
  {along.name}_first_{along.first}({x}, {z}, sign, ar, ai, n, rest);
  int done = {lines * along.first};
  for (low = low >> 8 | high << 56, high >>= 8; done < {until}; low = low >> 8 | high << 56, high >>= 8) {{
    const int radix = low & 255;
    switch (radix) {{ {go_on} }}
    turns += 2 * (radix - 1) * done / {lines // along.turned_apart};
    done *= radix;
    GLOBAL T* swap = ar; ar = br; br = swap;
    swap = ai; ai = bi; bi = swap;
  }}
  {f"row_store_pairs(ar, ai, {z}, turns, scale, n);" if pairs else end}
}}
""",
        *(f"#undef {name}\n" for name in words),
        "".join(f"#undef tg_{side}_{1 << k}\n" for k in range(lanes.bit_length() - 1) for side in ("low", "high")),
    ]
    return "".join(functions)
