"""The functions of torch.special, and others that are more than a builtin, against mpmath and torch's CPU.

Values are compared with mpmath, since torch's own are off in places (its Bessel functions between 5 and 8 by 1e-7, its
trigamma by 1e-9); special values are compared with torch's CPU.
"""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mpmath
import pytest
import torch
import torch.special as special

from torchgraft.functions import series

pytestmark = pytest.mark.no_fallback

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
TOLERANCE = {torch.float64: 2e-13, torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
SPECIAL = torch.tensor(
    [
        *(0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 3.0, -3.0, 8.0, 30.0, -30.0, 1e-10, 1e10, -1e10),
        *(float("inf"), -float("inf"), float("nan")),
    ],
    dtype=torch.float64,
)


def close_to_exact(device: str, function: Callable[..., Any], exact: Callable[..., Any], *points: torch.Tensor) -> None:
    """In float32 and float64; errors are relative to values above 0.3 and absolute below."""
    for dtype in (torch.float64, torch.float32):
        arguments = [p.to(dtype) for p in points]
        actual = function(*(a.to(device) for a in arguments)).cpu().double()
        expected = torch.tensor(
            [float(exact(*map(mpmath.mpf, row))) for row in zip(*(a.tolist() for a in arguments), strict=True)],
            dtype=torch.float64,
        )
        error = (actual - expected).abs() / expected.abs().clamp_min(0.3)
        worst = int(error.argmax())
        assert error[worst] <= 2 * TOLERANCE[dtype], (dtype, [a[worst].item() for a in arguments], actual[worst])


def same_specials(device: str, function: Callable[..., Any], *points: torch.Tensor) -> None:
    """The same points are nan, inf and -inf as on the CPU."""
    for dtype in (torch.float64, torch.float32):
        arguments = [p.to(dtype) for p in points]
        actual, expected = function(*(a.to(device) for a in arguments)).cpu(), function(*arguments)
        for kind in (torch.isnan, torch.isposinf, torch.isneginf):
            wrong = kind(actual) != kind(expected)
            assert not wrong.any(), (dtype, [a[wrong] for a in arguments], actual[wrong], expected[wrong])


def points(low: float, high: float, count: int = 60) -> torch.Tensor:
    return torch.empty(count, dtype=torch.float64).uniform_(low, high)


def ndtri(p: Any) -> Any:
    return mpmath.sqrt(2) * mpmath.erfinv(2 * p - 1)


def erfcx(x: Any) -> Any:
    return mpmath.exp(x * x) * mpmath.erfc(x)


UNARY: dict[str, tuple[Callable[[Any], Any], tuple[float, float]]] = {
    "i0": (lambda x: mpmath.besseli(0, x), (-20, 20)),
    "i0e": (lambda x: mpmath.exp(-abs(x)) * mpmath.besseli(0, x), (-40, 40)),
    "i1": (lambda x: mpmath.besseli(1, x), (-20, 20)),
    "i1e": (lambda x: mpmath.exp(-abs(x)) * mpmath.besseli(1, x), (-40, 40)),
    "modified_bessel_i0": (lambda x: mpmath.besseli(0, x), (-20, 20)),
    "modified_bessel_i1": (lambda x: mpmath.besseli(1, x), (-20, 20)),
    "modified_bessel_k0": (lambda x: mpmath.besselk(0, x), (0.01, 8)),
    "modified_bessel_k1": (lambda x: mpmath.besselk(1, x), (0.01, 8)),
    "scaled_modified_bessel_k0": (lambda x: mpmath.exp(x) * mpmath.besselk(0, x), (0.01, 50)),
    "scaled_modified_bessel_k1": (lambda x: mpmath.exp(x) * mpmath.besselk(1, x), (0.01, 50)),
    "bessel_j0": (lambda x: mpmath.besselj(0, x), (-30, 30)),
    "bessel_j1": (lambda x: mpmath.besselj(1, x), (-30, 30)),
    "bessel_y0": (lambda x: mpmath.bessely(0, x), (0.01, 30)),
    "bessel_y1": (lambda x: mpmath.bessely(1, x), (0.01, 30)),
    "spherical_bessel_j0": (lambda x: mpmath.sinc(x), (-30, 30)),
    "airy_ai": (mpmath.airyai, (-30, 8)),
    "erfinv": (mpmath.erfinv, (-1, 1)),
    "erfcx": (erfcx, (-5, 60)),
    "ndtri": (ndtri, (0, 1)),
    "log_ndtr": (lambda x: mpmath.log(mpmath.ncdf(x)), (-30, 5)),
    "entr": (lambda x: -x * mpmath.log(x), (1e-6, 10)),
    "sinc": (lambda x: mpmath.sinc(mpmath.pi * x), (-0.9, 0.9)),
}


@pytest.mark.quick(name=list(UNARY)[::2])
@pytest.mark.parametrize("name", UNARY)
def test_unary(device: str, name: str) -> None:
    exact, (low, high) = UNARY[name]
    function = getattr(special, name)
    close_to_exact(device, function, exact, points(low, high))
    # float32's last digits of the largest arguments are beyond what a phase can say
    same_specials(device, function, SPECIAL)
    for dtype in (torch.float16, torch.bfloat16, torch.int32, torch.bool):
        x = torch.tensor([0, 1]).to(dtype) if not dtype.is_floating_point else points(low, high, 20).to(dtype)
        actual = function(x.to(device)).cpu()
        expected = function(x.double()).to(actual.dtype)
        assert actual.dtype == (dtype if dtype.is_floating_point else torch.float32)
        tolerance = TOLERANCE[actual.dtype]
        torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance, equal_nan=True)


def test_tails(device: str) -> None:
    """Where values are tiny their digits still count."""
    x = torch.tensor([2.5, 10.0, 30.0, 60.0], dtype=torch.float64)
    p = torch.tensor([1e-300, 1e-100, 1e-20, 1e-5], dtype=torch.float64)
    for function, exact, at in (
        (special.modified_bessel_k0, lambda x: mpmath.besselk(0, x), x),
        (special.modified_bessel_k1, lambda x: mpmath.besselk(1, x), x),
        (special.airy_ai, mpmath.airyai, x),
        (special.erfcx, erfcx, 1e6 * x),
        (special.ndtri, ndtri, p),
    ):
        with mpmath.workdps(350 if function is special.ndtri else 30):
            expected = [float(exact(mpmath.mpf(value))) for value in at.tolist()]
        torch.testing.assert_close(function(at.to(device)).tolist(), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("n", range(5))
def test_polygamma(device: str, n: int) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return special.polygamma(n, x)

    close_to_exact(device, function, lambda x: mpmath.psi(n, x), points(0.1, 30))
    below = points(-4.9, -0.1)
    away = (below - below.round()).abs() > 0.1  # from the poles, where a last digit of x is worth many of the result
    close_to_exact(device, function, lambda x: mpmath.psi(n, x), below[away].float().double())
    at = torch.tensor([0.0, 0.5, 1.0, float("nan"), 1e6])
    same_specials(device, function, at)


def test_zeta(device: str) -> None:
    close_to_exact(device, special.zeta, mpmath.zeta, points(1.1, 40), points(0.3, 40))
    powers = torch.randint(2, 6, (60,)).double()
    with mpmath.workdps(30):

        def below(x: Any, q: Any) -> Any:  # mpmath's own does not take negative q
            steps = int(mpmath.ceil(-q))
            return mpmath.zeta(x, q + steps) + mpmath.fsum((q + k) ** -int(x) for k in range(steps))

        close_to_exact(device, special.zeta, below, powers, (points(0.1, 0.9) - powers).float().double())
    x, q = torch.meshgrid(SPECIAL[:11], SPECIAL, indexing="ij")
    same_specials(device, special.zeta, x.flatten(), q.flatten())
    # A pole a million steps away is as quick as one nearby.
    far = torch.tensor([-1e6 - 0.5, -1e12 - 0.5], dtype=torch.float64)
    torch.testing.assert_close(
        special.zeta(2.0, far.to(device)).cpu(), torch.full_like(far, torch.pi**2), rtol=2e-6, atol=0
    )


def lower(a: Any, x: Any) -> Any:
    return mpmath.gammainc(a, 0, x, regularized=True)


def upper(a: Any, x: Any) -> Any:
    return mpmath.gammainc(a, x, mpmath.inf, regularized=True)


@pytest.mark.parametrize(("function", "exact"), [(special.gammainc, lower), (special.gammaincc, upper)])
def test_incomplete_gamma(device: str, function: Callable[..., Any], exact: Callable[..., Any]) -> None:
    close_to_exact(device, function, exact, points(0.05, 12), points(0.05, 20))
    close_to_exact(device, function, exact, points(0.05, 1), points(0.001, 1.2))
    a = points(15, 300)
    close_to_exact(device, function, exact, a, a * points(0.6, 1.4))
    a, x = torch.meshgrid(SPECIAL, SPECIAL, indexing="ij")
    same_specials(device, function, a.flatten(), x.flatten())


def test_incomplete_gamma_of_large_arguments(device: str) -> None:
    """Temme's expansion, with which float32 keeps its digits too."""
    a = torch.full((40,), 4000.0, dtype=torch.float64)
    x = (a + 63 * points(-4, 4, 40)).float().double()
    with mpmath.workdps(30):
        close_to_exact(device, special.gammainc, lower, a, x)
        close_to_exact(device, special.gammaincc, upper, a, x)


def chebyshev(first: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    def exact(x: Any, n: Any) -> Any:
        p, q = mpmath.mpf(1), first(x)
        for _ in range(int(n)):
            p, q = q, 2 * x * q - p
        return p

    return exact


KINDS: dict[str, Callable[[Any, Any], Any]] = {
    "t": chebyshev(lambda x: x),
    "u": chebyshev(lambda x: 2 * x),
    "v": chebyshev(lambda x: 2 * x - 1),
    "w": chebyshev(lambda x: 2 * x + 1),
}
POLYNOMIALS: dict[str, Callable[[Any, Any], Any]] = {
    **{f"chebyshev_polynomial_{kind}": exact for kind, exact in KINDS.items()},
    **{
        f"shifted_chebyshev_polynomial_{kind}": lambda x, n, exact=exact: exact(2 * x - 1, n)
        for kind, exact in KINDS.items()
    },
    "hermite_polynomial_h": lambda x, n: mpmath.hermite(n, x),
    "hermite_polynomial_he": lambda x, n: mpmath.hermite(n, x / mpmath.sqrt(2)) / 2 ** (n / 2),
    "laguerre_polynomial_l": lambda x, n: mpmath.laguerre(n, 0, x),
    "legendre_polynomial_p": lambda x, n: mpmath.legendre(n, x),
}


@pytest.mark.quick(name=list(POLYNOMIALS)[::3])
@pytest.mark.parametrize("name", POLYNOMIALS)
def test_polynomials(device: str, name: str) -> None:
    function, exact = getattr(special, name), POLYNOMIALS[name]
    low = 0.05 if "shifted" in name else -0.9
    n = torch.randint(0, 8, (60,)).double()
    for dtype, rtol in ((torch.float64, 1e-12), (torch.float32, 2e-5)):
        x = points(low, 0.95).to(dtype)
        expected = torch.tensor(
            [float(exact(mpmath.mpf(a), mpmath.mpf(b))) for a, b in zip(x.tolist(), n.tolist(), strict=True)]
        ).double()
        scale = expected.abs().max().item()
        actual = function(x.to(device), n.to(device, dtype)).cpu().double()
        torch.testing.assert_close(actual, expected.double(), rtol=max(rtol, 1e-7), atol=max(rtol, 1e-7) * scale)
    x, degree = torch.meshgrid(
        SPECIAL[SPECIAL == SPECIAL], torch.tensor([-3.0, -0.5, 0, 1, 1.9, 5, 40]).double(), indexing="ij"
    )
    same_specials(device, function, x.flatten(), degree.flatten())
    torch.testing.assert_close(function(x.to(device), 3).cpu(), function(x, 3), equal_nan=True)
    torch.testing.assert_close(function(0.3, degree.to(device)).cpu(), function(0.3, degree))


def test_polynomials_end(device: str) -> None:
    """Degrees for which the recurrence would run for minutes give nan."""
    degree = torch.tensor([1e18], device=device)
    assert special.legendre_polynomial_p(torch.tensor([0.5], device=device), degree).isnan().all()
    assert special.laguerre_polynomial_l(torch.tensor([0.5], device=device), degree).isnan().all()


DIFFERENTIABLE: dict[str, tuple[Callable[..., Any], tuple[float, float]]] = {
    **{name: (getattr(special, name), (-9.0, 9.0)) for name in ("i0", "i0e", "i1", "i1e", "erfcx", "log_ndtr")},
    "sinc": (special.sinc, (-3.0, 3.0)),
    "erfinv": (special.erfinv, (-0.9, 0.9)),
    "ndtri": (special.ndtri, (0.1, 0.9)),
    "entr": (special.entr, (0.1, 3.0)),
    "xlog1py": (lambda x: special.xlog1py(x, x), (0.1, 3.0)),
    "digamma": (special.digamma, (0.5, 9.0)),
    "polygamma": (lambda x: special.polygamma(2, x), (0.5, 9.0)),
    "multigammaln": (lambda x: special.multigammaln(x, 3), (2.0, 9.0)),
    "gammainc": (lambda x: special.gammainc(torch.full_like(x, 2.0), x), (0.5, 9.0)),
    "zeta": (lambda x: special.zeta(torch.full_like(x, 3.0), x), (0.5, 9.0)),
    "nan_to_num": (torch.nan_to_num, (-3.0, 3.0)),
    "logit": (lambda x: torch.logit(x, 0.1), (-0.2, 1.2)),
    "glu": (lambda x: torch.nn.functional.glu(x, 0), (-3.0, 3.0)),
    "renorm": (lambda x: x.view(3, 8).renorm(2, 0, 1.5), (-3.0, 3.0)),
    "channel_shuffle": (lambda x: torch.nn.functional.channel_shuffle(x.view(1, 6, 4), 3), (-3.0, 3.0)),
    "logcumsumexp": (lambda x: torch.logcumsumexp(x, 0), (-3.0, 3.0)),
}


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients(device: str, name: str) -> None:
    function, (low, high) = DIFFERENTIABLE[name]
    for dtype in (torch.float64, torch.float32):
        x = points(low, high, 24).to(dtype)
        ours, theirs = x.to(device).requires_grad_(), x.clone().requires_grad_()
        result, expected = function(ours), function(theirs)
        weight = torch.randn_like(expected)
        (gradient,) = torch.autograd.grad(result, ours, weight.to(device))
        (wanted,) = torch.autograd.grad(expected, theirs, weight)
        torch.testing.assert_close(result.cpu(), expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(gradient.cpu(), wanted, rtol=1e-5, atol=1e-5)


def test_second_derivative_of_glu(device: str) -> None:
    def gradient(x: torch.Tensor) -> torch.Tensor:
        return torch.func.grad(lambda x: (torch.nn.functional.glu(x) ** 2).sum())(x)

    x, tangent = torch.randn(3, 8), torch.randn(3, 8)
    expected = torch.func.jvp(gradient, (x,), (tangent,))
    for a, b in zip(torch.func.jvp(gradient, (x.to(device),), (tangent.to(device),)), expected, strict=True):
        torch.testing.assert_close(a.cpu(), b)
    ours = torch.func.jvp(torch.nn.functional.glu, (x.to(device),), (tangent.to(device),))
    for a, b in zip(ours, torch.func.jvp(torch.nn.functional.glu, (x,), (tangent,)), strict=True):
        torch.testing.assert_close(a.cpu(), b)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_parts_of_numbers(device: str, dtype: torch.dtype) -> None:
    info = torch.finfo(dtype)
    edges = [0.0, -0.0, 1.0, -1.0, 2.0, 0.75, info.max, info.min, info.tiny, info.smallest_normal, info.eps]
    edges += [float("inf"), -float("inf"), float("nan"), 3.0, 1024.0]
    x = torch.tensor(edges, dtype=dtype)
    x = torch.cat([x, (torch.randn(50) * 10).to(dtype)])
    a, b = (t.flatten() for t in torch.meshgrid(x, x[:16], indexing="ij"))
    step = torch.nextafter(a.to(device), b.to(device)).cpu()
    torch.testing.assert_close(step, torch.nextafter(a, b), rtol=0, atol=0, equal_nan=True)
    both = torch.nextafter(a, b) == 0
    assert torch.equal(step[both].signbit(), torch.nextafter(a, b)[both].signbit())
    finite = x[x.isfinite()]
    for ours, theirs in zip(torch.frexp(finite.to(device)), torch.frexp(finite), strict=True):
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours.cpu(), theirs)
    for numbers in ({}, {"nan": 1.5}, {"posinf": 2.0, "neginf": -3.0}):
        assert torch.equal(torch.nan_to_num(x.to(device), **numbers).cpu(), torch.nan_to_num(x, **numbers))
    for decimals in (0, 2, -2):
        small = torch.randn(40).to(dtype) * 30
        ours = torch.round(small.to(device), decimals=decimals).cpu()
        torch.testing.assert_close(ours, torch.round(small, decimals=decimals))


def test_rounding_of_integers_to_decimals_is_refused(device: str) -> None:
    with pytest.raises(NotImplementedError):
        torch.round(torch.arange(3, device=device), decimals=1)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8], ids=str)
def test_divisors(device: str, dtype: torch.dtype) -> None:
    low = torch.iinfo(dtype).min
    a = torch.cat([torch.tensor([0, 0, 5, low, low]), torch.randint(max(low, -100), 100, (60,))]).to(dtype)
    b = torch.cat([torch.tensor([0, 7, 0, 2, 6]), torch.randint(max(low, -100), 100, (60,))]).to(dtype)
    for function in (torch.gcd, torch.lcm):
        assert torch.equal(function(a.to(device), b.to(device)).cpu(), function(a, b))


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_angles_of_any_size(device: str, name: str) -> None:
    """All float32 exponents, against float64."""
    function = getattr(torch, name)
    x = torch.cat(
        [
            2.0 ** torch.arange(-140, 128),
            torch.randint(0x3F800000, 0x7F7FFFFF, (5000,), dtype=torch.int32).view(torch.float32),
        ]
    )
    x = torch.cat([x, -x])
    torch.testing.assert_close(function(x.to(device)).cpu().double(), function(x.double()), rtol=3e-7, atol=1.2e-7)
    assert function(torch.tensor([float("inf"), float("nan")], device=device)).isnan().all()


def test_bits_are_hashed_and_moved(device: str) -> None:
    for x in (torch.randn(5, 6, 7), torch.randint(-9, 9, (3, 8)), torch.randn(4, 1, 3).bfloat16(), torch.rand(5) > 0.5):
        assert torch.hash_tensor(x.to(device)).cpu() == torch.hash_tensor(x)
        for dim in range(x.dim()):
            ours, theirs = (
                torch.hash_tensor(x.to(device), dim, keepdim=True).cpu(),
                torch.hash_tensor(x, dim, keepdim=True),
            )
            assert torch.equal(ours, theirs)
    for dtype in (torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2):
        x = torch.arange(48).float().to(dtype).view(6, 8)
        ours = x.to(device).t()[::2].contiguous().cpu()
        assert torch.equal(ours.view(torch.uint8), x.t()[::2].contiguous().view(torch.uint8))


def test_narrow_copy(device: str) -> None:
    x = torch.randn(3, 6)
    out = torch.empty(0, device=device)
    assert torch.equal(torch.narrow_copy(x.to(device), 1, 2, 3).cpu(), x[:, 2:5])
    torch.narrow_copy(x.to(device), 1, -4, 2, out=out)
    assert torch.equal(out.cpu(), x[:, 2:4])
    with pytest.raises(RuntimeError, match="out of range"):
        torch.narrow_copy(x.to(device), 2, 0, 1)


COMPLEX = (
    "exp exp2 expm1 log log2 log10 log1p sin cos tan sinh cosh tanh asin acos atan asinh acosh atanh sqrt rsqrt "
    "sigmoid reciprocal angle abs sgn sinc square"
).split()


@pytest.mark.parametrize("name", COMPLEX)
def test_complex(device: str, name: str) -> None:
    function = getattr(torch, name)
    for dtype, tolerance in ((torch.complex64, 1e-5), (torch.complex128, 1e-12)):
        x = torch.cat(
            [torch.randn(60, dtype=dtype) * 2, torch.randn(20, dtype=dtype) * 1e-3, torch.tensor([1, -1, 1j, 2])]
        )
        ours, theirs = x.to(device).requires_grad_(), x.clone().requires_grad_()
        result, expected = function(ours), function(theirs)
        finite = expected.isfinite() & (expected.abs() < 1e4)
        torch.testing.assert_close(result.cpu()[finite], expected[finite], rtol=tolerance, atol=tolerance)
        loose = {"rtol": 100 * tolerance, "atol": 100 * tolerance}
        result[:60].abs().sum().backward()
        expected[:60].abs().sum().backward()
        assert ours.grad is not None and theirs.grad is not None
        torch.testing.assert_close(ours.grad.cpu(), theirs.grad, **loose, equal_nan=True)


def test_complex_of_several(device: str) -> None:
    a, b, w = (torch.randn(40, dtype=torch.complex64) for _ in range(3))
    calls: list[Callable[..., Any]] = [
        lambda a, b, w: torch.lerp(a, b, w),
        lambda a, b, w: torch.lerp(a, b, 0.3 + 0.2j),
        lambda a, b, w: torch.logaddexp(a, b),
        lambda a, b, w: torch.logcumsumexp(a.view(5, 8), 0),
        lambda a, b, w: torch.logcumsumexp(a.view(5, 8), 1),
        lambda a, b, w: torch.nn.functional.silu(a),
        lambda a, b, w: torch.nan_to_num(a / torch.zeros_like(b)),
        lambda a, b, w: torch.nan_to_num(a * float("inf"), 1.0, 2.0, 3.0),
    ]
    for call in calls:
        torch.testing.assert_close(call(a.to(device), b.to(device), w.to(device)).cpu(), call(a, b, w))


def test_coefficients_are_those_of_the_script() -> None:
    """scripts/chebyshev.py computes them from the definitions; here some of them."""
    script = runpy.run_path(str(Path(__file__).parents[1] / "scripts" / "chebyshev.py"))
    for name in ("i0_near", "erfcx_right", "y1_near"):
        _, variable, function = script["SERIES"][name]
        computed = [float(c) for c in script["chebyshev"](lambda t, f=function, v=variable: f(v(t)))]
        assert tuple(computed) == series.CHEBYSHEV[name]
    assert tuple(tuple(float(c) for c in row) for row in script["temme"]()) == series.TEMME
