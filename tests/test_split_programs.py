"""Programs of torch.compile with something in them that cannot be recorded: the parts around it are."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
import torch._dynamo
import torch._inductor.config
import torch.nn.functional as F
from conftest import in_threads
from torch.testing import assert_close

import torchgraft
from torchgraft import plans
from torchgraft.inductor import replay
from torchgraft.inductor.registration import register

pytestmark = pytest.mark.filterwarnings("ignore:Torchinductor does not support code generation for complex")


@pytest.fixture(autouse=True)
def _fresh(compiled_afresh: None) -> Iterator[None]:
    with torchgraft.fallback("silent"):
        yield


def replays() -> int:
    return plans.stats().compiled_replays


def fallen(x: torch.Tensor) -> torch.Tensor:
    """A number, by an op that runs on the CPU. Eigenvalues of a symmetric matrix change no more than the matrix, where
    those of others may change by the root of what rounding has left."""
    return torch.linalg.eigvals(x + x.mT).abs().mean()


def check(
    device: str, work: Callable[..., Any], make: Callable[[], tuple[torch.Tensor, ...]], parts: int, **options: Any
) -> None:
    """The same as without a compiler, inputs too, and from the third call on by so many parts that are replayed."""
    compiled = torch.compile(work, fullgraph=True, **options)
    for call in range(5):
        given = make()
        on_device = [t.to(device) for t in given]
        before = replays()
        got, expected = compiled(*on_device), work(*given)
        if call > 1:
            assert replays() == before + parts
        for one, other in zip((*torch.utils._pytree.tree_leaves(got), *on_device), _flat(expected, given), strict=True):
            assert one.shape == other.shape
            assert one.stride() == other.stride()
            assert_close(one.cpu(), other.cpu(), rtol=1e-4, atol=1e-4)


def _flat(expected: Any, given: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    return [*torch.utils._pytree.tree_leaves(expected), *given]


def square(size: int = 6) -> tuple[torch.Tensor]:
    return (torch.rand(size, size),)


class TestWhatIsBetween:
    def test_an_op_on_the_cpu(self, device: str) -> None:
        """It is known when it is called: then the program is split."""

        def work(x: torch.Tensor) -> torch.Tensor:
            x = (x @ x).sin() @ x * 0.1
            return (x @ x).cos() * fallen(x) + 1

        check(device, work, square, parts=2)
        assert replay.splits.total() == plans.stats().compiled_splits == 1
        assert any("linalg_eig" in why for why in replay.splits)

    def test_elements_that_kernels_have_not(self, device: str) -> None:
        def work(x: torch.Tensor) -> torch.Tensor:
            x = x @ x
            return (x.to(torch.uint32) * 2).to(torch.int32) + x.sin() @ x

        check(device, work, square, parts=2)

    def test_several(self, device: str) -> None:
        def work(x: torch.Tensor) -> torch.Tensor:
            x = x @ x + fallen(x)
            x = x @ x * 0.01 + fallen(x)
            return (x.sin() @ x) / fallen(x)

        check(device, work, square, parts=4)
        assert replay.splits.total() == 1

    def test_tensors_of_the_cpu(self, device: str) -> None:
        def work(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            z = (x @ x).cpu() + y.cpu()
            return (z * 2).to(x.device) @ x + 1

        check(device, work, lambda: (torch.rand(5, 5), torch.rand(5, 5)), parts=2)
        assert replay.splits.total() == 1

    def test_indices_of_the_cpu(self, device: str) -> None:
        """An op that takes a tensor of the CPU reads it at each call."""

        def work(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
            x = x @ x
            return x.index_select(0, places.to(x.device)) @ x + places[0]

        compiled = torch.compile(work, fullgraph=True)
        for call in range(5):
            x, places, before = torch.rand(4, 4), torch.randint(4, (4,)), replays()
            assert_close(compiled(x.to(device), places).cpu(), work(x, places))
            assert call < 2 or replays() > before

    def test_a_number_of_the_cpu(self, device: str) -> None:
        """A kernel takes it as a number, which a recording would hold."""
        compiled = torch.compile(lambda x, scale: (x @ x) * scale @ x, fullgraph=True)
        for call in range(5):
            x, scale, before = torch.rand(4, 4), torch.tensor(call + 0.5), replays()
            assert_close(compiled(x.to(device), scale).cpu(), (x @ x) * scale @ x)
            assert replays() == before + 2 * (call > 1)

    def test_a_value_that_is_read(self, device: str) -> None:
        """What is made of it is recorded for each value."""

        def work(x: torch.Tensor) -> torch.Tensor:
            return (x @ x) * (x @ x).sum().long().item()

        with torch._dynamo.config.patch(capture_scalar_outputs=True):
            compiled = torch.compile(work, fullgraph=True)
            for call, size in enumerate((2, 2, 2, 3, 3, 3, 2)):
                x, before = torch.full((4, 4), float(size)), replays()
                assert_close(compiled(x.to(device)).cpu(), work(x))
                assert replays() == before + (0, 0, 2, 1, 2, 2, 2)[call]

    def test_sizes_that_data_decide_on(self, device: str) -> None:
        def work(x: torch.Tensor) -> torch.Tensor:
            x = (x @ x).sin()
            return x[x > 0].square().sum() + x @ x

        with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
            compiled = torch.compile(work, fullgraph=True)
            before = replays()
            for _ in range(8):
                x = torch.randn(7, 7)
                assert_close(compiled(x.to(device)).cpu(), work(x), rtol=1e-4, atol=1e-4)
        assert replays() >= before + 6

    def test_ops_of_others(self, device: str) -> None:
        """They do on the host what they like, and do it at each call."""
        calls = []

        @torch.library.custom_op("split_test::noted", mutates_args=("y",))
        def noted(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            calls.append(float(x.sum()))
            y += 1
            return x + 1

        noted.register_fake(lambda x, y: torch.empty_like(x))

        def work(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            z = noted((x @ x).sin(), y)
            return (z @ x).cos(), y @ y

        check(device, work, lambda: (torch.rand(5, 5), torch.rand(5, 5)), parts=2)
        assert len(calls) == 10
        assert calls[::2] == pytest.approx(calls[1::2], rel=1e-4)
        assert any("split_test" in why for why in replay.splits)

    def test_a_branch(self, device: str) -> None:
        def work(x: torch.Tensor) -> torch.Tensor:
            x = x @ x
            x = torch.cond(x.sum() > 30, lambda x: x.sin() @ x * 0.01, lambda x: x.cos() + x, (x,))
            return (x @ x * 0.1).tanh()

        turn = iter(range(100))
        check(device, work, lambda: (torch.rand(5, 5) * (1 + next(turn) % 3),), parts=2)

    def test_other_devices(self, device: str) -> None:
        module = torch.get_device_module(device)
        if module.device_count() < 2:
            pytest.skip("there is one device")
        one, other = (torch.device(torch.device(device).type, index) for index in (0, 1))

        def work(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            x, y = x @ x, y @ y
            x = (x + y.to(x.device)).sin() @ x
            return x, y.cos() @ y

        compiled = torch.compile(work, fullgraph=True)
        for call in range(5):
            x, y, before = torch.rand(4, 4), torch.rand(4, 4), replays()
            for got, expected in zip(compiled(x.to(one), y.to(other)), work(x, y), strict=True):
                assert_close(got.cpu(), expected)
            assert call < 2 or replays() > before


class TestWhatIsShared:
    def test_inputs_that_are_written(self, device: str) -> None:
        """Before and after what is between."""

        def work(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            x.add_(1)
            y[1:] += x[1:]
            number = fallen(x @ y)
            x.mul_(y)
            y.t()[2].sub_(number)
            return x @ y

        check(device, work, lambda: (torch.rand(5, 5), torch.rand(5, 5)), parts=2)

    def test_views(self, device: str) -> None:
        """Of a part's results in another part, and of inputs."""

        def work(x: torch.Tensor) -> Any:
            y = x.sin() @ x
            z, w = y[1:].t(), x[:, 2:]
            number = fallen(y[:3, :3])
            y = y + number
            return y, z * 2, y.view(-1)[5:], w, z, number, number

        compiled = torch.compile(work, fullgraph=True)
        for call in range(5):
            x, before = torch.rand(6, 6), replays()
            on_device = x.to(device)
            got, expected = compiled(on_device), work(x)
            assert call < 2 or replays() == before + 2
            for one, other in zip(got, expected, strict=True):
                assert one.stride() == other.stride()
                assert_close(one.cpu(), other, rtol=1e-4, atol=1e-4)
            assert got[2].data_ptr() == got[0].data_ptr() + 5 * 4
            assert got[3].data_ptr() == on_device[:, 2:].data_ptr()

    def test_inputs_that_overlap(self, device: str) -> None:
        def work(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return (x @ y) * fallen(x) + y.sin() @ x

        compiled = torch.compile(work, fullgraph=True, dynamic=False)
        for shift in (1, 1, 1, 2, 1):
            base = torch.rand(12, 6)
            on_device = base.to(device)
            got = compiled(on_device[:6], on_device[shift : shift + 6])
            assert_close(got.cpu(), work(base[:6], base[shift : shift + 6]), rtol=1e-4, atol=1e-4)

    def test_sizes_that_change(self, device: str) -> None:
        """Each part is recorded for each size."""

        def work(x: torch.Tensor) -> tuple[torch.Tensor, int]:
            x = x @ x / x.shape[0]
            return x.sin() @ x * fallen(x) + x.shape[0], x.shape[1]

        compiled = torch.compile(work, fullgraph=True, dynamic=True)
        before = replays()
        for _ in range(3):
            for size in range(3, 9):
                x = torch.rand(size, size)
                got, number = compiled(x.to(device))
                assert number == size
                assert_close(got.cpu(), work(x)[0], rtol=1e-4, atol=1e-4)
        # The program is tried as a whole with each size, and its parts are recorded then, or at the call that follows.
        assert replays() >= before + 6 * 2

    def test_training(self, device: str) -> None:
        weight = torch.rand(6, 6)
        other = weight.to(device).requires_grad_()
        weight.requires_grad_()

        def work(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            x = F.gelu(x @ weight)
            x = x + torch.linalg.eigvalsh(x + x.t()).sum()
            return (x @ weight).square().mean()

        compiled = torch.compile(work, fullgraph=True)
        before = replays()
        for _ in range(5):
            x = torch.rand(6, 6)
            work(x, weight).backward()
            compiled(x.to(device), other).backward()
            assert_close(other.grad.cpu(), weight.grad, rtol=1e-3, atol=1e-3)
        assert replays() > before

    def test_random_numbers(self, device: str) -> None:
        """The same after the same seed, by Python and replayed."""

        def work(x: torch.Tensor) -> torch.Tensor:
            x = F.dropout(x @ x, 0.5)
            return F.dropout(x * fallen(x), 0.5) + torch.rand_like(x)

        compiled, x = torch.compile(work, fullgraph=True), torch.rand(8, 8, device=device)
        torch.manual_seed(3)
        first = [compiled(x) for _ in range(4)]
        before = replays()
        torch.manual_seed(3)
        second = [compiled(x) for _ in range(4)]
        assert replays() == before + 8
        for one, two in zip(first, second, strict=True):
            assert_close(one, two)
        assert not any(torch.equal(first[0], other) for other in first[1:])


def test_memory(device: str) -> None:
    """What a part is given lives no longer than what needs it, and nothing stays after the call."""
    module = torch.get_device_module(device)

    def work(x: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            x = (x @ x) * 0.01
            x = x * (fallen(x[:2, :2]) * 0 + 1)
        return x

    compiled, x = torch.compile(work, fullgraph=True), torch.rand(256, 256, device=device)
    for _ in range(3):
        compiled(x)
    module.synchronize()
    gc.collect()
    before = module.memory_allocated()
    module.reset_peak_memory_stats()
    result = compiled(x)
    assert module.max_memory_allocated() - before <= 3.2 * x.nbytes
    module.synchronize()
    assert module.memory_allocated() - before <= 1.1 * x.nbytes
    del result
    assert module.memory_allocated() == before


def test_what_needs_no_split(device: str) -> None:
    """An op that is a function and not a plan, but is found to do no more than launch kernels."""
    check(device, lambda x: torch.histc(x @ x, 5, 0, 3).sin() + x @ x, lambda: (torch.rand(5, 5),), parts=1)
    assert not replay.splits
    assert not replay.refusals


def test_threads(device: str) -> None:
    def work(x: torch.Tensor) -> torch.Tensor:
        return (x @ x).sin() * fallen(x) + x @ x

    compiled = torch.compile(work, fullgraph=True)
    for _ in range(3):
        compiled(torch.rand(6, 6).to(device))
    wrong = []

    def call(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for _ in range(20):
            x = torch.rand(6, 6, generator=generator)
            got = compiled(x.to(device)).cpu()
            if not torch.allclose(got, work(x), rtol=1e-4, atol=1e-4):
                wrong.append(got)

    in_threads(*(partial(call, seed) for seed in range(4)))
    assert not wrong


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune-no-cudagraphs"])
def test_modes(device: str, mode: str) -> None:
    check(device, lambda x: (x @ x) * fallen(x @ x) @ x, square, parts=2, mode=mode)


def test_programs_are_split(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The patch is still needed: without it, nothing is a part."""
    from torch._inductor.scheduler import Scheduler

    register()
    monkeypatch.setattr(Scheduler, "should_partition", Scheduler.should_partition.__wrapped__)
    compiled, before = torch.compile(lambda x: (x @ x) * fallen(x) @ x, fullgraph=True), replays()
    for _ in range(4):
        compiled(torch.rand(4, 4, device=device))
    assert replays() == before
