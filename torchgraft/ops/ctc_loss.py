"""Connectionist temporal classification.

The shape of the intermediate result depends on the targets' lengths, which change from batch to batch. So the ops of
torch are composites that look at the lengths, and the work is done by two ops of our own, for which lengths are data.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from torchgraft.codegen import element_type
from torchgraft.kernels import ctc_loss as kernels
from torchgraft.plans import PlanBuilder, Unsupported, composite, planner
from torchgraft.plans.grid import Grid
from torchgraft.plans.refusals import check_floating

torch.library.define(
    "torchgraft::ctc_alpha",
    "(Tensor log_probs, Tensor targets, Tensor lengths, int longest, int blank) -> (Tensor loss, Tensor alpha)",
)
torch.library.define(
    "torchgraft::ctc_gradient",
    "(Tensor grad, Tensor log_probs, Tensor targets, Tensor lengths, Tensor loss, Tensor alpha, int blank, "
    "bool zero_infinity) -> Tensor",
)

Lengths = Sequence[int] | torch.Tensor


# ---- what is planned ----


def _types(log_probs: torch.Tensor, targets: torch.Tensor) -> tuple[str, str]:
    if log_probs.dtype not in (torch.float32, torch.float64):
        raise Unsupported(f"ctc_loss of {log_probs.dtype}")
    return element_type(log_probs.dtype).name, element_type(targets.dtype).name


def _given(
    log_probs: torch.Tensor, targets: torch.Tensor, lengths: torch.Tensor, alpha: torch.Tensor, blank: int
) -> dict[str, Any]:
    """What all kernels take."""
    sizes = dict(zip(("times", "samples", "classes"), log_probs.shape, strict=True))
    return {"x": log_probs, "targets": targets, "lengths": lengths, **sizes, "states": alpha.size(2), "blank": blank}


def _teams(p: PlanBuilder, log_probs: torch.Tensor, alpha: torch.Tensor) -> Grid:
    """A team for a sample."""
    return p.long_rows(log_probs.size(1), alpha.size(2), cost=log_probs.size(0))


def _alpha_meta(
    log_probs: torch.Tensor, targets: torch.Tensor, lengths: torch.Tensor, longest: int, blank: int
) -> tuple[torch.Tensor, torch.Tensor]:
    times, samples, _ = log_probs.shape
    return log_probs.new_empty((samples,)), log_probs.new_empty((samples, times, 2 * longest + 1))


@planner("torchgraft::ctc_alpha", contiguous=True, meta=_alpha_meta)
def _alpha(
    p: PlanBuilder,
    out: tuple[torch.Tensor, torch.Tensor],
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    lengths: torch.Tensor,
    longest: int,
    blank: int,
) -> None:
    loss, alpha = out
    p.fill(alpha, float("-inf"))
    report = p.error("a target of ctc_loss is {}, which is no class", RuntimeError)
    kernel = kernels.alpha_kernel(*_types(log_probs, targets), p.form)
    given = _given(log_probs, targets, lengths, alpha, blank)
    errors = {"errors": report.words, "code": report.code}
    p.launch(kernel, _teams(p, log_probs, alpha), loss=loss, alpha=alpha, **errors, **given)


def _gradient_meta(log_probs: torch.Tensor, **_: object) -> torch.Tensor:
    return torch.empty(log_probs.shape, dtype=log_probs.dtype, device="meta")


@planner("torchgraft::ctc_gradient", contiguous=True, meta=_gradient_meta)
def _gradient(
    p: PlanBuilder,
    out: torch.Tensor,
    grad: torch.Tensor,
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    lengths: torch.Tensor,
    loss: torch.Tensor,
    alpha: torch.Tensor,
    blank: int,
    zero_infinity: bool,
) -> None:
    types, given = _types(log_probs, targets), _given(log_probs, targets, lengths, alpha, blank)
    beta = p.empty_like(alpha)
    p.launch(kernels.beta_kernel(*types, p.form), _teams(p, log_probs, alpha), beta=beta, **given)
    tensors = {"out": out, "grad": grad, "loss": loss, "alpha": alpha, "beta": beta}
    grid = p.walk(log_probs.size(0) * log_probs.size(1), alpha.size(2) + log_probs.size(2), multiple=1)
    p.launch(kernels.gradient_kernel(*types, p.form), grid, **tensors, zero_infinity=int(zero_infinity), **given)


# ---- torch's ops ----


def _list(name: str, lengths: Lengths, samples: int) -> list[int]:
    if isinstance(lengths, torch.Tensor):
        if lengths.is_floating_point() or lengths.is_complex():
            raise RuntimeError(f"{name} must be integral")
        lengths = lengths.tolist()
    if len(lengths) != samples:
        raise RuntimeError(f"{name} must be of size batch_size")
    return list(lengths)


def _check(log_probs: torch.Tensor, targets: torch.Tensor, inputs: list[int], labels: list[int], blank: int) -> None:
    """In the words of torch's CPU."""
    check_floating(log_probs)
    times, samples, classes = log_probs.shape
    if targets.dtype not in (torch.int64, torch.int32):
        raise RuntimeError(
            f"Expected tensor for argument #2 'targets' to have scalar type Int; but got {targets.dtype}"
        )
    if targets.dim() not in (1, 2):
        raise RuntimeError(f"Expected 1 or 2 dimensions, but got {targets.dim()} for argument #2 'targets'")
    if not 0 <= blank < classes:
        raise RuntimeError("blank must be in label range")
    for label in labels:
        if label < 0:
            raise RuntimeError(f"Expected target_lengths to have value at least 0, but got value {label}")
    for length in inputs:
        if length < 0:
            raise RuntimeError(f"Expected input_lengths to have value at least 0, but got value {length}")
        if length > times:
            raise RuntimeError(f"Expected input_lengths to have value at most {times}, but got value {length}")
    expected, got = (sum(labels) if targets.dim() == 1 else samples), targets.size(0)
    if got != expected:
        raise RuntimeError(
            f"Expected tensor to have size {expected} at dimension 0, but got size {got} for argument #2 'targets'"
        )
    if targets.dim() == 2 and targets.size(1) < max(labels):
        raise RuntimeError(
            f"Expected tensor to have size at least {max(labels)} at dimension 1, but got size {targets.size(1)} "
            "for argument #2 'targets'"
        )


def _lengths(
    log_probs: torch.Tensor, targets: torch.Tensor, input_lengths: Lengths, target_lengths: Lengths, blank: int
) -> tuple[torch.Tensor, int]:
    """The lengths as the kernels take them, and the largest number of labels."""
    if log_probs.numel() == 0:
        raise RuntimeError("log_probs tensor must not be empty")
    if log_probs.dim() != 3:
        raise RuntimeError(
            f"Expected 3-dimensional tensor, but got {log_probs.dim()}-dimensional tensor for argument #1 'log_probs'"
        )
    samples = log_probs.size(1)
    inputs = _list("input_lengths", input_lengths, samples)
    labels = _list("target_lengths", target_lengths, samples)
    _check(log_probs, targets, inputs, labels, blank)
    if targets.dim() == 1:
        starts = list(itertools.accumulate(labels, initial=0))[:-1]
    else:
        starts = [b * targets.size(1) for b in range(samples)]
    rows = list(zip(inputs, labels, starts, [1] * samples, strict=True))
    return torch.tensor(rows, dtype=torch.int64, device="cpu").to(log_probs.device), max(labels)


@composite("_ctc_loss", "_ctc_loss.Tensor")
def _ctc_loss(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Lengths,
    target_lengths: Lengths,
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    lengths, longest = _lengths(log_probs, targets, input_lengths, target_lengths, blank)
    made: tuple[torch.Tensor, torch.Tensor] = torch.ops.torchgraft.ctc_alpha(
        log_probs, targets, lengths, longest, blank
    )
    return made


@composite("_ctc_loss_backward", "_ctc_loss_backward.Tensor")
def _ctc_loss_backward(
    grad: torch.Tensor,
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Lengths,
    target_lengths: Lengths,
    neg_log_likelihood: torch.Tensor,
    log_alpha: torch.Tensor,
    blank: int,
    zero_infinity: bool = False,
) -> torch.Tensor:
    lengths, _ = _lengths(log_probs, targets, input_lengths, target_lengths, blank)
    made: torch.Tensor = torch.ops.torchgraft.ctc_gradient(
        grad, log_probs, targets, lengths, neg_log_likelihood, log_alpha, blank, zero_infinity
    )
    return made
