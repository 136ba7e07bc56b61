"""Random numbers: their distributions, that they can be repeated, and that they do not depend on how they are drawn."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from torchgraft.plans.device import kernel_form

pytestmark = pytest.mark.no_fallback

N = 200_003  # not a multiple of anything
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def kolmogorov(sample: torch.Tensor, distribution: Callable[[torch.Tensor], torch.Tensor]) -> float:
    """The statistic of Kolmogorov and Smirnov times the root of the sample's size: above 2.7 with a chance of
    9.3e-7.
    """
    x = sample.double().flatten().sort()[0]
    n = x.numel()
    steps = torch.arange(1, n + 1, dtype=torch.float64) / n
    f = distribution(x)
    return float(torch.maximum((steps - f).abs().max(), (f - steps + 1 / n).abs().max())) * math.sqrt(n)


def chi_square(counts: torch.Tensor, expected: torch.Tensor) -> float:
    """The chance of counts that are as far from the expected ones, or farther."""
    half_freedom = torch.tensor((counts.numel() - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(half_freedom, ((counts - expected) ** 2 / expected).sum() / 2))


PHI = lambda x: 0.5 * torch.special.erfc(-x / math.sqrt(2))  # noqa: E731


@pytest.mark.parametrize("dtype", FLOATS)
def test_uniform(device: str, form: str, dtype: torch.dtype) -> None:
    x = torch.empty(N, dtype=dtype, device=device).uniform_(-2, 3).cpu()
    assert x.min() >= -2
    assert x.max() < 3
    if dtype in (torch.float32, torch.float64):
        assert kolmogorov(x, lambda v: (v + 2) / 5) < 2.7
    assert abs(x.double().mean() - 0.5) < 5 * 5 / math.sqrt(12 * N) + (0.01 if dtype == torch.bfloat16 else 0.001)


def test_uniform_keeps_below_its_end(device: str) -> None:
    for dtype in FLOATS:
        x = torch.empty(100_000, dtype=dtype, device=device).uniform_(0.3, 0.9).cpu()
        assert x.max() < torch.tensor(0.9, dtype=dtype)
    assert (torch.empty(9, device=device).uniform_(2, 2).cpu() == 2).all()


@pytest.mark.parametrize("dtype", FLOATS)
def test_normal(device: str, form: str, dtype: torch.dtype) -> None:
    x = torch.empty(N, dtype=dtype, device=device).normal_(1, 2).cpu().double()
    assert abs(x.mean() - 1) < 10 / math.sqrt(N) + (0.002 if dtype == torch.bfloat16 else 0)
    assert abs(x.std() - 2) < 10 / math.sqrt(N)
    if dtype in (torch.float32, torch.float64):
        assert kolmogorov(x, lambda v: PHI((v - 1) / 2)) < 2.7
        halves = x[: N // 2 * 2].view(-1, 2) - 1
        assert abs((halves[:, 0] * halves[:, 1]).mean()) < 5 * 4 / math.sqrt(N / 2)  # the two of a pair are independent


def test_complex_normal(device: str) -> None:
    x = torch.randn(N, dtype=torch.complex64, device=device).cpu()
    for part in (x.real, x.imag):
        assert kolmogorov(part, lambda v: PHI(v * math.sqrt(2))) < 2.7


def test_means_of_complex_numbers(device: str) -> None:
    for place in ("cpu", device):  # a number is the mean of both parts
        x = torch.zeros(N, dtype=torch.complex64, device=place).normal_(3, 0.5).cpu()
        for part in (x.real, x.imag):
            assert abs(part.mean() - 3) < 0.05
            assert abs(part.std() - 0.5 / 2**0.5) < 0.05
        mean = torch.tensor([1 + 2j, 3], dtype=torch.complex64, device=place)
        assert torch.equal(torch.normal(mean, 0.0).cpu(), mean.cpu())


@pytest.mark.parametrize(
    ("draw", "distribution"),
    [
        (lambda x: x.exponential_(2), lambda v: 1 - torch.exp(-2 * v)),
        (lambda x: x.log_normal_(0.5, 0.7), lambda v: PHI((v.log() - 0.5) / 0.7)),
        (lambda x: x.cauchy_(1, 3), lambda v: torch.atan((v - 1) / 3) / math.pi + 0.5),
    ],
    ids=["exponential", "log_normal", "cauchy"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_distribution(device: str, form: str, dtype: torch.dtype, draw, distribution) -> None:  # type: ignore[no-untyped-def]
    x = draw(torch.empty(N, dtype=dtype, device=device)).cpu()
    assert torch.isfinite(x).all()
    assert kolmogorov(x, distribution) < 2.7


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_geometric(device: str, dtype: torch.dtype) -> None:
    x = torch.empty(N, dtype=dtype, device=device).geometric_(0.3).cpu().long()
    counts = x.clamp(max=20).bincount(minlength=21)[1:].double()
    chances = 0.3 * 0.7 ** torch.arange(20, dtype=torch.float64)
    chances[-1] = 0.7**19
    assert chi_square(counts, chances * N) > 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool])
def test_bernoulli(device: str, form: str, dtype: torch.dtype) -> None:
    x = torch.empty(N, dtype=dtype, device=device).bernoulli_(0.3).cpu().double()
    assert ((x == 0) | (x == 1)).all()
    assert abs(x.mean() - 0.3) < 5 * math.sqrt(0.21 / N)
    assert (torch.empty(999, dtype=dtype, device=device).bernoulli_(1).cpu() == 1).all()
    assert (torch.empty(999, dtype=dtype, device=device).bernoulli_(0).cpu() == 0).all()


def test_bernoulli_of_tensors(device: str) -> None:
    p = torch.tensor([0.0, 0.25, 0.5, 1.0])
    for chances in (p, p.double(), p.half()):
        x = torch.empty(50_000, 4, device=device).bernoulli_(chances.to(device)).cpu()
        torch.testing.assert_close(x.mean(0), p, atol=0.015, rtol=0)
        assert (x[:, 0] == 0).all()
        assert (x[:, 3] == 1).all()
    x = torch.bernoulli(p.repeat(10_000, 1).to(device)).cpu()
    torch.testing.assert_close(x.mean(0), p, atol=0.03, rtol=0)


def test_integers(device: str, form: str) -> None:
    x = torch.randint(-3, 7, (N,), device=device).cpu()
    assert chi_square((x + 3).bincount(minlength=10).double(), torch.full((10,), N / 10, dtype=torch.float64)) > 1e-6
    wide = torch.empty(N, dtype=torch.int64, device=device).random_(-(2**40), 2**41).cpu()
    assert kolmogorov(wide, lambda v: (v + 2**40) / (3 * 2**40)) < 2.7
    whole = torch.empty(N, dtype=torch.int64, device=device).random_(-(2**63), None).cpu()
    assert kolmogorov(whole, lambda v: v / 2.0**64 + 0.5) < 2.7
    for dtype, top in (
        (torch.uint8, 255),
        (torch.int8, 127),
        (torch.int16, 2**15 - 1),
        (torch.bool, 1),
        (torch.bfloat16, 256),
    ):
        x = torch.empty(N, dtype=dtype, device=device).random_().cpu().double()
        assert x.min() == 0
        assert top * 0.99 <= x.max() <= top
        assert abs(x.mean() / top - 0.5) < 0.01
    x = torch.empty(N, device=device).random_(10, 12).cpu()
    assert set(x.tolist()) == {10.0, 11.0}


def test_normal_of_tensors(device: str) -> None:
    mean, std = torch.linspace(-5, 5, 11), torch.linspace(0, 2, 11)
    rows = 20_000
    for m, s in ((mean, std), (mean, 1.5), (0.5, std)):
        args = [a.expand(rows, 11).to(device) if isinstance(a, torch.Tensor) else a for a in (m, s)]
        x = torch.normal(*args).cpu()
        torch.testing.assert_close(x.mean(0), torch.as_tensor(m).expand(11).float(), atol=0.08, rtol=0)
        torch.testing.assert_close(x.std(0), torch.as_tensor(s).expand(11).float(), atol=0.06, rtol=0)


@pytest.mark.parametrize("dtype", FLOATS)
def test_dropout(device: str, form: str, dtype: torch.dtype) -> None:
    x = torch.rand(N, dtype=dtype, device=device) + 1
    x.requires_grad_()
    y = torch.nn.functional.dropout(x, 0.25)
    dropped = (y == 0).cpu()
    assert abs(dropped.double().mean() - 0.25) < 5 * math.sqrt(0.1875 / N)
    expected = torch.where(dropped, 0, x.detach().cpu().double() / 0.75)
    torch.testing.assert_close(
        y.detach().cpu().double(), expected, rtol=0.01 if dtype == torch.bfloat16 else 2e-3, atol=0
    )
    y.backward(torch.ones_like(y))
    torch.testing.assert_close(x.grad.cpu().double(), torch.where(dropped, 0.0, 1 / 0.75).double(), rtol=0.01, atol=0)
    assert torch.equal(torch.nn.functional.dropout(x, 0.25, training=False).detach().cpu(), x.detach().cpu())
    assert (torch.native_dropout(x.detach(), 1.0, True)[0].cpu() == 0).all()


def test_randperm(device: str, form: str) -> None:
    for n in (0, 1, 2, 1000, 100_001):
        assert torch.equal(torch.randperm(n, device=device).cpu().sort()[0], torch.arange(n))
    for dtype in (torch.int32, torch.float32, torch.float16):
        x = torch.randperm(100, dtype=dtype, device=device)
        assert x.dtype == dtype
        assert torch.equal(x.cpu().sort()[0], torch.arange(100, dtype=dtype))
    orders = torch.stack([torch.randperm(4, device=device).cpu() for _ in range(4800)])
    _, counts = (orders * torch.tensor([64, 16, 4, 1])).sum(1).unique(return_counts=True)
    assert counts.numel() == 24
    assert chi_square(counts.double(), torch.full((24,), 200.0, dtype=torch.float64)) > 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_multinomial(device: str, form: str, dtype: torch.dtype) -> None:
    weights = torch.tensor([[1, 2, 0, 4, 3], [0, 0, 0, 1, 0]], dtype=dtype, device=device)
    x = torch.multinomial(weights, N, replacement=True).cpu()
    possible = torch.tensor([0, 1, 3, 4])
    counts = x[0].bincount(minlength=5)
    assert counts[2] == 0
    assert (x[1] == 3).all()
    assert chi_square(counts[possible].double(), torch.tensor([0.1, 0.2, 0.4, 0.3], dtype=torch.float64) * N) > 1e-6
    many = weights[:1].cpu().repeat(20_000, 1).to(device)
    first = torch.multinomial(many, 1).cpu().flatten().bincount(minlength=5)
    assert first[2] == 0
    assert chi_square(first[possible].double(), torch.tensor([0.1, 0.2, 0.4, 0.3], dtype=torch.float64) * 20_000) > 1e-6
    three = torch.multinomial(many, 3).cpu()
    assert (three.sort(1)[0].diff(dim=1) > 0).all()
    # The second of 3 given that the first is 3: weights 1, 2, 3 of the others.
    second = three[three[:, 0] == 3][:, 1].bincount(minlength=5)[torch.tensor([0, 1, 4])].double()
    assert chi_square(second, torch.tensor([1, 2, 3], dtype=torch.float64) / 6 * second.sum()) > 1e-6


# ---- distributions drawn by rejection ----

# Gamma: mean alpha. The distribution function is torch.special.gammainc.


@pytest.mark.parametrize("alpha", [0.2, 0.6, 1.0, 2.5, 40.0, 3000.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gamma(device: str, form: str, dtype: torch.dtype, alpha: float) -> None:
    x = torch._standard_gamma(torch.full((N,), alpha, dtype=dtype, device=device)).cpu()
    assert (x > 0).all()
    assert kolmogorov(x, lambda v: torch.special.gammainc(torch.full_like(v, alpha), v)) < 2.7


def counts_and_chances(x: torch.Tensor, log_chance: Callable[[torch.Tensor], torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """How often each number occurs and should; the rare ones of both ends are put together."""
    numbers = torch.arange(float(x.max().item()) + 20, dtype=torch.float64)
    chances = log_chance(numbers).exp()
    usual = chances * x.numel() >= 10
    counts = x.long().bincount(minlength=len(numbers)).double()
    counts = torch.cat((counts[usual], (x.numel() - counts[usual].sum()).view(1)))
    expected = torch.cat((chances[usual], (1 - chances[usual].sum()).clamp(min=1e-12).view(1))) * x.numel()
    if expected[-1] < 10:  # too rare even together: nothing can be said of them
        counts, expected = counts[:-1], expected[:-1] / expected[:-1].sum() * counts[:-1].sum()
    return counts, expected


# bfloat16 holds whole numbers up to 256.
RATES = [(dtype, rate) for dtype in FLOATS for rate in (0.0, 0.2, 3.0, 9.9, 10.0, 35.5, 120.0)]
RATES += [(dtype, 700.0) for dtype in FLOATS if dtype != torch.bfloat16]


@pytest.mark.parametrize(("dtype", "rate"), RATES)
def test_poisson(device: str, form: str, dtype: torch.dtype, rate: float) -> None:
    rates = torch.full((N,), rate, dtype=dtype, device=device)
    exact = rates[0].item()
    x = torch.poisson(rates).cpu().double()
    assert (x == x.floor()).all()
    if rate == 0:
        assert (x == 0).all()
        return
    counts, expected = counts_and_chances(x, lambda k: k * math.log(exact) - exact - torch.lgamma(k + 1))
    assert chi_square(counts, expected) > 1e-6


@pytest.mark.parametrize(("n", "p"), [(1, 0.3), (8, 0.5), (30, 0.02), (30, 0.98), (25, 0.4), (150, 0.75), (250, 0.5)])
@pytest.mark.parametrize("dtype", FLOATS)
def test_binomial(device: str, form: str, dtype: torch.dtype, n: int, p: float) -> None:
    chances = torch.full((N,), p, dtype=dtype, device=device)
    exact = chances[0].item()
    x = torch.binomial(torch.full((N,), float(n), dtype=dtype, device=device), chances).cpu().double()
    assert ((x == x.floor()) & (x >= 0) & (x <= n)).all()

    def log_chance(k: torch.Tensor) -> torch.Tensor:
        k = k.clamp(max=n + 1)
        ways = math.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1)
        return torch.where(k <= n, ways + k * math.log(exact) + (n - k) * math.log1p(-exact), -math.inf)

    assert chi_square(*counts_and_chances(x, log_chance)) > 1e-6


def test_large_parameters(device: str) -> None:
    """Where logarithms of chances are differences of numbers that are large beyond float32's digits."""
    for dtype in (torch.float32, torch.float64):
        x = torch.poisson(torch.full((N,), 1e6, dtype=dtype, device=device)).cpu()
        assert kolmogorov(x, lambda v: PHI((v + 0.5 - 1e6) / 1e3)) < 2.7
        n, p = 4e6, 0.3
        counts, chances = (torch.full((N,), value, dtype=dtype, device=device) for value in (n, p))
        x = torch.binomial(counts, chances).cpu()
        exact = chances[0].item()
        deviation = math.sqrt(n * exact * (1 - exact))
        assert kolmogorov(x, lambda v, d=deviation, m=n * exact: PHI((v + 0.5 - m) / d)) < 2.7


def test_ends_of_the_parameters(device: str) -> None:
    def binomial(n: float, p: float) -> list[float]:
        counts, chances = torch.tensor([[n] * 5, [p] * 5], dtype=torch.float32, device=device)
        return torch.binomial(counts, chances).cpu().tolist()

    assert binomial(10, 0) == [0.0] * 5
    assert binomial(10, 1) == [10.0] * 5
    assert binomial(0, 0.5) == [0.0] * 5
    assert binomial(-1, 0.5) == binomial(3, -1) == [0.0] * 5  # as the CPU does it
    assert binomial(3, 2) == [3.0] * 5
    assert all(map(math.isnan, binomial(3, math.nan) + binomial(math.nan, 0.5)))
    tiny = torch.finfo(torch.float32).tiny
    assert torch._standard_gamma(torch.zeros(5, device=device)).cpu().tolist() == [tiny] * 5
    assert torch._standard_gamma(torch.tensor([-1.0, math.nan], device=device)).isnan().cpu().all()
    assert torch.poisson(torch.empty(0, 3, device=device)).shape == (0, 3)


def test_dirichlet(device: str, form: str) -> None:
    concentrations = torch.tensor([0.5, 1.5, 3.0])
    x = torch._sample_dirichlet(concentrations.expand(N, 3).to(device)).cpu().double()
    torch.testing.assert_close(x.sum(1), torch.ones(N, dtype=torch.float64), rtol=0, atol=1e-5)
    assert (x > 0).all()
    # The first is a beta variable of 0.5 and 4.5; its moments.
    mean, variance = 0.5 / 5, 0.5 * 4.5 / (25 * 6)
    assert abs(x[:, 0].mean() - mean) < 5 * math.sqrt(variance / N)
    assert abs(x[:, 0].var() - variance) < 0.02 * variance * 5


@pytest.mark.parametrize("dtype", FLOATS)
def test_rrelu(device: str, dtype: torch.dtype) -> None:
    x = torch.randn(N, dtype=dtype, device=device)
    noise = torch.empty_like(x)
    y = torch.ops.aten.rrelu_with_noise(x, noise, 0.1, 0.3, True, None)
    slopes, below = noise.cpu().double(), (x <= 0).cpu()
    assert (slopes[~below] == 1).all()
    assert ((slopes[below] >= 0.0999) & (slopes[below] <= 0.3002)).all()
    assert abs(slopes[below].mean() - 0.2) < 5 * 0.2 / math.sqrt(12 * N / 2) + (0.002 if dtype == torch.bfloat16 else 0)
    assert torch.equal(y.cpu(), (x * noise).cpu())
    flat = torch.nn.functional.rrelu(x, 0.1, 0.3, training=False)
    torch.testing.assert_close(flat.cpu(), torch.nn.functional.leaky_relu(x.cpu(), 0.2))
    x.requires_grad_()
    z = torch.nn.functional.rrelu(x, 0.1, 0.3, training=True)
    z.sum().backward()
    torch.testing.assert_close((x.grad * x).detach().cpu(), z.detach().cpu())
    own = x.detach().clone()
    assert torch.nn.functional.rrelu_(own, 0.1, 0.3, training=True) is own
    assert not torch.equal(own.cpu(), x.detach().cpu())


def test_parameters_that_are_not_allowed(device: str) -> None:
    """They are found by the kernel, and raised at the next wait."""

    def refused(match: str, draw: Callable[[], torch.Tensor]) -> None:
        with pytest.raises(RuntimeError, match=match):
            draw().cpu()

    minus, one = torch.full((3,), -1.0, device=device), torch.ones(3, device=device)
    refused("invalid Poisson rate", lambda: torch.poisson(minus))
    for replacement in (True, False):
        for bad in (minus, one * math.inf, one * math.nan):
            refused("probability tensor contains", lambda b=bad, r=replacement: torch.multinomial(b, 1, r))
        refused("invalid multinomial", lambda r=replacement: torch.multinomial(one * 0, 1, r))
    refused("not enough", lambda: torch.multinomial(torch.tensor([1.0, 0.0, 0.0], device=device), 2))
    torch.poisson(one).cpu()


# ---- generators ----

# Every random op of aten: how it is called with a generator.
BY_GENERATOR: dict[str, Callable[[torch.Tensor, torch.Generator], torch.Tensor]] = {
    "uniform_": lambda x, g: x.uniform_(generator=g),
    "uniform": lambda x, g: torch.ops.aten.uniform(x, generator=g),
    "normal_": lambda x, g: x.normal_(generator=g),
    "normal_functional": lambda x, g: torch.ops.aten.normal_functional(x, generator=g),
    "normal.Tensor_float": lambda x, g: torch.normal(x, 1.0, generator=g),
    "normal.float_Tensor": lambda x, g: torch.normal(0.0, x, generator=g),
    "normal.Tensor_Tensor": lambda x, g: torch.normal(x, x, generator=g),
    "normal.float_float": lambda x, g: torch.normal(0.0, 1.0, x.shape, generator=g, device=x.device),
    "normal.out": lambda x, g: torch.ops.aten.normal.out(x, 0.0, 1.0, generator=g, out=torch.empty_like(x)),
    "log_normal_": lambda x, g: x.log_normal_(generator=g),
    "log_normal": lambda x, g: torch.ops.aten.log_normal(x, generator=g),
    "exponential_": lambda x, g: x.exponential_(generator=g),
    "exponential": lambda x, g: torch.ops.aten.exponential(x, generator=g),
    "cauchy_": lambda x, g: x.cauchy_(generator=g),
    "cauchy": lambda x, g: torch.ops.aten.cauchy(x, generator=g),
    "geometric_": lambda x, g: x.geometric_(0.3, generator=g),
    "geometric": lambda x, g: torch.ops.aten.geometric(x, 0.3, generator=g),
    "bernoulli": lambda x, g: torch.bernoulli(x, generator=g),
    "bernoulli.out": lambda x, g: torch.bernoulli(x, generator=g, out=torch.empty_like(x)),
    "bernoulli.p": lambda x, g: torch.bernoulli(x, 0.5, generator=g),
    "bernoulli.Tensor": lambda x, g: torch.ops.aten.bernoulli.Tensor(x, x, generator=g),
    "bernoulli_.Tensor": lambda x, g: x.bernoulli_(x.clone(), generator=g),
    "bernoulli_.float": lambda x, g: x.bernoulli_(0.5, generator=g),
    "bernoulli.float_out": lambda x, g: torch.ops.aten.bernoulli.float_out(
        x, 0.5, generator=g, out=torch.empty_like(x)
    ),
    "random_": lambda x, g: x.random_(generator=g),
    "random_.to": lambda x, g: x.random_(1000, generator=g),
    "random_.from": lambda x, g: x.random_(-5, 1000, generator=g),
    "random": lambda x, g: torch.ops.aten.random(x, generator=g),
    "random.to": lambda x, g: torch.ops.aten.random.to(x, 1000, generator=g),
    "random.from": lambda x, g: torch.ops.aten.random(x, -5, 1000, generator=g),
    "rand.generator": lambda x, g: torch.rand(x.shape, generator=g, device=x.device),
    "rand.generator_out": lambda x, g: torch.rand(x.shape, generator=g, out=torch.empty_like(x)),
    "randn.generator": lambda x, g: torch.randn(x.shape, generator=g, device=x.device),
    "randn.generator_out": lambda x, g: torch.randn(x.shape, generator=g, out=torch.empty_like(x)),
    "randint.generator": lambda x, g: torch.randint(1000, x.shape, generator=g, device=x.device),
    "randint.low_generator": lambda x, g: torch.randint(-5, 1000, x.shape, generator=g, device=x.device),
    "randint.generator_out": lambda x, g: torch.randint(1000, x.shape, generator=g, out=torch.empty_like(x)),
    "rand_like.generator": lambda x, g: torch.ops.aten.rand_like.generator(x, generator=g),
    "randn_like.generator": lambda x, g: torch.ops.aten.randn_like.generator(x, generator=g),
    "randint_like.generator": lambda x, g: torch.ops.aten.randint_like.generator(x, 1000, generator=g),
    "randint_like.low_generator_dtype": lambda x, g: torch.ops.aten.randint_like.low_generator_dtype(
        x, -5, 1000, generator=g
    ),
    "randint_like.Tensor_generator": lambda x, g: torch.ops.aten.randint_like.Tensor_generator(
        x, torch.tensor(1000), generator=g
    ),
    "randperm.generator": lambda x, g: torch.randperm(500, generator=g, device=x.device),
    "randperm.generator_out": lambda x, g: torch.randperm(
        500, generator=g, out=torch.empty(0, dtype=torch.int64, device=x.device)
    ),
    "multinomial": lambda x, g: torch.multinomial(x, 20, generator=g),
    "multinomial.out": lambda x, g: torch.multinomial(
        x, 20, True, generator=g, out=torch.empty(0, dtype=torch.int64, device=x.device)
    ),
    "poisson": lambda x, g: torch.poisson(x * 20, generator=g),
    "binomial": lambda x, g: torch.binomial(torch.full_like(x, 50), x, generator=g),
    "_standard_gamma": lambda x, g: torch._standard_gamma(x, generator=g),
    "_sample_dirichlet": lambda x, g: torch._sample_dirichlet(x.view(-1, 5), generator=g),
    "rrelu": lambda x, g: torch.ops.aten.rrelu(x - 0.5, training=True, generator=g),
    "rrelu_": lambda x, g: torch.ops.aten.rrelu_(x - 0.5, training=True, generator=g),
    "rrelu_with_noise": lambda x, g: torch.ops.aten.rrelu_with_noise(x - 0.5, x.clone(), training=True, generator=g),
    "rrelu_with_noise_": lambda x, g: torch.ops.aten.rrelu_with_noise_(x - 0.5, x.clone(), training=True, generator=g),
    "rrelu_with_noise_functional": lambda x, g: torch.ops.aten.rrelu_with_noise_functional(
        x - 0.5, x.clone(), training=True, generator=g
    )[0],
    "rrelu_with_noise.out": lambda x, g: torch.ops.aten.rrelu_with_noise.out(
        x - 0.5, x.clone(), training=True, generator=g, out=torch.empty_like(x)
    ),
}
# Composed by torch of an overload above, for an out= of it: named like it.
COMPOSED_OUT = re.compile(r"(.*?)(_?out)$")
# CUDA's alone: the CPU has no kernel of it either.
NOT_DRAWN = {"_fused_dropout", "_fused_dropout.out"}


def test_every_op_with_a_generator_is_among_them(device: str) -> None:
    """Enumerated from torch's schemas, so that what a new torch adds is noticed."""
    missing = set()
    for schema in torch._C._jit_get_all_schemas():
        name = f"{schema.name}.{schema.overload_name}".rstrip(".").removeprefix("aten::")
        takes = any("Generator" in str(argument.type) for argument in schema.arguments)
        if not schema.name.startswith("aten::") or not takes or name in NOT_DRAWN or "names" in name:
            continue
        if not torch._C._dispatch_has_kernel(f"aten::{name}"):  # TorchScript's own
            continue
        base = COMPOSED_OUT.sub(r"\1", name).rstrip("._")
        if name not in BY_GENERATOR and base not in BY_GENERATOR and f"{base}_" not in BY_GENERATOR:
            missing.add(name)
    assert missing == set()


@pytest.mark.parametrize("op", BY_GENERATOR)
def test_a_generator_is_honoured(device: str, op: str) -> None:
    """Equal generators give equal numbers, and the default generator is left alone."""
    draw = BY_GENERATOR[op]
    x = torch.rand(500, device=device)
    default = torch.get_device_module(device).default_generators[0]
    before = default.get_state()
    first, again, other = (
        draw(x.clone(), torch.Generator(device=device).manual_seed(seed)).cpu() for seed in (77, 77, 78)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(default.get_state(), before)
    torch.manual_seed(77)  # and without one, the default generator is used
    state = default.get_state()
    draw(x.clone(), None)  # type: ignore[arg-type]
    assert not torch.equal(default.get_state(), state)
    with pytest.raises(RuntimeError, match=r"(?i)generator"):
        draw(x.clone(), torch.Generator("cpu"))


@pytest.mark.parametrize(
    "make",
    [
        lambda d: torch.distributions.Gamma(torch.full((200,), 2.0, device=d), torch.ones(200, device=d)),
        lambda d: torch.distributions.Beta(torch.full((200,), 2.0, device=d), torch.ones(200, device=d)),
        lambda d: torch.distributions.Dirichlet(torch.ones(50, 4, device=d)),
        lambda d: torch.distributions.Poisson(torch.full((200,), 12.0, device=d)),
        lambda d: torch.distributions.Binomial(40, torch.full((200,), 0.4, device=d)),
        lambda d: torch.distributions.Categorical(torch.ones(40, 6, device=d)),
        lambda d: torch.distributions.Multinomial(9, torch.ones(6, device=d)),
        lambda d: torch.distributions.Normal(torch.zeros(200, device=d), 1.0),
        lambda d: torch.distributions.StudentT(torch.full((200,), 4.0, device=d)),
        lambda d: torch.distributions.VonMises(torch.zeros(50, device=d), torch.ones(50, device=d)),
        lambda d: torch.distributions.NegativeBinomial(
            torch.full((50,), 5.0, device=d), torch.full((50,), 0.3, device=d)
        ),
    ],
    ids=(
        "Gamma Beta Dirichlet Poisson Binomial Categorical Multinomial Normal StudentT VonMises NegativeBinomial"
    ).split(),
)
def test_distributions(device: str, make: Callable[[str], torch.distributions.Distribution]) -> None:
    """Samples of torch.distributions come from the device's generator, and follow its seed."""
    distribution = make(device)
    samples = []
    for seed in (5, 5, 6):
        torch.get_device_module(device).manual_seed(seed)
        torch.default_generator.manual_seed(next(_different_seeds))
        sample = distribution.sample()
        assert sample.device.type == torch.device(device).type
        assert distribution.support.check(sample).all()
        samples.append(sample.cpu())
    assert torch.equal(samples[0], samples[1])
    assert not torch.equal(samples[0], samples[2])


_different_seeds = itertools.count(1)


def test_initialisers(device: str) -> None:
    from torch.nn import init

    def filled(fill: Callable[..., torch.Tensor], **options: Any) -> torch.Tensor:
        generator = torch.Generator(device=device).manual_seed(9)
        return fill(torch.empty(64, 32, device=device), generator=generator, **options).cpu()

    for fill in (init.uniform_, init.normal_, init.xavier_uniform_, init.xavier_normal_, init.kaiming_uniform_):
        assert torch.equal(filled(fill), filled(fill))
    assert torch.equal(filled(init.kaiming_normal_), filled(init.kaiming_normal_))
    x = filled(init.trunc_normal_, std=1.0, a=-1.0, b=1.0)
    assert x.abs().max() <= 1
    assert kolmogorov(x, lambda v: (PHI(v) - PHI(torch.tensor(-1.0))) / (2 * PHI(torch.tensor(1.0)) - 1)) < 2.7


# ---- the same numbers everywhere ----


GOLDEN: dict[str, list[Any]] = {
    "words": [1851468003, 2243411547, 3016668856, 1273610028, 4244632846, 1498353002],
    "int32": [431, 522, 702, 296, 988, 348],
    "uniform": [7232296, 8763326, 11783862, 4975039, 16580597, 5852941],
    "float64": [
        3882809826522871,
        6326413125319991,
        8901640262986209,
        3943225047527378,
        6252610201257339,
        8402073676474068,
    ],
    "bernoulli": [1, 0, 0, 1, 0, 1],
    "randperm": [3, 2, 0, 5, 1, 4],
    "normal": [-1.2845253, -0.18145293, 0.24228781, -0.80490869, 0.089362226, -0.12486644],
    "exponential": [0.84146512, 0.64944613, 0.35329074, 1.2155886, 0.011788619, 1.0530775],
    "gamma": [0.49754828, 1.7847151, 0.80145204, 2.1972308, 2.9010954, 3.9744437],
    "poisson": [49.0, 59.0, 54.0, 45.0, 53.0, 46.0],
    "binomial": [35.0, 42.0, 39.0, 32.0, 38.0, 33.0],
}


def golden(device: str) -> dict[str, Any]:
    """The numbers of one seed. What is computed without logarithms is the same to the last bit on every device."""

    def generator() -> torch.Generator:
        return torch.Generator(device=device).manual_seed(2026)

    def empty(dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.empty(6, dtype=dtype, device=device)

    exact = {
        "words": empty(torch.int64).random_(0, 2**32, generator=generator()),
        "int32": empty(torch.int32).random_(0, 1000, generator=generator()),
        "uniform": (empty().uniform_(generator=generator()) * 2**24).long(),
        "float64": (empty(torch.float64).uniform_(generator=generator()) * 2**53).long(),
        "bernoulli": empty().bernoulli_(0.5, generator=generator()).long(),
        "randperm": torch.randperm(6, generator=generator(), device=device),
    }
    near = {
        "normal": empty().normal_(generator=generator()),
        "exponential": empty().exponential_(generator=generator()),
        "gamma": torch._standard_gamma(torch.full((6,), 2.0, device=device), generator=generator()),
        "poisson": torch.poisson(torch.full((6,), 50.0, device=device), generator=generator()),
        "binomial": torch.binomial(
            torch.full((6,), 90.0, device=device), torch.full((6,), 0.4, device=device), generator=generator()
        ),
    }
    return {name: x.cpu().tolist() for name, x in {**exact, **near}.items()}


def test_golden_numbers(device: str, form: str) -> None:
    """Forms of kernels, devices and releases agree. Logarithms and roots may differ in their last bits, and so what
    is made of them.
    """
    drawn = golden(device)
    assert drawn.keys() == GOLDEN.keys()
    for name, numbers in GOLDEN.items():
        if isinstance(numbers[0], int):
            assert drawn[name] == numbers, name
        else:
            assert drawn[name] == pytest.approx(numbers, rel=1e-6, abs=1e-6), name


REJECTED: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: torch._standard_gamma(x.fill_(0.4)),
    lambda x: torch.poisson(x.fill_(60)),
    lambda x: torch.binomial(x.fill_(90), x.new_full(x.shape, 0.4)),
]


@pytest.mark.parametrize("draw", REJECTED, ids=["gamma", "poisson", "binomial"])
def test_an_element_draws_the_same_whatever_is_drawn_beside_it(
    device: str, form: str, draw: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    def drawn(x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(11)
        return draw(x).cpu()

    plain = drawn(torch.empty(37, 53, device=device))
    assert torch.equal(plain, drawn(torch.empty(53, 37, device=device).t()))
    assert torch.equal(plain.flatten(), drawn(torch.empty(100_000, device=device))[: 37 * 53])


def reference_philox(seed: int, counter: int) -> list[int]:
    """Philox 4x32-10 as published."""
    k = [seed & 0xFFFFFFFF, seed >> 32]
    c = [counter >> 32 * i & 0xFFFFFFFF for i in range(4)]
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [p1 >> 32 ^ c[1] ^ k[0], p1 & 0xFFFFFFFF, p0 >> 32 ^ c[3] ^ k[1], p0 & 0xFFFFFFFF]
        k = [k[0] + 0x9E3779B9 & 0xFFFFFFFF, k[1] + 0xBB67AE85 & 0xFFFFFFFF]
    return c


def test_the_reference_gives_the_published_vectors() -> None:
    assert reference_philox(0, 0) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    ones = 2**128 - 1
    assert reference_philox(2**64 - 1, ones) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    pi = 0x03707344_13198A2E_85A308D3_243F6A88
    assert reference_philox(0x299F31D0_A4093822, pi) == [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]


@pytest.mark.parametrize(("seed", "offset"), [(0, 0), (0x299F31D0A4093822, 0), (2**64 - 1, 2**32 - 8), (7, 2**62)])
def test_words(device: str, form: str, seed: int, offset: int) -> None:
    """The words are Philox's for the generator's seed and offset, element after element."""
    generator = torch.Generator(device=device)
    state = torch.tensor([seed - 2**64 if seed >= 2**63 else seed, offset], dtype=torch.int64)
    generator.set_state(state.view(torch.uint8))
    x = torch.empty(999, dtype=torch.int64, device=device).random_(0, 2**32, generator=generator).cpu().tolist()
    expected = [word for c in range(250) for word in reference_philox(seed, offset + c)]
    assert x == expected[:999]


DRAWS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: x.uniform_(1, 2),
    lambda x: x.normal_(),
    lambda x: x.bernoulli_(0.4),
    lambda x: x.exponential_(),
    lambda x: x.random_(0, 100),
]


@pytest.mark.parametrize("draw", DRAWS, ids=["uniform", "normal", "bernoulli", "exponential", "random"])
def test_the_order_is_that_of_the_elements(
    device: str, form: str, draw: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    """Strides, and how long the tensor is, make no difference."""

    def drawn(x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(11)
        return draw(x).cpu()

    plain = drawn(torch.empty(37, 53, device=device))
    assert torch.equal(plain, drawn(torch.empty(53, 37, device=device).t()))
    assert torch.equal(plain, drawn(torch.empty(37, 106, device=device)[:, ::2]))
    assert torch.equal(plain.flatten(), drawn(torch.empty(100_000, device=device))[: 37 * 53])


@pytest.mark.parametrize("draw", DRAWS, ids=["uniform", "normal", "bernoulli", "exponential", "random"])
def test_forms_agree(
    device: str, monkeypatch: pytest.MonkeyPatch, draw: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    import torchgraft.plans

    drawn = []
    for form in ("cpu", "gpu"):
        monkeypatch.setenv("TORCHGRAFT_KERNEL_FORM", form)
        kernel_form.cache_clear()
        torchgraft.plans.clear()
        torch.manual_seed(5)
        drawn.append(draw(torch.empty(10_001, device=device)).cpu())
    monkeypatch.undo()
    kernel_form.cache_clear()
    torchgraft.plans.clear()
    torch.testing.assert_close(drawn[0], drawn[1], rtol=1e-6, atol=1e-6)


def test_generators(device: str) -> None:
    """Seeds repeat, states go round, a generator of one's own leaves the default one alone."""
    torch.manual_seed(3)
    a, b = torch.rand(1000, device=device), torch.rand(1000, device=device)
    assert not torch.equal(a.cpu(), b.cpu())
    torch.manual_seed(3)
    assert torch.equal(a.cpu(), torch.rand(1000, device=device).cpu())
    own = torch.Generator(device=device).manual_seed(3)
    torch.rand(77, generator=own, device=device)
    assert torch.equal(b.cpu(), torch.rand(1000, device=device).cpu())
    state = own.get_state()
    c = torch.randn(50, generator=own, device=device)
    own.set_state(state)
    assert torch.equal(c.cpu(), torch.randn(50, generator=own, device=device).cpu())
    with torch.random.fork_rng(device_type="ocl"):
        torch.rand(5, device=device)


def test_refused(device: str) -> None:
    """As torch refuses them, in the first call and in later ones, and what was drawn before goes on."""
    x = torch.empty(4, device=device)
    x.uniform_(0, 1).normal_().exponential_().bernoulli_(0.5).cauchy_().geometric_(0.5).log_normal_()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="uniform_ expects"):
            x.uniform_(2, 1)
        with pytest.raises(RuntimeError, match="normal expects std >= 0"):
            x.normal_(0, -1)
        with pytest.raises(RuntimeError, match="exponential_ expects lambda > 0"):
            x.exponential_(0)
        with pytest.raises(RuntimeError, match="bernoulli_ expects p"):
            x.bernoulli_(1.5)
        with pytest.raises(RuntimeError, match="geometric_ expects p"):
            x.geometric_(1)
    x.uniform_(0, 1)


def test_empty(device: str) -> None:
    for draw in DRAWS:
        assert draw(torch.empty(0, 3, device=device)).shape == (0, 3)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32, torch.float16, torch.float32], ids=str)
def test_integers_outside_of_a_dtype_are_refused(dtype: torch.dtype, device: torch.device) -> None:
    limits = torch.finfo(dtype) if dtype.is_floating_point else None if dtype == torch.bool else torch.iinfo(dtype)
    high = int(limits.max) if limits else 1
    for place in (torch.device("cpu"), device):
        x = torch.empty(10, dtype=dtype, device=place)
        if high < 2**62:
            with pytest.raises(RuntimeError, match="to - 1 is out of bounds"):
                x.random_(0, high + 2)
        with pytest.raises(RuntimeError, match="random_ expects 'from' to be less than 'to', but got from=1 >= to=1"):
            x.random_(1, 1)


def test_integers_with_gaps_are_warned_of(device: torch.device) -> None:
    for place in (torch.device("cpu"), device):
        with pytest.warns(UserWarning, match="to - 1 is out of bounds"):
            torch.empty(7, 3, device=place).random_(0, 2**24 + 5)


@pytest.mark.no_fallback
def test_uniform_complex_numbers(device: torch.device) -> None:
    x = torch.rand(1000, dtype=torch.complex64, device=device).cpu()
    for part in (x.real, x.imag):
        assert 0 <= part.min() < 0.05
        assert 0.95 < part.max() < 1
    assert abs(torch.corrcoef(torch.stack([x.real, x.imag]))[0, 1]) < 0.15
