"""How transforms go: the first way that they suit is taken.

A length with a large prime factor becomes a convolution of a length that suits (L. Bluestein, "A linear filtering
approach to the computation of discrete Fourier transform", IEEE Transactions on Audio and Electroacoustics 18, 1970). A
long axis, and one of few lines, is transformed in two launches, known as four steps (W. Gentleman and G. Sande, "Fast
Fourier Transforms - for fun and profit", AFIPS 1966): seen as n1 rows of n2 elements, all columns, twiddle factors, and
all rows, written transposed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torchgraft.kernels.choice import Way, choose
from torchgraft.kernels.fft.gpu import local_length
from torchgraft.ops.fft import twiddles
from torchgraft.ops.fft.passes import Pass
from torchgraft.ops.fft.problem import Transform
from torchgraft.ops.fft.radices import SUMMED, largest_prime, two_factors


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


def plan_axes(transforms: Sequence[Transform]) -> None:
    """One after the other."""
    for transform in transforms:
        for each in passes(transform):
            each.launch()
