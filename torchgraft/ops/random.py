"""Planners of random numbers."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import torch

from torchgraft.codegen import ceil_div, element_type
from torchgraft.codegen.walk import FEW
from torchgraft.functions.philox import COUNTERS
from torchgraft.kernels import random as kernels
from torchgraft.kernels import rejection
from torchgraft.kernels.random import Draw
from torchgraft.ops.checks import plan_check
from torchgraft.ops.operators.random import plan_dropout, plan_random
from torchgraft.ops.sorting.choose import sort_rows
from torchgraft.ops.table import row
from torchgraft.plans import PlanBuilder, Scalar, Unsupported, composite, only, other_out, planner
from torchgraft.plans.refusals import check_broadcast, check_fits, check_floating, dtype_name, refuse_dtype
from torchgraft.plans.steps import ErrorReport

_COST = 2
_REJECTION_COST = 64

aten = torch.ops.aten

# Ends of open intervals.
_POSITIVE = math.ulp(0.0)
_BELOW_ONE = math.nextafter(1.0, 0.0)


def plan_draw(
    p: PlanBuilder,
    draw: Draw,
    outs: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor] = (),
    numbers: Sequence[Any] = (),
    report: ErrorReport | None = None,
    kind: str = "",
) -> None:
    """Adds the launch of a distribution: elements are numbered in logical order, whatever the strides. Where the
    device's operator "random" has a `kind`, that comes first."""
    n = outs[0].numel()
    if n == 0:
        return
    if kind and plan_random(p, kind, outs[0], numbers, [i.expand(outs[0].shape) for i in inputs]):
        return
    targets = [out if out.is_contiguous() else p.empty_like(out) for out in outs]
    inputs = [p.contiguous(i if i.shape == outs[0].shape else i.expand(outs[0].shape)) for i in inputs]
    counters = ceil_div(n, draw.elements)
    reserved = p.philox(counters)
    block = kernels.block_counters(p.form)
    given: dict[str, Any] = {f"out{r}_p": target for r, target in enumerate(targets)}
    given |= {f"{i.name}_p": spec for i, spec in zip(draw.inputs, inputs, strict=True)}
    given |= {number.name: value for number, value in zip(draw.numbers, numbers, strict=True)}
    if report is not None:
        given |= {"tg_errors": report.words, "tg_code": report.code}
    p.launch(
        kernels.draw_kernel(draw, p.form),
        p.walk(ceil_div(counters, block), _COST * block * draw.elements, multiple=1),
        **given,
        tg_seed=reserved.seed,
        tg_offset=reserved.offset,
        tg_elements=n,
    )
    for out, target in zip(outs, targets, strict=True):
        if out is not target:
            p.copy(out, target)


def _floating(out: torch.Tensor) -> str:
    element = element_type(out.dtype)
    if not element.is_float:
        raise Unsupported(f"no such distribution of {out.dtype}")
    return element.name


def _check_floats(self: torch.Tensor, **_: Any) -> None:
    if not (self.is_floating_point() or self.is_complex()):
        refuse_dtype("normal_kernel_cpu", self.dtype)


@planner("uniform_", inplace_safe=True)
def _uniform(
    p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, low: Scalar, high: Scalar, *, generator: None
) -> None:
    most = torch.finfo(out.dtype).max if out.is_floating_point() or out.is_complex() else math.inf
    for number in (low, high):
        p.within(number, -most, most, f"{{}} is out of bounds for {dtype_name(out.dtype)}")
    p.within(low, None, high, "uniform_ expects to return a [from, to) range, but found from={} > to")
    real = torch.view_as_real(out) if out.is_complex() else out
    plan_draw(p, kernels.uniform(_floating(real)), [real], numbers=[low, high], kind="uniform")


@planner("normal_", inplace_safe=True, refuses=_check_floats)
def _normal(
    p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, mean: Scalar, std: Scalar, *, generator: None
) -> None:
    p.within(std, 0, None, "normal expects std >= 0.0, but found std {}")
    pairs = out.is_complex()
    if pairs:
        out = torch.view_as_real(out)
    kind = "" if pairs else "normal"
    plan_draw(p, kernels.normal(_floating(out), pairs=pairs), [out], numbers=[mean, std], kind=kind)


def _normal_meta(mean: Any, std: Any, generator: None) -> torch.Tensor:
    """torch's own compares complex means with 0."""
    if isinstance(mean, torch.Tensor) and mean.is_complex():
        other = std if isinstance(std, torch.Tensor) else mean
        return mean.new_empty(torch.broadcast_shapes(mean.shape, other.shape))
    return torch.normal(mean, std)


def _check_normal(mean: Any, std: Any, out: torch.Tensor | None = None, **_: Any) -> None:
    filled = next(x for x in (out, mean, std) if isinstance(x, torch.Tensor))
    if not (filled.is_floating_point() or filled.is_complex()):
        refuse_dtype("normal_kernel_cpu", filled.dtype)


@composite(
    "normal.Tensor_float_out",
    "normal.float_Tensor_out",
    "normal.Tensor_Tensor_out",
    when=lambda out, **_: out.is_complex(),
)
def _normal_complex(mean: Any, std: Any, *, generator: torch.Generator | None, out: torch.Tensor) -> torch.Tensor:
    """An `out=` is filled with numbers of its own dtype, also complex ones."""
    shape = torch.broadcast_shapes(*(x.shape for x in (mean, std) if isinstance(x, torch.Tensor)))
    return torch.empty(shape, dtype=out.dtype, device=out.device).normal_(generator=generator).mul_(std).add_(mean)


@planner(
    "normal.Tensor_float",
    "normal.float_Tensor",
    "normal.Tensor_Tensor",
    inplace_safe=True,
    meta=_normal_meta,
    refuses=_check_normal,
)
def _normal_of(p: PlanBuilder, out: torch.Tensor, mean: Any, std: Any, *, generator: None) -> None:
    if out.is_complex():
        if isinstance(std, torch.Tensor):
            raise Unsupported("several deviations of complex numbers")
        p.within(std, 0, None, "normal expects std >= 0.0, but found std {}")
        noise = p.empty_like(out)
        pairs = torch.view_as_real(noise)
        plan_draw(p, kernels.normal(_floating(pairs), pairs=True), [pairs], numbers=[0.0, std])
        p.call_out(torch.ops.aten.add.Tensor, out, noise, mean)
        return
    parts = (mean, std)
    storages = [element_type(x.dtype).name if isinstance(x, torch.Tensor) else None for x in parts]
    if isinstance(std, Scalar):
        p.within(std, 0, None, "normal expects std >= 0.0, but found std {}")
        noise = p.empty_like(out)
        if out.numel() and plan_random(p, "normal", noise, [0.0, std]):
            p.call_out(aten.add.Tensor, out, noise, mean)
            return
    else:
        plan_check(p, std, "x >= 0", "normal expects all elements of std >= 0.0")
    inputs = [x for x in parts if isinstance(x, torch.Tensor)]
    numbers = [x for x in parts if not isinstance(x, torch.Tensor)]
    plan_draw(p, kernels.normal(_floating(out), *storages), [out], inputs, numbers)


@planner("log_normal_", inplace_safe=True, refuses=check_floating)
def _log_normal(
    p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, mean: Scalar, std: Scalar, *, generator: None
) -> None:
    p.within(std, _POSITIVE, None, "log_normal_ expects std > 0.0, but found std={}")
    plan_draw(p, kernels.log_normal(_floating(out)), [out], numbers=[mean, std], kind="log_normal")


@planner("exponential_", inplace_safe=True)
def _exponential(p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, lambd: Scalar, *, generator: None) -> None:
    p.within(lambd, _POSITIVE, None, "exponential_ expects lambda > 0.0, but found lambda={}")
    plan_draw(p, kernels.exponential(_floating(out)), [out], numbers=[lambd], kind="exponential")


@planner("cauchy_", inplace_safe=True)
def _cauchy(
    p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, median: Scalar, sigma: Scalar, *, generator: None
) -> None:
    p.within(sigma, _POSITIVE, None, "cauchy_ expects sigma > 0.0, but found sigma={}")
    plan_draw(p, kernels.cauchy(_floating(out)), [out], numbers=[median, sigma], kind="cauchy")


@planner("geometric_", inplace_safe=True)
def _geometric(p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, chance: Scalar, *, generator: None) -> None:
    p.within(chance, _POSITIVE, _BELOW_ONE, "geometric_ expects p to be in (0, 1), but got p={}")
    plan_draw(p, kernels.geometric(element_type(out.dtype).name), [out], numbers=[chance], kind="geometric")


def _check_not_complex(self: torch.Tensor, **_: Any) -> None:
    if self.is_complex():
        refuse_dtype("bernoulli_scalar_cpu_", self.dtype)


@planner("bernoulli.p", inplace_safe=True, refuses=(_check_not_complex, other_out))
def _bernoulli(p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, chance: Scalar, *, generator: None) -> None:
    p.within(chance, 0, 1, "bernoulli_ expects p to be in [0, 1], but got p={}")
    plan_draw(p, kernels.bernoulli(element_type(out.dtype).name), [out], numbers=[chance], kind="bernoulli")


@planner("bernoulli_.Tensor", inplace_safe=True)
def _bernoulli_tensor(
    p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, chance: torch.Tensor, *, generator: None
) -> None:
    _draw_by_chances(p, out, chance)


def _draw_by_chances(p: PlanBuilder, out: torch.Tensor, chances: torch.Tensor) -> None:
    draw = kernels.bernoulli_of(element_type(out.dtype).name, _floating(chances))
    report = p.error("bernoulli expects p to be in [0, 1]", RuntimeError)
    plan_draw(p, draw, [out], [chances], report=report, kind="bernoulli")


def _bernoulli_meta(self: torch.Tensor, generator: None, out: torch.Tensor) -> torch.Tensor:
    """torch's own refuses the integers that its kernel draws."""
    if out.is_complex() and self.numel():
        refuse_dtype("bernoulli_", out.dtype)
    return out.resize_(self.shape)


@planner("bernoulli.out", inplace_safe=True, meta=_bernoulli_meta)
def _bernoulli_out(
    p: PlanBuilder, result: torch.Tensor, self: torch.Tensor, *, generator: None, out: torch.Tensor
) -> None:
    _draw_by_chances(p, result, self)


@planner("native_dropout")
def _dropout(
    p: PlanBuilder, outs: tuple[torch.Tensor, torch.Tensor], input: torch.Tensor, chance: Scalar, train: bool | None
) -> None:
    out, mask = outs
    if train is False:
        p.copy(out, input)
        p.fill(mask, True)
        return
    p.within(chance, 0, 1, "dropout probability has to be between 0 and 1, but got {}")
    if not plan_dropout(p, out, mask, input, chance):
        plan_draw(p, kernels.dropout(_floating(out)), [out, mask], [input], [chance])


row("native_dropout_backward", "grad_output * (mask ? scale : (T)0)", operands={"scale": "promotes", "mask": "keeps"})


def _plan_rejection(
    p: PlanBuilder, name: str, out: torch.Tensor, inputs: Sequence[torch.Tensor], message: str = ""
) -> None:
    """Adds the launch of a distribution whose parameters are tensors. The message is of the error where the CPU has one
    for parameters that are not allowed; otherwise they give NaN.
    """
    n = out.numel()
    if n == 0:
        return
    if plan_random(p, name, out, (), [p.cast(i, out.dtype).expand(out.shape) for i in inputs]):
        return
    target = out if out.is_contiguous() else p.empty_like(out)
    inputs = [p.contiguous(p.cast(i, out.dtype).expand(out.shape)) for i in inputs]
    reserved = p.philox(n)
    report = p.error(message, RuntimeError) if message else None
    p.launch(
        rejection.rejection_kernel(name, _floating(out), p.form),
        p.walk(n, _REJECTION_COST, group=FEW),
        out=target,
        **dict(zip(rejection.operands(name), inputs, strict=True)),
        errors=report.words if report else None,
        code=report.code if report else 0,
        seed=reserved.seed,
        offset=reserved.offset,
    )
    if target is not out:
        p.copy(out, target)


def _as_first(first: torch.Tensor, *_: Any) -> torch.Tensor:
    return torch.empty(first.shape, dtype=first.dtype, device=first.device)


@planner("_standard_gamma", meta=lambda self, generator: _as_first(self))
def _gamma(p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, generator: None) -> None:
    _plan_rejection(p, "gamma", out, [self])


# The gradients of these draws.
row("_standard_gamma_grad", "@standard_gamma_grad(self, output)", cost=128, refuses=only("float"))
row("_dirichlet_grad", "@dirichlet_grad(x, alpha, total)", cost=128, refuses=only("float"))


@planner("_sample_dirichlet", meta=lambda self, generator: _as_first(self))
def _dirichlet(p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, generator: None) -> None:
    gammas = p.empty(out.shape, out.dtype)
    _plan_rejection(p, "gamma", gammas, [self])
    shares = p.call(aten.div.Tensor, gammas, p.call(aten.sum.dim_IntList, gammas, [-1], True))
    info = torch.finfo(out.dtype)
    p.call_out(aten.clamp.default, out, shares, info.tiny, 1 - info.eps / 2)


@planner("poisson", meta=lambda self, generator: _as_first(self))
def _poisson(p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, generator: None) -> None:
    _plan_rejection(p, "poisson", out, [self], "invalid Poisson rate, expected rate to be non-negative")


def _check_binomial(count: torch.Tensor, prob: torch.Tensor, **_: Any) -> None:
    for name, x in (("count", count), ("prob", prob)):
        if not x.is_floating_point():
            raise ValueError(f"binomial only supports floating-point dtypes for {name}, got: {dtype_name(x.dtype)}")
    if prob.dtype != count.dtype:
        raise RuntimeError(f"Found dtype {dtype_name(prob.dtype)} but expected {dtype_name(count.dtype)}")
    check_broadcast([count, prob])


@planner("binomial", meta=lambda count, prob, generator: _as_first(count), refuses=(_check_binomial, other_out))
def _binomial(p: PlanBuilder, out: torch.Tensor, count: torch.Tensor, prob: torch.Tensor, generator: None) -> None:
    _plan_rejection(p, "binomial", out, [count, prob])


# Ops that return a result and write an argument beside it fit no rule of plans.
_library = torch.library.Library("aten", "IMPL")


def _slopes(
    self: torch.Tensor, noise: torch.Tensor, lower: float, upper: float, generator: torch.Generator | None
) -> torch.Tensor:
    """Writes what each element is multiplied by: a number in [lower, upper) where it is not positive, elsewhere 1."""
    return noise.uniform_(lower, upper, generator=generator).masked_fill_((self <= 0).logical_not_(), 1)


def _rrelu(
    self: torch.Tensor,
    noise: torch.Tensor,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    if not training:
        return torch.nn.functional.leaky_relu(self, (lower + upper) / 2)
    return self * _slopes(self, noise, lower, upper, generator)


def _rrelu_(
    self: torch.Tensor,
    noise: torch.Tensor,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    if not training:
        return torch.nn.functional.leaky_relu_(self, (lower + upper) / 2)
    return self.mul_(_slopes(self, noise, lower, upper, generator))


def _rrelu_out(
    self: torch.Tensor,
    noise: torch.Tensor,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    generator: torch.Generator | None = None,
    *,
    out: torch.Tensor,
) -> torch.Tensor:
    result = _rrelu(self, noise, lower, upper, training, generator)
    return out.resize_(result.shape).copy_(result)


_library.impl("rrelu_with_noise", _rrelu, "PrivateUse1")
_library.impl("rrelu_with_noise_", _rrelu_, "PrivateUse1")
_library.impl("rrelu_with_noise.out", _rrelu_out, "PrivateUse1")


# Integers up to which a floating type has no gaps.
_EXACT = {torch.float64: 2**53, torch.float32: 2**24, torch.float16: 2**11, torch.bfloat16: 2**8}


def _refuse_complex(dtype: torch.dtype) -> None:
    if dtype.is_complex:
        raise RuntimeError("random integers are integral, floating-point or boolean, not complex")


def _largest(dtype: torch.dtype) -> int:
    _refuse_complex(dtype)
    if dtype == torch.bool:
        return 1
    return _EXACT[dtype] if dtype in _EXACT else torch.iinfo(dtype).max


def _check_integers(dtype: torch.dtype, base: int, end: int) -> None:
    """Refuses what the dtype cannot hold, and warns of what it cannot hold exactly."""
    _refuse_complex(dtype)
    if base >= end:
        raise RuntimeError(f"random_ expects 'from' to be less than 'to', but got from={base} >= to={end}")
    limits = torch.finfo(dtype) if dtype.is_floating_point else None if dtype == torch.bool else torch.iinfo(dtype)
    low, high = (int(limits.min), int(limits.max)) if limits else (0, 1)
    for name, number in (("from", base), ("to - 1", end - 1)):
        if not low <= number <= high:
            raise RuntimeError(f"{name} is out of bounds for {dtype_name(dtype)}")
        if abs(number) > _EXACT.get(dtype, abs(number)):
            digits = _EXACT[dtype].bit_length() - 1
            warnings.warn(
                f"{name} is out of bounds [-(2^{digits}), 2^{digits}]. Due to precision limitations "
                f"{dtype_name(dtype)} can support discrete uniform distribution only within this range.",
                stacklevel=2,
            )


def _plan_integers(p: PlanBuilder, out: torch.Tensor, base: int, span: int) -> None:
    if out.numel() and plan_random(p, "integers", out, [base, base + span - 1]):
        return
    words = 1 if span <= 2**32 else 2
    draw = kernels.integers(element_type(out.dtype).name, words, span == 2**64)
    plan_draw(p, draw, [out], numbers=[base, span % 2**64])


@planner("random_", inplace_safe=True)
def _random(p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, *, generator: None) -> None:
    _plan_integers(p, out, 0, _largest(out.dtype) + 1)


@planner("random_.to", inplace_safe=True)
def _random_to(p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, to: int, *, generator: None) -> None:
    _check_integers(out.dtype, 0, to)
    _plan_integers(p, out, 0, to)


@planner("random_.from", inplace_safe=True)
def _random_from(
    p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, base: int, to: int | None, *, generator: None
) -> None:
    end = _largest(out.dtype) + 1 if to is None else to
    _check_integers(out.dtype, base, end)
    _plan_integers(p, out, base, end - base)


# So many are shuffled on a GPU by sorting random numbers, which all its work-items share. Of 62 bits two are hardly
# ever the same; those that are stay in order.
_MANY_SHUFFLED, _SORTED_BITS = 4096, 62


def _check_places_fit(n: int, out: torch.Tensor, **_: Any) -> None:
    """Each number below `n` must be one of the dtype; torch's CPU takes one more of fractions than are exact."""
    most = {torch.float16: 2**11 + 1, torch.float32: 2**24 + 1, torch.float64: 2**53 + 1}
    if not out.is_floating_point():
        check_fits(max(0, n - 1), out.dtype)
    elif n > most.get(out.dtype, n):
        raise RuntimeError(f"n cannot be greater than {most[out.dtype]} for {dtype_name(out.dtype)} type.")


@planner("randperm.generator_out", inplace_safe=True, refuses=_check_places_fit)
def _randperm(p: PlanBuilder, result: torch.Tensor, n: int, *, generator: None, out: torch.Tensor) -> None:
    if n > 0 and plan_random(p, "permutation", result):
        return
    if p.form == "gpu" and _MANY_SHUFFLED <= n < 1 << 31:
        numbers = p.empty((1, n), torch.int64)
        _plan_integers(p, numbers, 0, 1 << _SORTED_BITS)
        p.copy(result, sort_rows(p, numbers, False)[1].view(n))
        return
    target = result if result.is_contiguous() else p.empty_like(result)
    reserved = p.philox(ceil_div(n, 2))
    if n > 0:
        kernel = kernels.permutation(element_type(out.dtype).name)
        p.launch(kernel, (1,), out=target, n=n, seed=reserved.seed, offset=reserved.offset)
    if target is not result:
        p.copy(result, target)


_NO_WEIGHT = "invalid multinomial distribution (sum of probabilities <= 0)"
_TOO_FEW_WEIGHTS = (
    "invalid multinomial distribution (with replacement=False, not enough non-negative category to sample)"
)


@planner("multinomial", contiguous=True)
def _multinomial(
    p: PlanBuilder, out: torch.Tensor, self: torch.Tensor, samples: int, replacement: bool, *, generator: None
) -> None:
    if samples <= 0:
        raise RuntimeError("cannot sample n_sample <= 0 samples")
    if not replacement and samples > self.size(-1):
        raise RuntimeError("cannot sample n_sample > prob_dist.size(-1) samples without replacement")
    size = self.shape[-1]
    rows = self.numel() // size if size else 0
    storage = _floating(self)
    if replacement:
        total = "f64" if p.device.float64 else "f32"
        kernel = kernels.multinomial_with_replacement(storage, total, p.form)
        room = p.empty(self.shape, torch.float64 if total == "f64" else torch.float32)
        reserved = p.philox(rows * samples)
    else:
        kernel = kernels.multinomial_without_replacement(storage, p.form)
        room = p.empty(self.shape, torch.float32)
        reserved = p.philox(rows * ceil_div(size, kernels.WORDS) * COUNTERS)
    not_weights = p.error("probability tensor contains either `inf`, `nan` or element < 0", RuntimeError)
    too_few = p.error(_NO_WEIGHT if replacement else _TOO_FEW_WEIGHTS, RuntimeError)
    p.launch(
        kernel,
        p.walk(rows, max(1, 4 * size), multiple=1, group=FEW),
        out=out,
        weights=self,
        room=room,
        errors=not_weights.words,
        not_weights=not_weights.code,
        too_few=too_few.code,
        size=size,
        samples=samples,
        seed=reserved.seed,
        offset=reserved.offset,
    )
