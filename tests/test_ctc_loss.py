"""CTC and its gradient against torch's CPU: targets padded and in one line, of any length, with and without a path."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F

from torchgraft import plans

pytestmark = pytest.mark.no_fallback

TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-11}
DTYPES = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)


def _compare(
    device: str,
    scores: torch.Tensor,
    targets: torch.Tensor,
    inputs: list[int],
    labels: list[int],
    on_device: bool = False,
    **options: object,
) -> None:
    mine, theirs = scores.to(device).requires_grad_(), scores.double().requires_grad_()
    moved = [torch.tensor(x, device=device) for x in (inputs, labels)] if on_device else [tuple(inputs), tuple(labels)]
    losses = [
        F.ctc_loss(mine.log_softmax(-1), targets.to(device), *moved, **options),  # type: ignore[arg-type]
        F.ctc_loss(theirs.log_softmax(-1), targets, tuple(inputs), tuple(labels), **options),  # type: ignore[arg-type]
    ]
    tolerance = TOLERANCE[scores.dtype]
    torch.testing.assert_close(losses[0].detach().cpu().double(), losses[1].detach(), rtol=tolerance, atol=tolerance)
    grad = torch.randn(losses[1].shape, dtype=scores.dtype)
    (a,) = torch.autograd.grad(losses[0], mine, grad.to(device))
    (b,) = torch.autograd.grad(losses[1], theirs, grad.double())
    torch.testing.assert_close(a.cpu().double(), b, rtol=tolerance, atol=4 * tolerance, equal_nan=True)


def _targets(labels: list[int], classes: int, blank: int, padded: bool) -> torch.Tensor:
    """With repeated labels, which need a blank between them."""
    others = [c for c in range(classes) if c != blank]
    rows = [[random.choice(others[:3]) for _ in range(n)] for n in labels]
    if not padded:
        return torch.tensor([c for row in rows for c in row], dtype=torch.int64)
    width = max(labels) + random.randint(0, 2)
    return torch.tensor([row + [others[0]] * (width - len(row)) for row in rows], dtype=torch.int64)


@DTYPES
@pytest.mark.parametrize("padded", [False, True], ids=["in one line", "padded"])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_random(device: str, reduction: str, padded: bool, dtype: torch.dtype) -> None:
    for _ in range(3):
        times, samples, classes = random.randint(14, 20), random.randint(1, 5), random.randint(4, 9)
        labels = [random.randint(0, 6) for _ in range(samples)]
        inputs = [random.randint(13, times) for _ in range(samples)]
        blank = random.randrange(classes)
        targets = _targets(labels, classes, blank, padded)
        scores = torch.randn(times, samples, classes, dtype=dtype)
        options = {"blank": blank, "reduction": reduction}
        _compare(device, scores, targets, inputs, labels, **options)
        _compare(device, scores, targets.int(), inputs, labels, on_device=True, **options)


@pytest.mark.parametrize("zero_infinity", [False, True])
def test_no_path(device: str, zero_infinity: bool) -> None:
    """More labels than times: the loss is infinite, or counts as nothing."""
    targets = torch.tensor([[1, 1, 1], [1, 2, 3]])
    scores = torch.randn(6, 2, 4)
    _compare(device, scores, targets, [4, 6], [3, 3], reduction="none", zero_infinity=zero_infinity)
    _compare(device, scores, targets, [0, 6], [3, 0], reduction="none", zero_infinity=zero_infinity)


def test_many_states(device: str) -> None:
    """More states than work-items of a group."""
    targets = torch.randint(1, 5, (2, 150))
    _compare(device, torch.randn(320, 2, 5, dtype=torch.float64), targets, [320, 310], [150, 140])


def test_layouts(device: str) -> None:
    """Batches first, and without a batch."""
    scores = torch.randn(3, 12, 5).transpose(0, 1)
    targets = torch.randint(1, 5, (4, 3)).t()
    _compare(device, scores, targets, [12, 12, 11], [4, 3, 2])
    _compare(device, torch.randn(12, 5), torch.randint(1, 5, (4,)), [12], [4])


def test_new_lengths_make_no_new_plan(device: str) -> None:
    scores = torch.randn(9, 2, 4, device=device).log_softmax(-1)
    targets = torch.randint(1, 4, (2, 3), device=device)

    def loss(times: int) -> torch.Tensor:
        lengths = torch.tensor([9, times]), torch.tensor([3, 3])
        return F.ctc_loss(scores, targets, *lengths, reduction="none").cpu()

    loss(8)
    before = plans.show("torchgraft::ctc_alpha").count(" hits")
    assert not torch.equal(loss(7), loss(6))
    assert plans.show("torchgraft::ctc_alpha").count(" hits") == before


def test_errors(device: str) -> None:
    scores = torch.randn(6, 2, 4, device=device).log_softmax(-1)
    targets = torch.ones(2, 3, dtype=torch.int64, device=device)
    ctc = torch.ops.aten._ctc_loss
    for message, arguments in [
        ("at most 6", (scores, targets, [6, 7], [3, 2])),
        ("input_lengths must be of size", (scores, targets, [6], [3, 2])),
        ("target_lengths must be of size", (scores, targets, [6, 6], [3])),
        ("at least 0", (scores, targets, [6, 6], [3, -2])),
        ("size at least 4", (scores, targets, [6, 6], [3, 4])),
        ("size 5 at dimension 0", (scores, targets.view(-1), [6, 6], [3, 2])),
        ("label range", (scores, targets, [6, 6], [3, 2], 4)),
        ("scalar type", (scores, targets.float(), [6, 6], [3, 2])),
        ("3-dimensional", (scores[0], targets, [6, 6], [3, 2])),
        ("not be empty", (scores[:, :0], targets[:0], [], [])),
    ]:
        with pytest.raises(RuntimeError, match=message):
            ctc(*arguments)
    with pytest.raises(NotImplementedError):
        ctc(scores.half(), targets, [6, 6], [3, 2])
    with pytest.raises(RuntimeError, match="no class"):
        ctc(scores, targets + 8, [6, 6], [3, 2])[0].cpu()
