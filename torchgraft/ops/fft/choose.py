"""How transforms go: the first way that they suit is taken.

A length with a large prime factor becomes a convolution of a length that suits (L. Bluestein, "A linear filtering
approach to the computation of discrete Fourier transform", IEEE Transactions on Audio and Electroacoustics 18, 1970). A
long axis, and one of few lines, is transformed in two launches, known as four steps (W. Gentleman and G. Sande, "Fast
Fourier Transforms - for fun and profit", AFIPS 1966): seen as n1 rows of n2 elements, all columns, twiddle factors, and
all rows, written transposed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torchgraft.codegen import ceil_div
from torchgraft.kernels.choice import Way, choose, first
from torchgraft.kernels.fft.gpu import local_length
from torchgraft.ops.fft import twiddles
from torchgraft.ops.fft.passes import Pass, launch_planes
from torchgraft.ops.fft.problem import Transform
from torchgraft.ops.fft.radices import SUMMED, largest_prime, two_factors
from torchgraft.plans import pointwise


def _for(what: str, suits: object) -> str:
    return "" if suits else what


# ---- Along one axis. ----


def _of_cpus(t: Transform) -> str:
    return _for("CPUs", t.is_cpu)


def _of_gpus(t: Transform) -> str:
    return _for("GPUs", not t.is_cpu)


def _why_no_chirp(t: Transform) -> str:
    return _for(f"prime factors above {SUMMED}", largest_prime(t.n) > SUMMED)


def _why_no_fused_chirp(t: Transform) -> str:
    whole = t.sizes.whole
    suits = t.is_cpu and t.chirp_length <= whole and not t.is_few
    return _why_no_chirp(t) or _of_cpus(t) or _for(f"convolutions of at most {whole}, and not of few lines", suits)


def _plan_fused_chirp(t: Transform) -> list[Pass]:
    chirped = t.chirped
    return [Pass(replace(chirped, n=t.chirp_length, backward=False, spectrum=t.chirp_spectrum).merged)]


def _plan_chirp(t: Transform) -> list[Pass]:
    """Forth and back, with the lines in memory in between."""
    chirped, middle = replace(t.chirped, n=t.chirp_length), t.temporary(t.chirp_length)
    forth = replace(chirped, backward=False, scale=1.0, target=replace(middle, factors=t.chirp_spectrum))
    return [*passes(forth), *passes(replace(chirped, backward=True, source=middle))]


def _why_not_four_steps(t: Transform) -> str:
    longest = t.sizes.whole if t.is_cpu else local_length(t.name)
    if t.parts > 1 or two_factors(t.n)[0] == 1:
        return "whole lines, of a length with two factors"
    few = ", or few of them" if t.is_cpu else ""
    return _for(f"lines of more than {longest}{few}", t.n > longest or t.is_few)


def _plan_four_steps(t: Transform) -> list[Pass]:
    rows, columns = two_factors(t.n)
    middle = t.temporary(t.n)
    between = replace(middle, first=1, step=columns, factors=t.table(twiddles.between_steps, rows, columns, t.backward))
    source, target = replace(t.source, first=1, step=columns), replace(t.target, first=1, step=rows)
    return [
        *passes(replace(t, n=rows, parts=columns, scale=1.0, source=source, target=between)),
        *passes(replace(t, n=columns, parts=rows, source=replace(middle, first=columns), target=target)),
    ]


def _plan_local(t: Transform) -> list[Pass]:
    return [Pass(t.merged, local=next(length for length in (256, 1024, local_length(t.name)) if t.n <= length))]


WAYS: tuple[Way[Transform, list[Pass]], ...] = (
    Way("bluestein-fused", _why_no_fused_chirp, _plan_fused_chirp),
    Way("bluestein", _why_no_chirp, _plan_chirp),
    Way(
        "rows",
        lambda t: _of_cpus(t) or _for("whole rows that cost less by vectors along them", t.in_pairs.rows),
        lambda t: [Pass(t.in_pairs.merged, t.in_pairs.rows)],
    ),
    Way("four-step", _why_not_four_steps, _plan_four_steps),
    Way(
        "columns",
        lambda t: _of_cpus(t) or _for("columns beside each other that fill vectors", t.columns),
        lambda t: [Pass(t.merged, t.columns)],
    ),
    Way(
        "pairs",
        lambda t: _of_cpus(t) or _for("real lines of even length", t.in_pairs is not t),
        lambda t: [Pass(t.in_pairs.merged)],
    ),
    Way("across", _of_cpus, lambda t: [Pass(t.merged)]),
    Way(
        "local",
        lambda t: _of_gpus(t) or _for(f"lines of at most {local_length(t.name)}", t.n <= local_length(t.name)),
        _plan_local,
    ),
    Way("global", _of_gpus, lambda t: [Pass(t.merged)]),
)


def passes(t: Transform) -> list[Pass]:
    """The launches for the lines along one axis."""
    return choose("fft", WAYS, t)


def _is_one_pass(t: Transform) -> bool:
    return first("fft", WAYS, t).name not in ("bluestein", "four-step")


# ---- Along several. ----


@dataclass(frozen=True)
class Axes:
    """Axes that are to be transformed, two or more: planes have all elements along the first two."""

    rest: tuple[Transform, ...]

    def __str__(self) -> str:
        return f"{len(self.rest)} axes, the first two of {self.planes} planes of {'x'.join(map(str, self.sizes))}"

    @property
    def other(self) -> tuple[int, int]:
        """Which dimension of the first one's batch the second is, and the other way round."""
        first, second = (t.dim for t in self.rest[:2])
        return second - (second > first), first - (first > second)

    @property
    def sizes(self) -> tuple[int, int]:
        """Lines of a plane along the first axis, and along the second."""
        return self.rest[0].batch[self.other[0]], self.rest[1].batch[self.other[1]]

    @property
    def planes(self) -> int:
        return self.rest[0].count // self.sizes[0]

    @property
    def nbytes(self) -> int:
        """Of a plane."""
        return math.prod(self.sizes) * 2 * self.rest[0].type_.itemsize


def _why_no_planes(a: Axes) -> str:
    first, second, last = a.rest[0], a.rest[1], a.rest[-1]
    if len(a.rest) % 2 and first.target.stride > last.target.stride:
        return "neighbours; of an odd number of axes the one farther from its neighbour is left over"
    units = first.p.device.compute_units
    most = first.sizes.plane_bytes
    small = a.nbytes <= most and a.planes >= 0.8 * ceil_div(a.planes, units) * units
    return (
        _of_cpus(first)
        or _for("axes of one launch each", _is_one_pass(first) and _is_one_pass(second))
        or _for(f"planes of at most {most >> 10} KiB, enough for all units", small)
    )


def _plan_planes(a: Axes) -> int:
    pair = a.rest[:2]
    strides = [side.apart for t in pair for side in (t.source, t.target)]
    around = [list(_without(apart, a.other[k // 2])) for k, apart in enumerate(strides)]
    sizes, around = pointwise.coalesce(list(_without(pair[0].batch, a.other[0])), around)
    strides = [(*outer, apart[a.other[k // 2]]) for k, (outer, apart) in enumerate(zip(around, strides, strict=True))]
    in_planes = [t.with_batch((*sizes, a.sizes[k]), *strides[2 * k : 2 * k + 2]) for k, t in enumerate(pair)]
    tuning = pair[0].sizes
    groups = tuning.groups * pair[0].p.device.compute_units
    together = max(1, min(a.planes // groups, tuning.share_bytes // a.nbytes))
    launch_planes([each for t in in_planes for each in passes(t)], ceil_div(a.planes, together), together)
    return 2


def _without(values: Sequence[int], place: int) -> tuple[int, ...]:
    return (*values[:place], *values[place + 1 :])


def _plan_axis(a: Axes) -> int:
    for each in passes(a.rest[0]):
        each.launch()
    return 1


AXES = (Way("planes", _why_no_planes, _plan_planes), Way("axis", lambda _: "", _plan_axis))


def plan_axes(transforms: Sequence[Transform]) -> None:
    """One after the other, or two at once."""
    rest = tuple(transforms)
    while rest:
        axes = Axes(rest)
        rest = rest[_plan_axis(axes) if len(rest) == 1 else choose("fft-axes", AXES, axes) :]
