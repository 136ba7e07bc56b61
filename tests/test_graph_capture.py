"""Graphs: what is captured and replayed is what the same lines do without a graph."""

from __future__ import annotations

import copy
import gc
import inspect
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from conftest import Script, in_threads
from torch import nn

import torchgraft
from torchgraft.device_module.graphs import Graph

Lines = Callable[[], Any]


@pytest.fixture
def module(device: str) -> ModuleType:
    return torch.get_device_module(device)


@pytest.fixture
def compiles(module: ModuleType) -> bool:
    """Whether the device has kernels; otherwise a graph is made of functions of the host."""
    return bool(module.get_device_properties().has_compiler)


@pytest.fixture(autouse=True)
def nothing_is_being_captured(module: ModuleType) -> Iterator[None]:
    with torchgraft.fallback("silent"):
        yield
    assert not module.is_current_stream_capturing()


def capture(module: ModuleType, lines: Lines, warm: bool = True, **options: Any) -> tuple[Graph, Any]:
    if warm:
        lines()
    graph = module.Graph()
    with module.graph(graph, **options):
        result = lines()
    return graph, result


# ---- what is computed ----


def test_lines_are_recorded_and_not_run(device: str, module: ModuleType) -> None:
    x = torch.zeros(100, device=device)
    graph = module.Graph()
    with module.graph(graph):
        assert module.is_current_stream_capturing()
        x += 1
    assert not module.is_current_stream_capturing()
    assert x.sum().item() == 0
    for _ in range(3):
        graph.replay()
    assert x.sum().item() == 300


def test_inputs_are_read_anew(device: str, module: ModuleType) -> None:
    x = torch.randn(37, 11, device=device)
    graph, y = capture(module, lambda: (x.exp() @ x.mT).softmax(1).sum(0))
    for _ in range(3):
        new = torch.randn(37, 11)
        x.copy_(new)
        graph.replay()
        torch.testing.assert_close(y.cpu(), (new.exp() @ new.mT).softmax(1).sum(0))


def test_views_copies_and_fills(device: str, module: ModuleType) -> None:
    x = torch.randn(6, 8, device=device)

    def lines() -> tuple[torch.Tensor, ...]:
        whole = torch.zeros(8, 6, device=device)
        whole[2:5] = x.t()[2:5]
        half = x[:, ::2].contiguous()
        return whole, half, whole.double(), torch.full((3,), 7.0, device=device), x.clone()

    graph, results = capture(module, lines)
    x.copy_(torch.randn(6, 8))
    graph.replay()
    for result, expected in zip(results, lines(), strict=True):
        assert torch.equal(result, expected)


def test_what_is_made_of_nothing(device: str, module: ModuleType) -> None:
    graph, results = capture(
        module,
        lambda: (torch.arange(10, device=device), torch.eye(3, device=device), torch.ones(0, device=device).sum()),
    )
    for result in results:
        result.fill_(-1)
    graph.replay()
    assert results[0].tolist() == list(range(10))
    assert torch.equal(results[1].cpu(), torch.eye(3))
    assert results[2].item() == 0


def test_pinned_memory_is_read_by_each_replay(device: str, module: ModuleType) -> None:
    host, back = torch.zeros(5).pin_memory(), torch.zeros(5).pin_memory()
    graph = module.Graph()
    with module.graph(graph):
        doubled = host.to(device, non_blocking=True) * 2
        back.copy_(doubled, non_blocking=True)
    host.fill_(4)
    graph.replay()
    module.synchronize()
    assert doubled.tolist() == back.tolist() == [8.0] * 5


def test_a_graph_keeps_the_pinned_memory_it_reads(device: str, module: ModuleType) -> None:
    host = torch.full((1000,), 3.0).pin_memory()
    graph = module.Graph()
    with module.graph(graph):
        there = host.to(device, non_blocking=True)
    del host
    others = [torch.zeros(1000).pin_memory() for _ in range(20)]
    graph.replay()
    assert there.sum().item() == 3000
    del others


# ---- random numbers ----


def test_random_ops_draw_as_eager_calls_would(device: str, module: ModuleType) -> None:
    x = torch.ones(1000, device=device)

    def lines() -> torch.Tensor:
        return torch.nn.functional.dropout(x, 0.4) + torch.rand(1000, device=device) + torch.randn_like(x)

    graph, y = capture(module, lines)
    torch.manual_seed(5)
    expected = [lines() for _ in range(4)]
    torch.manual_seed(5)
    for each in expected:
        graph.replay()
        assert torch.equal(y, each)
    assert torch.equal(lines(), (graph.replay(), y)[1]) is False


def test_a_generator_of_ones_own(device: str, module: ModuleType) -> None:
    own = torch.Generator(device)
    graph, y = capture(module, lambda: torch.rand(50, device=device, generator=own))
    own.manual_seed(9)
    expected = [torch.rand(50, device=device, generator=own) for _ in range(2)]
    own.manual_seed(9)
    before = module.get_rng_state()
    for each in expected:
        graph.replay()
        assert torch.equal(y, each)
    assert torch.equal(module.get_rng_state(), before)


def test_a_capture_draws_nothing(device: str, module: ModuleType) -> None:
    torch.rand(10, device=device)
    before = module.get_rng_state()
    capture(module, lambda: torch.rand(10, device=device), warm=False)
    assert torch.equal(module.get_rng_state(), before)


# ---- training ----


def a_network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(20, 32), nn.BatchNorm1d(32), nn.GELU(), nn.Linear(32, 10))


def train_eagerly(
    network: nn.Module, optimizer: torch.optim.Optimizer, batches: list[tuple[torch.Tensor, torch.Tensor]]
) -> list[float]:
    losses = []
    for x, y in batches:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(network(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01, capturable=True),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, capturable=True, foreach=False),
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, lr=0.01, capturable=True),
}


@pytest.mark.parametrize("chosen", OPTIMIZERS)
def test_a_whole_step_of_training(device: str, module: ModuleType, chosen: str) -> None:
    torch.manual_seed(1)
    network = a_network().to(device)
    same = copy.deepcopy(network)
    optimizer, eager = OPTIMIZERS[chosen](network.parameters()), OPTIMIZERS[chosen](same.parameters())
    batches = [(torch.randn(16, 20), torch.randint(10, (16,))) for _ in range(8)]
    on_device = [(x.to(device), y.to(device)) for x, y in batches]
    x, y = (each.clone() for each in on_device[0])

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(network(x), y)
        loss.backward()
        optimizer.step()
        return loss

    side = module.Stream()
    with module.stream(side):
        for _ in range(3):
            step()
    module.current_stream().wait_stream(side)
    graph = module.Graph()
    optimizer.zero_grad(set_to_none=True)
    with module.graph(graph):
        loss = step()

    train_eagerly(same, eager, on_device[:1] * 3)
    expected = train_eagerly(same, eager, on_device)
    losses = []
    for new_x, new_y in on_device:
        x.copy_(new_x)
        y.copy_(new_y)
        graph.replay()
        losses.append(loss.item())
    assert losses == pytest.approx(expected, rel=1e-4)
    for mine, other in zip(network.parameters(), same.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-5)


def test_a_handle_for_others_is_refused(device: str, module: ModuleType) -> None:
    """What is given to it would be done once and by no replay."""
    stream = module.Stream()
    assert isinstance(stream.native_handle, int)
    graph = module.Graph()
    with pytest.raises(RuntimeError, match="work of others by its native handle"), module.graph(graph, stream=stream):
        _ = stream.native_handle
    assert isinstance(stream.native_handle, int)


def test_an_optimiser_that_counts_on_the_host_is_refused(device: str, module: ModuleType) -> None:
    parameter = torch.ones(3, device=device, requires_grad=True)
    optimizer = torch.optim.Adam([parameter])
    parameter.grad = torch.ones(3, device=device)
    with pytest.raises(RuntimeError, match=r"Adam.step\(\) is captured .* capturable=True"):
        capture(module, optimizer.step, warm=False)
    optimizer.step()
    assert parameter.detach().cpu().tolist() == pytest.approx([0.999] * 3)


def test_mixed_precision_with_a_scaler(device: str, module: ModuleType) -> None:
    name = torch.device(device).type
    torch.manual_seed(2)
    network = a_network().to(device)
    same = copy.deepcopy(network)
    optimizer, eager = (torch.optim.SGD(each.parameters(), lr=0.05) for each in (network, same))
    scaler, plain = torch.amp.GradScaler(name), torch.amp.GradScaler(name)
    x, y = torch.randn(16, 20, device=device), torch.randint(10, (16,)).to(device)

    def backward(model: nn.Module, by: torch.amp.GradScaler) -> torch.Tensor:
        with torch.autocast(name, torch.float16, cache_enabled=False):
            loss = nn.functional.cross_entropy(model(x), y)
        by.scale(loss).backward()
        return loss

    statistics = copy.deepcopy(network.state_dict())
    with module.stream(module.Stream()):
        backward(network, scaler)
    module.synchronize()
    network.load_state_dict(statistics)
    optimizer.zero_grad(set_to_none=True)
    graph = module.Graph()
    with module.graph(graph):
        loss = backward(network, scaler)
    for _ in range(4):
        x.copy_(torch.randn(16, 20))
        eager.zero_grad(set_to_none=True)
        expected = backward(same, plain)
        plain.step(eager)
        plain.update()
        graph.replay()
        scaler.step(optimizer)
        scaler.update()
        assert loss.item() == pytest.approx(expected.item(), rel=2e-3)
        optimizer.zero_grad(set_to_none=False)  # the captured lines add to the gradients


def test_parts_of_a_network(device: str, module: ModuleType) -> None:
    """Of three parts two are graphs, and which of them runs depends on data."""
    torch.manual_seed(3)
    parts = [nn.Linear(8, 12), nn.Sequential(nn.Linear(12, 6), nn.Dropout(0.0)), nn.Linear(12, 6)]
    parts = [part.to(device) for part in parts]
    same = copy.deepcopy(parts)
    x, h = torch.randn(4, 8, device=device), torch.randn(4, 12, device=device, requires_grad=True)
    first = module.make_graphed_callables(parts[0], (x,))
    second = module.make_graphed_callables(parts[1], (h,))
    third = module.make_graphed_callables(parts[2], (h,))
    optimizer, eager = (
        torch.optim.SGD([p for part in each for p in part.parameters()], lr=0.1) for each in (parts, same)
    )
    for _ in range(6):
        data, target = torch.randn(4, 8, device=device), torch.randn(4, 6, device=device)
        losses = []
        for a, b, c, by in ((first, second, third, optimizer), (*same, eager)):
            by.zero_grad(set_to_none=True)
            hidden = a(data)
            loss = nn.functional.mse_loss((b if hidden.sum().item() > 0 else c)(hidden), target)
            loss.backward()
            by.step()
            losses.append(loss.item())
        assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    for mine, other in zip(parts, same, strict=True):
        for one, two in zip(mine.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-6)


def test_several_callables_share_memory(device: str, module: ModuleType) -> None:
    torch.manual_seed(4)
    first, second = nn.Linear(5, 7).to(device), nn.Linear(7, 3).to(device)
    same = copy.deepcopy(nn.Sequential(first, second))
    x = torch.randn(2, 5, device=device, requires_grad=True)
    h = torch.randn(2, 7, device=device, requires_grad=True)
    one, two = module.make_graphed_callables((first, second), ((x,), (h,)))
    data = torch.randn(2, 5, device=device, requires_grad=True)
    two(one(data)).square().sum().backward()
    gradient, data.grad = data.grad, None
    same(data).square().sum().backward()
    torch.testing.assert_close(gradient, data.grad)
    torch.testing.assert_close(first.weight.grad, same[0].weight.grad)


def test_a_function_and_its_nested_results(device: str, module: ModuleType) -> None:
    def function(x: torch.Tensor, pair: tuple[torch.Tensor, torch.Tensor]) -> dict[str, Any]:
        return {"product": x * pair[0], "sums": [x.sum(), pair[1].sum()]}

    x = torch.ones(3, device=device, requires_grad=True)
    pair = torch.ones(3, device=device), torch.ones(3, device=device)
    graphed = module.make_graphed_callables(function, (x, pair))
    given = torch.tensor([1.0, 2.0, 3.0], device=device, requires_grad=True)
    result = graphed(given, (2 * pair[0], 3 * pair[1]))
    assert result["product"].tolist() == [2.0, 4.0, 6.0]
    assert [each.item() for each in result["sums"]] == [6.0, 9.0]
    (result["product"].sum() + result["sums"][0]).backward()
    assert given.grad is not None
    assert given.grad.tolist() == [3.0, 3.0, 3.0]


def test_a_module_that_leaves_training(device: str, module: ModuleType) -> None:
    layer = nn.Dropout(0.5).to(device)
    x = torch.ones(200, device=device)
    module.make_graphed_callables(layer, (x,))
    assert layer(x).eq(0).any()
    layer.eval()
    assert torch.equal(layer(x), x)


def test_what_graphed_callables_refuse(device: str, module: ModuleType) -> None:
    x = torch.ones(3, 4, device=device)
    with pytest.raises(TypeError, match="tensors only, not int"):
        module.make_graphed_callables(lambda x, n: x + n, (x, 3))
    layer = nn.Linear(4, 4).to(device)
    handle = layer.register_forward_hook(lambda *_: None)
    with pytest.raises(ValueError, match="no hooks"):
        module.make_graphed_callables(layer, (x,))
    handle.remove()
    with (
        torch.autocast(torch.device(device).type),
        pytest.raises(RuntimeError, match="cache_enabled=False"),
    ):
        module.make_graphed_callables(layer, (x,))
    graphed = module.make_graphed_callables(layer, (x,))
    with pytest.raises(RuntimeError, match=r"the shape \(2, 4\), and the graph was captured for \(3, 4\)"):
        graphed(x[:2])
    with pytest.raises(TypeError, match="takes the 1 tensors of its sample, not 2"):
        graphed(x, x)
    torch.testing.assert_close(graphed(x), nn.functional.linear(x, layer.weight, layer.bias))


class Attention(nn.Module):
    """Of one new token, with the keys and values of the earlier ones in memory that stays."""

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.register_buffer("keys", torch.zeros(1, length, width))
        self.register_buffer("values", torch.zeros(1, length, width))

    def forward(self, x: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        query, key, value = self.into(x).chunk(3, -1)
        self.keys.index_copy_(1, place, key)
        self.values.index_copy_(1, place, value)
        mask = torch.arange(self.keys.shape[1], device=x.device) <= place
        mixed = nn.functional.scaled_dot_product_attention(query, self.keys, self.values, attn_mask=mask[None, None])
        return x + self.out(mixed)


def test_a_language_model_decodes_by_replays(device: str, module: ModuleType) -> None:
    """With a static cache of keys and values: the tokens are those of eager steps."""
    torch.manual_seed(6)
    length, width, tokens = 48, 32, 100
    embedding, places = nn.Embedding(tokens, width), nn.Embedding(length, width)
    blocks = nn.ModuleList(Attention(width, length) for _ in range(2))
    parts = nn.ModuleList([embedding, places, *blocks, nn.LayerNorm(width), nn.Linear(width, tokens)]).to(device)
    token, place = torch.zeros(1, 1, dtype=torch.long).to(device), torch.zeros(1, dtype=torch.long).to(device)

    @torch.no_grad()
    def step() -> None:
        x = embedding(token) + places(place)
        for block in blocks:
            x = block(x, place)
        token.copy_(parts[-1](parts[-2](x)).argmax(-1))
        place.add_(1)

    def decode(one: Callable[[], Any]) -> list[int]:
        token.zero_()
        place.zero_()
        for block in blocks:
            block.keys.zero_()
            block.values.zero_()
        written = []
        for _ in range(length):
            one()
            written.append(int(token.item()))
        return written

    expected = decode(step)
    graph = module.Graph()
    with module.graph(graph):
        step()
    assert decode(graph.replay) == expected
    assert len(set(expected)) > 5


# ---- memory ----


def test_graphs_that_share_a_pool(device: str, module: ModuleType) -> None:
    # So large that each tensor gets a segment of its own size, however much the device has in its cache.
    x = torch.ones(1 << 22, device=device)
    pool = module.graph_pool_handle()

    def lines(x: torch.Tensor) -> torch.Tensor:
        return ((x + 1).exp().log() * 2).neg()

    def reserved(of: tuple[int, int]) -> int:
        # Of these pools alone: what other tests left in flight comes back whenever it will.
        return sum(segment["total_size"] for segment in module.memory_snapshot() if segment["segment_pool_id"] == of)

    first, y = capture(module, lambda: lines(x), pool=pool)
    alone = reserved(pool)
    second, z = capture(module, lambda: lines(y), pool=first.pool())
    shared = reserved(pool)
    third, _ = capture(module, lambda: lines(y))
    assert first.pool() == second.pool() == pool != third.pool()
    if device == "npy":  # its commands are functions that keep their tensors, so that nothing is there for the second
        assert shared - alone <= reserved(third.pool())
    else:  # the first one's temporaries are there for the second
        assert shared - alone == x.nbytes < reserved(third.pool())
    first.replay()
    second.replay()
    assert z[0].item() == pytest.approx(6.0)


def test_nothing_else_uses_a_graphs_memory(device: str, module: ModuleType) -> None:
    x = torch.ones(1000, device=device)
    graph, y = capture(module, lambda: ((x + 1) * 2 - 1) * 3)
    for _ in range(20):
        others = [torch.full((1000,), -5.0, device=device) for _ in range(50)]
        graph.replay()
        assert y.eq(9).all()
        assert all(other.eq(-5).all() for other in others)


def test_the_pool_is_shown_and_given_back(device: str, module: ModuleType) -> None:
    x = torch.ones(1 << 20, device=device)
    x + 1
    module.empty_cache()
    before = module.memory_reserved()
    graph, y = capture(module, lambda: (x + 1).exp() - 1)
    pool = graph.pool()
    assert module.memory_reserved() > before
    assert any(segment["segment_pool_id"] == pool for segment in module.memory_snapshot())
    module.empty_cache()
    graph.replay()
    assert y[5].item() == pytest.approx(6.389, abs=1e-3)
    graph.reset()
    module.empty_cache()
    assert y[5].item() == pytest.approx(6.389, abs=1e-3)  # a tensor outlives the graph
    del y
    module.empty_cache()
    assert module.memory_reserved() == before
    assert all(segment["segment_pool_id"] != pool for segment in module.memory_snapshot())


def test_a_graph_outlives_its_tensors(device: str, module: ModuleType) -> None:
    kept = torch.ones(100, device=device)
    graph, y = capture(module, lambda: kept.add_(torch.ones(100, device=device)).mul(2), warm=False)
    del y
    gc.collect()
    graph.replay()
    graph.replay()
    assert kept[0].item() == 3


def test_capturing_again_and_again_leaves_nothing(device: str, module: ModuleType) -> None:
    x = torch.ones(1 << 16, device=device)

    def once() -> None:
        graph, y = capture(module, lambda: (x + 1).sum())
        graph.replay()
        assert y.item() == 2 << 16

    once()
    module.empty_cache()
    before = module.memory_reserved(), torchgraft.plans.stats().graphs
    for _ in range(20):
        once()
    gc.collect()
    module.empty_cache()
    assert (module.memory_reserved(), torchgraft.plans.stats().graphs) == before


# ---- streams and threads ----


def test_no_other_stream_is_captured(device: str, module: ModuleType) -> None:
    """However many there are: streams are handed out in turn."""
    x = torch.ones(10, device=device)
    with module.graph(module.Graph()):
        assert module.current_stream() not in [module.Stream() for _ in range(100)]
        x + 1
    assert module.current_stream() == module.default_stream()


def test_streams_that_join(device: str, module: ModuleType) -> None:
    x = torch.ones(1 << 16, device=device)
    side = module.Stream()
    graph = module.Graph()
    with module.graph(graph):
        a = x + 1
        side.wait_stream(module.current_stream())
        with module.stream(side):
            assert module.is_current_stream_capturing()
            b = a * 10
        c = a + 100
        module.current_stream().wait_stream(side)
        d = b + c
    for value in (1.0, 5.0):
        x.fill_(value)
        graph.replay()
        assert d.eq((value + 1) * 11 + 100).all()
    assert {node.branch for node in graph.nodes()} == {0, 1}


def test_a_stream_that_nobody_waits_for(device: str, module: ModuleType) -> None:
    x = torch.ones(10, device=device)
    side, graph = module.Stream(), module.Graph()
    with (
        pytest.raises(RuntimeError, match=r"joined it, .* has not waited for all that was given to that one"),
        module.graph(graph),
    ):
        side.wait_stream(module.current_stream())
        with module.stream(side):
            x + 1
    with module.stream(side):
        assert (x + 1).sum().item() == 20  # no longer captured


def test_replays_on_other_streams_come_one_after_the_other(device: str, module: ModuleType) -> None:
    x = torch.zeros(1 << 18, device=device)
    graph, _ = capture(module, lambda: x.add_(1), warm=False)
    streams = [module.Stream() for _ in range(4)]
    module.synchronize()
    for turn in range(40):
        with module.stream(streams[turn % 4]):
            graph.replay()
    module.synchronize()
    assert x.eq(40).all()


def test_replays_from_many_threads(device: str, module: ModuleType) -> None:
    x = torch.zeros(1 << 10, device=device)
    graph, _ = capture(module, lambda: x.add_(1), warm=False)
    module.synchronize()

    def replay() -> None:
        with module.stream(module.Stream()):
            for _ in range(50):
                graph.replay()
            module.current_stream().synchronize()

    in_threads(*[replay] * 4)
    assert x.eq(200).all()


def test_other_threads_work_while_one_captures(device: str, module: ModuleType) -> None:
    x = torch.ones(1000, device=device)
    begun, done = threading.Event(), threading.Event()
    sums = []

    def work() -> None:
        begun.wait(30)
        for _ in range(20):
            sums.append((x * 2).sum().item())
        module.synchronize()
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    graph = module.Graph()
    with module.graph(graph):
        begun.set()
        y = x + 1
        assert done.wait(60)
        y += 1
    thread.join()
    assert sums == [2000.0] * 20
    graph.replay()
    assert y.eq(3).all()


def test_captures_in_several_threads(device: str, module: ModuleType) -> None:
    def work() -> None:
        x = torch.full((500,), float(threading.get_ident() % 97), device=device)
        with module.stream(module.Stream()):
            graph, y = capture(module, lambda: (x + 1) * 2, stream=module.Stream())
            for _ in range(10):
                graph.replay()
            assert torch.equal(y, (x + 1) * 2)

    in_threads(*[work] * 4)


# ---- what cannot be captured ----


def a_value(x: torch.Tensor) -> Any:
    return x.sum().item()


def a_branch(x: torch.Tensor) -> Any:
    return 1 if x[0] > 0 else 2


def a_size(x: torch.Tensor) -> Any:
    return x.nonzero()


def a_wait(x: torch.Tensor) -> Any:
    torch.accelerator.synchronize()


def a_question(x: torch.Tensor) -> Any:
    torch.accelerator.current_stream().query()


def a_read(x: torch.Tensor) -> Any:
    return (x + 1).cpu()


def a_state(x: torch.Tensor) -> Any:
    return torch.get_device_module(x.device.type).get_rng_state()


def a_recomputation(x: torch.Tensor) -> Any:
    return torch.utils.checkpoint.checkpoint(lambda y: y + 1, x.requires_grad_(), use_reentrant=False)


def a_write(x: torch.Tensor) -> Any:
    return x + torch.randn(x.shape).to(x.device)


REFUSED = {
    a_value: r"a tensor's value \(aten::_local_scalar_dense",
    a_branch: r"a tensor's value \(aten::_local_scalar_dense",
    a_size: "cannot be captured into a graph",
    a_wait: "a wait of the host for the device",
    a_question: "asking whether a stream is done",
    a_state: "reading or setting a generator's state",
    a_recomputation: "reading or setting a generator's state",
    a_read: "a copy to the host other than",
    a_write: "a copy from host memory other than",
}


@pytest.mark.parametrize("lines", REFUSED, ids=lambda lines: lines.__name__)
def test_what_needs_results_is_refused(device: str, module: ModuleType, lines: Callable[..., Any]) -> None:
    x = torch.ones(10, device=device)
    lines(x)
    graph = module.Graph()
    line = lines.__code__.co_firstlineno + 1
    with pytest.raises(RuntimeError, match=rf"{REFUSED[lines]}(.|\n)*") as caught, module.graph(graph):
        lines(x + 1)
    if lines is not a_size or "called at" in str(caught.value):
        assert f"test_graph_capture.py:{line}" in str(caught.value)
    with pytest.raises(RuntimeError, match="there is no graph to replay"):
        graph.replay()
    with module.graph(graph):  # which is as good as new
        y = x * 2
    graph.replay()
    assert y.sum().item() == 20


def test_a_refusal_that_is_caught_ends_in_an_error(device: str, module: ModuleType) -> None:
    x = torch.ones(10, device=device)
    graph = module.Graph()
    with (
        pytest.raises(RuntimeError, match="the capture has failed and there is no graph: a tensor's value"),
        module.graph(graph),
    ):
        with suppress(RuntimeError):
            x.sum().item()
        x + 1
    assert x.sum().item() == 10


def test_an_error_of_the_users(device: str, module: ModuleType) -> None:
    x = torch.ones(10, device=device)
    graph = module.Graph()
    with pytest.raises(ZeroDivisionError), module.graph(graph):
        x + 1 / 0
    assert (x + 1).sum().item() == 20
    with module.graph(graph):
        y = x + 1
    graph.replay()
    assert y.sum().item() == 20


def test_a_fallback_is_refused_by_name(device: str, module: ModuleType, compiles: bool) -> None:
    x = torch.randn(4, 4, device=device)
    lines = lambda: torch.linalg.eigvals(x)  # noqa: E731
    lines()
    graph = module.Graph()
    if compiles:
        with (
            pytest.raises(RuntimeError, match=r"aten::\w*eig\w*, which runs on the CPU, cannot be captured"),
            module.graph(graph),
        ):
            lines()
        return
    with module.graph(graph):
        y = lines()
    x.copy_(torch.diag(torch.arange(1.0, 5.0)))
    graph.replay()
    assert sorted(y.real.tolist()) == [1.0, 2.0, 3.0, 4.0]


def test_events_of_a_capture_mean_nothing_outside(device: str, module: ModuleType) -> None:
    event = torch.Event(device)
    graph = module.Graph()
    with module.graph(graph):
        event.record()
        torch.ones(3, device=device)
        with pytest.raises(RuntimeError, match="cannot query an event"):
            event.query()
    for use in (event.query, event.synchronize, event.wait):
        with pytest.raises(RuntimeError, match="recorded while its stream was being captured"):
            use()
    event.record()
    event.synchronize()
    assert event.query()


def test_calls_in_a_wrong_order(device: str, module: ModuleType) -> None:
    graph = module.Graph()
    with pytest.raises(RuntimeError, match="no graph to replay"):
        graph.replay()
    with pytest.raises(RuntimeError, match="not being captured"):
        graph.capture_end()
    with pytest.raises(RuntimeError, match="from capture_begin on"):
        graph.pool()
    with pytest.raises(RuntimeError, match="no graph yet"):
        graph.instantiate()
    with pytest.raises(ValueError, match="capture_error_mode is one of"):
        graph.capture_begin(capture_error_mode="sometimes")
    x = torch.ones(3, device=device)
    with module.graph(graph):
        with pytest.raises(RuntimeError, match="being captured into another graph"):
            module.Graph().capture_begin()
        with pytest.raises(RuntimeError, match="being captured already"):
            graph.capture_begin()
        with module.stream(module.Stream()), pytest.raises(RuntimeError, match="ends on the stream on which it began"):
            graph.capture_end()
        y = x + 1
    with pytest.raises(RuntimeError, match="has been captured already"):
        graph.capture_begin()
    graph.replay()
    assert y.tolist() == [2.0] * 3


def test_a_replay_within_a_capture(device: str, module: ModuleType) -> None:
    x = torch.ones(3, device=device)
    inner, _ = capture(module, lambda: x + 1)
    with pytest.raises(RuntimeError, match="the replay of another graph cannot be captured"):
        capture(module, inner.replay, warm=False)


def test_keep_graph(device: str, module: ModuleType) -> None:
    x = torch.ones(3, device=device)
    graph = module.Graph(keep_graph=True)
    with module.graph(graph):
        y = x + 1
    graph.instantiate()
    graph.replay()
    assert y.tolist() == [2.0] * 3
    graph.reset()
    with module.graph(graph):
        y = x + 2
    graph.replay()
    assert y.tolist() == [3.0] * 3


def test_an_index_out_of_range_names_the_captured_line(device: str, module: ModuleType, compiles: bool) -> None:
    x, index = torch.arange(5.0, device=device), torch.tensor([0, 1], device=device)
    x[index]
    graph = module.Graph()
    with module.graph(graph):
        y = x[index]
    line = inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]
    index.fill_(77)
    with pytest.raises(IndexError, match=r"index 77 is out of (bounds|range)") as caught:
        graph.replay()
        module.synchronize()
    if compiles:
        assert f"test_graph_capture.py:{line}" in str(caught.value)
    module.synchronize()  # it is raised once
    index.fill_(3)
    graph.replay()
    assert y.tolist() == [3.0, 3.0]


def test_errors_have_memory_of_their_own(device: str, module: ModuleType, compiles: bool) -> None:
    """Not that of a tensor which was there before, and is written again by each replay."""
    if not compiles:
        pytest.skip("functions raise by themselves")
    x, table = torch.ones(256, device=device), torch.arange(5.0, device=device)
    index = torch.tensor([0, 4], device=device)
    graph = module.Graph()
    with module.graph(graph):
        high = x + 1
        total = high.sum()
        del high
        y = table[index]
    for _ in range(3):
        graph.replay()
        assert (total.item(), y.tolist()) == (512.0, [0.0, 4.0])


def test_all_errors_of_a_replay_are_over_with_the_first(device: str, module: ModuleType, compiles: bool) -> None:
    """A right replay is not blamed for what another kernel of a wrong one has found."""
    if not compiles:
        pytest.skip("functions raise by themselves")
    table = torch.arange(5.0, device=device)
    indices = [torch.tensor([0, 1], device=device) for _ in range(3)]
    graphs = [module.Graph() for _ in range(2)]
    results = []
    for graph in graphs:
        with module.graph(graph):
            results += [table[index] for index in indices]
    for _ in range(2):
        for index in indices:
            index.fill_(9)
        for graph in graphs:
            graph.replay()
        with pytest.raises(IndexError):
            module.synchronize()
        for index in indices:
            index.fill_(3)
        for graph in graphs:
            graph.replay()
        module.synchronize()
        assert all(result.tolist() == [3.0, 3.0] for result in results)


def test_another_capture_ends_while_memory_waits(device: str, module: ModuleType) -> None:
    """What was freed while a captured stream uses it waits for the end of that capture, whatever other graphs do."""
    other = module.Graph()
    with module.graph(other):
        torch.ones(3, device=device) + 1
    side = module.Stream()
    graph = module.Graph()
    with module.graph(graph):
        x = torch.ones(1000, device=device)
        side.wait_stream(torch.accelerator.current_stream())
        with module.stream(side):
            y = x * 2
        x.record_stream(side)
        del x
        other.reset()
        torch.accelerator.current_stream().wait_stream(side)
    graph.replay()
    assert y.sum().item() == 2000
    del y, graph
    torch.accelerator.empty_cache()
    assert torch.ones(5_000_000, device=device).sum().item() == 5_000_000


def test_python_goes_on_while_a_graph_ends(device: str, module: ModuleType) -> None:
    """To forget a graph waits for its last replay, without the interpreter."""
    x = torch.rand(1200, 1200, device=device)
    graph = module.Graph()
    with module.graph(graph):
        for _ in range(12):
            x @ x
    graph.replay()
    module.synchronize()
    turns = [0]
    stop = threading.Event()

    def count() -> None:
        while not stop.is_set():
            turns[0] += 1
            time.sleep(1e-4)

    thread = threading.Thread(target=count)
    thread.start()
    for _ in range(5):
        graph.replay()
    before = turns[0]
    begin = time.perf_counter()
    del graph
    waited = time.perf_counter() - begin
    during = turns[0] - before
    stop.set()
    thread.join()
    # A wait that kept the interpreter would give the thread no turn.
    assert during > 3 or waited < 0.02


def test_a_driver_that_fails(script: Script) -> None:
    script(
        """
        import torch

        x = torch.zeros(3, device="ocl")
        graph = torch.ocl.Graph()
        with torch.ocl.graph(graph):
            x += 1
        graph.replay()
        try:
            graph.replay()
        except torch.AcceleratorError as error:
            assert "ocl:0: replaying a graph failed: graph_launch: fails because" in str(error), error
        else:
            raise SystemExit("no error")
        graph.replay()
        assert x.tolist() == [2.0] * 3
        try:
            with torch.ocl.graph(torch.ocl.Graph()):
                x += 1
        except torch.AcceleratorError as error:
            assert "ocl:0: making a graph failed" in str(error), error
        else:
            raise SystemExit("no error")
        assert not torch.ocl.is_current_stream_capturing()
        assert (x + 1).tolist() == [3.0] * 3
        """,
        autoload=True,
        TORCHGRAFT_OPENCL_FAIL="graph_launch:2,graph_create:2",
    )


# ---- torch.accelerator.Graph ----


def test_the_accelerators_graph(device: str) -> None:
    x = torch.zeros(2000, device=device)
    stream, graph = torch.Stream(device=device), torch.accelerator.Graph()
    with stream, graph:
        x += 1
    graph.replay()
    graph.replay()
    assert x.eq(2).all()
    graph.reset()
    with stream, graph:
        x -= 1
    graph.replay()
    assert x.eq(1).all()


def test_the_accelerators_graphs_share_a_pool(device: str, tmp_path: Path) -> None:
    x = torch.ones(10, device=device)
    stream = torch.Stream(device=device)
    first = torch.accelerator.Graph(capture_error_mode="relaxed")
    with stream, first:
        y = x + 1
    second = torch.accelerator.Graph(keep_graph=True, pool=first.pool())
    with stream, second:
        z = y * 2
    assert second.pool() == first.pool()
    second.instantiate()
    first.replay()
    second.replay()
    assert z.tolist() == [4.0] * 10
    second.debug_dump(str(tmp_path / "graph.dot"))
    assert (tmp_path / "graph.dot").read_text().startswith("digraph")


# ---- what is shown ----


def test_a_graph_can_be_read(device: str, module: ModuleType, compiles: bool, tmp_path: Path) -> None:
    x = torch.ones(64, device=device)
    graph = module.Graph()
    assert "not captured" in repr(graph)
    side = module.Stream()
    with module.graph(graph):
        y = torch.zeros(64, device=device)
        side.wait_stream(module.current_stream())
        with module.stream(side):
            y += x
        module.current_stream().wait_stream(side)
    graph.replay()
    text = str(graph)
    assert "replayed 1 times" in text
    assert "fill" in text
    assert "256 bytes" in text
    assert "aten::add_.Tensor" in text
    assert "on stream 1 of the capture" in text
    graph.debug_dump(tmp_path / "graph.dot")
    picture = (tmp_path / "graph.dot").read_text()
    assert picture.count("label=") == len(graph.nodes())
    assert ("launch" if compiles else "function") in picture
    assert picture.count("->") == len(graph.nodes())  # a line of nodes for each stream, and two waits


def test_plans_count_graphs(device: str, module: ModuleType) -> None:
    before = torchgraft.plans.stats()
    x = torch.ones(64, device=device)
    graph, _ = capture(module, lambda: (x + 1) * 2)
    graph.replay()
    after = torchgraft.plans.stats()
    assert after.graphs == before.graphs + 1
    assert after.graph_nodes == before.graph_nodes + 2
    assert after.replays == before.replays + 1


def test_a_profile_shows_the_kernels(device: str, module: ModuleType, compiles: bool) -> None:
    if not compiles:
        pytest.skip("a graph of a device without a compiler has no kernels")
    x = torch.ones(64, device=device)
    graph, _ = capture(module, lambda: (x + 1).relu())
    activity = torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[activity.CPU, activity.PrivateUse1]) as profile:
        graph.replay()
        module.synchronize()
    seen = " ".join(event.name for event in profile.events() or [])
    assert "relu" in seen
    assert "add" in seen


# ---- other devices ----


@pytest.mark.thorough
def test_a_device_of_functions(script: Script) -> None:
    """Of a device without a compiler a graph is a list of functions of the host."""
    script("""
        import torch, torchgraft
        from numpy_driver import NumpyDriver

        torchgraft.register("npy", [NumpyDriver()])
        torchgraft.fallback.set_mode("silent")
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3)).to("npy")
        x = torch.randn(4, 8).to("npy")
        model(x)
        graph = torch.npy.Graph()
        with torch.npy.graph(graph):
            y = model(x).t().contiguous()
            noise = torch.rand(1000, device="npy")
        assert {node.kind for node in graph.nodes()} >= {"function"}, str(graph)
        data = torch.randn(4, 8)
        x.copy_(data)
        graph.replay()
        torch.testing.assert_close(y.cpu(), model.cpu()(data).t())
        before = noise.clone()
        graph.replay()
        assert not torch.equal(before, noise)
        assert 0.45 < noise.mean().item() < 0.55
        print("right")
    """)
