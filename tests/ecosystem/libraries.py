"""What the tests of libraries share: a library that is not installed leaves its tests out."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from torch import nn


def library(name: str) -> Any:
    """Imports a module, in a test since that takes seconds; skips the test where it cannot be imported."""
    try:
        return importlib.import_module(name)
    except (ImportError, RuntimeError) as error:  # the latter: it was made for another build of torch
        pytest.skip(f"{name} cannot be imported here: {error}")


def examples(count: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers and their classes."""
    inputs = torch.randn(count, 8, generator=torch.Generator().manual_seed(1))
    return inputs, (inputs.sum(1) > 0).long()


def classifier() -> nn.Sequential:
    """A small network, always with the same weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 2))


def devices(module: nn.Module) -> set[str]:
    """The types of the devices that a module's parameters are on."""
    return {parameter.device.type for parameter in module.parameters()}
