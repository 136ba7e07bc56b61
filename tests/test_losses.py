"""Losses and their gradients, against torch's CPU in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

pytestmark = pytest.mark.no_fallback

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
REDUCTIONS = ["mean", "sum", "none"]
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-12, torch.float16: 1e-2, torch.bfloat16: 8e-2}

Loss = Callable[..., torch.Tensor]


def compare(
    device: str, loss: Loss, dtype: torch.dtype, *inputs: torch.Tensor, wrt: int = 1, tolerance: float = 0
) -> None:
    """Value and gradients by the first `wrt` inputs on the device, against the same from the same numbers in float64
    on the CPU."""
    tolerance = tolerance or TOLERANCE[dtype]
    inputs = tuple(x.to(dtype) if x.is_floating_point() else x for x in inputs)
    results: list[list[torch.Tensor]] = []
    for where, type_ in ((device, dtype), ("cpu", torch.float64)):
        copies = [x.detach().clone().to(where, type_) if x.is_floating_point() else x.to(where) for x in inputs]
        for x in copies[:wrt]:
            x.requires_grad_()
        out = loss(*copies)
        (out * torch.linspace(1, 2, out.numel()).view(out.shape).to(out)).sum().backward()
        grads = [x.grad for x in copies[:wrt] if x.grad is not None]
        assert len(grads) == wrt
        results.append([out.detach(), *grads])
    for got, expected in zip(*results, strict=True):
        assert got.device.type != "cpu" and got.dtype == dtype
        torch.testing.assert_close(got.cpu().double(), expected, rtol=tolerance, atol=tolerance, equal_nan=True)


ELEMENTWISE: dict[str, Loss] = {
    "mse": lambda x, t, **k: F.mse_loss(x, t, **k),
    "l1": lambda x, t, **k: F.l1_loss(x, t, **k),
    "smooth_l1": lambda x, t, **k: F.smooth_l1_loss(x, t, beta=0.7, **k),
    "huber": lambda x, t, **k: F.huber_loss(x, t, delta=0.7, **k),
    "binary_cross_entropy": lambda x, t, **k: F.binary_cross_entropy(x.sigmoid(), t.sigmoid(), **k),
    "with_logits": lambda x, t, **k: F.binary_cross_entropy_with_logits(x, t.sigmoid(), **k),
    "soft_margin": lambda x, t, **k: F.soft_margin_loss(x, t.sign(), **k),
    "poisson": lambda x, t, **k: F.poisson_nll_loss(x, t.abs(), **k),
}


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", ELEMENTWISE)
@pytest.mark.quick(dtype=torch.float32, reduction=["none", "mean"])
@pytest.mark.quick(dtype=torch.bfloat16, reduction="mean")
def test_elementwise(device: str, name: str, dtype: torch.dtype, reduction: str) -> None:
    x, t = torch.randn(13, 7), torch.randn(13, 7)
    loss = ELEMENTWISE[name]
    compare(device, lambda x, t: loss(x, t, reduction=reduction), dtype, x, t)
    compare(device, lambda x, t: loss(x.t(), t.t(), reduction=reduction), dtype, x, t)
    compare(device, lambda x, t: loss(x[:, ::2], t[:, ::2], reduction=reduction), dtype, x, t)


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_sizes(device: str, name: str) -> None:
    loss = ELEMENTWISE[name]
    compare(device, loss, torch.float32, torch.randn(300, 500), torch.randn(300, 500), tolerance=1e-4)
    compare(device, lambda x, t: loss(x, t, reduction="sum"), torch.float32, torch.randn(0, 5), torch.randn(0, 5))
    compare(device, loss, torch.float32, torch.randn(()), torch.randn(()))


def test_elementwise_gradient_of_target(device: str) -> None:
    for name in ("mse", "l1", "smooth_l1"):
        compare(device, ELEMENTWISE[name], torch.float32, torch.randn(9, 4), torch.randn(9, 4), wrt=2)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_weights_of_binary_cross_entropy(device: str, reduction: str) -> None:
    x, t, w, v = torch.randn(6, 5), torch.rand(6, 5), torch.rand(5), torch.rand(5)
    compare(
        device, lambda x, t, w: F.binary_cross_entropy(x.sigmoid(), t, w, reduction=reduction), torch.float32, x, t, w
    )
    compare(
        device,
        lambda x, t, w, v: F.binary_cross_entropy_with_logits(x, t, w, pos_weight=v, reduction=reduction),
        torch.float32,
        x,
        t,
        w,
        v,
    )


def test_binary_cross_entropy_of_sure_predictions(device: str) -> None:
    x, t = torch.tensor([0.0, 1.0, 0.0, 1.0]), torch.tensor([1.0, 0.0, 0.0, 1.0])
    assert torch.equal(
        F.binary_cross_entropy(x.to(device), t.to(device), reduction="none").cpu(),
        F.binary_cross_entropy(x, t, reduction="none"),
    )
    far = torch.tensor([200.0, -200.0, 0.0])
    got = F.binary_cross_entropy_with_logits(far.to(device), torch.zeros(3, device=device), reduction="none")
    torch.testing.assert_close(got.cpu(), F.binary_cross_entropy_with_logits(far, torch.zeros(3), reduction="none"))


@pytest.mark.parametrize("reduction", ["batchmean", *REDUCTIONS])
def test_kl_div(device: str, reduction: str) -> None:
    x, t = torch.randn(6, 5), torch.randn(6, 5)
    for log_target in (False, True):
        compare(
            device,
            lambda x, t, g=log_target: F.kl_div(
                x.log_softmax(1), t.log_softmax(1) if g else t.softmax(1), reduction=reduction, log_target=g
            ),
            torch.float32,
            x,
            t,
        )


# ---- one class of several ----


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_cross_entropy(device: str, dtype: torch.dtype, reduction: str) -> None:
    x, t, w = torch.randn(50, 7), torch.randint(0, 7, (50,)), torch.rand(7)
    t[5] = -100
    compare(device, lambda x, t: F.cross_entropy(x, t, reduction=reduction), dtype, x, t)
    compare(device, lambda x, t, w: F.cross_entropy(x, t, w, reduction=reduction), dtype, x, t, w)
    t[5] = 1
    compare(device, lambda x, t, w: F.cross_entropy(x, t, w, ignore_index=1, reduction=reduction), dtype, x, t, w)
    compare(device, lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1, reduction=reduction), dtype, x, t)
    compare(device, lambda x, t: F.cross_entropy(x, t.softmax(1), reduction=reduction), dtype, x, torch.randn(50, 7))


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_cross_entropy_of_images(device: str, reduction: str) -> None:
    x, t, w = torch.randn(3, 5, 4, 6), torch.randint(0, 5, (3, 4, 6)), torch.rand(5)
    compare(device, lambda x, t: F.cross_entropy(x, t, reduction=reduction), torch.float32, x, t)
    compare(
        device, lambda x, t, w: F.cross_entropy(x, t, w, ignore_index=2, reduction=reduction), torch.float32, x, t, w
    )
    compare(
        device,
        lambda x, t: F.cross_entropy(x.to(memory_format=torch.channels_last), t, reduction=reduction),
        torch.float32,
        x,
        t,
    )
    compare(device, lambda x, t: F.nll_loss(x[:, :, ::2], t[:, ::2], reduction=reduction), torch.float32, x, t)
    compare(
        device,
        lambda x, t: F.cross_entropy(x, t, reduction=reduction),
        torch.float32,
        torch.randn(2, 3, 2, 3, 4),
        torch.randint(0, 3, (2, 2, 3, 4)),
    )


def test_nll_sizes(device: str) -> None:
    compare(device, F.nll_loss, torch.float32, torch.randn(5), torch.tensor(3))
    compare(
        device, F.cross_entropy, torch.float32, torch.randn(5000, 65), torch.randint(0, 65, (5000,)), tolerance=1e-4
    )
    compare(device, lambda x, t: F.nll_loss(x.t(), t), torch.float32, torch.randn(6, 40), torch.randint(0, 6, (40,)))
    compare(
        device,
        lambda x, t: F.nll_loss(x, t, reduction="sum"),
        torch.float32,
        torch.randn(0, 5),
        torch.zeros(0, dtype=torch.long),
    )
    empty = F.nll_loss(torch.randn(0, 5, device=device), torch.zeros(0, dtype=torch.long, device=device))
    assert bool(empty.isnan())
    ignored = F.nll_loss(torch.randn(2, 5, device=device), torch.full((2,), -100, device=device))
    assert bool(ignored.isnan())


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_nll_of_bytes(device: str, reduction: str) -> None:
    t = torch.randint(0, 5, (40,), dtype=torch.uint8)
    compare(device, lambda x, t: F.nll_loss(x, t, reduction=reduction), torch.float32, torch.randn(40, 5), t)


def test_nll_total_weight(device: str) -> None:
    x, t, w = torch.randn(2000, 5), torch.randint(0, 5, (2000,)), torch.rand(5)
    for reduction in (1, 2):
        got = torch.ops.aten.nll_loss_forward(x.to(device), t.to(device), w.to(device), reduction, -100)
        expected = torch.ops.aten.nll_loss_forward(x, t, w, reduction, -100)
        for g, e in zip(got, expected, strict=True):
            torch.testing.assert_close(g.cpu(), e, rtol=1e-4, atol=1e-4)


def test_nll_backward_refuses_mixed_dtypes(device: str) -> None:
    x, t, one, ones = torch.randn(6, 5), torch.randint(0, 5, (6,)), torch.tensor(1.0), torch.ones(5)
    for where in ("cpu", device):
        for k in range(4):
            grad, given, weight, total = (
                each.to(where, torch.half if k == n else torch.float) for n, each in enumerate((one, x, ones, one))
            )
            with pytest.raises(RuntimeError, match=r"scalar type (Float but found Half|Half but found Float)"):
                torch.ops.aten.nll_loss_backward(grad, given, t.to(where), weight, 1, -100, total)


def test_nll_out(device: str) -> None:
    x, t = torch.randn(6, 5), torch.randint(0, 5, (6,))
    out = torch.empty(6, device=device)
    torch._C._nn.nll_loss(x.to(device), t.to(device), None, 0, -100, out=out)
    assert torch.equal(out.cpu(), F.nll_loss(x, t, reduction="none"))


@pytest.mark.parametrize("bad", [7, -1, 10**12])
def test_target_out_of_range(device: str, bad: int) -> None:
    module: Any = getattr(torch, torch.device(device).type)
    for shape, classes in (((9,), (9, 7)), ((2, 3, 4), (2, 7, 3, 4)), ((3000,), (3000, 7))):
        t = torch.zeros(shape, dtype=torch.long)
        t.view(-1)[1] = bad
        x, on_device = torch.randn(classes, device=device, requires_grad=True), t.to(device)
        for reduction in REDUCTIONS:
            with pytest.raises(IndexError, match=f"Target {bad} is out of bounds"):
                F.nll_loss(x, on_device, reduction=reduction)
                module.synchronize()
        module.synchronize()
    assert float(torch.ones(10, device=device).sum()) == 10


def test_other_losses(device: str) -> None:
    x, y = torch.randn(8, 6), torch.randn(8, 6)
    sign = torch.randint(0, 2, (8,)) * 2 - 1
    compare(device, lambda x, y, s: F.cosine_embedding_loss(x, y, s), torch.float32, x, y, sign, wrt=2, tolerance=1e-4)
    compare(device, lambda x, y: F.hinge_embedding_loss(x, y.sign()), torch.float32, x, y)
    compare(device, lambda x, y, s: F.margin_ranking_loss(x[:, 0], y[:, 0], s), torch.float32, x, y, sign, wrt=2)
    compare(
        device,
        lambda x, y, z: F.triplet_margin_loss(x, y, z),
        torch.float32,
        x,
        y,
        torch.randn(8, 6),
        wrt=3,
        tolerance=1e-4,
    )
    compare(device, lambda x, y: F.gaussian_nll_loss(x, y, y.abs() + 1), torch.float32, x, y)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_margin_losses(device: str, reduction: str) -> None:
    x, t, w = torch.randn(8, 6), torch.randint(0, 6, (8,)), torch.rand(6)
    compare(device, lambda x, t: F.multi_margin_loss(x, t, reduction=reduction), torch.float32, x, t)
    compare(
        device,
        lambda x, t, w: F.multi_margin_loss(x, t, p=2, margin=0.5, weight=w, reduction=reduction),
        torch.float32,
        x,
        t,
        w,
    )
    many = torch.full((8, 6), -1)
    many[:, :2] = torch.stack([torch.randperm(6)[:2] for _ in range(8)])
    compare(device, lambda x, t: F.multilabel_margin_loss(x, t, reduction=reduction), torch.float32, x, many)
    compare(
        device,
        lambda x, y: F.multilabel_soft_margin_loss(x, y, reduction=reduction),
        torch.float32,
        x,
        torch.randint(0, 2, (8, 6)),
    )
