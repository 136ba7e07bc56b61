"""The training loop: ordinary PyTorch, the same for every device."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from torchgraft_opencl.demo.task import Task

# Reading a loss waits for the device, so the progress bar does it only now and then.
REPORT_EVERY = 10


@dataclass
class Progress:
    """What the progress bar shows."""

    step: int
    loss: float
    samples_per_second: float
    memory: int


@dataclass
class Run:
    """The result of one training run."""

    device: torch.device
    losses: list[float]
    held_out_loss: float
    accuracy: float
    seconds: float
    model: nn.Module


def train(task: Task, device: torch.device, report: Callable[[Progress], None], amp: torch.dtype | None = None) -> Run:
    """Trains a new model of the task on a device and judges it.

    Args:
        amp: the type that matrix products are computed in, with the weights kept in float32; None for all in float32.
    """
    model = task.make_model().to(device)
    optimizer = task.make_optimizer(model)
    scheduler = task.make_scheduler(optimizer)
    # Gradients may be too small for float16's exponents; bfloat16's are as wide as float32's.
    scaler = torch.amp.GradScaler(device.type, enabled=amp == torch.float16)
    losses: list[torch.Tensor] = []
    samples = 0

    started = time.perf_counter()
    model.train()
    for step, (inputs, targets) in enumerate(task.training_batches(), start=1):
        inputs, targets = inputs.to(device, non_blocking=True), targets.to(device, non_blocking=True)
        with torch.autocast(device.type, dtype=amp, enabled=amp is not None):
            loss = cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        if task.clip is not None:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), task.clip)
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        losses.append(loss.detach())
        samples += len(inputs)
        if step % REPORT_EVERY == 0 or step == task.steps:
            value = loss.item()
            report(Progress(step, value, samples / (time.perf_counter() - started), memory_allocated(device)))
    seconds = time.perf_counter() - started  # the last loss was read, so the device has come this far

    held_out_loss, accuracy = judge(task, model, device)
    return Run(device, torch.stack(losses).tolist(), held_out_loss, accuracy, seconds, model)


@torch.no_grad()
def judge(task: Task, model: nn.Module, device: torch.device) -> tuple[float, float]:
    """Loss and accuracy on what was held out."""
    model.eval()
    loss, right, count = 0.0, 0, 0
    for inputs, targets in task.held_out_batches():
        inputs, targets = inputs.to(device), targets.to(device)
        predictions = model(inputs)
        loss += cross_entropy(predictions, targets).item() * targets.numel()
        right += int((predictions.argmax(-1) == targets).sum().item())
        count += targets.numel()
    return loss / count, right / count


def cross_entropy(predictions: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Over the last dimension of `predictions`, whatever comes before it."""
    return F.cross_entropy(predictions.flatten(0, -2), targets.flatten())


def memory_allocated(device: torch.device) -> int:
    """Bytes that tensors occupy on the device; 0 for the CPU, which does not count them."""
    return 0 if device.type == "cpu" else torch.accelerator.memory_allocated(device)
