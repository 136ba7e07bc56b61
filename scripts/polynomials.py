"""Writes torchgraft/functions/polynomials.py: the coefficients of functions in float64, from their definitions.

    python scripts/polynomials.py > torchgraft/functions/polynomials.py

Each is the sum of the first Chebyshev polynomials over its range, written in powers: within a few times the error of
the best polynomial of that degree. Needs mpmath, which comes with torch.
"""

from __future__ import annotations

from collections.abc import Callable

import mpmath as mp
from mpmath import mpf

mp.mp.dps = 60
NODES = 80
LEAST = mpf("1e-30")  # in the place of 0, where a definition divides by it

HEAD = '''"""Coefficients of polynomials, lowest power first. Written by scripts/polynomials.py, which defines them."""

from __future__ import annotations
'''


def erf_near(s: mpf) -> mpf:
    """erf(x) / x - 1, of s = x^2."""
    return mp.erf(mp.sqrt(s)) / mp.sqrt(s) - 1


def erfc_far(q: mpf) -> mpf:
    """erfc(x) exp(x^2) (1 + 2 x), of q = (x - 4) / (x + 4)."""
    x = 4 * (1 + q) / (1 - q)
    return mp.erfc(x) * mp.exp(x * x) * (1 + 2 * x)


def atan(s: mpf) -> mpf:
    """(atan(x) / x - 1) / x^2, of s = x^2."""
    return (mp.atan(mp.sqrt(s)) / mp.sqrt(s) - 1) / s


def asin(s: mpf) -> mpf:
    """(asin(x) / x - 1) / x^2, of s = x^2."""
    return (mp.asin(mp.sqrt(s)) / mp.sqrt(s) - 1) / s


def place(x: str) -> mpf:
    """q of `erfc_far`."""
    return (mpf(x) - 4) / (mpf(x) + 4)


#: Name -> the function, its range, the degree.
POLYNOMIALS: dict[str, tuple[Callable[[mpf], mpf], mpf, mpf, int]] = {
    "ERF_NEAR": (erf_near, LEAST, mpf(1), 11),
    "ERFC_FAR": (erfc_far, place("0.45"), place("27.3"), 20),
    "ATAN": (atan, LEAST, mpf("0.1716"), 11),
    "ASIN": (asin, LEAST, mpf("0.36"), 15),
}


def multiply(p: list[mpf], q: list[mpf]) -> list[mpf]:
    product = [mpf(0)] * (len(p) + len(q) - 1)
    for i, x in enumerate(p):
        for j, y in enumerate(q):
            product[i + j] += x * y
    return product


def powers(function: Callable[[mpf], mpf], begin: mpf, end: mpf, degree: int) -> list[mpf]:
    """The coefficients, lowest power first."""
    middle, half = (begin + end) / 2, (end - begin) / 2
    angles = [mp.pi * (j + mpf(1) / 2) / NODES for j in range(NODES)]
    values = [function(middle + half * mp.cos(angle)) for angle in angles]
    argument = [-middle / half, 1 / half]  # of the Chebyshev polynomials
    last, this = [mpf(1)], argument
    total = [mpf(0)] * (degree + 1)
    for k in range(degree + 1):
        weight = mpf(2 if k else 1) / NODES
        coefficient = weight * mp.fsum(v * mp.cos(k * angle) for v, angle in zip(values, angles, strict=True))
        for i, x in enumerate(last):
            total[i] += coefficient * x
        following = [2 * x for x in multiply(argument, this)]
        for i, x in enumerate(last):
            following[i] -= x
        last, this = this, following
    return total


def main() -> None:
    print(HEAD, end="")
    for name, (function, begin, end, degree) in POLYNOMIALS.items():
        coefficients = powers(function, begin, end, degree)
        print(f"\n{name} = (\n" + "".join(f"    {float(c)!r},\n" for c in coefficients) + ")")
        print(f'"""{(function.__doc__ or "").rstrip(".")}, for {float(begin):.4g} to {float(end):.4g}."""')


if __name__ == "__main__":
    main()
