"""Programs of torch.compile are recorded at their second call and replayed from then on, with the addresses of each."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch._dynamo
import torch._inductor.config
import torch.nn.functional as F
from conftest import in_threads
from torch import nn
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from torchgraft import plans
from torchgraft.inductor import replay

pytestmark = pytest.mark.usefixtures("compiled_afresh")


def replays() -> int:
    return plans.stats().compiled_replays


def recorded(work: Callable[..., Any], *given: torch.Tensor, **options: Any) -> Callable[..., Any]:
    """The function compiled, and called until it is replayed: torch watches the first call."""
    compiled = torch.compile(work, fullgraph=True, **options)
    for _ in range(3):
        compiled(*(t.detach().clone().requires_grad_(t.requires_grad) for t in given))
    return compiled


class TestCalls:
    def test_other_memory_each_time(self, device: str) -> None:
        def work(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return (x @ y).relu().sum(1), x.sin() + y.t().cos()

        compiled = recorded(work, torch.randn(8, 16, device=device), torch.randn(16, 8, device=device))
        before = replays()
        kept = []
        for _ in range(5):
            x, y = torch.randn(8, 16), torch.randn(16, 8)
            kept.append((compiled(x.to(device), y.to(device)), work(x, y)))
        assert replays() == before + 5
        assert not replay.refusals
        for got, expected in kept:
            for one, other in zip(got, expected, strict=True):
                assert_close(one.cpu(), other, rtol=1e-4, atol=1e-4)

    def test_temporaries_share_memory(self, device: str) -> None:
        """A chain of products needs two of them at a time."""

        def work(x: torch.Tensor) -> torch.Tensor:
            for _ in range(20):
                x = x @ x * 0.1
            return x

        x = torch.eye(128)
        compiled = recorded(work, x.to(device))
        torch.accelerator.synchronize()
        module = torch.get_device_module(device)
        module.reset_peak_memory_stats()
        before = module.memory_allocated()
        result = compiled(x.to(device))
        assert module.max_memory_allocated() - before <= 5 * x.nbytes
        assert_close(result.cpu(), work(x))

    def test_results_that_are_inputs(self, device: str) -> None:
        """In their places, views of them, the same result twice, none, and numbers."""

        def work(x: torch.Tensor, y: torch.Tensor) -> Any:
            x.add_(y)
            z = y * 2
            return x, x[1:].t(), z, z, z.view(-1), None, 7

        compiled = recorded(work, torch.zeros(4, 3, device=device), torch.ones(4, 3, device=device))
        x, y = torch.randn(4, 3), torch.randn(4, 3)
        on_device = x.to(device)
        before = replays()
        got = compiled(on_device, y.to(device))
        assert replays() == before + 1
        expected = work(x, y)
        assert got[0] is on_device
        assert got[1].data_ptr() == on_device[1:].data_ptr()
        assert got[4].data_ptr() == got[2].data_ptr()
        assert got[5:] == (None, 7)
        for one, other in zip(got[:5], expected[:5], strict=True):
            assert one.stride() == other.stride()
            assert_close(one.cpu(), other)

    def test_views_with_offsets(self, device: str) -> None:
        compiled = recorded(lambda x: x * 2 + 1, torch.zeros(64, 8, device=device)[16:48])
        x = torch.randn(64, 8)
        assert_close(compiled(x.to(device)[32:64]).cpu(), x[32:64] * 2 + 1)
        assert_close(compiled(x.to(device)[1:33]).cpu(), x[1:33] * 2 + 1)  # not as well aligned

    def test_inputs_that_overlap(self, device: str) -> None:
        """They are told from each other by where they begin; where that is another, Python runs the program."""

        def work(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x * 2 + y

        base = torch.randn(130)
        compiled = torch.compile(work, fullgraph=True, dynamic=False)
        for shift in (1, 1, 1, 2, 1):
            on_device = base.to(device)
            got = compiled(on_device[:128], on_device[shift : shift + 128])
            assert_close(got.cpu(), work(base[:128], base[shift : shift + 128]))
        apart = compiled(base.to(device)[:128], base.to(device)[1:129])
        assert_close(apart.cpu(), work(base[:128], base[1:129]))

    def test_sizes_that_change(self, device: str) -> None:
        """More of them than are kept."""
        compiled = torch.compile(lambda x: (x.softmax(-1) * x.shape[0], x.shape[0]), dynamic=True)
        before = replays()
        for _ in range(2):
            for size in range(2, 75):
                for _ in range(3):
                    x = torch.randn(size, 5)
                    got, number = compiled(x.to(device))
                    assert number == size
                    assert_close(got.cpu(), x.softmax(-1) * size)
        assert replays() > before + 2 * 73

    def test_training(self, device: str) -> None:
        """Gradients that are kept and added to, as parameters' are."""
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(6, 12), nn.LayerNorm(12), nn.GELU(), nn.Linear(12, 3))
        other = nn.Sequential(nn.Linear(6, 12), nn.LayerNorm(12), nn.GELU(), nn.Linear(12, 3))
        other.load_state_dict(net.state_dict())
        other.to(device)
        compiled = torch.compile(other)
        before = replays()
        for step in range(6):
            x = torch.randn(5, 6)
            net(x).square().sum().backward()
            compiled(x.to(device)).square().sum().backward()
            for one, two in zip(net.parameters(), other.parameters(), strict=True):
                assert_close(two.grad.cpu(), one.grad, rtol=1e-4, atol=1e-4)
                if step % 2:
                    with torch.no_grad():
                        one -= 0.01 * one.grad
                        two -= 0.01 * two.grad
                    one.grad = two.grad = None
        assert replays() >= before + 8

    @pytest.mark.parametrize("fallback_random", [False, True])
    def test_random_numbers(self, device: str, fallback_random: bool) -> None:
        """Each call draws others, and after the same seed the same as the first calls, by Python, did."""
        x = torch.ones(1000, device=device)
        with torch._inductor.config.patch(fallback_random=fallback_random):
            compiled = torch.compile(lambda x: F.dropout(x, 0.5) + torch.rand_like(x))
            torch.manual_seed(3)
            first = [compiled(x) for _ in range(4)]
            before = replays()
            torch.manual_seed(3)
            second = [compiled(x) for _ in range(4)]
        assert replays() == before + 4
        for one, two in zip(first, second, strict=True):
            assert torch.equal(one, two)
        assert not any(torch.equal(first[0], other) for other in first[1:])

    def test_inference_mode(self, device: str) -> None:
        compiled = torch.compile(lambda x: x * 2)
        x = torch.ones(3, device=device)
        for _ in range(3):
            with torch.inference_mode():
                result = compiled(x)
            assert result.is_inference()
            assert result.tolist() == [2, 2, 2]

    def test_what_is_kept_is_given_back(self, device: str) -> None:
        gc.collect()  # what other tests have left goes first
        graphs = plans.stats().compiled_graphs
        program = replay.Replayed(lambda arguments: ((arguments[0] @ arguments[0]).relu(),))
        module = torch.get_device_module(device)
        x = torch.randn(8, 8, device=device)
        for _ in range(3):
            program([x])
        assert plans.stats().compiled_graphs == graphs + 1
        before = module.memory_allocated()
        for _ in range(10):
            program([x])
        assert module.memory_allocated() == before
        del program
        gc.collect()
        assert plans.stats().compiled_graphs == graphs


class TestErrors:
    def test_an_index_error_is_the_calls(self, device: str) -> None:
        """And the next call is as if nothing had been."""
        table = torch.randn(5, 3)
        good = torch.tensor([0, 4, 2])
        on_device = table.to(device)
        compiled = recorded(lambda table, index: table[index] * 2, on_device, good.to(device))
        before = replays()
        for bad in (torch.tensor([0, 5, 2]), torch.tensor([1, 2, -6])):
            # On a device that does not share the host's cores it comes with the next wait.
            with pytest.raises(IndexError, match=r"out of bounds for a dimension of size 5.*in a compiled graph"):
                compiled(on_device, bad.to(device)).cpu()
            assert_close(compiled(on_device, good.to(device)).cpu(), table[good] * 2)
        assert replays() >= before + 2

    def test_an_error_names_the_line_of_the_call(self, device: str) -> None:
        compiled = recorded(
            lambda table, index: table[index], torch.zeros(5, device=device), torch.tensor([1], device=device)
        )
        with pytest.raises(IndexError, match=r"captured at .*test_compiled_replay\.py:\d+"):
            compiled(torch.zeros(5, device=device), torch.tensor([9], device=device)).cpu()

    def test_other_threads_do_not_hear_of_it(self, device: str) -> None:
        table = torch.arange(50.0, device=device)
        good, bad = torch.arange(50, device=device), torch.full((50,), 77, device=device)
        compiled = recorded(lambda table, index: table[index] + 1, table, good)
        torch.accelerator.synchronize()
        failures: list[str] = []

        def work(index: torch.Tensor, raises: bool) -> None:
            with torch.get_device_module(device).stream(torch.Stream(device=device)):
                for _ in range(50):
                    try:
                        result = compiled(table, index).cpu()
                    except IndexError:
                        if not raises:
                            failures.append("an error of another thread's")
                    else:
                        if raises or not torch.equal(result, torch.arange(50.0) + 1):
                            failures.append(f"{raises}: {result}")

        threads = [threading.Thread(target=work, args=(bad if n % 2 else good, bool(n % 2))) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures

    def test_wrong_arguments(self, device: str) -> None:
        compiled = recorded(lambda x, y: x @ y, torch.randn(4, 5, device=device), torch.randn(5, 6, device=device))
        with pytest.raises((RuntimeError, torch._dynamo.exc.TorchRuntimeError), match="same reduction dim"):
            compiled(torch.randn(4, 5, device=device), torch.randn(4, 6, device=device))
        assert compiled(torch.ones(4, 5, device=device), torch.ones(5, 6, device=device)).eq(5).all()


class TestThreads:
    def test_many_call_at_once(self, device: str) -> None:
        weight = torch.randn(16, 16)

        def work(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            return (x @ weight).tanh().sum(1)

        compiled = recorded(work, torch.randn(8, 16, device=device), weight.to(device))
        on_device = weight.to(device)
        torch.accelerator.synchronize()
        failures: list[torch.Tensor] = []

        def call(seed: int) -> None:
            generator = torch.Generator().manual_seed(seed)
            for _ in range(40):
                x = torch.randn(8, 16, generator=generator)
                got = compiled(x.to(device), on_device).cpu()
                if not torch.allclose(got, work(x, weight), rtol=1e-4, atol=1e-4):
                    failures.append(got)

        in_threads(*(partial(call, seed) for seed in range(4)))
        assert not failures

    def test_streams(self, device: str) -> None:
        """On whatever stream is current, after what that was given."""
        compiled = recorded(lambda x: x.cumsum(0) + 1, torch.ones(100, device=device))
        module = torch.get_device_module(device)
        for _ in range(10):
            stream = module.Stream()
            with module.stream(stream):
                x = torch.ones(100, device=device) * 3
                y = compiled(x)
            stream.synchronize()
            assert torch.equal(y.cpu(), torch.arange(1.0, 101) * 3 + 1)


class TestWhatIsNotRecorded:
    def test_an_op_on_the_cpu(self, device: str) -> None:
        """It is counted with its reason, and right; what comes after it is recorded."""

        def work(x: torch.Tensor) -> torch.Tensor:
            return torch.linalg.eigvals(x).abs().sort().values + 1

        before = replays()
        compiled = torch.compile(work)
        for _ in range(4):
            x = torch.rand(4, 4)
            x += x.mT.clone()  # where eigenvalues change no more than the matrix
            assert_close(compiled(x.to(device)).cpu(), work(x), rtol=1e-4, atol=1e-4)
        assert replays() == before + 2
        assert any("linalg_eig" in why for why in replay.refusals)

    def test_a_value_that_is_asked_for(self, device: str) -> None:
        before = replays()
        with torch._dynamo.config.patch(capture_scalar_outputs=True):
            compiled = torch.compile(lambda x, n: x * n.item(), fullgraph=True)
            for n in (2, 3, 4):
                got = compiled(torch.ones(3, device=device), torch.tensor(n, device=device))
                assert got.tolist() == [n] * 3
        assert replays() == before
        assert replay.refusals.total() == 1

    def test_ops_of_which_nothing_is_known(self, device: str) -> None:
        """They may do what they like on the host, and do it at each call."""
        calls = []

        @torch.library.custom_op("replay_test::noted", mutates_args=())
        def noted(x: torch.Tensor) -> torch.Tensor:
            calls.append(x.shape)
            return x + 1

        noted.register_fake(torch.empty_like)
        compiled = torch.compile(lambda x: noted(x * 2), fullgraph=True)
        for _ in range(4):
            assert compiled(torch.ones(2, device=device)).tolist() == [3, 3]
        assert len(calls) == 4
        assert any("replay_test::noted" in why or "replay_test.noted" in why for why in replay.refusals)

    def test_numbers_of_the_cpu(self, device: str) -> None:
        compiled = torch.compile(lambda x, scale: x * scale)
        for scale in (2.0, 3.0, 4.0):
            assert compiled(torch.ones(2, device=device), torch.tensor(scale)).tolist() == [scale] * 2

    def test_a_mode_that_watches_ops(self, device: str) -> None:
        """It sees the program's ops as it does without a recording."""

        class Count(TorchDispatchMode):
            seen = 0

            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                Count.seen += 1
                return func(*args, **(kwargs or {}))

        x = torch.randn(4, 4, device=device)
        program = replay.Replayed(lambda arguments: (arguments[0] @ arguments[0],))
        for _ in range(3):
            program([x])
        before = replays()
        with Count():
            program([x])
        assert Count.seen == 1
        assert replays() == before

    def test_what_is_kept_by_others(self, device: str) -> None:
        """A program that stores a tensor of its own somewhere is not recorded: there is nothing in it."""
        kept = []

        def program(arguments: list[torch.Tensor]) -> tuple[torch.Tensor]:
            kept.append(arguments[0] + 1)
            return (kept[-1] * 2,)

        call = replay.Replayed(program)
        for _ in range(3):
            assert call([torch.ones(2, device=device)])[0].tolist() == [4, 4]
        assert any("keeps a tensor" in why for why in replay.refusals)


def test_a_compiled_function_in_a_graph(device: str) -> None:
    """There its launches are recorded one by one, those that may report an error too."""
    module = torch.get_device_module(device)
    table, index, x = torch.randn(5, 4), torch.tensor([1, 3]), torch.randn(2, 4)
    on_device = [t.to(device) for t in (table, index, x)]
    compiled = recorded(lambda table, index, x: (table[index] + x).relu(), *on_device)
    graph = module.Graph()
    with module.graph(graph):
        result = compiled(*on_device)
    graph.replay()
    assert_close(result.cpu(), (table[index] + x).relu())
    on_device[1].fill_(8)
    graph.replay()
    with pytest.raises(IndexError, match="index 8"):
        result.cpu()


def test_the_profiler_shows_its_kernels(device: str) -> None:
    from torch.profiler import ProfilerActivity, profile

    compiled = recorded(lambda x: (x @ x).relu() + 1, torch.randn(8, 8, device=device))
    x = torch.randn(8, 8, device=device)
    activities = [ProfilerActivity.CPU]
    if device == "ocl":
        activities.append(ProfilerActivity.OCL)  # type: ignore[attr-defined]
    before = replays()
    with profile(activities=activities) as profiled:
        compiled(x)
        torch.accelerator.synchronize()
    assert replays() == before + 1
    if device == "ocl":
        names = [event.name for event in profiled.events()]
        assert "tg_fused_add_relu" in names
