"""Lines, the data of one transform each: what kernels are told of them, and how an element is read and written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torchgraft.codegen.kernel import Parameter, Pointer, parameters
from torchgraft.codegen.types import BY_NAME, value_ctype
from torchgraft.codegen.vectors import shuffle_helpers

Kind = Literal["complex", "real", "hermitian", "pairs"]
"""What lies in memory; a Hermitian axis has the elements 0 to full / 2, and none is written."""


def lanes(type_: str, form: str) -> int:
    """Lines that a work-item has at once: those of a cache line, which is what columns are read in. Half as many fit
    into the registers better, and rows are a fifth quicker with them, columns a third slower.

    `type_` is the type of a real part, "f32" or "f64".
    """
    return 64 // BY_NAME[type_].size if form == "cpu" else 1


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
    def twiddle_lines(self) -> int:
        """For how many lines there are twiddle factors: columns have them from one place."""
        return 1 if self.columns else self.lines

    def room(self, n: int) -> int:
        """Elements of scratch for transforms of length n."""
        return 4 * (n * self.lines + self.lanes)


@dataclass(frozen=True)
class Lines:
    """What functions for lines are told apart by.

    Attributes:
        rank: dimensions of the batch.
        along: how vectors go along lines; on CPUs they go across them otherwise.
    """

    source: Kind
    target: Kind
    rank: int
    along: Along | None = None

    @property
    def name(self) -> str:
        return f"{self.along.name if self.along else 'lines'}_{self.source}_{self.target}_{self.rank}"

    def parameters(self, type_: str, form: str = "cpu") -> tuple[Parameter, ...]:
        """Element j of line g is element from = u * source_first + j * source_step of the axis that is read, and
        element k of its transform is element to = u * target_first + k * target_step of the axis that is written, where
        u = g % parts. Elements from `source_length` on are zero, and none is written from `target_length` on. Where
        `before` and `after` are given, what is read is multiplied by before[from], and what is written by after[to] and
        by `scale`. Element 0 of line g's axes is found by g / parts in the batch's dimensions: `size<d>`,
        `source_apart<d>` and `target_apart<d>`. `full` is the length of a Hermitian axis of which half is there, and of
        one of pairs. `twiddles` has `finer` powers of w for each element of a line. The radices of the stages are the
        bytes of `low` and `high`. On CPUs the transform is multiplied by `spectrum` and transformed back, if it is
        given.
        """
        batch = "".join(f", size{d}, source_apart{d}, target_apart{d}" for d in range(self.rank))
        return parameters(
            f"{type_}* target; const {type_}* source, twiddles, before, after{', spectrum' if form == 'cpu' else ''}; "
            "i32 n, finer; i64 lines, parts, source_first, source_step, source_length, source_stride; "
            f"i64 target_first, target_step, target_length, target_stride, full{batch}; "
            f"u64 low, high; {type_} scale; i32 backward"
        )

    def declared(self, type_: str) -> str:
        """The parameters, as a function declares them."""
        return ", ".join(
            f"{'const ' if p.const else ''}GLOBAL T* {p.name}"
            if isinstance(p, Pointer)
            else f"{value_ctype(p.type)} {p.name}"
            for p in self.parameters(type_)
        )


def definitions(type_: str, form: str, space: str) -> str:
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


def place(rank: int) -> str:
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


def load(source: Kind, to: str, base: str, first: str, at: str) -> str:
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


def store(target: Kind, source: str, first: str, at: str) -> str:
    return f"""if ({first} + j * target_step < target_length) {{
  const T sr = ((const SPACE T*)ar)[{source}] * scale, si = ((const SPACE T*)ai)[{source}] * scale;
  T vr = sr, vi = si;
  if (after) {{
    const T wr = after[2 * ({first} + j * target_step)], wi = after[2 * ({first} + j * target_step) + 1];
    vr = sr * wr - si * wi; vi = sr * wi + si * wr;
  }}
  {_WRITE[target].format(at=at)}
}}"""
