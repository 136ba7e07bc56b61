"""Lightning and Fabric know the device, and choose it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from libraries import classifier, devices, examples, library
from torch import nn

pytestmark = [
    pytest.mark.no_fallback,
    pytest.mark.thorough,  # importing it takes long
    pytest.mark.filterwarnings("ignore:.*num_workers:UserWarning", "ignore:.*LeafSpec.*:FutureWarning"),
]


@pytest.fixture(scope="module")
def lightning() -> Any:
    library("lightning.pytorch")
    return library("lightning")


def batches() -> Any:
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*examples()), batch_size=4)


def fit(lightning: Any, **options: Any) -> tuple[Any, list[float]]:
    """Trains; returns the trainer and the losses."""
    losses = []

    class Classifier(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.network = classifier()

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            loss = nn.functional.cross_entropy(self.network(batch[0]), batch[1])
            losses.append(loss.item())
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=1e-2)

    quiet = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary", "barebones"), False
    )
    trainer = lightning.Trainer(max_epochs=2, log_every_n_steps=1, gradient_clip_val=1.0, **quiet, **options)
    trainer.fit(Classifier(), batches())
    return trainer, losses


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({}, 1e-5),
        ({"accelerator": "{name}", "devices": [0]}, 1e-5),
        ({"accelerator": "{name}", "precision": "16-mixed"}, 2e-3),
        ({"precision": "bf16-mixed"}, 2e-2),
        ({"precision": "bf16-true"}, 5e-2),
    ],
)
def test_training(lightning: Any, device: str, options: dict[str, Any], error: float) -> None:
    name = torch.device(device).type
    options = {key: name if value == "{name}" else value for key, value in options.items()}
    trainer, losses = fit(lightning, **options)
    assert trainer.strategy.root_device.type == name
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    assert (scaler is not None and scaler.is_enabled()) is (options.get("precision") == "16-mixed")
    _, expected = fit(lightning, accelerator="cpu")
    torch.testing.assert_close(losses, expected, rtol=error, atol=error)


def test_fabric(lightning: Any, device: str) -> None:
    def train(**options: Any) -> tuple[Any, list[float]]:
        fabric, module, losses = lightning.Fabric(**options), classifier(), []
        module, optimizer = fabric.setup(module, torch.optim.SGD(module.parameters(), lr=1e-2))
        assert devices(module) == {fabric.device.type}
        for inputs, classes in fabric.setup_dataloaders(batches()):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(module(inputs), classes)
            fabric.backward(loss)
            optimizer.step()
            losses.append(loss.item())
        return fabric.device, losses

    _, expected = train(accelerator="cpu")
    for options, error in (({}, 1e-5), ({"precision": "16-mixed"}, 2e-3), ({"precision": "bf16-mixed"}, 2e-2)):
        chosen, losses = train(**options)
        assert chosen.type == torch.device(device).type
        torch.testing.assert_close(losses, expected, rtol=error, atol=error)


@pytest.mark.parametrize("kind", ["Trainer", "Fabric"])
def test_what_is_refused(lightning: Any, device: str, kind: str) -> None:
    """With advice."""
    name = torch.device(device).type
    make = getattr(lightning, kind)
    with pytest.raises(Exception, match=f'No supported gpu backend found! For {name}:0, pass accelerator="{name}"'):
        make(accelerator="gpu")
