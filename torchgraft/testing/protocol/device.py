"""A device as torch sees it: what every program relies on, compared with torch's CPU.

These checks are of the whole of driver, core and fallback; ops one by one are the conformance suite's subject.
"""

from __future__ import annotations

import copy
import gc
import io
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch

import torchgraft

MIB = 1 << 20
DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64,
]  # fmt: skip


class DeviceProtocol:
    """Derive from it, and have a fixture `device`: the name of a registered device, like "foo"."""

    #: The plug-in `pytest_torchgraft` runs the checks in a process that may crash.
    torchgraft_isolated = True

    @pytest.fixture
    def module(self, device: str) -> ModuleType:
        """`torch.<name>`."""
        found: ModuleType = torch.get_device_module(device)
        if not found.is_available():
            pytest.skip(f"no device '{device}' is available")
        return found

    @pytest.fixture(autouse=True)
    def _quiet_fallback(self, module: ModuleType) -> Iterator[None]:
        """What is asked is whether it works, not where it is computed."""
        with torchgraft.fallback("silent"):
            yield

    # Devices and the module

    def test_the_module(self, device: str, module: ModuleType) -> None:
        name = torch.device(device).type
        assert getattr(torch, name) is module
        assert torch.accelerator.current_accelerator() == torch.device(name)
        assert module.is_available() is True
        assert module.device_count() == torch.accelerator.device_count() >= 1
        module.synchronize(device)  # without a device it opens nothing
        assert module.is_initialized()

    def test_properties(self, device: str, module: ModuleType) -> None:
        properties = module.get_device_properties(device)
        assert module.get_device_name(device) == properties.name != ""
        assert properties.total_memory > 0

    def test_the_current_device(self, device: str, module: ModuleType) -> None:
        name, before = torch.device(device).type, module.current_device()
        for index in range(module.device_count()):
            with module.device(index):
                assert module.current_device() == index
                assert torch.empty(1, device=name).device == torch.device(name, index)
        assert module.current_device() == before
        with pytest.raises(RuntimeError):
            torch.empty(1, device=f"{name}:{module.device_count()}")

    def test_tensors_between_devices(self, device: str, module: ModuleType) -> None:
        if module.device_count() < 2:
            pytest.skip("one device only")
        name = torch.device(device).type
        x = torch.arange(1000.0).to(f"{name}:0")
        y = x.to(f"{name}:1")
        assert y.device.index == 1
        assert torch.equal(y.cpu(), torch.arange(1000.0))
        with pytest.raises(RuntimeError):
            x + y

    # Tensors

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_there_and_back(self, device: str, dtype: torch.dtype) -> None:
        x = torch.randint(0, 2, (3, 5)).to(dtype)
        y = x.to(device)
        assert y.device.type == torch.device(device).type
        assert y.dtype == dtype
        assert torch.equal(y.cpu(), x)

    def test_creation(self, device: str) -> None:
        for x in (
            torch.zeros(2, 3, device=device), torch.full((4,), 2.5, device=device), torch.arange(7, device=device),
            torch.tensor([[1, 2], [3, 4]], device=device), torch.empty(0, device=device), torch.eye(3, device=device),
        ):  # fmt: skip
            assert x.device.type == torch.device(device).type
        assert torch.full((4,), 2.5, device=device).tolist() == [2.5] * 4
        assert torch.tensor([[1, 2], [3, 4]], device=device).tolist() == [[1, 2], [3, 4]]
        assert torch.eye(3, device=device).sum().item() == 3
        with torch.device(device):
            assert torch.ones(2).device.type == torch.device(device).type

    def test_views_share_memory(self, device: str) -> None:
        x, expected = torch.zeros(4, 6, device=device), torch.zeros(4, 6)
        for each in (x, expected):
            each[1:3, ::2] = 1
            each.t()[5].fill_(7)
            each.view(-1)[3] = 9
            each.unsqueeze(0).expand(2, 4, 6)[0, 0, 0].add_(4)
        assert torch.equal(x.cpu(), expected)
        assert x[1:].data_ptr() == x.data_ptr() + 6 * 4
        assert x[1:]._base is x

    def test_copies_of_strided_tensors(self, device: str) -> None:
        x = torch.randn(5, 6, 7)
        y = x.to(device)
        views: list[Callable[[torch.Tensor], torch.Tensor]] = [
            lambda t: t.permute(2, 0, 1),
            lambda t: t[::2, 1:5, ::3],
            lambda t: t[:, None].expand(5, 3, 6, 7),
            lambda t: t.flip(0),
        ]
        for view in views:
            assert torch.equal(view(y).cpu(), view(x))
            assert torch.equal(view(y).contiguous().cpu(), view(x))
            assert torch.equal(view(y).to(torch.float64).cpu(), view(x).double())

    def test_in_place(self, device: str) -> None:
        x = torch.ones(3, 4, device=device)
        pointer, version = x.data_ptr(), x._version
        x.mul_(2).add_(torch.ones(4, device=device)).clamp_(max=2.5)
        assert x.data_ptr() == pointer
        assert x._version > version
        assert x.tolist() == [[2.5] * 4] * 3

    def test_arithmetic(self, device: str) -> None:
        a, b = torch.randn(8, 5), torch.randn(5, 3)
        actual = torch.softmax(a.to(device) @ b.to(device) + 1, -1).sum(0)
        torch.testing.assert_close(actual.cpu(), torch.softmax(a @ b + 1, -1).sum(0))
        out = torch.empty(8, 3, device=device)
        assert torch.mm(a.to(device), b.to(device), out=out) is out
        torch.testing.assert_close(out.cpu(), a @ b)

    def test_printing(self, device: str) -> None:
        text = repr(torch.tensor([1.5, 2.5], device=device))
        assert "1.5000, 2.5000" in text
        assert f"device='{torch.device(device).type}:" in text

    def test_numpy_needs_a_copy(self, device: str) -> None:
        x = torch.ones(2, device=device)
        assert x.cpu().numpy().tolist() == [1, 1]
        with pytest.raises(TypeError):
            x.numpy()

    def test_deepcopy_is_a_copy(self, device: str) -> None:
        x = torch.ones(3, device=device)
        y = copy.deepcopy(x)
        y.zero_()
        assert (x.sum().item(), y.sum().item(), y.device) == (3, 0, x.device)

    def test_storages(self, device: str) -> None:
        x = torch.arange(4.0, device=device)
        storage = x.untyped_storage()
        assert (storage.nbytes(), storage.device) == (16, x.device)
        storage.resize_(32)
        assert storage.nbytes() == 32
        assert x.tolist() == [0, 1, 2, 3]

    def test_generated_methods(self, device: str) -> None:
        """Those of torch's own making: `tensor.foo()` and the like."""
        name = torch.device(device).type
        x = getattr(torch.ones(2), name)()
        assert getattr(x, f"is_{name}")
        assert not getattr(torch.ones(2), f"is_{name}")
        layer = getattr(torch.nn.Linear(2, 2), name)()
        assert layer.weight.device.type == name

    # Autograd, modules, optimizers

    def test_autograd(self, device: str) -> None:
        values = torch.randn(6, 4)
        gradients = []
        for where in ("cpu", device):
            x = values.detach().to(where).requires_grad_()
            (x.tanh() * x.T.contiguous().T).square().mean().backward()
            assert x.grad is not None
            gradients.append(x.grad.cpu())
        torch.testing.assert_close(*gradients)

    @pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
    def test_training(self, device: str, optimizer: str) -> None:
        losses = [_train(where, optimizer) for where in ("cpu", device)]
        assert losses[0][-1] < losses[0][0]
        torch.testing.assert_close(losses[1], losses[0], rtol=1e-3, atol=1e-4)

    def test_autocast(self, device: str) -> None:
        a, b = torch.randn(4, 4, device=device), torch.randn(4, 4, device=device)
        name = torch.device(device).type
        with torch.autocast(name, dtype=torch.bfloat16):
            product = a @ b
            assert product.dtype == torch.bfloat16
            assert torch.nn.functional.softmax(product, -1).dtype == torch.float32
            with torch.autocast(name, enabled=False):
                assert (a @ b).dtype == torch.float32
        torch.testing.assert_close(product.float().cpu(), (a @ b).cpu(), rtol=0.05, atol=0.2)

    # Saving

    @pytest.mark.parametrize("weights_only", [True, False])
    def test_save_and_load(self, device: str, weights_only: bool) -> None:
        saved = {"x": torch.randn(3, 4).to(device), "y": torch.arange(5, device=device)[1:4]}
        file = io.BytesIO()
        torch.save(saved, file)
        for target in (None, "cpu", device):
            file.seek(0)
            loaded = torch.load(file, map_location=target, weights_only=weights_only)
            for key, value in saved.items():
                assert loaded[key].device.type == torch.device(target or device).type
                assert torch.equal(loaded[key].cpu(), value.cpu())

    def test_state_dict(self, device: str) -> None:
        model = torch.nn.Linear(3, 2).to(device)
        other = torch.nn.Linear(3, 2)
        other.load_state_dict(model.state_dict())
        assert torch.equal(other.weight, model.weight.cpu())

    # Random numbers

    def test_seeds(self, device: str, module: ModuleType) -> None:
        def draw() -> torch.Tensor:
            return torch.rand(100, device=device).cpu()

        torch.manual_seed(7)
        first = draw()
        torch.manual_seed(7)
        assert torch.equal(draw(), first)
        assert not torch.equal(draw(), first)
        assert first.min() >= 0
        assert first.max() < 1
        state = module.get_rng_state(device)
        again = draw()
        module.set_rng_state(state, device)
        assert torch.equal(draw(), again)

    def test_generators(self, device: str) -> None:
        before = torch.get_device_module(device).get_rng_state(device)
        drawn = []
        for _ in range(2):
            generator = torch.Generator(device).manual_seed(3)
            drawn.append(torch.randn(50, device=device, generator=generator).cpu())
        assert torch.equal(*drawn)
        assert torch.equal(torch.get_device_module(device).get_rng_state(device), before)

    # Streams and events

    def test_streams(self, device: str, module: ModuleType) -> None:
        x, other = torch.randn(1000), module.Stream(device)
        assert module.current_stream(device) != other
        with module.stream(other):
            assert module.current_stream(device) == other
            y = x.to(device) * 2
        module.current_stream(device).wait_stream(other)
        assert torch.equal(y.cpu(), x * 2)
        other.synchronize()
        assert other.query() is True

    def test_events(self, device: str, module: ModuleType) -> None:
        event, other = module.Event(), module.Stream(device)
        x = torch.ones(1000, device=device) + 1
        event.record()
        event.wait(other)
        with module.stream(other):
            total = x.sum()
        other.synchronize()
        assert total.item() == 2000
        event.synchronize()
        assert event.query() is True

    def test_timing(self, device: str, module: ModuleType) -> None:
        start, end = module.Event(enable_timing=True), module.Event(enable_timing=True)
        start.record()
        torch.ones(100, device=device).add_(1)
        end.record()
        end.synchronize()
        try:
            milliseconds = start.elapsed_time(end)
        except NotImplementedError:
            pytest.skip("the device's events take no times")
        assert 0 <= milliseconds < 60_000

    def test_record_stream(self, device: str, module: ModuleType) -> None:
        other = module.Stream(device)
        x = torch.full((1000,), 3.0, device=device)
        other.wait_stream(module.current_stream(device))
        with module.stream(other):
            y = x * 2
        x.record_stream(other)
        del x
        torch.zeros(1000, device=device)
        other.synchronize()
        assert y.sum().item() == 6000

    # Memory

    def test_memory_statistics(self, device: str, module: ModuleType) -> None:
        gc.collect()
        before = module.memory_allocated(device)
        x = torch.empty(4 * MIB, dtype=torch.uint8, device=device)
        assert module.memory_allocated(device) - before >= 4 * MIB
        assert module.max_memory_allocated(device) >= module.memory_allocated(device)
        assert module.memory_reserved(device) >= module.memory_allocated(device)
        del x
        assert module.memory_allocated(device) == before
        module.empty_cache()
        free, total = module.mem_get_info(device)
        assert 0 <= free <= total

    def test_out_of_memory(self, device: str) -> None:
        kept = torch.ones(100, device=device)
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(1 << 55, dtype=torch.uint8, device=device)
        assert kept.sum().item() == 100

    def test_pinned_memory(self, device: str) -> None:
        torch.ones(1, device=device)  # torch asks the host allocator only of a device in use
        x = torch.randn(1000).pin_memory()
        assert x.is_pinned()
        y = x.to(device, non_blocking=True)
        torch.accelerator.synchronize()
        assert torch.equal(y.cpu(), x)

    def test_threads(self, device: str) -> None:
        failures: list[str] = []

        def work(number: int) -> None:
            for step in range(10):
                x = torch.full((100 * number + step + 1,), float(number), device=device)
                if (x * 2).sum().item() != 2 * number * x.numel():
                    failures.append(f"thread {number}, step {step}")

        threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 5)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert failures == []


def _train(device: str, optimizer: str) -> list[float]:
    """The losses of a few steps of a small classifier, from the same start on every device."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(32, 8, generator=generator), torch.randint(3, (32,), generator=generator)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers: dict[str, Any] = {"in": torch.nn.Linear(8, 16), "norm": torch.nn.LayerNorm(16)}
        layers |= {"relu": torch.nn.ReLU(), "out": torch.nn.Linear(16, 3)}
        model = torch.nn.Sequential(OrderedDict(layers)).to(device)
    steps = getattr(torch.optim, optimizer)(model.parameters(), lr=0.05)
    losses = []
    for _ in range(8):
        steps.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x.to(device)), y.to(device))
        loss.backward()
        steps.step()
        losses.append(loss.item())
    return losses
