"""A workload: what is called, what it must at least move and compute, and the usual ways to make its data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

Call = Callable[[], object]
Make = Callable[[str], Call]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """One workload: `make(device)` prepares its data and returns the call.

    Attributes:
        name: its class and what it is, with a slash between them.
        nbytes: the least that a call moves: each input and output once.
        flops: those of the usual algorithm, whatever a side really does; 0 where nobody would count them.
        unit: of its speed, "GB/s" or "GFLOP/s".
        dtype: in which it computes; each has a peak of its own.
        tuned: whether kernels were tuned on it.
    """

    name: str
    make: Make
    nbytes: float
    flops: float
    unit: str
    dtype: torch.dtype = torch.float32
    tuned: bool = False

    @property
    def family(self) -> str:
        return self.name.split("/")[0]

    @property
    def work(self) -> float:
        """What a call does, in the unit times 1e9 seconds."""
        return self.nbytes if self.unit == "GB/s" else self.flops


def moving(name: str, make: Make, nbytes: float, flops: float = 0) -> Case:
    """A workload that is bound by what it moves."""
    return Case(name, make, nbytes, flops, "GB/s")


def computing(name: str, make: Make, flops: float, nbytes: float, dtype: torch.dtype = torch.float32) -> Case:
    """A workload that is bound by what it computes."""
    return Case(name, make, nbytes, flops, "GFLOP/s", dtype)


def randn(device: str, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, dtype=dtype).to(device)


def indices(device: str, below: int, *shape: int) -> torch.Tensor:
    return torch.randint(below, shape).to(device)


def on(function: Callable[..., object], *shapes: Shape, dtype: torch.dtype = torch.float32) -> Make:
    """Calls a function of random tensors of these shapes."""

    def make(device: str) -> Call:
        tensors = [randn(device, *shape, dtype=dtype) for shape in shapes]
        return lambda: function(*tensors)

    return make


def with_gradients(function: Callable[..., torch.Tensor], *shapes: Shape) -> Make:
    """Calls a function of random tensors, and makes the gradients of all of them."""

    def make(device: str) -> Call:
        tensors = [randn(device, *shape).requires_grad_() for shape in shapes]
        grad = randn(device, *function(*tensors).shape)
        return lambda: torch.autograd.grad(function(*tensors), tensors, grad)

    return make


def gradients_of(function: Callable[..., torch.Tensor], *shapes: Shape) -> Make:
    """Makes the gradients of random tensors alone: the function was called before."""

    def make(device: str) -> Call:
        tensors = [randn(device, *shape).requires_grad_() for shape in shapes]
        result = function(*tensors)
        grad = randn(device, *result.shape)
        return lambda: torch.autograd.grad(result, tensors, grad, retain_graph=True)

    return make
