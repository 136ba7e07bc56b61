"""The vectors of the kernel language: their types, and those words that any dialect with shuffles has for nothing."""

from __future__ import annotations

from collections.abc import Sequence

SIZES = {
    **dict.fromkeys(("char", "uchar"), 1),
    **dict.fromkeys(("short", "ushort"), 2),
    **dict.fromkeys(("int", "uint", "float"), 4),
    **dict.fromkeys(("long", "ulong", "double"), 8),
}
"""The types of lanes -> bytes of one."""
WIDTHS = (4, 8, 16)
"""How many lanes a vector has."""
VECTORS = {f"{lane}{width}": (lane, width) for lane in SIZES for width in WIDTHS}
"""The names of all vector types -> type and number of lanes."""
PAIRS = {"float2": "float", "double2": "double"}
"""The names of the types of pairs -> that of their members."""
LOADED = {"f64": "double", "f32": "float", "f16": "float", "bf16": "float"} | {
    "i64": "long",
    "i32": "int",
    "i16": "short",
    "i8": "char",
    "u8": "uchar",
}
"""The element types that are loaded in vectors -> the type of the lanes."""


def vector_lanes(simd_width: int) -> int:
    """How many float32 the vectors of kernels have on a device whose registers hold `simd_width`: as many, where there
    are such vectors. A device that does not say (1) gets the widest, which compilers take apart."""
    return 16 if simd_width <= 1 else min(16, max(4, simd_width))


def shuffle(vector: str, a: str, b: str, lanes: Sequence[int]) -> str:
    """A vector of the given lanes of `a` followed by `b`."""
    return f"SHUFFLE_{vector}({a}, {b}, {', '.join(map(str, lanes))})"


def transpose_registers(width: int, vector: str, together: int = 1) -> str:
    """Statements that transpose the square matrix of the vectors r0, r1, ...: log2(width) rounds of exchanges of
    halves. An element of the matrix is so many lanes together.

    Needs `shuffle_helpers`.
    """
    lines = []
    half = 1
    while half < width:
        name = half * together
        for i in (i for i in range(width) if not i & half):
            low, high = f"tg_low_{name}(r{i}, r{i + half})", f"tg_high_{name}(r{i}, r{i + half})"
            lines.append(f"{{ const {vector} low = {low}; r{i + half} = {high}; r{i} = low; }}")
        half *= 2
    return "\n".join(lines)


def shuffle_helpers(width: int, vector: str) -> str:
    """Macros tg_low_h and tg_high_h: of two vectors, the low or the high halves of all pairs of h lanes, in turn."""
    macros = []
    half = 1
    while half < width:
        low = [width + e - half if e & half else e for e in range(width)]
        high = [width + e if e & half else e + half for e in range(width)]
        for name, picks in (("low", low), ("high", high)):
            macros.append(f"#define tg_{name}_{half}(a, b) {shuffle(vector, 'a', 'b', picks)}")
        half *= 2
    return "\n".join(macros)


def composed_words() -> dict[str, str]:
    """The words that are shuffles: name -> text."""
    words = {}
    for vector, (lane, width) in VECTORS.items():
        half = width // 2
        pairs = {
            "EVEN": range(0, 2 * width, 2),
            "ODD": range(1, 2 * width, 2),
            "ZIP_LOW": [i // 2 + i % 2 * width for i in range(width)],
            "ZIP_HIGH": [half + i // 2 + i % 2 * width for i in range(width)],
        }
        for name, lanes in pairs.items():
            words[f"{name}_{vector}"] = f"#define {name}_{vector}(a, b) {shuffle(vector, 'a', 'b', lanes)}"
        if f"{lane}{2 * width}" in VECTORS:
            words[f"LOW_{vector}"] = f"#define LOW_{vector}(v) {shuffle(vector, 'v', 'v', range(width))}"
            words[f"HIGH_{vector}"] = f"#define HIGH_{vector}(v) {shuffle(vector, 'v', 'v', range(width, 2 * width))}"
    return words


def lane_sum(scalar: str, width: int, vector: str) -> str:
    """Statements that add up the lanes, 4 or more, of a variable by halves. The sum is named `vector`_sum."""
    steps, by = [], vector
    while width > 4:
        width //= 2
        half = f"{scalar}{width}"
        steps.append(f"const {half} {vector}_{width} = LOW_{half}({by}) + HIGH_{half}({by});")
        by = f"{vector}_{width}"
    even, odd = (f"(LANE({by}, {lane}) + LANE({by}, {lane + 2}))" for lane in (0, 1))
    return " ".join(steps) + f" {scalar} {vector}_sum = {even} + {odd};"


def lane_sums(scalar: str, width: int, vectors: Sequence[str], to: str) -> str:
    """Statements that add up the lanes of several vectors, into an array: rounds in which two vectors become one, with
    a part of both sums in each of its lanes.

    Args:
        scalar, width: type and number of the lanes.
        vectors: names of variables, a multiple of 4, which lose their values.
        to: name of the array, with the alignment of a vector.

    Needs `shuffle_helpers`.
    """
    lines, done = [], 0
    while done < len(vectors):
        count = 4
        while 2 * count <= min(width, len(vectors) - done):
            count *= 2
        names, half = list(vectors[done : done + count]), 1
        while len(names) > 1:
            for a, b in zip(names[::2], names[1::2], strict=True):
                lines.append(f"{a} = tg_low_{half}({a}, {b}) + tg_high_{half}({a}, {b});")
            names, half = names[::2], 2 * half
        by, lanes = names[0], width
        while lanes > count:
            lanes //= 2
            part = f"{scalar}{lanes}"
            lines.append(f"const {part} {names[0]}_{lanes} = LOW_{part}({by}) + HIGH_{part}({by});")
            by = f"{names[0]}_{lanes}"
        lines.append(f"*({scalar}{count}*)({to} + {done}) = {by};")
        done += count
    return "\n".join(lines)


def parameters(count: int) -> str:
    """Names for a macro's parameters: a, b, ..."""
    return ", ".join("abcdefghijklmnop"[:count])
