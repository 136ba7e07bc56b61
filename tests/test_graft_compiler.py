"""torch.compile(backend="graft"): programs over the plan engine, beside the same without a compiler."""

from __future__ import annotations

import copy
import functools
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from conftest import SEED, Script, in_threads
from torch import nn
from torch.testing import assert_close

from torchgraft import plans
from torchgraft.compiler import replay
from torchgraft.plans import splits

Work = Callable[..., Any]


@pytest.fixture(autouse=True)
def _afresh(device: str) -> Iterator[None]:
    if device == "npy":
        pytest.skip("what is looked at needs a kernel compiler")
    torch._dynamo.reset()
    replay.refusals.clear()
    splits.clear()
    yield
    torch._dynamo.reset()


def graft(work: Any, **options: Any) -> Any:
    return torch.compile(work, backend="graft", **options)


def replays() -> int:
    return plans.stats().compiled_replays


def launches(device: str, work: Callable[[], Any]) -> int:
    """Launches, copies and fills of a call, once all plans are made."""
    work()
    graph = torch.get_device_module(device).Graph()
    with torch.get_device_module(device).graph(graph):
        work()
    return len([node for node in graph.nodes() if node.kind in ("launch", "copy", "fill")])


def compare(device: str, work: Work, *given: torch.Tensor, tolerance: float = 1e-4, **options: Any) -> None:
    """The results, gradients and changed arguments of several calls beside those on the CPU."""
    compiled = graft(work, **options)
    for _ in range(4):
        on_cpu = [each.detach().clone().requires_grad_(each.requires_grad) for each in given]
        ours = [each.detach().to(device).requires_grad_(each.requires_grad) for each in given]
        expected, got = work(*on_cpu), compiled(*ours)
        pairs = list(zip(*(x if isinstance(x, (tuple, list)) else (x,) for x in (got, expected)), strict=True))
        for one, other in pairs:
            if not isinstance(one, torch.Tensor):
                assert one == other
                continue
            assert_close(one.cpu(), other, rtol=tolerance, atol=tolerance)
            if other.requires_grad:
                other.square().sum().backward(retain_graph=True)
                one.square().sum().backward(retain_graph=True)
        for one, other in zip(ours, on_cpu, strict=True):
            assert_close(one.detach().cpu(), other.detach(), rtol=tolerance, atol=tolerance)
            if other.grad is not None:
                assert one.grad is not None
                assert_close(one.grad.cpu(), other.grad, rtol=tolerance, atol=tolerance)


def chain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return ((x * 2 + y).tanh() * x.sigmoid() - y.exp().clamp(max=3)) / (x.abs() + 1)


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.second, self.head = nn.Conv2d(8, 8, 3, stride=2), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.silu(self.norm(self.first(x))) + 1
        x = F.max_pool2d(F.relu(self.second(x)) * 2, 2)
        return self.head(x.mean((2, 3)))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 16)
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(2))
        self.into, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.feed = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens) + torch.arange(tokens.shape[1], device=tokens.device)[:, None]
        q, k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in self.into(self.norms[0](x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return (x + self.feed(self.norms[1](x))).mean(1)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.Linear(12, 5)), lambda: torch.randn(8, 6)),
    "convnet": (ConvNet, lambda: torch.randn(4, 3, 12, 12)),
    "transformer": (Transformer, lambda: torch.randint(11, (4, 7))),
}


@pytest.mark.no_fallback
class TestPrograms:
    @pytest.mark.parametrize("network", NETWORKS)
    def test_training(self, device: str, network: str) -> None:
        """Losses, weights and statistics of some steps; forward and backward are replayed."""
        make, given = NETWORKS[network]
        torch.manual_seed(0)
        on_cpu = make()
        ours = copy.deepcopy(on_cpu).to(device)
        compiled = graft(ours, fullgraph=True)
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9) for model in (on_cpu, ours)]
        target = torch.randint(5 if network != "transformer" else 16, (given().shape[0],))
        before = replays()
        for _ in range(5):
            x = given()
            for optimizer in optimizers:
                optimizer.zero_grad()
            expected, got = (
                F.cross_entropy(on_cpu(x), target),
                F.cross_entropy(compiled(x.to(device)), target.to(device)),
            )
            expected.backward()
            got.backward()
            for optimizer in optimizers:
                optimizer.step()
            assert_close(got.cpu(), expected, rtol=1e-3, atol=1e-4)
        assert replays() >= before + 6
        assert not replay.refusals
        for one, other in zip(ours.state_dict().values(), on_cpu.state_dict().values(), strict=True):
            assert_close(one.cpu(), other, rtol=2e-3, atol=2e-4)

    @pytest.mark.parametrize("network", NETWORKS)
    def test_inference(self, device: str, network: str) -> None:
        make, given = NETWORKS[network]
        on_cpu = make().eval()
        compiled = graft(copy.deepcopy(on_cpu).to(device), fullgraph=True)
        before = replays()
        with torch.no_grad():
            for _ in range(4):
                x = given()
                assert_close(compiled(x.to(device)).cpu(), on_cpu(x), rtol=1e-4, atol=1e-4)
        assert replays() >= before + 2

    def test_gradients(self, device: str) -> None:
        x, y = torch.randn(5, 4, requires_grad=True), torch.randn(5, 4, requires_grad=True)
        compare(device, chain, x, y)

    def test_sizes_that_change(self, device: str) -> None:
        compiled = graft(lambda x, y: (chain(x, y) @ y.t() + x.shape[0], x.shape[0] * 2), dynamic=True, fullgraph=True)
        torch._dynamo.utils.counters.clear()
        for rows, columns in ((3, 4), (5, 4), (3, 4), (3, 4), (3, 4), (7, 9), (1000, 3)):
            x, y = torch.randn(rows, columns), torch.randn(rows, columns)
            got, number = compiled(x.to(device), y.to(device))
            assert number == rows * 2
            assert_close(got.cpu(), chain(x, y) @ y.t() + rows, rtol=1e-4, atol=1e-4)
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
        assert replays() > 0

    def test_a_size_that_is_marked_or_found_to_change(self, device: str) -> None:
        model = NETWORKS["mlp"][0]()
        compiled = graft(copy.deepcopy(model).to(device))
        for rows in (4, 6, 9, 6, 6, 6):
            x = torch.randn(rows, 6)
            ours = x.to(device)
            if rows == 4:
                torch._dynamo.mark_dynamic(ours, 0)
            got, expected = compiled(ours), model(x)
            assert_close(got.cpu(), expected, rtol=1e-4, atol=1e-4)

    def test_threads(self, device: str) -> None:
        """Which compile, record and replay one function at once, forward and backward, in sizes that change."""

        def work(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return chain(x, y).sum(-1)

        compiled = graft(work)

        def calls(number: int) -> None:
            own = torch.Generator().manual_seed(SEED + number)
            for call in range(12):
                x, y = (torch.randn((8, 33, 64)[call % 3], 40, generator=own) for _ in range(2))
                on_cpu, ours = x.clone().requires_grad_(), x.to(device).requires_grad_()
                expected, got = work(on_cpu, y), compiled(ours, y.to(device))
                expected.sum().backward()
                got.sum().backward()
                assert_close(got.detach().cpu(), expected.detach(), rtol=1e-4, atol=1e-4)
                assert_close(ours.grad.cpu(), on_cpu.grad, rtol=1e-4, atol=1e-4)

        in_threads(*(functools.partial(calls, number) for number in range(4)))

    def test_arguments_that_are_written(self, device: str) -> None:
        def work(x: torch.Tensor, y: torch.Tensor) -> Any:
            x.add_(y).mul_(2)
            y[1:].copy_(x[:-1])
            x.t()[0] = 7
            return x.sum(0), x * y

        compare(device, work, torch.randn(4, 3), torch.randn(4, 3))

    def test_results_that_are_arguments_and_views(self, device: str) -> None:
        def work(x: torch.Tensor, y: torch.Tensor) -> Any:
            z = x * 2 + y
            return x, x[1:].t(), z, z.t(), z, z.view(-1)[2:], 7, y.expand(2, 4, 3), (z + 1).expand(2, 4, 3)

        compiled = graft(work, fullgraph=True)
        for _ in range(4):
            x, y = torch.randn(4, 3, device=device), torch.randn(4, 3, device=device)
            got, expected = compiled(x, y), work(x, y)
            for one, other in zip(got, expected, strict=True):
                if isinstance(other, torch.Tensor):
                    assert one.stride() == other.stride()
                assert_close(one, other)
            assert got[0] is x
            assert got[1].data_ptr() == x[1:].data_ptr()
            assert got[3].data_ptr() == got[2].data_ptr() == got[5].data_ptr() - 2 * 4

    def test_arguments_in_one_memory(self, device: str) -> None:
        def work(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            x.mul_(2)
            return x + y.sin() * 2

        for shift in (0, 1, 2, 128):
            torch._dynamo.reset()  # which takes one shift for another, on the CPU too
            compiled = graft(work)
            for _ in range(4):
                base = torch.randn(256)
                ours = base.to(device)
                expected = work(base[:128], base[shift : shift + 128])
                assert_close(compiled(ours[:128], ours[shift : shift + 128]).cpu(), expected)
                assert_close(ours.cpu(), base)

    def test_random_numbers_are_those_without_a_compiler(self, device: str) -> None:
        model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.GELU(), nn.Dropout(0.2)).to(device)

        def work(x: torch.Tensor) -> torch.Tensor:
            return model(x) + torch.rand_like(x) * torch.bernoulli(torch.full_like(x, 0.5)) + torch.randn_like(x)

        compiled = graft(work, fullgraph=True)
        x = torch.randn(5, 8, device=device, requires_grad=True)
        before = replays()
        for seed in range(4):
            torch.manual_seed(seed)
            expected, after = work(x), torch.rand(3, device=device)
            (gradient,) = torch.autograd.grad(expected.sum(), x)
            torch.manual_seed(seed)
            got = compiled(x)
            assert torch.equal(torch.rand(3, device=device), after)
            assert_close(got, expected, rtol=1e-5, atol=1e-6)
            assert_close(torch.autograd.grad(got.sum(), x)[0], gradient, rtol=1e-5, atol=1e-6)
        assert replays() > before

    @pytest.mark.parametrize("around", [False, True])
    def test_autocast(self, device: str, around: bool) -> None:
        model = NETWORKS["transformer"][0]().to(device)

        def work(x: torch.Tensor) -> torch.Tensor:
            with torch.autocast(device, dtype=torch.bfloat16, enabled=not around):
                return model(x)

        compiled = graft(work)
        for _ in range(4):
            x = torch.randint(11, (4, 7), device=device)
            with torch.autocast(device, dtype=torch.bfloat16, enabled=around):
                got, expected = compiled(x), work(x)
            assert got.dtype == expected.dtype
            assert_close(got, expected, rtol=3e-2, atol=3e-2)

    def test_graph_breaks(self, device: str) -> None:
        def work(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            z = chain(x, y)
            torch._dynamo.graph_break()
            return z @ z.t() if z.sum() > 1e9 else chain(z, y)

        compare(device, work, torch.randn(5, 4), torch.randn(5, 4))

    def test_loops_of_many_shapes_dtypes_and_strides(self, device: str) -> None:
        """Loops that wait for each other, between others that need none of them."""

        def work(x: torch.Tensor, y: torch.Tensor, n: torch.Tensor) -> Any:
            a, b = x.exp(), y.sin()
            c = x.sum(1)
            d, e = a.t() * b, (n + 1).to(torch.float32)
            f = y @ x
            g = torch.where(d > 0, d, e[: d.shape[1]])
            h = torch.cat([g.contiguous(), d]).relu() + 1
            return c + 1, f.tanh() * 2, h, n // 2 + n % 3, (n > 2) & (n < 5), g.to(torch.float64) * 2, d[::2].neg() - 1

        compare(device, work, torch.randn(4, 6), torch.randn(6, 4), torch.arange(9))
        compare(device, work, torch.randn(4, 6, requires_grad=True), torch.randn(6, 4), torch.arange(9))

    def test_complex_numbers_and_no_elements(self, device: str) -> None:
        compare(device, lambda x: ((x * 2).conj() + 1j).abs() * x.real, torch.randn(3, 4, dtype=torch.complex64))
        compare(device, lambda x: (x + 1).exp().sum(0) * 2, torch.randn(0, 4))
        compare(device, lambda x: (x + 1).exp() * 2, torch.randn(()))


class TestFusion:
    def test_there_are_fewer_launches(self, device: str) -> None:
        x, y = torch.randn(64, 32, device=device), torch.randn(64, 32, device=device)
        compiled = graft(chain, fullgraph=True)
        assert launches(device, lambda: chain(x, y)) >= 9
        assert launches(device, lambda: compiled(x, y)) <= 2

    def test_loops_on_both_sides_of_what_they_do_not_need(self, device: str) -> None:
        def work(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            a = x.exp() * 2
            b = x.sum(1)
            return a.sin(), b

        x = torch.randn(8, 9, device=device)
        compiled = graft(work, fullgraph=True)
        assert launches(device, lambda: compiled(x)) <= launches(device, lambda: x.sum(1)) + 1

    def test_statistics_are_written_by_the_loops_that_make_them(self, device: str) -> None:
        counts = [torch.zeros(4, device=device) for _ in range(3)]

        def work(x: torch.Tensor) -> torch.Tensor:
            for count in counts:
                count.mul_(0.9).add_(x, alpha=0.1)
            return x + 1

        compiled, x = graft(work, fullgraph=True), torch.randn(4, device=device)
        assert launches(device, lambda: compiled(x)) <= 2
        for _ in range(3):
            compiled(x)
        assert all(torch.equal(count, counts[0]) for count in counts)

    def test_a_step_of_an_optimizer(self, device: str) -> None:
        """Fused for each parameter, and parameters of all shapes share launches."""

        def make(compiled: bool) -> tuple[list[nn.Parameter], Callable[[], Any]]:
            torch.manual_seed(0)
            shapes = [(7, 5), (5,), (64, 3), (1, 2, 3), (9,), (6, 6), (6, 6), (2,)]
            parameters = [nn.Parameter(torch.randn(shape).to(device)) for shape in shapes]
            for parameter in parameters:
                parameter.grad = torch.randn(parameter.shape).to(device)
            optimizer = torch.optim.AdamW(parameters, lr=torch.tensor(1e-2, device=device), capturable=True)
            return parameters, graft(optimizer.step, fullgraph=False) if compiled else optimizer.step

        (ours, step), (expected, plain) = make(True), make(False)
        for _ in range(5):
            step()
            plain()
        for one, other in zip(ours, expected, strict=True):
            assert_close(one, other, rtol=1e-5, atol=1e-6)
        assert launches(device, step) <= launches(device, plain) / 2

    def test_values_are_those_of_single_calls(self, device: str) -> None:
        """Bit by bit: what is kept in registers is rounded as a store would."""
        x, y = (torch.randn(100, device=device, dtype=torch.bfloat16) for _ in range(2))
        assert torch.equal(graft(chain)(x, y), chain(x, y))


class TestReplay:
    def test_it_happens_from_the_third_call_on(self, device: str) -> None:
        compiled = graft(chain, fullgraph=True)
        x, y = torch.randn(5, 4, device=device), torch.randn(5, 4, device=device)
        graphs, before = plans.stats().compiled_graphs, replays()
        for _ in range(6):  # torch watches the first call
            compiled(x, y)
        assert plans.stats().compiled_graphs == graphs + 1
        assert replays() == before + 4

    def test_what_cannot_be_recorded_stands_between_parts(self, device: str) -> None:
        def work(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            a = chain(x, y) @ y.t()
            b = (a.cpu() + 1).to(x.device)
            return (b @ b).sin() + b

        before = replays()
        compare(device, work, torch.randn(5, 4), torch.randn(5, 4))
        assert replays() >= before + 4
        assert "it is not on one device alone" in replay.refusals
        assert splits.total() == 1

    def test_numbers_of_the_cpu(self, device: str) -> None:
        """They are read at each call."""
        compiled = graft(lambda x, scale, n: (x * scale + n).sin() @ x)
        for _ in range(5):
            x, scale = torch.randn(4, 4), torch.randn(())
            assert_close(compiled(x.to(device), scale, 3).cpu(), (x * scale + 3).sin() @ x, rtol=1e-4, atol=1e-4)

    def test_values_that_are_read(self, device: str) -> None:
        def work(x: torch.Tensor) -> torch.Tensor:
            kept = x[x > 0]
            return (kept * 2 + 1).exp() * kept.sum()

        with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
            compiled = graft(work, fullgraph=True)
            for _ in range(5):
                x = torch.randn(20)
                assert_close(compiled(x.to(device)).cpu(), work(x), rtol=1e-4, atol=1e-4)

    def test_an_op_on_the_cpu(self, device: str) -> None:
        def work(x: torch.Tensor) -> torch.Tensor:
            return torch.linalg.eigvals((x * 2 + 1) @ x).abs().sum() * 2

        compare(device, work, torch.randn(4, 4), tolerance=1e-3)

    def test_branches_of_the_device(self, device: str) -> None:
        def work(x: torch.Tensor) -> torch.Tensor:
            y = torch.cond(x.sum() > 0, lambda x: x * 2 + 1, lambda x: x.sin() - 1, (x,))
            return y.exp() + y

        compiled = graft(work, fullgraph=True)
        for sign in (1, -1, 1, -1, 1):
            x = torch.ones(4, 3) * sign
            assert_close(compiled(x.to(device)).cpu(), work(x), rtol=1e-4, atol=1e-4)


class TestErrors:
    def test_of_the_call(self, device: str) -> None:
        compiled = graft(lambda x, i: (x[i] * 2).sin() + 1)
        x = torch.randn(5, 3, device=device)
        for _ in range(3):
            compiled(x, torch.tensor([0, 4], device=device))
        with pytest.raises(IndexError, match="out of bounds"):
            compiled(x, torch.tensor([0, 5], device=device))

    def test_a_division_by_zero(self, device: str) -> None:
        compiled = graft(lambda x, y: (x + 1) // y + 2)
        x, y = torch.arange(4, device=device), torch.ones(4, dtype=torch.int64, device=device)
        for _ in range(3):
            compiled(x, y)
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            compiled(x, y - 1)

    def test_modes_and_options(self, device: str) -> None:
        compiled = graft(lambda x: x + 1, options={"speed": 9})
        with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="neither modes nor options"):
            compiled(torch.ones(3, device=device))

    def test_a_kernel_that_does_not_compile(self, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """The ops run one by one."""
        from torchgraft.codegen.compiler import KernelCompileError
        from torchgraft.compiler import fused

        def refused(*_: Any) -> None:
            raise KernelCompileError("fused", "no", "", device)

        monkeypatch.setattr(fused.FusedOps, "trace", refused)
        x, y = torch.randn(5, 4), torch.randn(5, 4)
        compiled = graft(chain)
        for _ in range(4):
            assert_close(compiled(x.to(device), y.to(device)).cpu(), chain(x, y))


class TestDevices:
    def test_only_the_cpu(self) -> None:
        x, y = torch.randn(5, 4, requires_grad=True), torch.randn(5, 4)
        assert_close(graft(chain)(x, y), chain(x, y))

    def test_the_name_is_known_without_an_import(self, script: Script) -> None:
        script(
            """
            import sys
            import torch

            torch.ones(2, device="ocl") + 1
            assert not any(name.startswith(("torch._dynamo", "torch._functorch.aot")) for name in sys.modules)
            assert "torchgraft.compiler.aot" not in sys.modules
            assert "graft" in torch.compiler.list_backends()
            torch.compile(lambda x: x + 1, backend="graft")(torch.ones(2, device="ocl"))
            assert not any(name.startswith("torchgraft.inductor.reg") for name in sys.modules)
            """,
            autoload=True,
        )

    @pytest.mark.quick(unified=False)
    @pytest.mark.parametrize("unified", [False, True])
    def test_one_without_a_compiler(self, script: Script, unified: bool) -> None:
        """By the CPU, and by functions of the device's own; in training, with sizes that change, and dropout."""
        script(
            f"""
            import copy, torch, torchgraft
            from torch import nn
            from torch.testing import assert_close
            from numpy_driver import NumpyDriver

            calls = []

            @torchgraft.plans.composite("gelu", replace=True)
            def gelu(x, approximate="none"):
                calls.append(x.shape)
                return torch.nn.functional.gelu(x.cpu(), approximate=approximate).to(x.device)

            torchgraft.register("dev", [NumpyDriver(unified={unified})])
            torchgraft.fallback.set_mode("silent")
            stats = torchgraft.plans.stats
            for activation, graphs in ((nn.Tanh, 2), (nn.GELU, 2)):  # whole, and in part what comes before the function
                on_cpu = nn.Sequential(nn.Linear(6, 12), nn.LayerNorm(12), activation(), nn.Linear(12, 3))
                ours = copy.deepcopy(on_cpu).to("dev")
                compiled = torch.compile(ours, backend="graft", fullgraph=True)
                before = stats().compiled_graphs
                for rows in (4, 4, 4, 4, 5, 6, 5, 5, 5):
                    x = torch.randn(rows, 6)
                    on_cpu.zero_grad(), ours.zero_grad()
                    expected, got = on_cpu(x), compiled(torch.cat([x, x]).to("dev")[rows:])
                    assert_close(got.cpu(), expected)
                    expected.square().sum().backward(), got.square().sum().backward()
                    for one, other in zip(ours.parameters(), on_cpu.parameters()):
                        assert_close(one.grad.cpu(), other.grad)
                    if rows == 4:
                        made = stats().compiled_graphs - before
                assert made == graphs, (activation, made)
            assert calls and stats().compiled_replays > 4

            def written(x, y):  # arguments that are written, views of one memory, no elements, results that are views
                x.add_(y)
                y[1:].copy_(x[:-1])
                z = torch.cat([x, y], 1).t()
                return z, z[1:], x[:0].sum(0), (x + 1).t().sort(1)[0], y.cumsum(0)[1:].mul(2)

            work = torch.compile(written, backend="graft", fullgraph=True)
            for _ in range(5):
                x, y = torch.randn(4, 3), torch.randn(4, 3)
                given = x.to("dev"), torch.cat([y, y]).to("dev")[4:]
                for one, other in zip((*work(*given), *given), (*written(x, y), x, y)):
                    assert_close(one.cpu(), other)

            drop = nn.Dropout(0.5)
            work = torch.compile(lambda x: drop(x * 2).add_(1), backend="graft")
            for seed in range(3):
                x = torch.randn(5, 4, device="dev")
                torch.manual_seed(seed)
                expected = drop(x * 2).add_(1)
                torch.manual_seed(seed)
                assert torch.equal(work(x).cpu(), expected.cpu())
            """
        )


def a_program(seed: int) -> Work:
    """Lines over two arguments and what earlier lines gave: loops, views, writes in place, and what is no loop."""
    draw = random.Random(seed)
    lines: list[tuple[Work, int, int]] = []
    kinds: list[Work] = [
        lambda a, b: a * 2 + 1,
        lambda a, b: a.sin(),
        lambda a, b: a + b.sum(),
        lambda a, b: a.t(),
        lambda a, b: a[1:].exp() if a.shape[0] > 2 else a.neg(),
        lambda a, b: a * b if a.shape == b.shape else a - 1,
        lambda a, b: torch.where(a > 0, a, b.flatten()[0]),
        lambda a, b: a.sum(0, keepdim=True) + a,
        lambda a, b: a.mul_(0.5),
        lambda a, b: a.add_(b + 0) if a.shape == b.shape else a.clamp_(-2, 2),  # b may lie over a
        lambda a, b: a.t().copy_(a.t() + 1),
        lambda a, b: a.to(torch.bfloat16) * 3,
        lambda a, b: a.float() @ a.float().t(),
        lambda a, b: torch.cat([a, a], 1)[:, : a.shape[1]],
        lambda a, b: torch.zeros_like(a) + a.reshape(-1)[: a.shape[1]],
        lambda a, b: (a > b.flatten()[-1]).to(a.dtype),
        lambda a, b: a.expand(2, *a.shape).relu()[1],
        lambda a, b: a.softmax(-1),
    ]
    for count in range(draw.randint(6, 14)):
        lines.append((draw.choice(kinds), draw.randrange(count + 2), draw.randrange(count + 2)))

    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = [x, y]
        for line, first, second in lines:
            values.append(line(values[first], values[second]))
        return tuple(values[2:])

    return program


def check_program(device: str, seed: int) -> None:
    """Beside the same ops called one by one on the device, bit by bit, with what is written to the arguments."""
    work = a_program(seed)
    torch._dynamo.reset()
    compiled = graft(work, dynamic=seed % 3 == 0)
    for number in range(4):
        shape = (5, 5) if seed % 2 else (4 + number % 2, 6)
        given = [torch.randn(shape, device=device) for _ in range(2)]
        ours = [each.clone() for each in given]
        expected, got = work(*given), compiled(*ours)
        for one, other in zip((*got, *ours), (*expected, *given), strict=True):
            assert one.dtype == other.dtype
            assert_close(one, other, rtol=0, atol=0, equal_nan=True, msg=lambda m: f"program {seed}: {m}")


@pytest.mark.thorough
def test_random_programs(device: str, seeded: int) -> None:
    for number in range(8):
        check_program(device, seeded + number)


@pytest.mark.thorough
def test_more_random_programs(device: str, seeded: int) -> None:
    for number in range(8, 60):
        check_program(device, seeded + number)


def test_nothing_of_inductor_is_used() -> None:
    """By name, in the compiler's own text."""
    import torchgraft.compiler as package

    for file in __import__("pathlib").Path(package.__file__).parent.glob("*.py"):
        assert "torch._inductor" not in file.read_text(), file
    assert sys.modules["torchgraft.compiler"] is package
