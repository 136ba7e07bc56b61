"""Blocks compiled one by one, and whole models for any size: losses and gradients as without a compiler, with batches
and images whose sizes change between calls."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from torch import nn
from torch._dynamo.utils import counters
from torch.testing import assert_close

import torchgraft
from torchgraft.inductor import registration, replay, scheduling, splitting

Inputs = tuple[torch.Tensor, ...]


@pytest.fixture(autouse=True)
def _fresh(compiled_afresh: None) -> Iterator[None]:
    # A block of each shape is one more program of the same function.
    with torchgraft.fallback("error"), torch._dynamo.config.patch(recompile_limit=64, fail_on_recompile_limit_hit=True):
        yield


class Residual(nn.Module):
    """A block of a ResNet."""

    def __init__(self, before: int, after: int, stride: int = 1) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(after) for _ in range(2))
        self.down: nn.Module | None = None
        if stride > 1 or before != after:
            self.down = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = F.relu(self.norms[0](self.first(x)))
        inner = self.norms[1](self.second(inner))
        return F.relu(inner + (x if self.down is None else self.down(x)))


def resnet(widths: Sequence[int]) -> nn.Module:
    blocks = []
    for before, after in zip((widths[0], *widths), widths, strict=False):
        blocks += [Residual(before, after, 1 + (before != after)), Residual(after, after)]
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 5))
    return nn.Sequential(nn.Conv2d(3, widths[0], 7, 2, 3), nn.MaxPool2d(3, 2, 1), *blocks, *head)


class Level(nn.Module):
    """A level of a U-Net: what is below it sees half of the pixels."""

    def __init__(self, width: int, below: nn.Module, inner: int) -> None:
        super().__init__()
        self.into = Stage(width, inner)
        self.below = below
        self.out = Stage(2 * inner, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.into(x)
        deep = F.interpolate(self.below(F.max_pool2d(x, 2)), size=x.shape[-2:], mode="bilinear")
        return self.out(torch.cat([x, deep], 1))


class Stage(nn.Module):
    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(before, after, 3, padding=1), nn.GroupNorm(2, after)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.silu(self.norm(self.convolution(x)))


def unet() -> nn.Module:
    return nn.Sequential(Stage(3, 4), Level(4, Level(6, Stage(8, 8), 8), 6), nn.Conv2d(4, 5, 1))


class Attending(nn.Module):
    """A block of a transformer, norms first, which may give another width than it takes."""

    def __init__(self, before: int, after: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList((nn.LayerNorm(before), nn.LayerNorm(after)))
        self.into, self.mix, self.skip = nn.Linear(before, 3 * after), nn.Linear(after, after), nn.Linear(before, after)
        self.feed = nn.Sequential(nn.Linear(after, 2 * after), nn.GELU(approximate="tanh"), nn.Linear(2 * after, after))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.into(self.norms[0](x)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = self.skip(x) + self.mix(mixed.transpose(1, 2).flatten(-2))
        return x + self.feed(self.norms[1](x)) * x.sigmoid()


class Transformer(nn.Sequential):
    def __init__(self) -> None:
        blocks = (Attending(8, 12, 2), Attending(12, 12, 3), Attending(12, 16, 4), Attending(16, 16, 2))
        super().__init__(nn.Embedding(11, 8), *blocks, nn.Linear(16, 5))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return super().forward(words).flatten(0, 1)


class Recurrent(nn.Module):
    """A layer of an LSTM, step by step."""

    def __init__(self, before: int, width: int) -> None:
        super().__init__()
        self.cell, self.norm = nn.LSTMCell(before, width), nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = None
        out = []
        for step in range(4):
            state = self.cell(x[:, step], state)
            out.append(state[0])
        return self.norm(torch.stack(out, 1))


class Layered(nn.Module):
    """An LSTM of torch's own with what a block adds to it."""

    def __init__(self, before: int, width: int) -> None:
        super().__init__()
        self.recurrent, self.out = nn.LSTM(before, width, batch_first=True), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.recurrent(x)[0]).tanh()


def images(count: int, side: int, classes: tuple[int, ...] = ()) -> Inputs:
    return torch.randn(count, 3, side, side), torch.randint(5, (count, *classes))


def words(count: int, length: int) -> Inputs:
    return torch.randint(11, (count, length)), torch.randint(5, (count * length,))


def steps(count: int, length: int = 4) -> Inputs:
    return torch.randn(count, length, 6), torch.randint(5, (count,))


def check(
    device: str,
    model: nn.Module,
    compile: Callable[[nn.Module], None],
    inputs: Sequence[Inputs],
) -> None:
    """Trains a model and compares each loss and each gradient with those of the same steps on the CPU."""
    reference = copy.deepcopy(model).double()
    compiled = model.to(device)
    compile(compiled)
    for x, target in inputs:
        precise = x.double() if x.is_floating_point() else x
        expected = F.cross_entropy(_scores(reference(precise)), target)
        got = F.cross_entropy(_scores(compiled(x.to(device))), target.to(device))
        assert_close(got.double().cpu(), expected, rtol=1e-4, atol=1e-5)
        for each in (compiled, reference):
            each.zero_grad()
        got.backward()
        expected.backward()
        for (name, one), other in zip(compiled.named_parameters(), reference.parameters(), strict=True):
            assert one.grad is not None
            assert other.grad is not None
            assert_close(one.grad.double().cpu(), other.grad, rtol=2e-3, atol=2e-4, msg=lambda m, n=name: f"{n}: {m}")
        for one, other in zip(compiled.buffers(), reference.buffers(), strict=True):
            assert_close(one.cpu().double(), other.double(), rtol=1e-4, atol=1e-5)


def _scores(out: torch.Tensor) -> torch.Tensor:
    return out[:, -1] if out.dim() == 3 else out


def each_block(*kinds: type[nn.Module]) -> Callable[[nn.Module], None]:
    """Compiles all blocks of these kinds."""

    def compile(model: nn.Module) -> None:
        for block in model.modules():
            if isinstance(block, kinds):
                block.compile()

    return compile


def whole(model: nn.Module) -> None:
    # torch leaves a forward of its own, that of nn.Sequential, to Python, and compiles what that calls.
    model.forward = torch.compile(model.forward, dynamic=True)  # type: ignore[method-assign]


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[type[nn.Module], ...], Callable[[], list[Inputs]]]] = {
    "resnet": (
        lambda: resnet((4, 8, 16)),
        (Residual,),
        lambda: [images(2, 32), images(2, 48), images(3, 32), images(3, 36)],
    ),
    "unet": (
        unet,
        (Stage,),
        lambda: [images(2, 16, (16, 16)), images(3, 16, (16, 16)), images(2, 20, (20, 20)), images(3, 24, (24, 24))],
    ),
    "unet_by_levels": (
        unet,
        (Level,),
        lambda: [images(2, 16, (16, 16)), images(3, 16, (16, 16)), images(2, 20, (20, 20)), images(3, 24, (24, 24))],
    ),
    "transformer": (Transformer, (Attending,), lambda: [words(2, 6), words(3, 6), words(2, 9), words(4, 7)]),
    "lstm": (
        lambda: nn.Sequential(Recurrent(6, 8), Recurrent(8, 12), Recurrent(12, 5)),
        (Recurrent,),
        lambda: [steps(2), steps(3), steps(5)],
    ),
    "lstm_of_torch": (
        lambda: nn.Sequential(Layered(6, 8), Layered(8, 12), Layered(12, 5)),
        (Layered,),
        lambda: [steps(2), steps(3, 6), steps(5, 3)],
    ),
}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["blocks", "whole"])
@pytest.mark.parametrize("name", MODELS)
def test_training(device: str, name: str, kind: str) -> None:
    make, blocks, inputs = MODELS[name]
    torch.manual_seed(0)
    check(device, make(), each_block(*blocks) if kind == "blocks" else whole, inputs())


@pytest.mark.thorough
def test_blocks_of_a_resnet(device: str) -> None:
    """The second block's channels and pixels are not the first one's: from it on sizes are symbols."""
    torch.manual_seed(0)
    model = nn.Sequential(Residual(3, 4), Residual(4, 6, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5))
    check(device, model, each_block(Residual), [images(2, 8), images(3, 12)])
    assert not replay.splits


@pytest.mark.thorough
def test_blocks_of_a_transformer(device: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Embedding(11, 8), Attending(8, 8, 2), Attending(8, 12, 3), nn.Linear(12, 5), nn.Flatten(0, 1)
    )
    check(device, model, each_block(Attending), [words(2, 6), words(3, 7)])
    assert not replay.splits


@pytest.mark.thorough
def test_convolutions_of_any_size(device: str) -> None:
    """One program for all sizes, forward and backward."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 5, 3, groups=1))
    before = counters["stats"]["unique_graphs"]
    sizes = [(2, 12), (3, 14), (4, 20), (5, 30)]
    check(device, model, whole, [images(n, side, ((side + 1) // 2 - 2,) * 2) for n, side in sizes])
    assert counters["stats"]["unique_graphs"] == before + 1


class TestSizesThatBecomeNumbers:
    """The lowering of a convolution's backward in torch makes sizes numbers that were symbols when they were traced."""

    @pytest.fixture(autouse=True)
    def _lowered_by_torch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(registration, "_is_for_any_size", lambda node: False)
        monkeypatch.setattr(splitting, "_CALLED_BY", {})  # so that the program has parts

    def _train(self, device: str) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(Residual(3, 4), Residual(4, 6, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5))
        check(device, model, each_block(Residual), [images(2, 8), images(2, 12)])

    @pytest.mark.thorough
    def test_parts_of_programs_know_them(self, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(registration, "_fold_numbers", lambda graph: None)
        self._train(device)

    @pytest.mark.thorough
    def test_what_is_made_of_them_is_a_number(self, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """A backward that could not be compiled for symbols is compiled again for the numbers."""
        monkeypatch.delattr(scheduling._SubgraphWrapper, "codegen_input_symbol_assignment")
        self._train(device)


def test_numbers_of_sizes_are_folded() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.empty(3)
    elements = graph.call_function(operator.truediv, (64, 8))
    elements.meta["val"] = 8.0
    inverse = graph.call_function(operator.truediv, (1.0, elements))
    inverse.meta["val"] = 0.125
    out = graph.call_function(torch.ops.aten.mul.Tensor, (x, inverse))
    out.meta["val"] = torch.empty(3)
    graph.output(out)
    module = torch.fx.GraphModule(nn.Module(), graph)
    registration._fold_numbers(module)
    assert out.args == (x, 0.125)
    assert not [node for node in module.graph.nodes if node.target is operator.truediv]
