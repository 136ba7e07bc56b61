"""Planners of Fourier transforms.

Axes are transformed one after the other. A length is taken apart into radices that have a butterfly; one with a large
prime factor becomes a convolution of a length that suits (L. Bluestein, "A linear filtering approach to the
computation of discrete Fourier transform", IEEE Transactions on Audio and Electroacoustics 18, 1970). A long axis, and
one of few lines, is transformed in two steps (W. Gentleman and G. Sande, "Fast Fourier Transforms - for fun and
profit", AFIPS 1966): seen as n1 rows of n2 elements, all columns and then all rows, with factors in between.
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
from torchgraft.kernels import fft as kernels
from torchgraft.plans import PlanBuilder, Unsupported, planner, pointwise

# A prime factor up to here is summed up term by term, which costs n times the factor; a convolution costs as much as
# some six transforms.
_SUMMED = 61
# Up to this length the scratch of a CPU's work-item stays in its cache.
_CPU_WHOLE = 2048
# From this length on two steps fill the lanes that a few lines leave empty.
_TWO_STEPS = 256
_LONGEST = 2**30
_GROUPS_PER_UNIT = 4

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


@functools.cache
def _radices(n: int) -> tuple[int, ...]:
    """The radices of the stages: few and large ones."""
    primes = _primes(n)
    twos = primes.count(2)
    eights = max(0, twos - 2) // 3 if twos % 3 == 1 else twos // 3
    rest = twos - 3 * eights
    radices = [8] * eights + [4] * (rest // 2) + [2] * (rest % 2) + [prime for prime in primes if prime > 2]
    while len(radices) > 16:  # what a kernel's arguments hold
        radices.sort()
        radices[:2] = [radices[0] * radices[1]]
    return tuple(sorted(radices, reverse=True))


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


@functools.cache
def _convolution_length(n: int) -> int:
    """The shortest length of at least 2 n - 1 without a prime factor above 5."""
    least = 2 * n - 1
    found = 1 << (least - 1).bit_length()
    for five in (5**k for k in range(14)):
        for three in (3**k for k in range(20)):
            if five * three < found:
                twos = max(0, (ceil_div(least, five * three) - 1).bit_length())
                found = min(found, five * three << twos)
    return found


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


_MAKERS: dict[str, Callable[..., torch.Tensor]] = {
    "turns": _turns,
    "between": _between,
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
        batch: sizes of the other dimensions.
        n: length of the transform.
        full: length of a Hermitian axis.
        backward: with exp(+2 pi i j k / n).
    """

    p: PlanBuilder
    type_: torch.dtype
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
        if self.n >= _LONGEST:
            raise Unsupported(f"a transform of length {self.n}")
        if max(_primes(self.n), default=1) > _SUMMED:
            self._convolve(source, target)
        else:
            self._smooth(source, target)

    def _convolve(self, source: _Side, target: _Side) -> None:
        length = _convolution_length(self.n)
        middle = self.between(length)
        longer = replace(self, n=length)
        chirp = self.table("chirp", self.n, self.backward)
        spectrum = replace(middle, factors=self.table("chirp spectrum", self.n, length, self.backward))
        replace(longer, backward=False, scale=1.0)._smooth(replace(source, factors=chirp), spectrum)
        replace(longer, backward=True)._smooth(middle, replace(target, factors=chirp))

    def _smooth(self, source: _Side, target: _Side) -> None:
        lines, gpu = math.prod(self.batch), self.p.form == "gpu"
        name = _NAMES[self.type_]
        short = kernels.local_length(name) if gpu else _CPU_WHOLE
        few = not gpu and 2 * lines < kernels.lanes(name, "cpu") and self.n >= _TWO_STEPS
        rows, columns = _halves(self.n)
        if rows > 1 and (self.n > short or few):
            middle = self.between(self.n)
            factors = self.table("between", rows, columns, self.backward)
            by_columns = replace(source, first=1, step=columns)
            replace(self, scale=1.0)._lines(
                rows, columns, by_columns, replace(middle, first=1, step=columns, factors=factors)
            )
            self._lines(columns, rows, replace(middle, first=columns), replace(target, first=1, step=rows))
        else:
            self._lines(self.n, 1, source, target)

    def _lines(self, n: int, parts: int, source: _Side, target: _Side) -> None:
        """Launches lines of length n, of which each axis has `parts`."""
        p, name = self.p, _NAMES[self.type_]
        turns = self.table("turns", n)
        if p.form == "cpu" and parts == 1 and n == self.full and n % 2 == 0:
            source, target = _in_pairs(source, target)
        room = n
        if "pairs" in (source.kind, target.kind):
            n //= 2
            room = max(n + 1, target.length)
        sizes, (source_apart, target_apart) = pointwise.coalesce(
            list(self.batch), [list(source.apart), list(target.apart)]
        )
        lines, units = math.prod(self.batch) * parts, p.device.compute_units
        lanes = kernels.lanes(name, p.form)
        local = 0
        if p.form == "gpu":
            local = next((k for k in (256, 1024, kernels.local_length(name)) if n <= k), 0)
            groups = lines if local else min(lines, 16 * units)
        else:
            groups = _GROUPS_PER_UNIT * units
        grid = p.dealer.share(ceil_div(lines, lanes), groups)
        low, high = _packed(_radices(n))
        p.launch(
            kernels.line_kernel(name, source.kind, target.kind, len(sizes), p.form, local),
            grid,
            **source.arguments("source", source_apart),
            **target.arguments("target", target_apart),
            **{f"size{d}": size for d, size in enumerate(sizes)},
            turns=turns,
            before=source.factors,
            after=target.factors,
            scratch=None if local else p.empty((*grid.groups, 4, room, lanes), self.type_),
            n=n,
            finer=turns.size(0) // n,
            lines=lines,
            parts=parts,
            full=self.full,
            low=low,
            high=high,
            scale=self.scale,
            backward=int(self.backward),
        )


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


def _along(
    p: PlanBuilder, out: torch.Tensor, x: torch.Tensor, dim: int, n: int, backward: bool, scale: float = 1.0
) -> None:
    """Transforms one dimension. A real result is that of a Hermitian `x`."""
    dim %= x.dim()
    kinds = ("complex" if x.is_complex() else "real"), ("complex" if out.is_complex() else "real")
    if kinds[1] == "real":
        kinds = "hermitian", "real"
    others = [d for d in range(x.dim()) if d != dim]

    def side(spec: torch.Tensor, kind: str, length: int) -> _Side:
        return _Side(spec, kind, spec.stride(dim), tuple(spec.stride(d) for d in others), length)

    real = _REAL.get(x.dtype, x.dtype)
    axis = _Axis(p, real, tuple(x.size(d) for d in others), n, n, backward, scale)
    axis.transform(side(x, kinds[0], n), side(out, kinds[1], out.size(dim)))


def _resolved(p: PlanBuilder, x: torch.Tensor) -> torch.Tensor:
    """Something that kernels can read as it lies in memory."""
    if _REAL.get(x.dtype, x.dtype) not in _NAMES:
        raise Unsupported(f"transforms of {x.dtype}")
    return p.contiguous(x) if x.is_conj() or x.is_neg() else x


def _c2c(p: PlanBuilder, out: torch.Tensor, x: torch.Tensor, dims: Sequence[int], backward: bool, scale: float) -> None:
    """Several dimensions; `scale` is for all of them together."""
    source = x
    for position, dim in enumerate(dims):
        last = position == len(dims) - 1
        _along(p, out, source, dim, x.size(dim), backward, scale if last else 1.0)
        source = out


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
    _c2c(p, target, _resolved(p, self), dim, not forward, scale)
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
    _along(p, target, _resolved(p, self), last, self.size(last), False, 1.0 if others else scale)
    if others:
        _c2c(p, target, target, others, False, scale)
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
    if others:
        coefficients = p.empty_like(x)
        _c2c(p, coefficients, x, others, True, 1.0)
        x = coefficients
    _along(p, out, x, last, last_dim_size, True, scale)
