"""Random numbers: their distributions, that they can be repeated, and that they do not depend on how they are drawn."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from torchgraft.plans.builder import kernel_form

pytestmark = pytest.mark.no_fallback

N = 200_003  # not a multiple of anything
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


@pytest.fixture(params=["cpu", "gpu"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Makes plans with one form of the kernels, whatever the device is."""
    import torchgraft.plans

    monkeypatch.setenv("TORCHGRAFT_KERNEL_FORM", request.param)
    kernel_form.cache_clear()
    torchgraft.plans.clear()
    yield request.param
    monkeypatch.undo()
    kernel_form.cache_clear()
    torchgraft.plans.clear()


def kolmogorov(sample: torch.Tensor, distribution: Callable[[torch.Tensor], torch.Tensor]) -> float:
    """The statistic of Kolmogorov and Smirnov times the root of the sample's size: above 2.2 with a chance of
    1.3e-4.
    """
    x = sample.double().flatten().sort()[0]
    n = x.numel()
    steps = torch.arange(1, n + 1, dtype=torch.float64) / n
    f = distribution(x)
    return float(torch.maximum((steps - f).abs().max(), (f - steps + 1 / n).abs().max())) * math.sqrt(n)


def chi_square(counts: torch.Tensor, expected: torch.Tensor) -> float:
    """How many standard deviations the statistic is above its mean."""
    freedom = counts.numel() - 1
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / math.sqrt(2 * freedom))


PHI = lambda x: 0.5 * torch.special.erfc(-x / math.sqrt(2))  # noqa: E731


@pytest.mark.parametrize("dtype", FLOATS)
def test_uniform(device: str, form: str, dtype: torch.dtype) -> None:
    x = torch.empty(N, dtype=dtype, device=device).uniform_(-2, 3).cpu()
    assert x.min() >= -2
    assert x.max() < 3
    if dtype in (torch.float32, torch.float64):
        assert kolmogorov(x, lambda v: (v + 2) / 5) < 2.2
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
        assert kolmogorov(x, lambda v: PHI((v - 1) / 2)) < 2.2
        halves = x[: N // 2 * 2].view(-1, 2) - 1
        assert abs((halves[:, 0] * halves[:, 1]).mean()) < 5 * 4 / math.sqrt(N / 2)  # the two of a pair are independent


def test_complex_normal(device: str) -> None:
    x = torch.randn(N, dtype=torch.complex64, device=device).cpu()
    for part in (x.real, x.imag):
        assert kolmogorov(part, lambda v: PHI(v * math.sqrt(2))) < 2.2


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
    assert kolmogorov(x, distribution) < 2.2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_geometric(device: str, dtype: torch.dtype) -> None:
    x = torch.empty(N, dtype=dtype, device=device).geometric_(0.3).cpu().long()
    counts = x.clamp(max=20).bincount(minlength=21)[1:].double()
    chances = 0.3 * 0.7 ** torch.arange(20, dtype=torch.float64)
    chances[-1] = 0.7**19
    assert chi_square(counts, chances * N) < 5


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
    assert chi_square((x + 3).bincount(minlength=10).double(), torch.full((10,), N / 10, dtype=torch.float64)) < 5
    wide = torch.empty(N, dtype=torch.int64, device=device).random_(-(2**40), 2**41).cpu()
    assert kolmogorov(wide, lambda v: (v + 2**40) / (3 * 2**40)) < 2.2
    whole = torch.empty(N, dtype=torch.int64, device=device).random_(-(2**63), None).cpu()
    assert kolmogorov(whole, lambda v: v / 2.0**64 + 0.5) < 2.2
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
    assert chi_square(counts.double(), torch.full((24,), 200.0, dtype=torch.float64)) < 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_multinomial(device: str, form: str, dtype: torch.dtype) -> None:
    weights = torch.tensor([[1, 2, 0, 4, 3], [0, 0, 0, 1, 0]], dtype=dtype, device=device)
    x = torch.multinomial(weights, N, replacement=True).cpu()
    possible = torch.tensor([0, 1, 3, 4])
    counts = x[0].bincount(minlength=5)
    assert counts[2] == 0
    assert (x[1] == 3).all()
    assert chi_square(counts[possible].double(), torch.tensor([0.1, 0.2, 0.4, 0.3], dtype=torch.float64) * N) < 5
    many = weights[:1].cpu().repeat(20_000, 1).to(device)
    first = torch.multinomial(many, 1).cpu().flatten().bincount(minlength=5)
    assert first[2] == 0
    assert chi_square(first[possible].double(), torch.tensor([0.1, 0.2, 0.4, 0.3], dtype=torch.float64) * 20_000) < 5
    three = torch.multinomial(many, 3).cpu()
    assert (three.sort(1)[0].diff(dim=1) > 0).all()
    # The second of 3 given that the first is 3: weights 1, 2, 3 of the others.
    second = three[three[:, 0] == 3][:, 1].bincount(minlength=5)[torch.tensor([0, 1, 4])].double()
    assert chi_square(second, torch.tensor([1, 2, 3], dtype=torch.float64) / 6 * second.sum()) < 5


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
