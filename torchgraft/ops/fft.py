"""Planners of Fourier transforms.

Axes are transformed one after the other; two at once, plane by plane, where planes stay in a CPU's cache. A length is
taken apart into radices that have a butterfly; one with a large prime factor becomes a convolution of a length that
suits (L. Bluestein, "A linear filtering approach to the computation of discrete Fourier transform", IEEE Transactions
on Audio and Electroacoustics 18, 1970). A long axis, and one of few lines, is transformed in two steps (W. Gentleman
and G. Sande, "Fast Fourier Transforms - for fun and profit", AFIPS 1966): seen as n1 rows of n2 elements, all columns
and then all rows, with factors in between.
"""

from __future__ import annotations

import functools
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchgraft.codegen import ceil_div
from torchgraft.codegen.vectors import vector_lanes
from torchgraft.kernels import fft as kernels
from torchgraft.kernels import fft_rows
from torchgraft.plans import PlanBuilder, Unsupported, planner, pointwise

# A prime factor up to here is summed up term by term, which costs n times the factor; a convolution costs as much as
# some six transforms.
_SUMMED = 61
# Up to this length the scratch of a CPU's work-item stays in its cache.
_CPU_WHOLE = 2048
# And up to so many bytes that of lines along which vectors go, in the second level.
_ROW_BYTES = 1 << 19
# From this length on two steps fill the lanes that a few lines leave empty.
_TWO_STEPS = 256
_LONGEST = 2**30
_GROUPS_PER_UNIT = 4
# Planes of at most so many bytes stay in a CPU's cache between two axes; small ones are shared out by so many.
_PLANE_BYTES = 1 << 20
_SHARE_BYTES = 1 << 18

_REAL = {torch.complex64: torch.float32, torch.complex128: torch.float64}
_NAMES = {torch.float32: "f32", torch.float64: "f64"}


# ---- Lengths. ----


@functools.cache
def _primes(n: int) -> tuple[int, ...]:
    """Prime factors in rising order."""
    found, prime = [], 2
    while prime * prime <= n:
        while n % prime == 0:
            found.append(prime)
            n //= prime
        prime += 1
    return (*found, n) if n > 1 else tuple(found)


# What a stage of a radix costs an element: butterflies, and going through memory once.
_COSTS = {2: 7.0, 3: 8.7, 4: 8.5, 5: 10.2, 6: 10.0, 7: 11.4, 8: 9.8, 9: 12.5, 10: 11.5, 16: 13.0}
# What the first stage of a row costs less for each number of its radix: it turns nothing, which leaves registers.
_UNTURNED = 0.1


@functools.cache
def _cheapest(n: int) -> tuple[float, tuple[int, ...]]:
    """Cost and radices of stages for a product of primes up to 7."""
    if n == 1:
        return 0.0, ()
    found = []
    for radix, cost in _COSTS.items():
        if n % radix == 0:
            rest, radices = _cheapest(n // radix)
            found.append((cost + rest, tuple(sorted((radix, *radices), reverse=True))))
    return min(found)


@functools.cache
def _radices(n: int, form: str) -> tuple[int, ...]:
    """The radices of the stages: few and large ones."""
    primes = _primes(n)
    large = [prime for prime in primes if prime > 7]
    if form == "cpu":
        radices = [*large, *_cheapest(n // math.prod(large))[1]]
    else:
        twos = primes.count(2)
        eights = max(0, twos - 2) // 3 if twos % 3 == 1 else twos // 3
        rest = twos - 3 * eights
        radices = [8] * eights + [4] * (rest // 2) + [2] * (rest % 2) + [prime for prime in primes if prime > 2]
    while len(radices) > 16:  # what a kernel's arguments hold
        radices.sort()
        radices[:2] = [radices[0] * radices[1]]
    return tuple(sorted(radices, reverse=True))


@functools.cache
def _row_radices(n: int, numbers: int) -> tuple[float, tuple[int, ...]]:
    """Cost and radices of the stages of lines along which vectors go that have so many numbers of each; none of a
    length that has no such."""
    none = math.inf, ()

    def padded(run: int) -> float:
        return ceil_div(run, numbers) * numbers / run

    @functools.cache
    def rest(left: int, done: int) -> tuple[float, tuple[int, ...]]:
        if left == 1:
            return 0.0, ()
        found: list[tuple[float, tuple[int, ...]]] = [none]
        for radix in fft_rows.RADICES:
            if left % radix == 0:
                cost, radices = rest(left // radix, done * radix)
                found.append((_COSTS[radix] * padded(done) + cost, (radix, *radices)))
        return min(found)

    found: list[tuple[float, tuple[int, ...]]] = [none]
    for radix in fft_rows.RADICES:
        if n % radix == 0 and radix >= numbers and n // radix >= max(2, numbers):
            cost, radices = rest(n // radix, radix)
            found.append((_COSTS[radix] * padded(n // radix) - _UNTURNED * radix + cost, (radix, *radices)))
    return min(found)


def _packed(radices: Sequence[int]) -> tuple[int, int]:
    """The radices as the kernel reads them: a byte for each, the first lowest."""
    low, high = (sum(radix << (8 * k) for k, radix in enumerate(part)) for part in (radices[:8], radices[8:]))
    return low, high


@functools.cache
def _halves(n: int) -> tuple[int, int]:
    """Two factors of n that are as near to each other as they can be."""
    divisors = {1}
    for prime in _primes(n):
        divisors |= {d * prime for d in divisors}
    smaller = max(d for d in divisors if d * d <= n)
    return smaller, n // smaller


def _products(most: int, primes: tuple[int, ...]) -> list[int]:
    """All products of powers of primes, up to `most`."""
    found = [1]
    for prime in primes:
        found += [n * prime**k for n in found for k in range(1, most.bit_length()) if n * prime**k <= most]
    return found


@functools.cache
def _convolution_length(n: int, form: str) -> int:
    """The length of at least 2 n - 1 without a prime factor above 5 that is cheapest to transform; for GPUs, the
    shortest one."""
    least = 2 * n - 1
    lengths = [length for length in _products(1 << (least - 1).bit_length(), (2, 3, 5)) if length >= least]
    return min(lengths, key=(lambda length: length * _cheapest(length)[0]) if form == "cpu" else None)


# What a stage costs where vectors go along so many lines, to one line, and where they go across lines; and how much
# more if they do not stay in a CPU's first-level cache.
_ALONG = {1: 1.0, 2: 1.09, 4: 1.15}
_ACROSS, _BEYOND = 1.35, 1.3
_FIRST_LEVEL_BYTES = 48 << 10


@dataclass(frozen=True)
class _Way:
    """How vectors go along lines, with the radices of the stages in order."""

    along: fft_rows.Along
    radices: tuple[int, ...]


def _way(n: int, lanes: int, lines: int, columns: bool = False) -> _Way | None:
    """This one, if there is such."""
    radices = _row_radices(n, lanes // lines)[1]
    between = tuple(sorted(set(radices[1:-1])))
    return _Way(fft_rows.Along(lanes, lines, radices[0], between, radices[-1], columns), radices) if radices else None


def _row_bytes(n: int, type_: torch.dtype, lines: int) -> int:
    return 4 * n * lines * type_.itemsize


def _lanes(type_: torch.dtype, simd_width: int) -> int:
    return max(4, 4 * vector_lanes(simd_width) // type_.itemsize)


@functools.cache
def _along_rows(n: int, type_: torch.dtype, simd_width: int) -> _Way | None:
    """The best one for lines of this length whose elements follow each other, if it is better than vectors that go
    across lines."""
    if _row_bytes(n, type_, 1) > _ROW_BYTES or max(_primes(n), default=1) > 7:
        return None
    lanes, best = _lanes(type_, simd_width), None
    least = _ACROSS * _cheapest(n)[0] * (_BEYOND if _row_bytes(n, type_, 16) > _FIRST_LEVEL_BYTES else 1)
    for lines, factor in _ALONG.items():
        if lanes // lines >= 2:
            beyond = _row_bytes(n, type_, lines) > _FIRST_LEVEL_BYTES
            cost = _row_radices(n, lanes // lines)[0] * factor * (_BEYOND if beyond else 1)
            if cost < least:
                least, best = cost, _way(n, lanes, lines)
    return best


@functools.cache
def _along_columns(n: int, type_: torch.dtype, simd_width: int, beside: int) -> _Way | None:
    """The same for lines of which so many lie beside each other."""
    lanes = _lanes(type_, simd_width)
    if beside < lanes or _row_bytes(n, type_, lanes) > _ROW_BYTES or max(_primes(n), default=1) > 7:
        return None
    return _way(n, lanes, lanes, columns=True)


# ---- Tables. They are made in float64 on the host and stay on the device with the plans that use them. ----


def _roots(numerators: torch.Tensor, n: int) -> torch.Tensor:
    """exp(-2 pi i k / n) for integers k: [..., 2] of float64, right to the last place.

    Integers bring the angle into [0, pi / 4], where a rounded argument is harmless, before there are any fractions.
    """
    k = numerators.remainder(n) * 8
    octant = k.div(n, rounding_mode="floor")
    odd = octant.remainder(2) == 1
    rest = k - octant * n
    angle = torch.where(odd, n - rest, rest).double() * (math.pi / 4 / n)
    cos, sin = angle.cos(), angle.sin()
    sin = torch.where(odd, -sin, sin)
    quarter = (octant + odd).div(2, rounding_mode="floor").remainder(4)
    real = torch.where(quarter == 0, cos, torch.where(quarter == 1, -sin, torch.where(quarter == 2, -cos, sin)))
    imag = torch.where(quarter == 0, sin, torch.where(quarter == 1, cos, torch.where(quarter == 2, -sin, -cos)))
    return torch.stack([real, -imag], -1)


def _conjugate(table: torch.Tensor, wanted: bool) -> torch.Tensor:
    return table * torch.tensor([1.0, -1.0], dtype=table.dtype, device="cpu") if wanted else table


def _count(n: int) -> torch.Tensor:
    return torch.arange(n, dtype=torch.int64, device="cpu")


def _turns(n: int) -> torch.Tensor:
    return _roots(_count(n), n)


def _between(rows: int, columns: int, backward: bool) -> torch.Tensor:
    """What the elements are multiplied by between the two steps: [rows, columns]."""
    return _conjugate(_roots(_count(rows).unsqueeze(1) * _count(columns), rows * columns), backward)


def _chirp(n: int, backward: bool) -> torch.Tensor:
    """exp(-pi i k^2 / n)."""
    return _conjugate(_roots((_count(n) * _count(n)).remainder(2 * n), 2 * n), backward)


def _chirp_spectrum(n: int, length: int, backward: bool) -> torch.Tensor:
    """The transform of what Bluestein's algorithm convolves with, divided by its length."""
    wave = _conjugate(_chirp(n, backward), True)
    row = torch.zeros(length, 2, dtype=torch.float64, device="cpu")
    row[:n] = wave
    row[length - n + 1 :] = wave[1:].flip(0)
    return torch.view_as_real(torch.fft.fft(torch.view_as_complex(row))) / length


def _row_turns(n: int, lines: int, pairs: int, *radices: int) -> torch.Tensor:
    """[elements]: what `fft_rows` turns the numbers by, stage by stage, and what it needs for pairs."""
    parts, done = [], radices[0]
    for radix in radices[1:]:
        turns = _count(radix)[1:].unsqueeze(1) * _count(done) * (n // (done * radix))
        parts.append(_roots(turns, n).transpose(1, 2).flatten())
        done *= radix
    if pairs:
        turns = _roots(_count(n + 1), 2 * n)
        parts += [turns[:, 1], -turns[:, 0]]
    empty = torch.empty(0, dtype=torch.float64, device="cpu")
    return torch.cat([empty, *parts]).repeat_interleave(lines)


_MAKERS: dict[str, Callable[..., torch.Tensor]] = {
    "turns": _turns,
    "between": _between,
    "row turns": _row_turns,
    "chirp": _chirp,
    "chirp spectrum": _chirp_spectrum,
}


_Table = tuple[torch.dtype, int, str, tuple[int, ...]]
"""Its type, its device, its name and the arguments of its maker."""

# Plans of one length share tables. The last few are kept beside the plans that use them.
_tables: OrderedDict[_Table, torch.Tensor] = OrderedDict()
_tables_lock = threading.Lock()
_KEPT_BYTES = 32 << 20


def _on_device(key: _Table) -> torch.Tensor:
    with _tables_lock:
        table = _tables.get(key)
        if table is not None:
            _tables.move_to_end(key)
            return table
    dtype, device, name, args = key
    where = torch.device(torch._C._get_privateuse1_backend_name(), device)
    table = _MAKERS[name](*args).to(dtype).to(where)
    with _tables_lock:
        _tables[key] = table
        while sum(kept.nbytes for kept in _tables.values()) > _KEPT_BYTES:
            _tables.popitem(last=False)
    return table


# ---- Lines. ----


@dataclass(frozen=True)
class _Side:
    """Where lines come from, or where they go.

    Attributes:
        spec: what holds them.
        kind: "complex", "real", "hermitian" for what is read and only half there, or "pairs" for real numbers of which
            two are one.
        stride: of the axis, in elements.
        apart: strides of the batch.
        length: elements of the axis that are there.
        factors: what each element of the axis is multiplied by.
        first, step: element j of line u of one axis is element u * first + j * step of it.
    """

    spec: torch.Tensor
    kind: str
    stride: int
    apart: tuple[int, ...]
    length: int
    factors: torch.Tensor | None = None
    first: int = 0
    step: int = 1

    def arguments(self, name: str, apart: Sequence[int]) -> dict[str, Any]:
        """Of a kernel that calls it so; `apart` are the batch's strides, as they are left."""
        spec = torch.view_as_real(self.spec) if self.spec.is_complex() else self.spec
        numbers = {"first": self.first, "step": self.step, "length": self.length, "stride": self.stride}
        numbers.update((f"apart{d}", stride) for d, stride in enumerate(apart))
        return {name: spec, **{f"{name}_{of}": number for of, number in numbers.items()}}


@dataclass(frozen=True)
class _Axis:
    """The transforms along one axis.

    Attributes:
        dim: which one it is.
        others: the other dimensions, and `batch` their sizes.
        n: length of the transform.
        full: length of a Hermitian axis.
        backward: with exp(+2 pi i j k / n).
    """

    p: PlanBuilder
    type_: torch.dtype
    dim: int
    others: tuple[int, ...]
    batch: tuple[int, ...]
    n: int
    full: int
    backward: bool
    scale: float

    def table(self, name: str, *args: int) -> torch.Tensor:
        return self.p.table(_on_device((self.type_, self.p.device.index, name, args)))

    def between(self, length: int) -> _Side:
        """A temporary for all lines of some length."""
        spec = self.p.empty((*self.batch, length, 2), self.type_)
        return _Side(spec, "complex", 1, tuple(s // 2 for s in spec.stride()[:-2]), length)

    def transform(self, source: _Side, target: _Side) -> None:
        whole = self.whole(source, target)
        if whole is not None:
            whole.launch()
        elif max(_primes(self.n), default=1) > _SUMMED:
            self._convolve(source, target)
        else:
            self._in_two_steps(source, target)

    def whole(self, source: _Side, target: _Side) -> _Lines | None:
        """The transform, if it takes one launch."""
        if self.n >= _LONGEST:
            raise Unsupported(f"a transform of length {self.n}")
        if max(_primes(self.n), default=1) > _SUMMED:
            length = _convolution_length(self.n, self.p.form)
            if self.p.form == "gpu" or length > _CPU_WHOLE or self.few:
                return None
            chirp = self.table("chirp", self.n, self.backward)
            spectrum = self.table("chirp spectrum", self.n, length, self.backward)
            convolved = replace(self, n=length, backward=False)
            return _Lines(
                convolved, length, 1, replace(source, factors=chirp), replace(target, factors=chirp), spectrum
            )
        lines = _Lines(self, self.n, 1, source, target)
        short = kernels.local_length(_NAMES[self.type_]) if self.p.form == "gpu" else _CPU_WHOLE
        if _halves(self.n)[0] > 1 and (self.n > short or self.few) and not lines.paired().way():
            return None
        return lines

    def _convolve(self, source: _Side, target: _Side) -> None:
        length = _convolution_length(self.n, self.p.form)
        chirp = self.table("chirp", self.n, self.backward)
        spectrum = self.table("chirp spectrum", self.n, length, self.backward)
        middle = self.between(length)
        forth = replace(self, n=length, backward=False, scale=1.0)
        forth.transform(replace(source, factors=chirp), replace(middle, factors=spectrum))
        replace(self, n=length, backward=True).transform(middle, replace(target, factors=chirp))

    @property
    def few(self) -> bool:
        """Whether there are fewer lines than half of a CPU's lanes, of which each can fill them."""
        lanes = kernels.lanes(_NAMES[self.type_], "cpu")
        return self.p.form == "cpu" and 2 * math.prod(self.batch) < lanes and self.n >= _TWO_STEPS

    def _in_two_steps(self, source: _Side, target: _Side) -> None:
        rows, columns = _halves(self.n)
        middle = self.between(self.n)
        factors = self.table("between", rows, columns, self.backward)
        by_columns, between = replace(source, first=1, step=columns), replace(middle, first=1, step=columns)
        unscaled = replace(self, scale=1.0)
        _Lines(unscaled, rows, columns, by_columns, replace(between, factors=factors)).launch()
        _Lines(self, columns, rows, replace(middle, first=columns), replace(target, first=1, step=rows)).launch()


@dataclass(frozen=True)
class _Lines:
    """Lines of length n, of which each axis has `parts`. They are convolved with what has a spectrum."""

    axis: _Axis
    n: int
    parts: int
    source: _Side
    target: _Side
    spectrum: torch.Tensor | None = None

    @property
    def count(self) -> int:
        return math.prod(self.axis.batch) * self.parts

    def paired(self) -> _Lines:
        """The same with two real numbers as one where that can be."""
        if self.axis.p.form != "cpu" or self.parts > 1 or self.n != self.axis.full or self.n % 2:
            return self
        source, target = _in_pairs(self.source, self.target)
        return replace(self, source=source, target=target)

    @property
    def length(self) -> int:
        """Of what is transformed."""
        return self.n // 2 if "pairs" in (self.source.kind, self.target.kind) else self.n

    def way(self, beside: int = 0) -> _Way | None:
        """How vectors go along lines, if they do; so many lie beside each other where they are read and written."""
        source, target, axis = self.source, self.target, self.axis
        if (
            axis.p.form != "cpu"
            or self.spectrum is not None
            or (source.kind, target.kind) not in (("complex", "complex"), ("pairs", "complex"))
            or (source.step, target.step, self.parts) != (1, 1, 1)
            or source.factors is not None
            or target.factors is not None
            or (source.length, target.length) != (self.length, self.length + (source.kind == "pairs"))
        ):
            return None
        simd_width = axis.p.device.simd_width
        if source.stride == target.stride == 1:
            return _along_rows(self.length, axis.type_, simd_width)
        return _along_columns(self.length, axis.type_, simd_width, beside) if source.kind == "complex" else None

    def scratch(self, way: _Way | None) -> int:
        """Elements of a group."""
        if way:
            return way.along.room(self.length)
        return 4 * self.room * kernels.lanes(_NAMES[self.axis.type_], self.axis.p.form)

    @property
    def room(self) -> int:
        """Elements of a line in scratch."""
        return self.n if self.length == self.n else max(self.length + 1, self.target.length)

    def arguments(self, way: _Way | None, sizes: Sequence[int], aparts: Sequence[Sequence[int]]) -> dict[str, Any]:
        """Those of a kernel that are the lines' own, for a batch of these sizes and strides."""
        axis, n = self.axis, self.length
        radices = way.radices if way else _radices(n, axis.p.form)
        if way:
            turns = axis.table("row turns", n, way.along.turned_apart, int(self.source.kind == "pairs"), *radices)
        else:
            turns = axis.table("turns", self.n)
        low, high = _packed(radices)
        return {
            **self.source.arguments("source", aparts[0]),
            **self.target.arguments("target", aparts[1]),
            **{f"size{d}": size for d, size in enumerate(sizes)},
            "turns": turns,
            "before": self.source.factors,
            "after": self.target.factors,
            "n": n,
            "finer": 0 if way else turns.size(0) // n,
            "lines": self.count,
            "parts": self.parts,
            "full": axis.full,
            "low": low,
            "high": high,
            "scale": axis.scale,
            "backward": int(axis.backward),
            **({"spectrum": self.spectrum} if axis.p.form == "cpu" else {}),
        }

    def launch(self) -> None:
        lines = self.paired()
        p, name = self.axis.p, _NAMES[self.axis.type_]
        sizes, aparts = pointwise.coalesce(list(self.axis.batch), [list(lines.source.apart), list(lines.target.apart)])
        way = lines.way(_beside(sizes, aparts))
        units, together = p.device.compute_units, way.along.lines if way else kernels.lanes(name, p.form)
        local = 0
        if p.form == "gpu":
            local = next((k for k in (256, 1024, kernels.local_length(name)) if self.n <= k), 0)
            groups = self.count if local else min(self.count, 16 * units)
        else:
            groups = _GROUPS_PER_UNIT * units
        grid = p.dealer.share(ceil_div(self.count, together), groups)
        room, along = lines.scratch(way), way.along if way else None
        p.launch(
            kernels.line_kernel(name, lines.source.kind, lines.target.kind, len(sizes), p.form, local, along),
            grid,
            **lines.arguments(way, sizes, aparts),
            scratch=None if local else p.empty((*grid.groups, room), self.axis.type_),
            **({"room": room} if p.form == "cpu" else {}),
        )


def _launch_planes(first: _Lines, second: _Lines) -> bool:
    """Transforms along two axes plane by plane, if planes are small and there are enough of them; otherwise says no."""
    axis, p, name = first.axis, first.axis.p, _NAMES[first.axis.type_]
    inner = axis.others.index(second.axis.dim), second.axis.others.index(axis.dim)
    rows, columns = axis.batch[inner[0]], second.axis.batch[inner[1]]
    planes, units = first.count // max(1, rows), p.device.compute_units
    nbytes = rows * columns * 2 * axis.type_.itemsize
    if p.form != "cpu" or nbytes > _PLANE_BYTES or planes < 0.8 * ceil_div(planes, units) * units:
        return False
    passes = [first.paired(), second.paired()]
    sides = [side for lines in passes for side in (lines.source, lines.target)]
    within = [side.apart[inner[k // 2]] for k, side in enumerate(sides)]
    around = [list(_without(side.apart, inner[k // 2])) for k, side in enumerate(sides)]
    sizes, aparts = pointwise.coalesce(list(_without(axis.batch, inner[0])), around)
    aparts = [[*strides, stride] for strides, stride in zip(aparts, within, strict=True)]
    together = max(1, min(planes // (_GROUPS_PER_UNIT * units), _SHARE_BYTES // nbytes))
    grid = p.dealer.share(ceil_div(planes, together), _GROUPS_PER_UNIT * units)
    sized = [([*sizes, across], aparts[2 * k : 2 * k + 2]) for k, across in enumerate((rows, columns))]
    ways = [lines.way(_beside(*own)) for lines, own in zip(passes, sized, strict=True)]
    room = max(lines.scratch(way) for lines, way in zip(passes, ways, strict=True))
    arguments: dict[str, Any] = {}
    for k, (suffix, across) in enumerate((("", rows), ("_2", columns))):
        own = passes[k].arguments(ways[k], *sized[k])
        arguments.update((f"{argument}{suffix}", value) for argument, value in own.items())
        arguments[f"share{suffix}"] = together * across
    kinds = [
        (lines.source.kind, lines.target.kind, len(sizes) + 1, way.along if way else None)
        for lines, way in zip(passes, ways, strict=True)
    ]
    scratch = p.empty((*grid.groups, room), axis.type_)
    p.launch(kernels.plane_kernel(name, *kinds), grid, **arguments, scratch=scratch, room=room)
    return True


def _beside(sizes: Sequence[int], aparts: Sequence[Sequence[int]]) -> int:
    """How many lines of a batch lie beside each other."""
    return sizes[-1] if sizes and all(strides[-1] == 1 for strides in aparts) else 0


def _without(values: Sequence[int], place: int) -> tuple[int, ...]:
    return (*values[:place], *values[place + 1 :])


def _in_pairs(source: _Side, target: _Side) -> tuple[_Side, _Side]:
    """The same with two real numbers as one, where all of a line is read or written as it is."""
    if source.kind == "real" and source.factors is None:
        return replace(source, kind="pairs", length=source.length // 2), target
    if source.kind == "hermitian" and target.kind == "real" and source.factors is None and target.factors is None:
        return source, replace(target, kind="pairs", length=target.length // 2)
    return source, target


# ---- Ops. ----


def _scale(normalization: int, n: int) -> float:
    """`normalization` as torch numbers it: none, by the root of n, by n."""
    return (1.0, 1 / math.sqrt(n), 1 / n)[normalization]


_Transform = tuple[_Axis, _Side, _Side]
"""Of an axis, what is read, what is written."""


def _lines_along(
    p: PlanBuilder, out: torch.Tensor, x: torch.Tensor, dim: int, n: int, backward: bool, scale: float = 1.0
) -> _Transform:
    """The transform of one dimension. A real result is that of a Hermitian `x`."""
    dim %= x.dim()
    kinds = ("complex" if x.is_complex() else "real"), ("complex" if out.is_complex() else "real")
    if kinds[1] == "real":
        kinds = "hermitian", "real"
    others = tuple(d for d in range(x.dim()) if d != dim)

    def side(spec: torch.Tensor, kind: str, length: int) -> _Side:
        return _Side(spec, kind, spec.stride(dim), tuple(spec.stride(d) for d in others), length)

    real = _REAL.get(x.dtype, x.dtype)
    axis = _Axis(p, real, dim, others, tuple(x.size(d) for d in others), n, n, backward, scale)
    return axis, side(x, kinds[0], n), side(out, kinds[1], out.size(dim))


def _transform(transforms: Sequence[_Transform]) -> None:
    """One after the other, or two at once. Of an odd number the one farther from its neighbour is left over."""
    rest = list(transforms)
    while rest:
        strides = [target.stride for _, _, target in rest]
        whole = [axis.whole(source, target) for axis, source, target in rest[:2]]
        alone = len(rest) % 2 and strides[0] > strides[-1]
        if len(rest) > 1 and not alone and whole[0] and whole[1] and _launch_planes(whole[0], whole[1]):
            del rest[:2]
        else:
            axis, source, target = rest.pop(0)
            axis.transform(source, target)


def _resolved(p: PlanBuilder, x: torch.Tensor) -> torch.Tensor:
    """Something that kernels can read as it lies in memory."""
    if _REAL.get(x.dtype, x.dtype) not in _NAMES:
        raise Unsupported(f"transforms of {x.dtype}")
    return p.contiguous(x) if x.is_conj() or x.is_neg() else x


def _c2c(
    p: PlanBuilder, out: torch.Tensor, x: torch.Tensor, dims: Sequence[int], backward: bool, scale: float
) -> list[_Transform]:
    """Several dimensions; `scale` is for all of them together."""
    sources = [x] + [out] * (len(dims) - 1)
    scales = [1.0] * (len(dims) - 1) + [scale]
    return [
        _lines_along(p, out, source, dim, x.size(dim), backward, each)
        for source, dim, each in zip(sources, dims, scales, strict=True)
    ]


def _nearest_first(spec: torch.Tensor, dims: Sequence[int]) -> list[int]:
    return sorted(dims, key=lambda d: spec.stride()[d])


@planner("_fft_c2c", refuses=())
def _fft_c2c(
    p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, dim: list[int], normalization: int, forward: bool
) -> None:
    if out.numel() == 0:
        return
    if not dim:
        p.copy(out, self)
        return
    target = p.empty_like(out) if out.is_conj() else out
    scale = _scale(normalization, math.prod(self.size(d) for d in dim))
    _transform(_c2c(p, target, _resolved(p, self), _nearest_first(target, dim), not forward, scale))
    if target is not out:
        p.copy(out, target)


@planner("_fft_r2c", refuses=())
def _fft_r2c(
    p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, dim: list[int], normalization: int, onesided: bool
) -> None:
    if out.numel() == 0:
        return
    target = p.empty_like(out) if out.is_conj() else out
    scale = _scale(normalization, math.prod(self.size(d) for d in dim))
    *others, last = dim
    first = _lines_along(p, target, _resolved(p, self), last, self.size(last), False, 1.0 if others else scale)
    more = _c2c(p, target, target, _nearest_first(target, others), False, scale) if others else []
    _transform([first, *more])
    if target is not out:
        p.copy(out, target)


@planner("_fft_c2r", refuses=())
def _fft_c2r(
    p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, dim: list[int], normalization: int, last_dim_size: int
) -> None:
    *others, last = dim
    half = last_dim_size // 2 + 1
    if self.size(last) < half:
        raise RuntimeError(
            f"a signal of length {last_dim_size} has {half} Fourier coefficients, but dimension {last} of the input "
            f"only {self.size(last)}"
        )
    if out.numel() == 0:
        return
    x = _resolved(p, self).narrow(last, 0, half)
    scale = _scale(normalization, math.prod(out.size(d) for d in dim))
    transforms = []
    if others:
        coefficients = p.empty_like(x)
        transforms = _c2c(p, coefficients, x, _nearest_first(coefficients, others)[::-1], True, 1.0)
        x = coefficients
    _transform([*transforms, _lines_along(p, out, x, last, last_dim_size, True, scale)])
