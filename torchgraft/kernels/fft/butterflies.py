"""Butterflies: the transforms of a few numbers that a stage of a Fourier transform is made of, as text.

The numbers are vectors of type V, of elements of type T; a number's parts are <name>r and <name>i.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

_Names = Sequence[str]


def _add(to: str, a: str, b: str, sign: str = "+") -> str:
    return f"const V {to}r = {a}r {sign} {b}r, {to}i = {a}i {sign} {b}i;"


def _odd(out: _Names, x: _Names, name: str) -> list[str]:
    """Pairs k and R - k share their products, since their factors are conjugate."""
    radix = len(x)
    half = range(1, (radix + 1) // 2)
    lines = []
    for k in half:
        lines += [_add(f"{name}a{k}", x[k], x[radix - k]), _add(f"{name}b{k}", x[k], x[radix - k], "-")]
    for part in "ri":
        lines.append(f"const V {out[0]}{part} = {x[0]}{part} + " + " + ".join(f"{name}a{k}{part}" for k in half) + ";")
    for m in half:
        for part in "ri":
            cosines = [f"(T){math.cos(2 * math.pi * (k * m % radix) / radix)!r} * {name}a{k}{part}" for k in half]
            sines = [f"(T){math.sin(2 * math.pi * (k * m % radix) / radix)!r} * {name}b{k}{part}" for k in half]
            lines.append(f"const V {name}c{m}{part} = {x[0]}{part} + {' + '.join(cosines)};")
            lines.append(f"const V {name}s{m}{part} = {' + '.join(sines)};")
        c, s, first, last = f"{name}c{m}", f"{name}s{m}", out[m], out[radix - m]
        lines.append(f"const V {first}r = {c}r + {s}i, {first}i = {c}i - {s}r;")
        lines.append(f"const V {last}r = {c}r - {s}i, {last}i = {c}i + {s}r;")
    return lines


def _two(out: _Names, x: _Names) -> list[str]:
    return [_add(out[0], x[0], x[1]), _add(out[1], x[0], x[1], "-")]


def _four(out: _Names, x: _Names, name: str) -> list[str]:
    t = [f"{name}{k}" for k in range(4)]
    return [
        *_two((t[0], t[1]), (x[0], x[2])),
        *_two((t[2], t[3]), (x[1], x[3])),
        *_two((out[0], out[2]), (t[0], t[2])),
        f"const V {out[1]}r = {t[1]}r + {t[3]}i, {out[1]}i = {t[1]}i - {t[3]}r;",
        f"const V {out[3]}r = {t[1]}r - {t[3]}i, {out[3]}i = {t[1]}i + {t[3]}r;",
    ]


def _turned(to: str, x: str, numerator: int, n: int) -> str:
    """x times exp(-2 pi i numerator / n)."""
    root = f"(T){math.sqrt(0.5)!r}"
    match Fraction(numerator, n) % 1:
        case Fraction(numerator=0):
            return f"const V {to}r = {x}r, {to}i = {x}i;"
        case Fraction(numerator=1, denominator=4):
            return f"const V {to}r = {x}i, {to}i = -{x}r;"
        case Fraction(numerator=1, denominator=8):
            return f"const V {to}r = {root} * ({x}r + {x}i), {to}i = {root} * ({x}i - {x}r);"
        case Fraction(numerator=3, denominator=8):
            return f"const V {to}r = {root} * ({x}i - {x}r), {to}i = -{root} * ({x}r + {x}i);"
        case turn:
            angle = 2 * math.pi * float(turn)
            c, s = f"(T){math.cos(angle)!r}", f"(T){math.sin(angle)!r}"
            return f"const V {to}r = {x}r * {c} + {x}i * {s}, {to}i = {x}i * {c} - {x}r * {s};"


def _by_parts(rows: int, columns: int, out: _Names, x: _Names, name: str) -> list[str]:
    """As `rows` rows of numbers: the columns and then the rows, and turned in between. With factors that have none in
    common none is turned if the numbers are in another order (I. Good, "The interaction algorithm and practical Fourier
    analysis", Journal of the Royal Statistical Society B 20, 1958).
    """
    n, lines, step, by_row, by_column = rows * columns, [], 1, 1, rows
    is_coprime = math.gcd(rows, columns) == 1
    if is_coprime:
        step, by_row, by_column = rows, columns * pow(columns, -1, rows), rows * pow(rows, -1, columns)
    middle = {(k, j): f"{name}m{k}_{j}" for k in range(rows) for j in range(columns)}
    for j in range(columns):
        turned = [] if is_coprime else [k for k in range(rows) if k * j]
        above = [f"{name}n{k}_{j}" if k in turned else middle[k, j] for k in range(rows)]
        lines += _transform(above, [x[(i * columns + j * step) % n] for i in range(rows)], f"{name}p{j}")
        lines += [_turned(middle[k, j], above[k], k * j, n) for k in turned]
    for k in range(rows):
        row = [out[(k * by_row + m * by_column) % n] for m in range(columns)]
        lines += _transform(row, [middle[k, j] for j in range(columns)], f"{name}q{k}")
    return lines


_PARTS = {6: (2, 3), 8: (4, 2), 9: (3, 3), 10: (2, 5), 16: (4, 4)}


def _transform(out: _Names, x: _Names, name: str) -> list[str]:
    """Temporaries begin with `name`."""
    radix = len(x)
    if radix == 2:
        return _two(out, x)
    if radix == 4:
        return _four(out, x, f"{name}t")
    if radix not in _PARTS:
        return _odd(out, x, name)
    return _by_parts(*_PARTS[radix], out, x, name)


def butterfly(radix: int) -> str:
    """The numbers x0, x1, ... to their transform y0, y1, ..."""
    return "\n".join(_transform([f"y{k}" for k in range(radix)], [f"x{k}" for k in range(radix)], "t"))
