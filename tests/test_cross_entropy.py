"""Cross entropy with gradients, whose backward is one kernel where targets are classes; else it is as torch has it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

pytestmark = pytest.mark.no_fallback

Call = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def both(
    device: str, call: Call, logits: torch.Tensor, target: torch.Tensor
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Loss and gradient on the device, and on the CPU in float64."""
    outcomes = []
    for x, t in ((logits.to(device), target.to(device)), (logits.double(), target)):
        x = x.detach().requires_grad_()
        loss = call(x, t)
        parts = torch.linspace(0.5, 1, loss.numel()).view_as(loss).to(loss)
        (gradient,) = torch.autograd.grad((loss * parts).sum(), x)
        outcomes.append((loss.detach().cpu().double(), gradient.cpu().double()))
    return list(zip(*outcomes, strict=True))


def check(device: str, call: Call, logits: torch.Tensor, target: torch.Tensor, tolerance: float = 1e-5) -> None:
    for got, wanted in both(device, call, logits, target):
        torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (7, 1000), (500, 10), (2, 70_001)], ids=str)
def test_gradient(device: str, form: str, reduction: str, shape: tuple[int, int]) -> None:
    logits, target = torch.randn(shape) * 4, torch.randint(shape[1], shape[:1])
    target[0] = 0
    check(device, lambda x, t: F.cross_entropy(x, t, reduction=reduction), logits, target)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_ignored_targets(device: str, form: str, reduction: str) -> None:
    logits, target = torch.randn(20, 9), torch.randint(9, (20,))
    target[::3] = 4
    check(device, lambda x, t: F.cross_entropy(x, t, reduction=reduction, ignore_index=4), logits, target)
    target[::3] = -100
    check(device, lambda x, t: F.cross_entropy(x, t, reduction=reduction), logits, target)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.1, 1.0])
def test_smoothed_labels(device: str, form: str, reduction: str, smoothing: float) -> None:
    options: dict[str, Any] = {"reduction": reduction, "label_smoothing": smoothing}
    for rows, classes in ((1, 1), (20, 9), (7, 1000)):
        logits, target = torch.randn(rows, classes) * 4, torch.randint(classes, (rows,))
        check(device, lambda x, t: F.cross_entropy(x, t, **options), logits, target)
        target[1::3] = -100
        check(device, lambda x, t: F.cross_entropy(x, t, **options), logits, target)
    with pytest.raises(RuntimeError, match="label_smoothing"):
        F.cross_entropy(logits.to(device).requires_grad_(), target.to(device), label_smoothing=1.5)


def test_all_targets_ignored(device: str) -> None:
    logits = torch.randn(4, 6, device=device, requires_grad=True)
    for smoothing in (0.0, 0.1):
        loss = F.cross_entropy(logits, torch.full((4,), -100, device=device), label_smoothing=smoothing)
        loss.backward()
        assert loss.isnan().item()  # as torch's CPU has it: nothing by nothing
        assert logits.grad is not None
        assert logits.grad.count_nonzero().item() == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_dtypes(device: str, dtype: torch.dtype) -> None:
    logits, target = torch.randn(30, 40).to(dtype), torch.randint(40, (30,))
    x = logits.to(device).requires_grad_()
    loss = F.cross_entropy(x, target.to(device))
    loss.backward()
    assert loss.dtype == x.grad.dtype == dtype  # type: ignore[union-attr]
    check(device, F.cross_entropy, logits, target, {torch.float16: 2e-3, torch.bfloat16: 2e-2}.get(dtype, 1e-10))


@pytest.mark.parametrize(
    "move",
    [lambda x: x.T.contiguous().T, lambda x: torch.cat([x, x], 1)[:, : x.size(1)], lambda x: x[:1].expand(6, -1)],
)
def test_logits_anyhow_in_memory(device: str, move: Callable[[torch.Tensor], torch.Tensor]) -> None:
    logits, target = torch.randn(6, 11), torch.randint(11, (6,))
    check(device, lambda x, t: F.cross_entropy(move(x), t), logits, target)
    check(device, lambda x, t: F.cross_entropy(x, t.repeat_interleave(2)[::2]), logits, target)


def test_what_torch_composes(device: str) -> None:
    """Weights, probabilities, images."""
    logits, target, weight = torch.randn(5, 7), torch.randint(7, (5,)), torch.rand(7)
    check(device, lambda x, t: F.cross_entropy(x, t, weight.to(x)), logits, target)
    check(device, lambda x, t: F.cross_entropy(x, t.to(x)), logits, torch.rand(5, 7).softmax(1))
    check(device, lambda x, t: F.cross_entropy(x[0], t[0]), logits, target)
    check(device, F.cross_entropy, torch.randn(2, 7, 3, 4), torch.randint(7, (2, 3, 4)))


def test_gradients_of_gradients(device: str) -> None:
    logits = torch.randn(4, 5, dtype=torch.float64, device=device, requires_grad=True)
    target = torch.tensor([1, 0, -100, 4], device=device)
    for reduction, smoothing in itertools.product(("mean", "sum", "none"), (0.0, 0.2)):
        options: dict[str, Any] = {"reduction": reduction, "label_smoothing": smoothing}
        assert torch.autograd.gradcheck(lambda x, o=options: F.cross_entropy(x, target, **o), logits)
        assert torch.autograd.gradgradcheck(lambda x, o=options: F.cross_entropy(x, target, **o), logits)


def test_logits_may_be_written_to_before_the_gradient_is_asked_for(device: str) -> None:
    weight, target = torch.randn(6, 8), torch.randint(8, (3,))
    x = torch.randn(3, 6)
    gradients = []
    for where in (device, "cpu"):
        w = weight.to(where).requires_grad_()
        logits = x.to(where) @ w
        loss = F.cross_entropy(logits, target.to(where))
        with torch.no_grad():
            logits.fill_(float("nan"))
        loss.backward()
        gradients.append(w.grad)
    got, wanted = gradients
    assert got is not None
    torch.testing.assert_close(got.cpu(), wanted)


def test_the_graph_may_be_kept(device: str) -> None:
    logits = torch.randn(3, 4, device=device, requires_grad=True)
    loss = F.cross_entropy(logits, torch.tensor([0, 1, 2], device=device))
    (first,) = torch.autograd.grad(loss, logits, retain_graph=True)
    (second,) = torch.autograd.grad(loss, logits)
    assert torch.equal(first.cpu(), second.cpu())
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(loss, logits)


def test_autocast(device: str) -> None:
    logits, target = torch.randn(9, 12), torch.randint(12, (9,))
    x = logits.to(device, torch.bfloat16).requires_grad_()
    with torch.autocast(torch.device(device).type, torch.bfloat16):
        loss = F.cross_entropy(x, target.to(device))
    loss.backward()
    wanted = logits.bfloat16().float().requires_grad_()
    F.cross_entropy(wanted, target).backward()
    assert loss.dtype == torch.float32
    assert x.grad is not None
    assert wanted.grad is not None
    assert x.grad.dtype == torch.bfloat16
    torch.testing.assert_close(x.grad.cpu().float(), wanted.grad, rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("wrong", [-1, 6, 1 << 40])
def test_a_target_out_of_bounds(device: str, wrong: int) -> None:
    logits = torch.randn(2, 6, device=device, requires_grad=True)
    with pytest.raises(IndexError, match=f"Target {wrong} is out of bounds"):
        F.cross_entropy(logits, torch.tensor([0, wrong], device=device)).item()
    F.cross_entropy(logits, torch.tensor([0, 1], device=device)).backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all().item()


@pytest.mark.parametrize(("logits", "target"), [((3, 4), (2,)), ((4,), (4,)), ((2, 3, 4), (2, 3))], ids=str)
def test_shapes_that_do_not_fit(device: str, logits: tuple[int, ...], target: tuple[int, ...]) -> None:
    messages = []
    for where in (device, "cpu"):
        with pytest.raises((ValueError, RuntimeError)) as caught:
            F.cross_entropy(
                torch.randn(logits, device=where, requires_grad=True), torch.zeros(target, device=where).long()
            )
        messages.append((type(caught.value), str(caught.value)))
    assert messages[0] == messages[1]


def test_transforms(device: str) -> None:
    logits, target = torch.randn(4, 3, 5), torch.randint(5, (4, 3))

    def outcome(where: str) -> list[torch.Tensor]:
        x, t = logits.to(where), target.to(where)
        gradient = torch.func.grad(lambda z: F.cross_entropy(z, t[0]))(x[0])
        each = torch.func.vmap(torch.func.grad(F.cross_entropy))(x, t)
        _, tangent = torch.func.jvp(lambda z: F.cross_entropy(z, t[0]), (x[0],), (torch.ones_like(x[0]) * x[1],))
        second = torch.func.hessian(lambda z: F.cross_entropy(z, t[0]))(x[0])
        leaf = x[0].clone().requires_grad_()
        losses = F.cross_entropy(leaf, t[0], reduction="none")
        (rows,) = torch.autograd.grad(losses, leaf, torch.eye(3, device=where), is_grads_batched=True)
        return [gradient, each, tangent, second, rows]

    for got, wanted in zip(outcome(device), outcome("cpu"), strict=True):
        torch.testing.assert_close(got.cpu(), wanted, rtol=1e-4, atol=1e-5)


def test_modes(device: str) -> None:
    logits, target = torch.randn(3, 5), torch.randint(5, (3,))
    wanted = F.cross_entropy(logits, target)
    x, t = logits.to(device), target.to(device)
    with torch.inference_mode():
        torch.testing.assert_close(F.cross_entropy(x, t).cpu(), wanted)
    with torch.no_grad():
        assert not F.cross_entropy(x.clone().requires_grad_(), t).requires_grad
    compiled: Any = torch.compile(lambda z: F.cross_entropy(z, t).sin(), backend="aot_eager")
    leaf = x.clone().requires_grad_()
    compiled(leaf).backward()
    again = x.clone().requires_grad_()
    F.cross_entropy(again, t).sin().backward()
    assert leaf.grad is not None
    assert again.grad is not None
    torch.testing.assert_close(leaf.grad.cpu(), again.grad.cpu())


def test_one_kernel_goes_back(device: str) -> None:
    """Three launches there and back, and none of them a tensor of zeros."""
    logits = torch.randn(8, 16, device=device, requires_grad=True)
    target = torch.randint(16, (8,)).to(device)
    F.cross_entropy(logits, target).backward()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        F.cross_entropy(logits, target).backward()
    names = [event.name for event in profile.events()]
    assert "torchgraft::cross_entropy_backward" in names
    assert "aten::nll_loss_backward" not in names
