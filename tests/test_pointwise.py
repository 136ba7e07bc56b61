"""The pointwise table against torch's CPU: dtypes, layouts, promotion, forms and gradients.

Each kernel costs a compile, so dtypes and layouts are crossed for one op of each kind and sampled for the rest.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

pytestmark = pytest.mark.no_fallback

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
ALL = [*FLOATS, *INTEGERS, torch.bool]
TOLERANCE = {
    torch.float16: {"rtol": 2e-3, "atol": 2e-3},
    torch.bfloat16: {"rtol": 1.6e-2, "atol": 1.6e-2},
    torch.float32: {"rtol": 2e-6, "atol": 2e-6},
    torch.float64: {"rtol": 1e-12, "atol": 1e-12},
}


def sample(dtype: torch.dtype, shape: tuple[int, ...] = (5, 7), low: float = -4, high: float = 4) -> torch.Tensor:
    """Random values; floats contain a few specials."""
    if dtype == torch.bool:
        return torch.rand(shape) > 0.5
    if not dtype.is_floating_point:
        return torch.randint(max(0, int(low)) if dtype == torch.uint8 else int(low), int(high) + 1, shape).to(dtype)
    values = torch.empty(shape, dtype=torch.float64).uniform_(low, high)
    if values.numel() > 8:
        values.view(-1)[:4] = torch.tensor([0.0, -0.0, float("nan"), float("inf") if high > 3 else 0.5])
    return values.to(dtype)


def check(device: str, function: Callable[..., Any], *args: Any) -> None:
    """The function gives the same on the device as on the CPU: values, dtype, shape, or the exception's type."""
    try:
        expected = function(*(a.clone() if isinstance(a, torch.Tensor) else a for a in args))
    except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
        with pytest.raises((RuntimeError, NotImplementedError, TypeError, ValueError)) as caught:
            function(*(a.to(device) if isinstance(a, torch.Tensor) else a for a in args))
        assert isinstance(caught.value, type(error)) or isinstance(error, type(caught.value)), (error, caught.value)
        return
    actual = function(*(a.to(device) if isinstance(a, torch.Tensor) else a for a in args))
    assert actual.device.type == device.split(":")[0]
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    tolerance = TOLERANCE.get(expected.dtype, {"rtol": 0, "atol": 0})
    torch.testing.assert_close(actual.cpu(), expected, equal_nan=True, **tolerance)


UNARY = (
    "neg abs sign sgn reciprocal sqrt rsqrt isnan isposinf isneginf signbit floor ceil trunc round frac exp exp2 expm1 "
    "log log2 log10 log1p sin cos tan tanh sinh cosh asin acos atan asinh acosh atanh sigmoid erf erfc angle relu "
    "logical_not"
).split()


@pytest.mark.parametrize("name", UNARY)
def test_unary(device: str, name: str) -> None:
    for dtype in (torch.float32, torch.float64, torch.int32):
        check(device, getattr(torch, name), sample(dtype))


ACTIVATIONS: dict[str, Callable[..., Any]] = {
    "silu": F.silu,
    "mish": F.mish,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "hardtanh": F.hardtanh,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.1),
    "elu": lambda x: F.elu(x, 1.5),
    "celu": F.celu,
    "selu": F.selu,
    "threshold": lambda x: F.threshold(x, 0.1, 2.0),
    "softplus": F.softplus,
    "softshrink": F.softshrink,
    "hardshrink": F.hardshrink,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "logit": lambda x: torch.logit(x, 0.1),
    "logsigmoid": F.logsigmoid,
    "relu6": F.relu6,
    "relu": F.relu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "prelu": lambda x: F.prelu(x, torch.full((1,), 0.25, dtype=x.dtype, device=x.device)),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation_and_its_backward(device: str, name: str) -> None:
    function = ACTIVATIONS[name]
    for dtype in (torch.float32, torch.float64):
        x = sample(dtype, (3, 11), -3, 3).nan_to_num()
        check(device, function, x)
        own, theirs = x.clone().requires_grad_(), x.to(device).requires_grad_()
        weight = sample(dtype, (3, 11), -1, 1).nan_to_num()
        (function(own) * weight).sum().backward()
        result = function(theirs)
        result.backward(weight.to(device))
        assert own.grad is not None and theirs.grad is not None
        torch.testing.assert_close(theirs.grad.cpu(), own.grad, rtol=1e-5, atol=1e-5)


BINARY = (
    "add sub mul div floor_divide remainder fmod pow maximum minimum fmax fmin atan2 hypot copysign logaddexp xlogy "
    "eq ne lt le gt ge logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor"
).split()


@pytest.mark.parametrize("name", BINARY)
def test_binary(device: str, name: str) -> None:
    function = getattr(torch, name)
    for dtype in (torch.float32, torch.int64):
        a, b = sample(dtype), sample(dtype, (7,))
        if not dtype.is_floating_point:
            b = b.abs() + 1  # torch's CPU refuses division by zero, and negative powers
        check(device, function, a, b)
        check(device, function, a.t(), b[2:7, None] if name != "pow" else b[:5].abs())


@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("name", ["add", "mul", "eq", "maximum", "bitwise_and", "where"])
def test_every_dtype(device: str, name: str, dtype: torch.dtype) -> None:
    a, b = sample(dtype), sample(dtype)
    if name == "where":
        check(device, torch.where, sample(torch.bool), a, b)
    else:
        check(device, getattr(torch, name), a, b)


@pytest.mark.parametrize("source", ALL, ids=str)
def test_casts(device: str, source: torch.dtype) -> None:
    for target in ALL:
        low = 0 if target == torch.uint8 else -4
        x = sample(source, low=low)
        if source.is_floating_point and not target.is_floating_point:
            x = x.nan_to_num(0, 1, 0)  # the integer that NaN becomes is undefined in torch too
        check(device, lambda x, target=target: x.to(target), x)
        check(device, lambda x, target=target: x.t().to(target), x)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (torch.float32, torch.float64),
        (torch.float32, torch.int64),
        (torch.int32, torch.uint8),
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float16),
        (torch.bool, torch.int8),
    ],
    ids=str,
)
def test_promotion(device: str, a: torch.dtype, b: torch.dtype) -> None:
    check(device, torch.add, sample(a), sample(b))
    check(device, torch.add, sample(a), sample(b, ()))
    check(device, torch.mul, sample(a, ()), sample(b))
    check(
        device,
        torch.div,
        sample(a),
        sample(b, (7,), 1, 4).nan_to_num(1) if b.is_floating_point else sample(b).to(b) | 1,
    )
    check(device, torch.lt, sample(a), sample(b))


@pytest.mark.parametrize("number", [2, -1.5, True])
def test_numbers(device: str, number: float) -> None:
    for dtype in (torch.float32, torch.int64, torch.uint8):
        x = sample(dtype)
        for function in (torch.add, torch.mul, torch.eq, torch.ge, torch.div):
            check(device, lambda x, f=function: f(x, number), x)
    if number is not True:
        check(device, lambda x: number - x, sample(torch.float32))
    check(device, lambda x: x**number, sample(torch.float32))


def test_a_number_from_the_cpu_is_read_each_time(device: str) -> None:
    x = torch.arange(4.0, device=device)
    for value in (2.0, 3.0, 4.0):
        assert (x * torch.tensor(value)).tolist() == [0.0, value, 2 * value, 3 * value]


@pytest.mark.parametrize("bounds", [(-1, 1), (None, 0.5), (0.5, None), (2, 1)])
def test_clamp(device: str, bounds: tuple[float | None, float | None]) -> None:
    low, high = bounds
    for dtype in (torch.float32, torch.int64):
        check(device, lambda x: x.clamp(low, high), sample(dtype))
    lows = None if low is None else torch.full((7,), float(low))
    highs = None if high is None else torch.full((7,), float(high))
    check(device, torch.clamp, sample(torch.float32), lows, highs)


def test_ternary(device: str) -> None:
    a, b, c = (sample(torch.float32) for _ in range(3))
    check(device, lambda a, b, c: torch.addcmul(a, b, c, value=0.5), a, b, c)
    check(device, lambda a, b, c: torch.addcdiv(a, b, c, value=-2), a, b, c)
    check(device, torch.lerp, a, b, c)
    check(device, lambda a, b: torch.lerp(a, b, 0.75), a, b)
    check(device, lambda a, m: a.masked_fill(m, -1), a, sample(torch.bool))
    check(device, lambda a: torch.where(a > 0, a, 0.5), a)


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transposed": lambda x: x.transpose(0, 2),
    "every second": lambda x: x[:, ::2],
    "offset": lambda x: x[1:, 2:],
    "expanded": lambda x: x[:1].expand(6, -1, -1),
    "permuted": lambda x: x.permute(2, 0, 1),
    "empty": lambda x: x[:0],
    "one element": lambda x: x[1, 2, 3],
    "five dimensions": lambda x: x.reshape(3, 2, 2, 2, -1).permute(4, 2, 0, 3, 1),
    "channels last": lambda x: x[None].contiguous(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("other", LAYOUTS)
def test_layouts(device: str, layout: str, other: str) -> None:
    x, y = torch.randn(6, 4, 10), torch.randn(6, 4, 10)
    a, b = LAYOUTS[layout](x), LAYOUTS[other](y)
    try:
        torch.broadcast_shapes(a.shape, b.shape)
    except RuntimeError:
        b = LAYOUTS[layout](y)
    on_device, on_device_too = x.to(device), y.to(device)
    da = LAYOUTS[layout](on_device)
    db = LAYOUTS[other](on_device_too)
    if db.shape != b.shape:
        db = LAYOUTS[layout](on_device_too)
    torch.testing.assert_close((da + db).cpu(), a + b)
    assert (da + db).stride() == (a + b).stride()


@pytest.mark.parametrize("shape", [(64, 48), (131, 86), (3, 40, 33), (2, 5, 40, 60)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.int8, torch.bool], ids=str)
def test_transposed_operands_in_tiles(device: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, y = sample(dtype, shape), sample(dtype, shape)
    a, b = x.transpose(-1, -2), y.transpose(-1, -2).contiguous()
    check(device, lambda x, b: x.transpose(-1, -2) + b, x, b)
    check(device, lambda x: x.transpose(-1, -2).contiguous(), x)
    check(device, lambda x: x.transpose(0, -1).to(torch.float64), x)
    out = torch.zeros(a.shape, dtype=dtype, device=device)
    out.add_(x.to(device).transpose(-1, -2))
    torch.testing.assert_close(out.cpu(), a.contiguous(), equal_nan=True)
    image = sample(dtype, (2, 24, 9, 7))
    check(device, lambda x: x.contiguous(memory_format=torch.channels_last), image)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.uint8, torch.complex64], ids=str)
@pytest.mark.parametrize("step", [2, 3, 4, 5])
def test_every_few_elements(device: str, step: int, dtype: torch.dtype) -> None:
    x, y = sample(dtype, (3, 200)), sample(dtype, (3, -(-150 // step)))
    check(device, lambda x: x[:, 50::step].contiguous(), x)
    check(device, lambda x, y: x[:, 50::step] + y, x, y)
    image = sample(dtype, (2, 17, 11, step))
    check(device, lambda x: x.permute(0, 3, 1, 2).contiguous(), image)


INTERLEAVED = [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool, torch.complex64]


@pytest.mark.parametrize("dtype", INTERLEAVED, ids=str)
@pytest.mark.parametrize("channels", [2, 3, 5, 7])
def test_short_rows_that_touch(device: str, channels: int, dtype: torch.dtype) -> None:
    image, last = sample(dtype, (2, channels, 35, 57)), sample(dtype, (2, 35, 57, channels))
    few, gates = sample(dtype, (channels,)), sample(dtype, (2, 35, 57, 1))
    check(device, lambda x: x.permute(0, 2, 3, 1).contiguous(), image)
    check(device, lambda x: x.permute(0, 2, 3, 1).contiguous()[:, 3:], image)
    check(device, lambda x: x.contiguous(memory_format=torch.channels_last), image)
    wider = torch.complex128 if dtype.is_complex else torch.float64
    check(device, lambda x: x.permute(0, 2, 3, 1).to(wider).contiguous(), image)
    check(device, lambda x: x.expand(-1, -1, -1, channels).contiguous(), gates)
    check(device, lambda x: x[:, :, ::2].contiguous(), last)
    check(device, lambda x: x.transpose(1, 2).flip(2)[:, 1:].contiguous(), last)
    check(device, lambda x, y, few, gates: x.permute(0, 2, 3, 1) + few + y * gates, image, last, few, gates)
    check(device, lambda x: x.permute(0, 2, 3, 1).reshape(-1, channels) == x.view(-1, channels), image)
    out, more = sample(dtype, (2, 36, 57, channels)), sample(dtype, (2, 35, 60, channels))
    for own in (lambda x: x[:, 1:], lambda x: x[:, :35]):
        check(device, lambda x, y, own=own: own(x.clone()).add_(y[:, :, 3:]), out, more)
        check(device, lambda x, y, own=own: own(x.clone()).copy_(y.permute(0, 2, 3, 1)), out, image)


@pytest.mark.parametrize("factor", [2, 3, 4])
def test_pixels_shuffled(device: str, factor: int) -> None:
    x = torch.randn(2, 3 * factor**2, 17, 23, requires_grad=True)
    y = x.detach().to(device).requires_grad_()
    grad = torch.randn(2, 3, 17 * factor, 23 * factor)
    for tensor, by in ((x, grad), (y, grad.to(device))):
        torch.nn.functional.pixel_shuffle(tensor, factor).backward(by)
    torch.testing.assert_close(y.grad.cpu(), x.grad, rtol=0, atol=0)
    check(device, lambda x: torch.nn.functional.pixel_shuffle(x, factor), x.detach())


@pytest.mark.parametrize("function", [torch.sin, torch.cos])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_large_angles_among_small_ones(device: str, function: Callable[..., Any], dtype: torch.dtype) -> None:
    x = 3 * torch.randn(10_007)
    x[[0, 1500, 1501, 5000, 10_006]] = torch.tensor([1e4, 2e4, math.nan, -3e38, math.inf])
    check(device, function, x.to(dtype))
    check(device, function, x.to(dtype)[1:1400])
    close = torch.randint(-6366, 6367, (5000,)) * (math.pi / 2)  # to where one of them is 0
    check(device, function, close.to(dtype))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_all_halves(device: str, dtype: torch.dtype) -> None:
    """They are compared and negated as float32, and stay what they are."""
    x = torch.arange(-(2**15), 2**15).short().view(dtype)
    y = x[torch.randperm(len(x))]
    for function in (torch.maximum, torch.minimum, torch.eq, torch.lt):
        check(device, function, x, y)
    for single in (torch.neg, torch.abs, torch.isnan, torch.Tensor.float, lambda x: x.clamp(-1, 2), lambda x: x * 1):
        check(device, single, x)


def test_in_place_and_out(device: str) -> None:
    x, y = torch.randn(4, 6), torch.randn(6)
    dx, dy = x.to(device), y.to(device)
    assert dx.add_(dy, alpha=2).data_ptr() == dx.data_ptr()
    torch.testing.assert_close(dx.cpu(), x.add_(y, alpha=2))
    dx.t()[1:3].mul_(3)
    x.t()[1:3].mul_(3)
    torch.testing.assert_close(dx.cpu(), x)
    out = torch.empty(0, device=device)
    torch.add(dx, dy, out=out)
    torch.testing.assert_close(out.cpu(), x + y)
    strided = torch.zeros(6, 8, device=device).t()[::2]
    torch.mul(dx, dy, out=strided)
    torch.testing.assert_close(strided.cpu(), x * y)
    double = torch.empty(4, 6, dtype=torch.float64, device=device)
    torch.add(dx, dy, out=double)
    torch.testing.assert_close(double.cpu(), (x + y).double())
    with pytest.raises(RuntimeError, match="can't be cast"):
        torch.add(dx, dy, out=torch.empty(4, 6, dtype=torch.int64, device=device))


@pytest.mark.filterwarnings("error:An output with one or more elements was resized")
def test_out_of_another_shape_warns(device: str) -> None:
    with pytest.raises(UserWarning, match="was resized"):
        torch.add(torch.ones(3, device=device), 1, out=torch.empty(2, device=device))


def test_bad_calls(device: str) -> None:
    a = torch.randn(3, 4, device=device)
    with pytest.raises(RuntimeError, match="must match the size"):
        a + torch.randn(3, device=device)
    with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
        a.add_(torch.randn(2, 3, 4, device=device))
    with pytest.raises(RuntimeError, match="same device"):
        a + torch.randn(3, 4)
    with pytest.raises(RuntimeError, match="single memory location"):
        a[:1].expand(3, 4).add_(1)
    with pytest.raises(RuntimeError, match="single memory"):
        a.view(-1)[1:].add_(a.view(-1)[:-1])
    with pytest.raises(RuntimeError, match="overflow"):
        torch.zeros(2, dtype=torch.uint8, device=device).fill_(300)
    torch.testing.assert_close((a + a).cpu(), a.cpu() * 2)


def test_large_and_odd_lengths(device: str) -> None:
    for n in (1, 255, 16384, 16385, 100_003, 1_000_001):
        x = torch.randn(n)
        torch.testing.assert_close((x.to(device) * 2 + 1).cpu(), x * 2 + 1)


DIVISIONS: dict[str, Callable[[torch.Tensor, Any], torch.Tensor]] = {
    "//": operator.floordiv,
    "%": operator.mod,
    "fmod": torch.fmod,
    "remainder": torch.remainder,
    "div floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "div trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "remainder_": lambda x, y: x.clone().remainder_(y),
    "fmod_": lambda x, y: x.clone().fmod_(y),
    "floor_divide_": lambda x, y: x.clone().floor_divide_(y),
    "out=": lambda x, y: torch.remainder(x, y, out=torch.empty_like(x)),
    "strided": lambda x, y: torch.remainder(x.expand(3, -1).t(), y),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["floor", "ceil", "trunc", "round", "frac"])
def test_whole_numbers(device: str, name: str, dtype: torch.dtype) -> None:
    """To the last bit, and the signs of zeros; halves, and where numbers have no bits behind the point any more."""
    some = [0.0, 0.3, 0.5, 0.7, 1.0, 1.5, 2.5, 0.49999997, 0.49999999999999994, 1e-45, 1e30, float("inf")]
    large = [limit + step for limit in (2.0**23, 2.0**52) for step in (-0.5, 0, 0.5, 1)]
    drawn = torch.randn(5000, dtype=torch.float64) * (torch.randn(5000, dtype=torch.float64) * 5).exp()
    x = torch.cat([torch.tensor(some + large, dtype=torch.float64), drawn])
    x = torch.cat([x, -x, torch.tensor([float("nan")])]).to(dtype)
    function = getattr(torch, name)
    got, wanted = function(x.to(device)).cpu(), function(x)
    assert torch.equal(got.isnan(), wanted.isnan())
    got, wanted = got[~wanted.isnan()], wanted[~wanted.isnan()]
    assert torch.equal(got, wanted)
    assert torch.equal(got.signbit(), wanted.signbit())


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64], ids=str)
def test_integers_are_divided_exactly(device: str, dtype: torch.dtype) -> None:
    """All pairs of bytes; of the others the ends, and quotients of all sizes."""
    least, most = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    ends = torch.tensor([least, least + 1, -7, -1, 0, 1, 2, 3, 7, most - 1, most]).clamp(least, most).to(dtype)
    bits = torch.randint(0, torch.iinfo(dtype).bits, (4000,))
    drawn = torch.randint(least, most, (4000,), dtype=dtype) >> bits.to(dtype)
    every = torch.arange(least, most + 1, dtype=dtype) if torch.iinfo(dtype).bits == 8 else ends
    pairs = torch.cat([torch.cartesian_prod(every, every), torch.stack([drawn, drawn.roll(1)], 1)])
    x, y = pairs[(pairs[:, 1] != 0) & ~((pairs[:, 0] == least) & (pairs[:, 1] == -1) & (least < 0))].unbind(1)
    functions = {
        "fmod": torch.fmod,
        "remainder": torch.remainder,
        "floor": torch.floor_divide,
        "trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    }
    for name, function in functions.items():
        assert torch.equal(function(x.to(device), y.to(device)).cpu(), function(x, y)), name


def test_remainders_of_any_quotient_are_exact(device: str) -> None:
    """Torch's CPU has NaN where a quotient is no float32, so that float64 is what counts."""
    bits = torch.randint(-(2**31), 2**31 - 1, (2, 50_000)).to(torch.int32).view(torch.float32)
    special = torch.tensor([0.0, -0.0, 1, -1, 5.5, 1e-45, -1e-45, 1.2e-38, 3.4e38, torch.inf, -torch.inf, torch.nan])
    multiples = torch.randint(1, 1000, (2, 5_000)).float()
    for x, y in (bits, torch.cartesian_prod(special, special).t(), (multiples[0] * multiples[1], multiples[1])):
        got, wanted = torch.fmod(x.to(device), y.to(device)).cpu(), torch.fmod(x.double(), y.double()).float()
        torch.testing.assert_close(got, wanted, rtol=0, atol=0, equal_nan=True)
        number = ~wanted.isnan()
        assert torch.equal(got.signbit()[number], wanted.signbit()[number])
        got, wanted = torch.remainder(x.to(device), y.to(device)).cpu(), torch.remainder(x, y)
        known = ~wanted.isnan()
        assert torch.equal(got[known], wanted[known])


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("name", DIVISIONS)
def test_integer_division_by_zero(device: str, name: str, dtype: torch.dtype) -> None:
    function = DIVISIONS[name]
    x, y = (torch.tensor(values, dtype=dtype, device=device) for values in ([7, 9, 5], [3, 0, 1]))
    for divisor in (0, 0, y, y[1], y[1].cpu()):
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            function(x, divisor).tolist()
    for divisor in (3, y + 1):
        assert torch.equal(function(x, divisor).cpu(), function(x.cpu(), torch.as_tensor(divisor, dtype=dtype).cpu()))


def test_numbers_divided_by_zero(device: str) -> None:
    x = torch.tensor([3, 0, 2], dtype=torch.int8, device=device)
    for function in (torch.remainder, operator.floordiv):
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            function(7, x).tolist()
    check(device, lambda x: torch.remainder(300, x), x[::2].cpu())


@pytest.mark.parametrize("shape", [(64, 64), (2, 3, 5)], ids=str)
def test_one_zero_among_many_divisors(device: str, shape: tuple[int, ...]) -> None:
    x, y = torch.ones(shape, dtype=torch.int32), torch.ones(shape, dtype=torch.int32).transpose(0, -1).contiguous()
    for place in ("cpu", device):
        by = y.clone().to(place).transpose(0, -1)  # read across the result's order
        assert (x.to(place) // by).sum() == x.numel()
        by[-1, -1] = 0
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            (x.to(place) // by).tolist()


def test_a_divisor_is_looked_at_at_every_call(device: str) -> None:
    x = torch.arange(12, dtype=torch.int8)
    for divisor in (3, 5, -3, 257, -300, 127, True, 2.5):
        for function in DIVISIONS["%"], DIVISIONS["fmod"], DIVISIONS["//"]:
            check(device, function, x, divisor)
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):  # as an int8 that is 0
            DIVISIONS["%"](x.to(device), 256)
    for nothing in (x[:0], x.view(3, 4)[:, :0]):
        assert (nothing.to(device) % 0).shape == nothing.shape
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            x.to(device).view(3, 4) % 0


@pytest.mark.quick(dtype=[torch.uint8, torch.int64])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_shifts_by_any_number(device: str, dtype: torch.dtype) -> None:
    bits = torch.iinfo(dtype).bits
    x = torch.randint(-(2**7), 2**7, (12, 50)).to(dtype)
    places = torch.tensor([0, 1, 7, 8, 9, bits - 1, bits, bits + 1, 120, -1, -3, -100]).to(dtype)
    for shift in (torch.bitwise_left_shift, torch.bitwise_right_shift):
        check(device, shift, x, places[:, None])


@pytest.mark.quick(dtype=[torch.uint8, torch.int64])
@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("name", ["lshift", "rshift", "ilshift", "irshift"])
def test_shifts_by_operators(device: str, name: str, dtype: torch.dtype) -> None:
    shift = getattr(operator, name)
    x, places = torch.randint(-(2**7), 2**7, (12, 50)).to(dtype), torch.randint(0, 9, (50,)).to(dtype)

    def shifted(x: torch.Tensor, places: torch.Tensor | int) -> torch.Tensor:
        x = x.clone()
        y = shift(x, places)
        assert (y is x) == name.startswith("i")
        return y

    check(device, shifted, x, places)
    check(device, lambda x: shifted(x[:, ::2], 3), x)
    with pytest.raises(RuntimeError, match="not implemented"):
        shift(torch.ones(3, device=device), 1)


def test_division_of_the_least_number(device: str) -> None:
    x = torch.tensor([7, -8, -(2**63)], device=device)
    assert torch.floor_divide(x, torch.full_like(x, -1)).tolist()[:2] == [-7, 8]


@pytest.mark.parametrize("name", ["lt", "le", "gt", "ge", "eq", "ne"])
@pytest.mark.parametrize(
    ("dtype", "number"),
    [
        *((dtype, number) for dtype in FLOATS for number in (1e300, -1e300, 65520.0, 2**60 + 1, 16777217)),
        *((torch.uint8, number) for number in (300, 256, -1, 1e300)),
        *((torch.int8, number) for number in (255, 128, 300)),
        (torch.int16, 65535),
        (torch.int32, 2**32),
        (torch.bool, 2),
        *((torch.complex64, number) for number in (1e300, 1e300j)),
    ],
    ids=str,
)
def test_comparisons_with_numbers_outside_of_the_type(
    device: str, name: str, dtype: torch.dtype, number: complex
) -> None:
    values = [1e38, -1.0, math.inf, -math.inf, math.nan, 0] if dtype.is_floating_point else [0, 1, 44, 127]
    x = torch.tensor(values, dtype=torch.float64).to(dtype)
    check(device, getattr(torch, name), x, number)
    check(device, lambda x: getattr(x.clone(), f"{name}_")(number), x)
    check(device, lambda x: getattr(torch, name)(x, number, out=torch.empty_like(x, dtype=torch.bool)), x)
    check(device, torch.isin, x, number)


@pytest.mark.parametrize("number", [1e300, -1e300, 1e5, 300, 2**40, True, False, 2, 0], ids=str)
@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_powers_of_and_by_any_number(device: str, dtype: torch.dtype, number: float) -> None:
    x = torch.tensor([1, 2, 0]).to(dtype)
    check(device, torch.pow, x, number)
    check(device, lambda x: x.clone().pow_(number), x)
    check(device, lambda x: torch.pow(number, x), x)


def test_lists_and_numbers_outside_of_the_type(device: str) -> None:
    x = torch.tensor([1, 2], dtype=torch.int8)
    for function in (torch._foreach_add, torch._foreach_sub, torch._foreach_mul):
        check(device, lambda x, f=function: torch.stack(f([x, x + 1], 300)), x)  # type: ignore[misc]
        check(device, lambda x, f=function: torch.stack(f([x, x + 1], [1e300, 2.0])), x.float())  # type: ignore[misc]


def test_bucketize_numbers_outside_of_the_type(device: str) -> None:
    check(device, lambda x: torch.bucketize(300, x), torch.tensor([0, 100], dtype=torch.int8))
    check(device, lambda x: torch.bucketize(1e300, x), torch.tensor([0.0, 100.0]))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_ldexp(device: str, dtype: torch.dtype) -> None:
    x = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, 3.0, 1e-7], dtype=dtype)
    for exponent in (0, 1, 7, -7, 128, 200, 2000, -140, -2000):
        check(device, torch.ldexp, x, torch.tensor(exponent))
        check(device, lambda x, n: x.clone().ldexp_(n), x, torch.full((8,), exponent, dtype=torch.int32))
    check(device, torch.ldexp, x, torch.tensor(2.5))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_nan_to_num_of_complex_numbers(device: str, dtype: torch.dtype) -> None:
    x = torch.tensor([complex(math.nan, math.inf), complex(-math.inf, 1), complex(1, math.nan)], dtype=dtype)
    for given in ((), (1.0, 2.0, 3.0)):
        expected = torch.nan_to_num(x, *given)
        y = x.to(device)
        assert torch.equal(torch.nan_to_num(y, *given).cpu(), expected)
        assert torch.equal(torch.nan_to_num(y, *given, out=torch.empty_like(y)).cpu(), expected)
        assert torch.equal(y.nan_to_num_(*given).cpu(), expected)


@pytest.mark.parametrize("dtype", [*INTEGERS, torch.bool], ids=str)
def test_masks_are_filled_with_what_fits(device: str, dtype: torch.dtype) -> None:
    x, mask, index = torch.tensor([1, 0], dtype=dtype), torch.tensor([True, False]), torch.tensor([1])
    for value in (math.nan, math.inf, -math.inf, 1e300, 2**40, 300, -1, 1.5, True):
        for given in (value, torch.tensor(value)):
            check(device, torch.masked_fill, x, mask, given)
            check(device, lambda x, mask, given: x.clone().masked_fill_(mask, given), x, mask, given)
            check(device, lambda x, index, given: x.index_fill(0, index, given), x, index, given)
        check(device, lambda x, v=value: x.clone().fill_(v), x)  # type: ignore[misc]


ROUNDED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "eq": lambda x: x == 2.3,
    "lt": lambda x: x < 2.3,
    "ge of a zero-dim float32": lambda x: x >= torch.tensor(2.3, device=x.device),
    "fmod": lambda x: torch.fmod(x, 2.3),
    "remainder": lambda x: torch.remainder(x, 2.3),
    "remainder of a number": lambda x: 2.3 % x,
    "pow": lambda x: x.abs() ** 2.3,
    "pow of a number": lambda x: 2.3**x,
    "hardshrink": lambda x: F.hardshrink(x, 0.3),
    "trunc of a quotient": lambda x: torch.div(x, x.flip(0), rounding_mode="trunc"),
    "trunc of a quotient by a number": lambda x: torch.div(x, 2.3, rounding_mode="trunc"),
    "floor of a quotient": lambda x: torch.div(x, x.flip(0), rounding_mode="floor"),
    "floor of a quotient by a number": lambda x: x // 2.3,
    "floor of a number's quotient": lambda x: 2.3 // x,
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("function", ROUNDED.values(), ids=ROUNDED)
def test_16_bit_types_round_where_torch_does(
    device: str, function: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype
) -> None:
    special = torch.tensor([2.3, -2.3, 0.3, -0.3, 65504.0, 6e-8, 6e-5, math.inf, math.nan])
    generator = torch.Generator().manual_seed(3)
    x = torch.cat([special, torch.randn(3000, generator=generator) * 5, torch.rand(991, generator=generator)]).to(dtype)
    ours, theirs = function(x.to(device)).cpu(), function(x)
    # The last place of a power is not exact in either.
    same = (ours == theirs) | (ours != ours) & (theirs != theirs)
    assert same.float().mean() > 0.99
    torch.testing.assert_close(ours, theirs, rtol=torch.finfo(dtype).eps, atol=0, equal_nan=True)


@pytest.mark.parametrize("number", [7, -2.5, True])
def test_remainder_of_a_number(device: str, number: float) -> None:
    for dtype in (torch.float32, torch.int32, torch.uint8, torch.bfloat16):
        x = torch.arange(-9, 10).abs().to(dtype) + 1
        check(device, lambda a: number % a, x)
        check(device, lambda a: torch.remainder(number, -a), x)


def test_complex_powers_of_infinities(device: str) -> None:
    """As the C library's cpow: from a product that an infinite factor makes infinite."""
    parts = torch.tensor([math.inf, -math.inf, math.nan, 1.0, -2.0])
    base = torch.complex(*(t.flatten() for t in torch.meshgrid(parts, parts, indexing="ij")))
    check(device, lambda a, b: parts_of(torch.pow(a, b)), base[:, None], base[None])


def parts_of(x: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(x)


@pytest.mark.parametrize("name", "exp expm1 sinh cosh tanh asin acos asinh acosh atan atanh".split())
def test_complex_functions_of_infinities(device: str, name: str) -> None:
    """By C11's annex G, as in the C library, wherever that says which of the parts are infinite and with which sign."""
    function = getattr(torch, name)
    parts = torch.tensor([math.inf, -math.inf, math.nan, 0.0, -0.0, 1.5, -2.5])
    x = torch.complex(*(t.flatten() for t in torch.meshgrid(parts, parts, indexing="ij")))
    if name == "expm1":  # torch's has e^inf sin 0 for the imaginary part
        x = x[(x.imag != 0) & (x.imag == x.imag) & (x.imag.abs() < math.inf)]
    if name in ("sinh", "tanh"):  # the sign beside NaN, or of zero, is not said
        x = x[x.imag.abs() < math.inf]
    check(device, lambda a: parts_of(function(a)), x)


def test_angles_of_diagonals_are_exact(device: str) -> None:
    parts = torch.tensor([1.0, -1.0, math.inf, -math.inf])
    y, x = torch.meshgrid(parts, parts, indexing="ij")
    ours, theirs = torch.atan2(y.to(device), x.to(device)).cpu(), torch.atan2(y, x)
    same_size = y.abs() == x.abs()
    assert torch.equal(ours[same_size], theirs[same_size])
    assert torch.equal(torch.atan(parts.to(device)).cpu(), torch.atan(parts))


@pytest.mark.parametrize("name", ["abs", "angle"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64], ids=str)
def test_sizes_of_complex_numbers_into_out(device: str, name: str, dtype: torch.dtype) -> None:
    function = getattr(torch, name)
    x = torch.randn(9, dtype=torch.complex64)
    out = torch.empty(9, dtype=dtype, device=device)
    torch.testing.assert_close(function(x.to(device), out=out).cpu(), function(x, out=torch.empty(9, dtype=dtype)))


@pytest.mark.parametrize("exponent", [2, 3, 0.5, -0.5, -1, -2, 1j])
def test_complex_powers_of_known_exponents(device: str, exponent: complex) -> None:
    x = torch.randn(100, dtype=torch.complex64, generator=torch.Generator().manual_seed(5))
    exact = torch.pow(x.to(torch.complex128), exponent).to(torch.complex64)
    torch.testing.assert_close(torch.pow(x.to(device), exponent).cpu(), exact, rtol=5e-7, atol=0)


def test_an_op_that_torch_composes_keeps_its_derivative(device: str) -> None:
    """conj_physical has a formula through the ops it is made of, and none for a kernel of its own."""
    x = torch.randn(4, dtype=torch.complex64, device=device, requires_grad=True)
    y = x.conj_physical()
    assert torch.equal(torch.autograd.grad(y.real.sum() + 2 * y.imag.sum(), x)[0].cpu(), torch.full((4,), 1 - 2j))


def test_a_new_out_has_the_elements_in_the_order_of_the_inputs(device: str) -> None:
    for make in (
        lambda d: torch.randn(2, 3, 4, device=d).permute(2, 0, 1),
        lambda d: torch.randn(6, 6, device=d)[::2, ::2].t(),
        lambda d: torch.randn(2, 3, 4, 5, device=d).to(memory_format=torch.channels_last),
    ):
        for op in (torch.add, torch.eq, torch.maximum):
            expected, x = make("cpu"), make(device)
            expected = op(expected, expected[..., :1], out=op(expected, expected).new_empty(0))
            for size in (0, 7):
                out = torch.empty(size, dtype=expected.dtype, device=device)
                result = op(x, x[..., :1], out=out)
                assert result is out
                assert (result.stride(), result.shape) == (expected.stride(), expected.shape)
                assert torch.equal(result.cpu(), op(x.cpu(), x.cpu()[..., :1]))


EXACT: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "neg": lambda x, y: -x,
    "abs": lambda x, y: x.abs(),
    "sign": lambda x, y: x.sign(),
    "round": lambda x, y: x.round(),
    "floor": lambda x, y: x.floor(),
    "ceil": lambda x, y: x.ceil(),
    "trunc": lambda x, y: x.trunc(),
    "copysign": torch.copysign,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "where": lambda x, y: torch.where(x > y, x, y),
    "threshold_backward": lambda x, y: torch.ops.aten.threshold_backward(x, y, 0.3),
    "relu": lambda x, y: x.relu() + 0.0,  # which zero is another matter
    "a number that is none of the type": lambda x, y: torch.maximum(x, torch.tensor(0.1)),
    "another type": lambda x, y: torch.where(x > 0, x, y.float()),
}


@pytest.mark.parametrize("name", EXACT)
def test_results_that_need_no_rounding(device: str, name: str) -> None:
    """Of every bfloat16 number, which are stored without rounding."""
    x = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    y = x[torch.randperm(len(x))]
    expected, got = EXACT[name](x, y), EXACT[name](x.to(device), y.to(device)).cpu()
    assert got.dtype == expected.dtype
    assert torch.equal(got.isnan(), expected.isnan())
    numbers = ~expected.isnan()
    assert torch.equal(got[numbers], expected[numbers])
    assert torch.equal(got[numbers].signbit(), expected[numbers].signbit())
