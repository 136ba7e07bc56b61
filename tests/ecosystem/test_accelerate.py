"""Accelerate chooses the device by itself, and what it offers for devices works on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from libraries import classifier, devices, examples, library
from torch import nn

pytestmark = pytest.mark.no_fallback


@pytest.fixture
def accelerate(device: str) -> Iterator[Any]:
    """The library, which keeps one device for a whole process."""
    accelerate = library("accelerate")
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    yield accelerate
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


def train(accelerate: Any, epochs: int = 3, **options: Any) -> tuple[Any, nn.Module, list[float]]:
    """Trains; returns the accelerator, the module and the losses."""
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = accelerate.Accelerator(gradient_accumulation_steps=2, **options)
    module = classifier()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    batches = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*examples()), batch_size=4)
    module, optimizer, batches = accelerator.prepare(module, optimizer, batches)
    losses = []
    for _ in range(epochs):
        for inputs, classes in batches:
            with accelerator.accumulate(module):
                loss = nn.functional.cross_entropy(module(inputs), classes)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(module.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(accelerator.gather(loss).item())
    return accelerator, module, losses


@pytest.mark.parametrize(
    ("precision", "error"),
    [("no", 1e-5), pytest.param("fp16", 1e-3, marks=pytest.mark.thorough), ("bf16", 1e-2)],
)
def test_training(accelerate: Any, device: str, precision: str, error: float) -> None:
    accelerator, module, losses = train(accelerate, mixed_precision=precision)
    assert accelerator.device.type == torch.device(device).type
    assert devices(module) == {torch.device(device).type}
    if precision == "fp16":
        assert accelerator.scaler.is_enabled() and accelerator.scaler.get_scale() > 1
    _, module, expected = train(accelerate, cpu=True)
    assert devices(module) == {"cpu"}
    torch.testing.assert_close(losses, expected, rtol=error, atol=error)


def test_what_is_asked_for_is_used(accelerate: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "cpu")
    assert accelerate.Accelerator().device.type == "cpu"


def test_other_accelerators_come_first(accelerate: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchgraft.patches import libraries

    for other in (torch.cuda, torch.xpu, torch.backends.mps):
        with monkeypatch.context() as there:
            there.setattr(other, "is_available", lambda: True)
            assert libraries.only_device() is None


def test_random_numbers_go_on(accelerate: Any, device: str, tmp_path: Path) -> None:
    accelerator, _, _ = train(accelerate, epochs=1)
    accelerator.save_state(str(tmp_path))
    expected = torch.rand(3, device=device)
    accelerator.load_state(str(tmp_path))
    assert torch.equal(torch.rand(3, device=device), expected)


@pytest.mark.parametrize(
    "places", ["auto", "balanced", {"": 0}, {"": "{name}"}, {"0": 0, "1": "cpu", "2": 0, "3": "disk"}]
)
def test_big_models(accelerate: Any, device: str, places: Any, tmp_path: Path) -> None:
    """Loaded to where a map says, which Accelerate can make by what memory there is."""
    module, (inputs, _) = classifier(), examples()
    library("safetensors.torch").save_file(module.state_dict(), tmp_path / "model.safetensors", {"format": "pt"})
    with accelerate.init_empty_weights():
        empty = classifier()
    name = torch.device(device).type
    if isinstance(places, dict):
        places = {key: name if place == "{name}" else place for key, place in places.items()}
    loaded = accelerate.load_checkpoint_and_dispatch(
        empty, str(tmp_path / "model.safetensors"), device_map=places, offload_folder=str(tmp_path)
    )
    assert devices(loaded) - {"meta"} == {name}
    torch.testing.assert_close(loaded(inputs.to(device)).cpu(), module(inputs), rtol=1e-5, atol=1e-5)


def test_memory(accelerate: Any, device: str, caplog: pytest.LogCaptureFixture) -> None:
    get_max_memory = accelerate.utils.get_max_memory
    assert get_max_memory()[0] > 2**20
    assert get_max_memory({"cpu": "1KiB", 0: "2KiB"}) == {0: 2048, "cpu": 1024}
    assert caplog.text == ""
    unified = getattr(torch, torch.device(device).type).get_device_properties(0).unified_memory
    assert ("cpu" in get_max_memory()) is not unified


def test_a_smaller_batch_is_tried(accelerate: Any, device: str) -> None:
    tried = []

    @accelerate.utils.find_executable_batch_size(starting_batch_size=4)  # type: ignore[untyped-decorator]
    def compute(batch: int) -> int:
        tried.append(batch)
        torch.empty(2**45 if batch > 2 else 1, device=device)
        return batch

    assert compute() == 2 == tried[-1]
