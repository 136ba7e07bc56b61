"""Layer, RMS, group and batch normalisation, against torch's CPU in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from torchgraft.fallback import fallback

TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-10, torch.float16: 1e-2, torch.bfloat16: 6e-2}
DTYPES = list(TOLERANCE)

#: Shapes, and of what dimensions of them the rows are.
ROWS = [((5, 64), (64,)), ((700, 33), (33,)), ((2, 3, 4, 50), (4, 50)), ((1, 5000), (5000,)), ((7,), (7,))]


@pytest.fixture(autouse=True)
def native() -> Iterator[None]:
    with fallback("error"):
        yield


def compare(
    op: Callable[..., torch.Tensor],
    device: str,
    dtype: torch.dtype,
    *tensors: torch.Tensor | None,
    weights: torch.dtype | None = None,
) -> None:
    """Result and gradients of op(*tensors), the first the input, on the device in `dtype` and on the CPU in float64."""
    inputs: list[torch.Tensor | None] = []
    exact: list[torch.Tensor | None] = []
    for n, t in enumerate(tensors):
        if t is None:
            inputs.append(None)
            exact.append(None)
            continue
        rounded = t.to(weights or dtype if n else dtype)
        inputs.append(rounded.to(device).requires_grad_())
        exact.append(rounded.clone().double().requires_grad_())
    got, expected = op(*inputs), op(*exact)
    grad = torch.randn(expected.shape).to(dtype)
    got.backward(grad.to(device))
    expected.backward(grad.double())
    scale = TOLERANCE[dtype]
    torch.testing.assert_close(got.detach().cpu().double(), expected.detach(), rtol=scale, atol=scale)
    for a, b in zip(inputs, exact, strict=True):
        if a is None or b is None:
            continue
        assert a.grad is not None
        assert b.grad is not None
        limit = scale * max(1.0, b.grad.abs().max().item())
        torch.testing.assert_close(a.grad.cpu().double(), b.grad, rtol=scale, atol=limit)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("shape", "normalized"), ROWS, ids=str)
def test_layer_norm(device: str, shape: tuple[int, ...], normalized: tuple[int, ...], dtype: torch.dtype) -> None:
    x, w, b = torch.randn(shape) * 2 + 1, torch.randn(normalized), torch.randn(normalized)

    def op(x: Any, w: Any = None, b: Any = None) -> torch.Tensor:
        return F.layer_norm(x, normalized, w, b)

    compare(op, device, dtype, x, w, b)
    compare(op, device, dtype, x, w)
    compare(op, device, dtype, x)
    if len(shape) == 2:
        compare(op, device, dtype, x.t().contiguous().t(), w, b)


def test_layer_norm_mixed(device: str) -> None:
    x = torch.randn(4, 8, 40).to(torch.bfloat16)
    w, b = torch.randn(40), torch.randn(40)
    got = F.layer_norm(x.to(device), (40,), w.to(device), b.to(device))
    torch.testing.assert_close(got.cpu(), F.layer_norm(x, (40,), w, b), rtol=2e-2, atol=2e-2)


def test_layer_norm_large_mean(device: str) -> None:
    x = torch.randn(6, 500) + 1000
    expected = F.layer_norm(x.double(), (500,))
    torch.testing.assert_close(F.layer_norm(x.to(device), (500,)).cpu().double(), expected, rtol=1e-3, atol=1e-3)


def test_statistics_of_long_rows(device: str) -> None:
    """A plain sum of so many positive numbers would be wrong in the fifth digit."""
    x = torch.rand(1, 2**22 + 5)
    exact = x.double()
    expected = exact.mean(), (exact.var(unbiased=False) + 1e-5).rsqrt()
    y = x.to(device)
    for _, *kept in (
        torch.native_layer_norm(y, y.shape[1:], None, None, 1e-5),
        torch.native_group_norm(y[..., None], None, None, 1, y.size(1), 1, 1, 1e-5),
    ):
        for got, statistic in zip(kept, expected, strict=True):
            torch.testing.assert_close(got.cpu().double().squeeze(), statistic, rtol=1e-6, atol=0)


def test_layer_norm_eps_is_dynamic(device: str) -> None:
    x = torch.randn(3, 10)
    for eps in (1e-5, 0.1, 10.0):
        got = F.layer_norm(x.to(device), (10,), eps=eps)
        torch.testing.assert_close(got.cpu(), F.layer_norm(x, (10,), eps=eps))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("shape", "normalized"), ROWS, ids=str)
def test_rms_norm(device: str, shape: tuple[int, ...], normalized: tuple[int, ...], dtype: torch.dtype) -> None:
    x, w = torch.randn(shape) * 2 + 1, torch.randn(normalized)

    def op(x: Any, w: Any = None) -> torch.Tensor:
        return F.rms_norm(x, normalized, w)

    compare(op, device, dtype, x, w)
    compare(op, device, dtype, x)
    if len(shape) == 2:
        compare(op, device, dtype, x.t().contiguous().t(), w)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("eps", [None, 1e-5, 10.0])
def test_rms_norm_of_small_numbers(device: str, dtype: torch.dtype, eps: float | None) -> None:
    """What is added to the square is of the dtype that is computed in, if nobody says what."""
    x = torch.randn(4, 30).to(dtype) * 2e-4
    got, rstd = torch._fused_rms_norm(x.to(device), (30,), None, eps)  # type: ignore[attr-defined]
    expected, deviation = torch._fused_rms_norm(x, (30,), None, eps)  # type: ignore[attr-defined]
    torch.testing.assert_close(got.cpu(), expected)
    torch.testing.assert_close(rstd.cpu(), deviation)


def test_rms_norm_of_long_rows(device: str) -> None:
    x = torch.rand(1, 2**22 + 5)
    _, rstd = torch._fused_rms_norm(x.to(device), x.shape[1:], None, 1e-5)  # type: ignore[attr-defined]
    torch.testing.assert_close(
        rstd.cpu().double(), (x.double().square().mean(1, True) + 1e-5).rsqrt(), rtol=1e-6, atol=0
    )


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
def test_rms_norm_as_torch_composes_it(device: str) -> None:
    """Of complex numbers, of channels-last images and with a weight of another dtype."""
    for x, w in (
        (torch.randn(5, 7, dtype=torch.complex64), torch.randn(7, dtype=torch.complex64)),
        (torch.randn(2, 3, 4, 7).to(memory_format=torch.channels_last), torch.randn(7)),
        (torch.randn(5, 7, dtype=torch.bfloat16), torch.randn(7)),
    ):
        tolerance, results = TOLERANCE.get(x.dtype, 1e-4), []
        for where in (device, "cpu"):
            inputs = x.detach().to(where).requires_grad_(), w.detach().to(where).requires_grad_()
            y = F.rms_norm(inputs[0], (7,), inputs[1])
            results.append([y, *torch.autograd.grad(y.abs().square().sum(), inputs)])
        for got, expected in zip(*results, strict=True):
            assert got.stride() == expected.stride()
            torch.testing.assert_close(got.cpu(), expected, rtol=tolerance, atol=tolerance)


def test_gradients_of_gradients_of_rms_norm(device: str) -> None:
    inputs = [torch.randn(shape, device=device, dtype=torch.float64, requires_grad=True) for shape in ((3, 6), (6,))]

    def op(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (6,), w)

    assert torch.autograd.gradcheck(op, inputs, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(op, inputs)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("shape", "groups"), [((2, 6, 5, 7), 3), ((3, 8), 2), ((2, 32, 40), 32), ((1, 4, 64, 64), 1)], ids=str
)
def test_group_norm(device: str, shape: tuple[int, ...], groups: int, dtype: torch.dtype) -> None:
    x, w, b = torch.randn(shape) * 2 + 1, torch.randn(shape[1]), torch.randn(shape[1])

    def op(x: Any, w: Any = None, b: Any = None) -> torch.Tensor:
        return F.group_norm(x, groups, w, b)

    compare(op, device, dtype, x, w, b)
    compare(op, device, dtype, x)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shape", [(10, 6), (4, 5, 30), (3, 20, 6, 7), (2, 3, 50, 60), (2, 4, 3, 4, 5)], ids=str)
def test_batch_norm(device: str, shape: tuple[int, ...], training: bool, dtype: torch.dtype) -> None:
    x = torch.randn(shape) * 2 + 1
    w, b = torch.rand(shape[1]) + 0.5, torch.randn(shape[1])
    running = torch.rand(shape[1]) + 0.5

    def op(x: Any, w: Any = None, b: Any = None) -> torch.Tensor:
        stats = [running.to(x.device, x.dtype if w is None else w.dtype) for _ in range(2)]
        return F.batch_norm(x, stats[0], stats[1], w, b, training)

    compare(op, device, dtype, x, w, b)
    compare(op, device, dtype, x)
    if dtype in (torch.float16, torch.bfloat16):
        compare(op, device, dtype, x, w, b, weights=torch.float32)
    if len(shape) == 4:
        compare(op, device, dtype, x.contiguous(memory_format=torch.channels_last), w, b)
        compare(op, device, dtype, torch.cat((x, x), 3)[..., ::2], w, b)


@pytest.mark.parametrize("channels_last", [False, True])
def test_batch_norm_module(device: str, channels_last: bool) -> None:
    """Running statistics, momentum of both kinds, and evaluation after training."""
    for momentum in (0.1, None):
        cpu = torch.nn.BatchNorm2d(7, momentum=momentum)
        ours = torch.nn.BatchNorm2d(7, momentum=momentum).to(device)
        for _ in range(3):
            x = torch.randn(4, 7, 9, 11) * 3 + 2
            if channels_last:
                x = x.contiguous(memory_format=torch.channels_last)
            y = ours(x.to(device))
            torch.testing.assert_close(y.cpu(), cpu(x), rtol=1e-4, atol=1e-4)
            assert y.is_contiguous(memory_format=torch.channels_last) == channels_last
        assert ours.running_mean is not None
        assert ours.running_var is not None
        torch.testing.assert_close(ours.running_mean.cpu(), cpu.running_mean, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(ours.running_var.cpu(), cpu.running_var, rtol=1e-4, atol=1e-4)
        cpu.eval()
        ours.eval()
        torch.testing.assert_close(ours(x.to(device)).cpu(), cpu(x), rtol=1e-4, atol=1e-4)


def test_batch_norm_with_update(device: str) -> None:
    """The overloads that exporters and compilers use, which write running statistics and return results."""
    x, w, b = torch.randn(4, 5, 6), torch.rand(5), torch.randn(5)
    for name in ("_native_batch_norm_legit", "_batch_norm_with_update"):
        op = getattr(torch.ops.aten, name)
        training = [True] if name == "_native_batch_norm_legit" else []
        cpu, ours = [torch.zeros(5), torch.ones(5)], [torch.zeros(5, device=device), torch.ones(5, device=device)]
        expected = op(x, w, b, *cpu, *training, 0.1, 1e-5)
        got = op(x.to(device), w.to(device), b.to(device), *ours, *training, 0.1, 1e-5)
        for g, e in zip((*got[:3], *ours), (*expected[:3], *cpu), strict=True):
            torch.testing.assert_close(g.cpu(), e, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("channels_last", [False, True])
def test_batch_norm_in_parts(device: str, channels_last: bool, dtype: torch.dtype) -> None:
    """The ops that SyncBatchNorm is made of, with processes' parts of a batch one after the other."""
    aten, eps, kept = torch.ops.aten, 1e-5, torch.promote_types(dtype, torch.float32)
    parts = (torch.randn(7, 5, 4, 3) * 2 + 1).to(dtype).split([4, 3])
    weight, bias, grad = torch.rand(5) + 0.5, torch.randn(5), torch.randn(7, 5, 4, 3).to(dtype)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    xs = [part.to(device).contiguous(memory_format=layout) for part in parts]
    w, b = weight.to(device, kept), bias.to(device, kept)
    running = [torch.zeros(5, dtype=kept, device=device), torch.ones(5, dtype=kept, device=device)]
    means, invstds = (torch.stack(each) for each in zip(*(aten.batch_norm_stats(x, eps) for x in xs), strict=True))
    counts = torch.tensor([x.numel() / 5 for x in xs], device=device)
    mean, invstd = aten.batch_norm_gather_stats_with_counts(xs[0], means, invstds, *running, 0.1, eps, counts)
    assert mean.dtype == kept
    got = torch.cat([aten.batch_norm_elemt(x, w, b, mean, invstd, eps) for x in xs])
    grads = grad.to(device).split([4, 3])
    each = [
        aten.batch_norm_backward_reduce(g, x, mean, invstd, w, True, True, True) for g, x in zip(grads, xs, strict=True)
    ]
    sums = [a + b for a, b in zip(*each, strict=True)]
    input_grad = torch.cat(
        [
            aten.batch_norm_backward_elemt(g, x, mean, invstd, w, sums[0], sums[1], counts.int())
            for g, x in zip(grads, xs, strict=True)
        ]
    )

    whole = torch.cat(parts).double().requires_grad_()
    parameters = [t.double().requires_grad_() for t in (weight, bias)]
    expected_running = [torch.zeros(5, dtype=torch.float64), torch.ones(5, dtype=torch.float64)]
    expected = F.batch_norm(whole, *expected_running, *parameters, training=True)
    expected.backward(grad.double())
    scale = TOLERANCE[dtype]
    found = [got, input_grad, *sums[2:], *running]
    wanted = [expected, whole.grad, *(p.grad for p in parameters), *expected_running]
    for a, e in zip(found, wanted, strict=True):
        assert e is not None
        torch.testing.assert_close(a.cpu().double(), e.detach(), rtol=scale, atol=scale * max(1, e.abs().max().item()))
    equal = aten.batch_norm_gather_stats(xs[0], means, invstds, None, None, 0.1, eps, 3)
    same = aten.batch_norm_gather_stats_with_counts(
        xs[0], means, invstds, None, None, 0.1, eps, torch.full((2,), 3.0, device=device)
    )
    torch.testing.assert_close(equal, same)


def test_instance_norm(device: str) -> None:
    x = torch.randn(3, 4, 5, 6)
    compare(lambda x: F.instance_norm(x), device, torch.float32, x)


def test_empty(device: str) -> None:
    assert F.layer_norm(torch.empty(0, 5, device=device), (5,)).shape == (0, 5)
    for shape, normalized in (((0, 5), (5,)), ((3, 0), (0,))):
        x = torch.empty(shape)
        for got, expected in zip(
            torch._fused_rms_norm(x.to(device), normalized, None, None),  # type: ignore[attr-defined]
            torch._fused_rms_norm(x, normalized, None, None),  # type: ignore[attr-defined]
            strict=True,
        ):
            torch.testing.assert_close(got.cpu(), expected, equal_nan=True)
    assert F.group_norm(torch.empty(0, 4, 3, device=device), 2).shape == (0, 4, 3)


def test_batch_norm_with_strided_parameters(device: str) -> None:
    x = torch.randn(5, 3, 4)
    weight, bias, mean, var = torch.rand(4, 3, 2).add(0.5)[..., 0]
    results = []
    for where in (device, "cpu"):
        strided = torch.empty(4, 3, 2, device=where)[..., 0].copy_(torch.stack([weight, bias, mean, var]))
        own = list(strided)
        grads = [t.detach().requires_grad_() for t in own[:2]]
        y = torch.nn.functional.batch_norm(x.to(where), own[2], own[3], *grads, training=True)
        y.square().sum().backward()
        results.append([y.detach(), own[2], own[3], *(g.grad for g in grads)])
    for mine, expected in zip(*results, strict=True):
        torch.testing.assert_close(mine.cpu(), expected, rtol=1e-4, atol=1e-4)
