"""flex_attention within torch.compile, against the same in float64 by plain ops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch._dynamo
import torch._inductor.config
from torch import nn
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, create_block_mask, flex_attention
from torch.testing import assert_close

from torchgraft import plans
from torchgraft.inductor import replay
from torchgraft.plans.device import kernel_form

pytestmark = pytest.mark.usefixtures("compiled_afresh")


Function = Callable[..., torch.Tensor]


@dataclass
class Case:
    """A call of `flex_attention`.

    Attributes:
        score: makes the function of scores of the tensors that it captures.
        mask: makes that of masks.
        captured: the sizes of what the function of scores captures.
        indices: how many numbers each of those are that the function of masks captures.
        heads, lengths, width, batches: of queries and of keys; the width of values for the second.
    """

    score: Callable[..., Function] | None = None
    mask: Callable[..., Function] | None = None
    captured: tuple[tuple[int, ...], ...] = ()
    indices: tuple[int, ...] = ()
    heads: tuple[int, int] = (4, 4)
    lengths: tuple[int, int] = (70, 70)
    width: tuple[int, int] = (16, 16)
    batches: tuple[int, int] = (2, 2)
    dtype: torch.dtype = torch.float32


def causal(b: Any, h: Any, m: Any, n: Any) -> Any:
    return m >= n


CASES = {
    "plain": Case(),
    "bias": Case(score=lambda bias: lambda s, b, h, m, n: s + bias[h, m, n], captured=((4, 70, 70),)),
    "slopes": Case(score=lambda slopes: lambda s, b, h, m, n: s * 0.5 + slopes[h] * (n - m), captured=((4,),)),
    "two captured": Case(
        score=lambda bias, scale: lambda s, b, h, m, n: s * scale[b, h] + bias[m, n] * scale[b, h].sin(),
        captured=((70, 70), (2, 4)),
    ),
    "soft cap": Case(score=lambda: lambda s, b, h, m, n: torch.tanh(s / 5) * 5),
    "constant": Case(score=lambda: lambda s, b, h, m, n: torch.where(m >= n, s, torch.tensor(-1.5))),
    "causal": Case(mask=lambda: causal),
    "causal by scores": Case(score=lambda: lambda s, b, h, m, n: torch.where(m >= n, s, -float("inf"))),
    "documents": Case(mask=lambda ids: lambda b, h, m, n: (ids[m] // 13 == ids[n] // 13) & (m >= n), indices=(70,)),
    "window": Case(mask=lambda: lambda b, h, m, n: (m - n).abs() < 9, lengths=(150, 260)),
    "rows without keys": Case(
        mask=lambda: lambda b, h, m, n: (m >= n) & (m > 10) & ((b > 0) | (m > 140)), lengths=(150, 140)
    ),
    "shared heads": Case(
        score=lambda slopes: lambda s, b, h, m, n: s + slopes[h] * n,
        mask=lambda: causal,
        captured=((6,),),
        heads=(6, 2),
        width=(16, 24),
    ),
    "one query": Case(lengths=(1, 130)),
    "one batch of keys": Case(mask=lambda: lambda b, h, m, n: m >= n + b, batches=(2, 1)),
    "odd widths": Case(mask=lambda: causal, width=(5, 3), lengths=(33, 47)),
    "float16": Case(mask=lambda: causal, dtype=torch.float16),
    "bfloat16": Case(
        score=lambda scale: lambda s, b, h, m, n: s * scale[h, n], captured=((4, 70),), dtype=torch.bfloat16
    ),
    "float64": Case(mask=lambda: causal, dtype=torch.float64),
}

TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def tensors(case: Case) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    (hq, hk), (m, n), (dk, dv), (bq, bk) = case.heads, case.lengths, case.width, case.batches
    shapes = ((bq, hq, m, dk), (bk, hk, n, dk), (bk, hk, n, dv))
    made = [torch.randn(shape, dtype=case.dtype) for shape in shapes]
    captured = [torch.randn(shape, dtype=case.dtype) for shape in case.captured]
    return made, captured + [torch.arange(size) for size in case.indices]


def plain(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, score: Function | None, mask: Function | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Attention, the logarithms of its sums, and the largest scores."""
    k, v = (each.repeat_interleave(q.shape[1] // k.shape[1], 1) for each in (k, v))
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    places = [torch.arange(size).view([-1 if i == j else 1 for j in range(4)]) for i, size in enumerate(scores.shape)]
    if score is not None:
        scores = score(scores, *places)
    if mask is not None:
        scores = scores.masked_fill(~mask(*places), -float("inf"))
    empty = (scores == -float("inf")).all(-1, keepdim=True)
    weights = scores.masked_fill(empty, 0).softmax(-1).masked_fill(empty, 0)
    sums = scores.masked_fill(empty, 0).logsumexp(-1).masked_fill(empty.squeeze(-1), -float("inf"))
    return weights @ v, sums, scores.amax(-1)


def results(outputs: Any, weights: torch.Tensor, leaves: list[torch.Tensor]) -> list[torch.Tensor]:
    """The outputs on the CPU, and the gradients of a sum of them."""
    out, *others = outputs
    loss = (out * weights).sum()
    for other in others[:1]:
        loss = loss + (other.masked_fill(other == -float("inf"), 0) * weights[..., 0]).sum()
    loss.backward()
    found = [*outputs, *(leaf.grad for leaf in leaves)]
    return [each.detach().cpu().double() for each in found]


def leaves_of(made: list[torch.Tensor], device: str, dtype: torch.dtype) -> list[torch.Tensor]:
    moved = [t.detach().to(device, dtype if t.is_floating_point() else t.dtype, copy=True) for t in made]
    return [t.requires_grad_(t.is_floating_point()) for t in moved]


def check(case: Case, device: str, compiled: Callable[..., Any], aux: bool = False) -> None:
    made, captured = tensors(case)
    weights = torch.randn(*made[0].shape[:3], made[2].shape[3], dtype=case.dtype)

    def of(device: str, dtype: torch.dtype) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
        inputs, others = (leaves_of(each, device, dtype) for each in (made, captured))
        return inputs, others, [t for t in (*inputs, *others) if t.requires_grad]

    (q, k, v), others, leaves = of("cpu", torch.float64)
    scores, masks = others[: len(case.captured)], others[len(case.captured) :]
    copies = case.batches[0] // case.batches[1]
    whole = plain(
        q,
        k.repeat(copies, 1, 1, 1),
        v.repeat(copies, 1, 1, 1),
        case.score(*scores) if case.score else None,
        case.mask(*masks) if case.mask else None,
    )
    expected = results(whole if aux else whole[:1], weights.double(), leaves)

    (q, k, v), others, leaves = of(device, case.dtype)
    scores, masks = others[: len(case.captured)], others[len(case.captured) :]
    options: dict[str, Any] = {"enable_gqa": case.heads[0] != case.heads[1]}
    if case.score is not None:
        options["score_mod"] = case.score(*scores)
    if case.mask is not None:
        options["block_mask"] = create_block_mask(
            case.mask(*masks), case.batches[0], case.heads[0], *case.lengths, device=device
        )
    elif copies > 1:
        raise AssertionError("torch wants a mask then")
    if aux:
        out, more = compiled(q, k, v, return_aux=AuxRequest(lse=True, max_scores=True), **options)
        got = results((out, more.lse, more.max_scores), weights.to(device), leaves)
    else:
        got = results((compiled(q, k, v, **options),), weights.to(device), leaves)
    tolerance = TOLERANCES[case.dtype]
    assert len(got) == len(expected)
    for one, other in zip(got, expected, strict=True):
        scale = other[other.isfinite()].abs().max().item()
        assert_close(one, other, rtol=0, atol=tolerance * max(scale, 1e-3))


@pytest.mark.no_fallback
@pytest.mark.quick(form="cpu", name=["bias", "causal", "rows without keys", "bfloat16"])
@pytest.mark.quick(form="gpu", name="plain")
@pytest.mark.parametrize("name", CASES)
def test_forward_and_backward(device: str, form: str, name: str) -> None:
    """By Python the first times, and replayed after that."""
    compiled = torch.compile(flex_attention, fullgraph=True)
    before = plans.stats().compiled_replays
    for _ in range(3):
        check(CASES[name], device, compiled)
    assert not replay.refusals
    assert plans.stats().compiled_replays > before


@pytest.mark.quick(name=["causal", "shared heads"])
@pytest.mark.parametrize("name", ["plain", "causal", "rows without keys", "shared heads"])
def test_sums_and_largest_scores(device: str, name: str) -> None:
    check(CASES[name], device, torch.compile(flex_attention, fullgraph=True), aux=True)


@pytest.mark.thorough
def test_sizes_that_change(device: str) -> None:
    compiled = torch.compile(flex_attention, fullgraph=True, dynamic=True)
    for lengths, batch in (((32, 40), 2), ((150, 260), 3), ((32, 40), 2)):
        case = Case(
            score=lambda slopes: lambda s, b, h, m, n: s + slopes[h] * (n - m),
            mask=lambda: causal,
            captured=((4,),),
            lengths=lengths,
            batches=(batch, batch),
        )
        check(case, device, compiled)


@pytest.mark.quick(full=True)
@pytest.mark.parametrize("full", [False, True])
def test_blocks_that_are_listed(device: str, form: str, full: bool) -> None:
    """The lists alone say what is seen where there is no function; in full blocks none is asked."""
    counts = torch.tensor([[[1, 2, 0]]], dtype=torch.int32)
    places = torch.tensor([[[[1, 0, 2], [2, 0, 1], [0, 0, 0]]]], dtype=torch.int32)
    full_counts = torch.tensor([[[1, 0, 0]]], dtype=torch.int32)
    full_places = torch.tensor([[[[2, 0, 1], [0, 0, 0], [0, 0, 0]]]], dtype=torch.int32)
    seen = torch.zeros(3, 3, dtype=torch.bool)
    seen[0, 1] = seen[1, 2] = seen[1, 0] = True
    both = torch.zeros_like(seen)
    both[0, 2] = full

    def even(b: Any, h: Any, m: Any, n: Any) -> Any:
        return (m + n) % 2 == 0

    def expected_mask(b: Any, h: Any, m: Any, n: Any) -> Any:
        return (seen[m // 128, n // 128] & (even(b, h, m, n) if full else True)) | both[m // 128, n // 128]

    mask = BlockMask.from_kv_blocks(
        counts.to(device),
        places.to(device),
        full_counts.to(device) if full else None,
        full_places.to(device) if full else None,
        BLOCK_SIZE=128,
        mask_mod=even if full else None,
        seq_lengths=(300, 310),
    )
    given = [torch.randn(2, 2, length, 16, requires_grad=True) for length in (300, 310, 310)]
    on_device = [t.detach().to(device).requires_grad_() for t in given]
    weights = torch.randn(2, 2, 300, 16)
    expected = results(plain(*given, None, expected_mask)[:1], weights, given)
    compiled = torch.compile(flex_attention, fullgraph=True)
    got = results((compiled(*on_device, block_mask=mask),), weights.to(device), on_device)
    for one, other in zip(got, expected, strict=True):
        assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_no_matrix_of_scores(device: str) -> None:
    """Where functions are expressions and the device is a CPU, forward and backward."""
    if kernel_form(0) != "cpu":
        pytest.skip("the kernel is for CPUs")
    module = torch.get_device_module(device)
    bias = torch.randn(2, 1024, device=device)
    q, k, v = (torch.randn(1, 2, 1024, 16, device=device, requires_grad=True) for _ in range(3))
    mask = create_block_mask(causal, None, None, 1024, 1024, device=device)
    compiled = torch.compile(flex_attention, fullgraph=True)
    for _ in range(3):
        q.grad = k.grad = v.grad = None
        module.synchronize()
        module.reset_peak_memory_stats()
        before = module.memory_allocated()
        made = compiled(q, k, v, score_mod=lambda s, b, h, m, n: s * 2 + bias[h, n].tanh() / 4, block_mask=mask)
        made.square().sum().backward()
        module.synchronize()
        assert module.max_memory_allocated() - before < 1024 * 1024 * 4


@pytest.mark.parametrize("form", ["cpu"], indirect=True)
@pytest.mark.parametrize(
    ("why", "score"),
    [
        ("out of range", lambda bias: lambda s, b, h, m, n: s + bias[m - n + 40]),
        ("may be 0", lambda bias: lambda s, b, h, m, n: s + m // (n + 1)),
        ("no expression", lambda bias: lambda s, b, h, m, n: s + torch.stack((s, s)).sum()),
    ],
)
def test_functions_that_are_no_expressions(
    device: str, form: str, why: str, score: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """They are right, and it is said that they cost memory."""
    q, k, v, bias = *(torch.randn(1, 2, 40, 16) for _ in range(3)), torch.randn(80)
    compiled = torch.compile(flex_attention, fullgraph=True)
    on_device = [t.to(device) for t in (q, k, v)]
    with caplog.at_level("INFO", "torchgraft.inductor"), torch.no_grad():
        got = compiled(*on_device, score_mod=score(bias.to(device)))
    expected = _each_score(q, k, v, score(bias))
    assert_close(got.cpu(), expected, rtol=1e-4, atol=1e-4)
    assert any(why in record.getMessage() for record in caplog.records)


def _each_score(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, score: Function) -> torch.Tensor:
    """Attention with a function that takes one score at a time."""
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    places = torch.cartesian_prod(*(torch.arange(size) for size in scores.shape))
    changed = torch.vmap(score)(scores.flatten(), *places.unbind(1))
    return changed.view_as(scores).softmax(-1) @ v


def test_without_gradients(device: str) -> None:
    q, k, v = (torch.randn(2, 4, 140, 16) for _ in range(3))
    on_device = [t.to(device) for t in (q, k, v)]
    mask = create_block_mask(causal, None, None, 140, 140, device=device)
    compiled = torch.compile(lambda q, k, v, mask: flex_attention(q, k * 2, v.sin(), block_mask=mask).cos())
    expected = plain(q, k * 2, v.sin(), None, causal)[0].cos()
    with torch.no_grad():
        for _ in range(3):
            assert_close(compiled(*on_device, mask).cpu(), expected, rtol=1e-4, atol=1e-4)


def test_strides_are_the_queries(device: str) -> None:
    q, k, v = (torch.randn(2, 30, 4, 16, device=device).transpose(1, 2) for _ in range(3))
    assert torch.compile(flex_attention)(q, k, v).stride() == q.stride()


@pytest.mark.thorough
def test_a_model(device: str) -> None:
    """With what it captures among the parameters, and products around it that are its neighbours."""

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.into, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
            self.bias = nn.Parameter(torch.randn(4, 64) / 9)

        def forward(self, x: torch.Tensor, mask: Any) -> torch.Tensor:
            q, k, v = self.into(x).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
            made = flex_attention(
                q, k, v, score_mod=lambda s, b, h, m, n: s + self.bias[h, m - n + 20], block_mask=mask
            )
            return self.out(made.transpose(1, 2).flatten(2)).tanh()

    torch.manual_seed(0)
    model = Attention().to(device)
    mask = create_block_mask(causal, None, None, 20, 20, device=device)
    x, losses = torch.randn(3, 20, 32, device=device), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    compiled = torch.compile(model, fullgraph=True)
    for _ in range(6):
        optimizer.zero_grad()
        loss = (compiled(x, mask) - x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    by_hand = [(model(x, mask) - x).square().mean().item(), (compiled(x, mask) - x).square().mean().item()]
    assert by_hand[0] == pytest.approx(by_hand[1], rel=1e-4)


@pytest.mark.thorough
def test_the_cpu_has_its_own(device: str) -> None:
    """Programs of other devices are as they were."""
    torch.compile(flex_attention)(*(torch.randn(1, 2, 32, 16, device=device) for _ in range(3)))
    q, k, v = (torch.randn(1, 2, 32, 16) for _ in range(3))
    with torch.no_grad():
        _, (code,) = torch._inductor.utils.run_and_get_code(torch.compile(flex_attention), q, k, v)
    assert "tg_" not in code
