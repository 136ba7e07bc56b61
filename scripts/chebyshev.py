"""Writes torchgraft/functions/series.py: the coefficients of the kernels' special functions, from their definitions.

    python scripts/chebyshev.py > torchgraft/functions/series.py

Needs mpmath, which comes with torch.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import mpmath as mp
from mpmath import mpf

mp.mp.dps = 40
NODES = 96
# Coefficients that are smaller than this, relative to the largest, are of no use in float64.
SMALLEST = mpf("2e-18")

HEAD = '''"""Coefficients of special functions. Written by scripts/chebyshev.py, which has each series' definition."""

from __future__ import annotations
'''


def chebyshev(function: Callable[[mpf], mpf]) -> list[mpf]:
    """The coefficients c of sum' c_k T_k(t), the first one halved already, of a function of t in (-1, 1)."""
    angles = [mp.pi * (j + mpf(1) / 2) / NODES for j in range(NODES)]
    values = [function(mp.cos(angle)) for angle in angles]
    series = [
        mpf(2) / NODES * mp.fsum(v * mp.cos(k * angle) for v, angle in zip(values, angles, strict=True))
        for k in range(NODES)
    ]
    series[0] /= 2
    limit = SMALLEST * max(abs(c) for c in series)
    while abs(series[-1]) < limit:
        series.pop()
    return series


def hankel(order: int, x: mpf) -> tuple[mpf, mpf]:
    """P and Q of J = sqrt(2 / (pi x)) (P cos - Q sin), Y = sqrt(2 / (pi x)) (P sin + Q cos) of x - order pi/2 - pi/4
    (DLMF 10.17)."""
    angle = x - order * mp.pi / 2 - mp.pi / 4
    scale = mp.sqrt(mp.pi * x / 2)
    j, y, c, s = mp.besselj(order, x), mp.bessely(order, x), mp.cos(angle), mp.sin(angle)
    return scale * (j * c + y * s), scale * (y * c - j * s)


def airy(zeta: mpf) -> tuple[mpf, mpf]:
    """P and Q of Ai(-x) = (P sin - Q cos) / (sqrt(pi) x^(1/4)) of zeta + pi/4, zeta = 2/3 x^(3/2) (DLMF 9.7.9)."""
    x = (3 * zeta / 2) ** (mpf(2) / 3)
    angle = zeta + mp.pi / 4
    scale = mp.sqrt(mp.pi) * mp.root(x, 4)
    a, b, c, s = mp.airyai(-x), mp.airybi(-x), mp.cos(angle), mp.sin(angle)
    return scale * (a * s + b * c), scale * (b * s - a * c)


# The variables t of the series, as functions that give x.
def to_8(t: mpf) -> mpf:
    return 4 * (t + 1)


def from_8(t: mpf) -> mpf:
    return 16 / (t + 1)


def squares_to_2(t: mpf) -> mpf:
    return mp.sqrt(2 * (t + 1))


def from_2(t: mpf) -> mpf:
    return 4 / (t + 1)


def squares_to_8(t: mpf) -> mpf:
    return mp.sqrt(32 * (t + 1))


def squares_from_8(t: mpf) -> mpf:
    return 8 * mp.sqrt(2 / (t + 1))


def half_line(t: mpf) -> mpf:
    return mpf("3.75") * (1 + t) / (1 - t)


AIRY_LEFT, AIRY_RIGHT = mpf(-3), mpf(2)


def airy_near(t: mpf) -> mpf:
    return (AIRY_LEFT + AIRY_RIGHT) / 2 + t * (AIRY_RIGHT - AIRY_LEFT) / 2


def zeta_right(t: mpf) -> mpf:
    return mpf(2) / 3 * AIRY_RIGHT ** mpf("1.5") * 2 / (t + 1)


def zeta_left(t: mpf) -> mpf:
    return mpf(2) / 3 * (-AIRY_LEFT) ** mpf("1.5") * mp.sqrt(2 / (t + 1))


def airy_scaled(zeta: mpf) -> mpf:
    """2 sqrt(pi) x^(1/4) e^zeta Ai(x)."""
    x = (3 * zeta / 2) ** (mpf(2) / 3)
    return 2 * mp.sqrt(mp.pi) * mp.root(x, 4) * mp.exp(zeta) * mp.airyai(x)


SERIES: dict[str, tuple[str, Callable[[mpf], mpf], Callable[[mpf], mpf]]] = {
    "i0_near": ("exp(-x) I0(x), t = x / 4 - 1", to_8, lambda x: mp.exp(-x) * mp.besseli(0, x)),
    "i0_far": ("sqrt(x) exp(-x) I0(x), t = 16 / x - 1", from_8, lambda x: mp.sqrt(x) * mp.exp(-x) * mp.besseli(0, x)),
    "i1_near": ("exp(-x) I1(x) / x, t = x / 4 - 1", to_8, lambda x: mp.exp(-x) * mp.besseli(1, x) / x),
    "i1_far": ("sqrt(x) exp(-x) I1(x), t = 16 / x - 1", from_8, lambda x: mp.sqrt(x) * mp.exp(-x) * mp.besseli(1, x)),
    "k0_near": (
        "K0(x) + log(x / 2) I0(x), t = x^2 / 2 - 1",
        squares_to_2,
        lambda x: mp.besselk(0, x) + mp.log(x / 2) * mp.besseli(0, x),
    ),
    "k0_far": ("sqrt(x) exp(x) K0(x), t = 4 / x - 1", from_2, lambda x: mp.sqrt(x) * mp.exp(x) * mp.besselk(0, x)),
    "k1_near": (
        "x (K1(x) - log(x / 2) I1(x)), t = x^2 / 2 - 1",
        squares_to_2,
        lambda x: x * (mp.besselk(1, x) - mp.log(x / 2) * mp.besseli(1, x)),
    ),
    "k1_far": ("sqrt(x) exp(x) K1(x), t = 4 / x - 1", from_2, lambda x: mp.sqrt(x) * mp.exp(x) * mp.besselk(1, x)),
    "j0_near": ("J0(x), t = x^2 / 32 - 1", squares_to_8, lambda x: mp.besselj(0, x)),
    "j1_near": ("J1(x) / x, t = x^2 / 32 - 1", squares_to_8, lambda x: mp.besselj(1, x) / x),
    "y0_near": (
        "Y0(x) - 2/pi log(x) J0(x), t = x^2 / 32 - 1",
        squares_to_8,
        lambda x: mp.bessely(0, x) - 2 / mp.pi * mp.log(x) * mp.besselj(0, x),
    ),
    "y1_near": (
        "(Y1(x) - 2/pi (log(x) J1(x) - 1/x)) / x, t = x^2 / 32 - 1",
        squares_to_8,
        lambda x: (mp.bessely(1, x) - 2 / mp.pi * (mp.log(x) * mp.besselj(1, x) - 1 / x)) / x,
    ),
    "p0": ("P of order 0 (DLMF 10.17), t = 128 / x^2 - 1", squares_from_8, lambda x: hankel(0, x)[0]),
    "q0": ("x Q of order 0 (DLMF 10.17), t = 128 / x^2 - 1", squares_from_8, lambda x: hankel(0, x)[1] * x),
    "p1": ("P of order 1 (DLMF 10.17), t = 128 / x^2 - 1", squares_from_8, lambda x: hankel(1, x)[0]),
    "q1": ("x Q of order 1 (DLMF 10.17), t = 128 / x^2 - 1", squares_from_8, lambda x: hankel(1, x)[1] * x),
    "erfcx_right": (
        "(1 + 2 x) exp(x^2) erfc(x), t = (x - 3.75) / (x + 3.75) (Shepherd and Laframboise, Math. Comp. 36, 1981)",
        half_line,
        lambda x: (1 + 2 * x) * mp.exp(x * x) * mp.erfc(x),
    ),
    "airy_near": ("Ai(x), t = (2 x + 1) / 5", airy_near, mp.airyai),
    "airy_right": ("2 sqrt(pi) x^(1/4) exp(z) Ai(x), z = 2/3 x^(3/2), t = 2 z(2) / z - 1", zeta_right, airy_scaled),
    "airy_p": ("P of Ai(-x) (DLMF 9.7.9), z = 2/3 x^(3/2), t = 2 (z(3) / z)^2 - 1", zeta_left, lambda z: airy(z)[0]),
    "airy_q": ("z Q of Ai(-x) (DLMF 9.7.9), t = 2 (z(3) / z)^2 - 1", zeta_left, lambda z: airy(z)[1] * z),
}


# The uniform expansion of the incomplete gamma functions (Temme 1979; DLMF 8.12). The region in which it is used:
TEMME_A, TEMME_ETA = 20, mpf("0.345")
ORDER = 60


def multiply(a: list[Fraction], b: list[Fraction]) -> list[Fraction]:
    """The product of two power series, cut."""
    return [sum((a[i] * b[n - i] for i in range(n + 1)), Fraction(0)) for n in range(ORDER)]


def inverse_mu() -> list[Fraction]:
    """The series of eta / mu in eta, where eta^2 / 2 = mu - log(1 + mu).

    d mu / d eta = eta (1 + mu) / mu gives a_1 = 1 and the others of mu = sum a_n eta^n
    one by one (compare DLMF 5.11.6).
    """
    a = [Fraction(0), Fraction(1)]
    for n in range(2, ORDER + 1):
        inner = sum((k * a[k] * a[n + 1 - k] for k in range(2, n)), Fraction(0))
        a.append((a[n - 1] - inner) / (n + 1))
    mu = a[1:]  # mu / eta
    inverse = [Fraction(1)]
    for n in range(1, ORDER):
        inverse.append(-sum((mu[k] * inverse[n - k] for k in range(1, n + 1)), Fraction(0)))
    return inverse


def stirling(count: int) -> list[Fraction]:
    """g_k of gamma(z) ~ sqrt(2 pi / z) (z / e)^z sum g_k / z^k (DLMF 5.11.3), by exponentiating the logarithm's."""
    from sympy import bernoulli

    log = [Fraction(0)] * count
    for k in range(1, count // 2 + 1):
        if 2 * k - 1 < count:
            b = bernoulli(2 * k)
            log[2 * k - 1] = Fraction(int(b.p), int(b.q)) / (2 * k * (2 * k - 1))
    g = [Fraction(1)]
    for n in range(1, count):
        g.append(sum((k * log[k] * g[n - k] for k in range(1, n + 1)), Fraction(0)) / n)
    return g


def temme() -> list[list[Fraction]]:
    """Power series in eta of c_k (DLMF 8.12.10): c_0 = 1/mu - 1/eta, c_k = c_(k-1)' / eta + (-1)^k g_k / mu.

    Series are kept times eta, so that the poles at 0, which cancel, have a place.
    """
    inverse, g = inverse_mu(), stirling(16)
    current = [Fraction(0), *inverse[1:]]
    rows = []
    for k in range(16):
        if k:
            c = current[1:]  # c_(k-1)
            slope = [(n + 1) * c[n + 1] for n in range(len(c) - 1)]  # eta c_k's first part
            sign = -1 if k % 2 else 1
            current = [s + sign * g[k] * i for s, i in zip(slope, inverse, strict=False)]
            assert current[0] == 0
        row = current[1:30]
        weight = SMALLEST * mpf(TEMME_A) ** k
        while row and abs(mpf(row[-1].numerator) / row[-1].denominator) * TEMME_ETA ** (len(row) - 1) < weight:
            row.pop()
        if not row:
            break
        rows.append(row)
    return rows


def digits(value: mpf) -> str:
    return repr(float(value))


def lines(numbers: list[str], indent: str) -> str:
    """The numbers, as many as fit in a line of 120 columns."""
    out, line = [], indent
    for number in numbers:
        if len(line) + len(number) + 1 > 119:
            out.append(line.rstrip())
            line = indent
        line += number + ", "
    return "\n".join([*out, line.rstrip()])


def main() -> None:
    print(HEAD)
    print("# Chebyshev series: coefficients of T_0(t), T_1(t), ...")
    print("CHEBYSHEV: dict[str, tuple[float, ...]] = {")
    for name, (meaning, variable, function) in SERIES.items():
        series = chebyshev(lambda t, f=function, v=variable: f(v(t)))
        print(f"    # {meaning}")
        print(f'    "{name}": (\n{lines([digits(c) for c in series], " " * 8)}\n    ),')
    print("}\n")
    print(
        "# c_0(eta), c_1(eta), ... of DLMF 8.12.10 as power series, as far as they count for a >= 20, |eta| <= 0.345."
    )
    print("TEMME: tuple[tuple[float, ...], ...] = (")
    for row in temme():
        print(f"    (\n{lines([digits(mpf(c.numerator) / c.denominator) for c in row], ' ' * 8)}\n    ),")
    print(")")


if __name__ == "__main__":
    main()
