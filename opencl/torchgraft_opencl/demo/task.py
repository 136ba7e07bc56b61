"""What the trainer needs to know of a model and its data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import nn

Batch = tuple[torch.Tensor, torch.Tensor]


class Task(ABC):
    """A model, its data and how it is judged. Everything random follows from `seed`, and is drawn on the CPU."""

    name: str
    steps: int
    clip: float | None = None  # the norm that gradients are clipped to
    least_accuracy: float = 0.0  # below it, something is wrong

    def __init__(self, seed: int) -> None:
        self.seed = seed

    @abstractmethod
    def make_model(self) -> nn.Module:
        """A new model with the same initial weights at every call."""

    @abstractmethod
    def make_optimizer(self, model: nn.Module) -> torch.optim.Optimizer: ...

    @abstractmethod
    def make_scheduler(self, optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler: ...

    @abstractmethod
    def training_batches(self) -> Iterator[Batch]:
        """`steps` batches, the same ones at every call."""

    @abstractmethod
    def held_out_batches(self) -> Iterator[Batch]:
        """What the model is judged on and never trained on."""

    def show(self, model: nn.Module, length: int) -> str:
        """Something the trained model makes, if it makes anything."""
        return ""
