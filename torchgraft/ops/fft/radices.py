"""How lengths are taken apart: the radices of the stages, and what these cost.

A prime factor that has no butterfly is summed up term by term, up to `SUMMED`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from torchgraft.codegen import ceil_div
from torchgraft.codegen.vectors import vector_lanes
from torchgraft.kernels.fft.lines import Along
from torchgraft.kernels.fft.stages import CPU_RADICES

# ---- What it costs, measured on CPUs. ----

# A sum costs n times the factor; Bluestein's algorithm costs as much as some six transforms.
SUMMED = 61
# What a stage of a radix costs an element: butterflies, and going through memory once.
_STAGE = {2: 7.0, 3: 8.7, 4: 8.5, 5: 10.2, 6: 10.0, 7: 11.4, 8: 9.8, 9: 12.5, 10: 11.5, 16: 13.0}
# What the first stage of a row costs less for each number of its radix: it has no twiddle factors, which leaves
# registers.
_FIRST_STAGE = 0.1
# What a stage costs where vectors go along so many lines, to one line, and where they go across lines; and how much
# more if they do not stay in a CPU's first-level cache.
_ALONG = {1: 1.0, 2: 1.09, 4: 1.15}
_ACROSS, _BEYOND = 1.35, 1.3
_FIRST_LEVEL_BYTES = 48 << 10
# The scratch of lines along which vectors go stays in the second level up to so many bytes.
_ROW_BYTES = 1 << 19

# What a kernel's arguments hold.
_MOST_STAGES = 16


# ---- Lengths. ----


@functools.cache
def primes(n: int) -> tuple[int, ...]:
    """Prime factors in rising order."""
    found, prime = [], 2
    while prime * prime <= n:
        while n % prime == 0:
            found.append(prime)
            n //= prime
        prime += 1
    return (*found, n) if n > 1 else tuple(found)


def largest_prime(n: int) -> int:
    """Its largest prime factor; 1 has 1."""
    return max(primes(n), default=1)


@functools.cache
def two_factors(n: int) -> tuple[int, int]:
    """Two factors of n that are as near to each other as they can be."""
    divisors = {1}
    for prime in primes(n):
        divisors |= {d * prime for d in divisors}
    smaller = max(d for d in divisors if d * d <= n)
    return smaller, n // smaller


def _products(most: int, factors: tuple[int, ...]) -> list[int]:
    """All products of powers of primes, up to `most`."""
    found = [1]
    for prime in factors:
        found += [n * prime**k for n in found for k in range(1, most.bit_length()) if n * prime**k <= most]
    return found


@functools.cache
def convolution_length(n: int, form: str) -> int:
    """The length of at least 2 n - 1 without a prime factor above 5 that is cheapest to transform; for GPUs, the
    shortest one."""
    least = 2 * n - 1
    lengths = [length for length in _products(1 << (least - 1).bit_length(), (2, 3, 5)) if length >= least]
    return min(lengths, key=(lambda length: length * _cheapest(length)[0]) if form == "cpu" else None)


# ---- Radices. ----

_Stages = tuple[float, tuple[int, ...]]
"""Their cost, and their radices in order."""

_NONE: _Stages = (math.inf, ())


@functools.cache
def _cheapest(n: int) -> _Stages:
    """Those of a product of primes up to 7."""
    if n == 1:
        return 0.0, ()
    found = []
    for radix, cost in _STAGE.items():
        if n % radix == 0:
            rest, radices = _cheapest(n // radix)
            found.append((cost + rest, tuple(sorted((radix, *radices), reverse=True))))
    return min(found)


@functools.cache
def radices_of(n: int, form: str) -> tuple[int, ...]:
    """The radices of the stages: few and large ones."""
    factors = primes(n)
    if form == "cpu":
        large = [prime for prime in factors if prime > 7]
        radices = [*large, *_cheapest(n // math.prod(large))[1]]
    else:
        twos = factors.count(2)
        eights = max(0, twos - 2) // 3 if twos % 3 == 1 else twos // 3
        rest = twos - 3 * eights
        radices = [8] * eights + [4] * (rest // 2) + [2] * (rest % 2) + [prime for prime in factors if prime > 2]
    while len(radices) > _MOST_STAGES:
        radices.sort()
        radices[:2] = [radices[0] * radices[1]]
    return tuple(sorted(radices, reverse=True))


def packed(radices: Sequence[int]) -> tuple[int, int]:
    """The radices as the kernel reads them: a byte for each, the first lowest."""
    low, high = (sum(radix << (8 * k) for k, radix in enumerate(part)) for part in (radices[:8], radices[8:]))
    return low, high


@functools.cache
def _row_stages(n: int, numbers: int) -> _Stages:
    """Those of lines along which vectors go that have so many numbers of each. The first radix and the rest of the
    length fill a vector."""

    @functools.cache
    def rest(left: int, done: int) -> _Stages:
        if left == 1:
            return 0.0, ()
        found = [_NONE]
        for radix in CPU_RADICES:
            is_first = done == 1
            if left % radix or (is_first and (radix < numbers or left // radix < max(2, numbers))):
                continue
            run, less = (left // radix, _FIRST_STAGE * radix) if is_first else (done, 0.0)
            cost, radices = rest(left // radix, done * radix)
            padded = ceil_div(run, numbers) * numbers / run
            found.append((_STAGE[radix] * padded - less + cost, (radix, *radices)))
        return min(found)

    return rest(n, 1)


# ---- Vectors along lines. ----


@dataclass(frozen=True)
class RowStages:
    """How vectors go along lines, with the radices of the stages in order."""

    along: Along
    radices: tuple[int, ...]


def row_stages(n: int, lanes: int, lines: int, columns: bool = False) -> RowStages | None:
    """Those of so many lines together, if there are such."""
    radices = _row_stages(n, lanes // lines)[1]
    between = tuple(sorted(set(radices[1:-1])))
    return RowStages(Along(lanes, lines, radices[0], between, radices[-1], columns), radices) if radices else None


def _row_bytes(n: int, type_: torch.dtype, lines: int) -> int:
    return 4 * n * lines * type_.itemsize


def _fits(n: int, type_: torch.dtype, lines: int) -> bool:
    return _row_bytes(n, type_, lines) <= _ROW_BYTES and largest_prime(n) <= 7


def _lanes(type_: torch.dtype, simd_width: int) -> int:
    return max(4, 4 * vector_lanes(simd_width) // type_.itemsize)


@functools.cache
def along_rows(n: int, type_: torch.dtype, simd_width: int) -> RowStages | None:
    """The cheapest for lines of this length whose elements follow each other, if it costs less than vectors that go
    across lines."""
    if not _fits(n, type_, 1):
        return None

    def cost(stages: float, lines: int) -> float:
        return stages * (_BEYOND if _row_bytes(n, type_, lines) > _FIRST_LEVEL_BYTES else 1)

    lanes, best = _lanes(type_, simd_width), None
    least = cost(_ACROSS * _cheapest(n)[0], 16)
    for lines, factor in _ALONG.items():
        if lanes // lines >= 2 and (own := cost(_row_stages(n, lanes // lines)[0] * factor, lines)) < least:
            least, best = own, row_stages(n, lanes, lines)
    return best


@functools.cache
def along_columns(n: int, type_: torch.dtype, simd_width: int, beside: int) -> RowStages | None:
    """The same for lines of which so many lie beside each other."""
    lanes = _lanes(type_, simd_width)
    return row_stages(n, lanes, lanes, columns=True) if beside >= lanes and _fits(n, type_, lanes) else None
