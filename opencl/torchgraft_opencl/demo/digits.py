"""A convolutional network that reads handwritten digits: the 1,797 images that come with scikit-learn."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from sklearn.datasets import load_digits
from torch import nn

from torchgraft_opencl.demo.task import Batch, Task

BATCH = 64


class ConvNet(nn.Module):
    """Two blocks of convolution, batch norm, ReLU and pooling, then a classifier; for images of 8 x 8 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *(nn.Conv2d(1, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU()),
            *(nn.Conv2d(32, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU()),
            nn.MaxPool2d(2),
            *(nn.Conv2d(32, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU()),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(nn.Flatten(), nn.Linear(64 * 2 * 2, 128), nn.ReLU(), nn.Linear(128, 10))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        classes: torch.Tensor = self.classifier(self.features(images))
        return classes


class Digits(Task):
    """Four fifths of the images are trained on, one fifth is held out."""

    name = "digits"

    def __init__(self, seed: int, epochs: int, least_accuracy: float) -> None:
        super().__init__(seed)
        self.least_accuracy = least_accuracy
        data = load_digits()
        images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16 - 0.5
        labels = torch.tensor(data.target, dtype=torch.int64)
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
        held_out, training = order[: len(order) // 5], order[len(order) // 5 :]
        self.training = images[training], labels[training]
        self.held_out = images[held_out], labels[held_out]
        self.epochs = epochs
        self.steps = epochs * (len(training) // BATCH)

    def make_model(self) -> nn.Module:
        torch.manual_seed(self.seed)
        return ConvNet()

    def make_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4, nesterov=True)

    def make_scheduler(self, optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.steps)

    def training_batches(self) -> Iterator[Batch]:
        images, labels = self.training
        shuffle = torch.Generator().manual_seed(self.seed)
        for _ in range(self.epochs):
            order = torch.randperm(len(labels), generator=shuffle)
            for chosen in torch.split(order, BATCH):
                if len(chosen) == BATCH:
                    yield images[chosen], labels[chosen]

    def held_out_batches(self) -> Iterator[Batch]:
        yield self.held_out
