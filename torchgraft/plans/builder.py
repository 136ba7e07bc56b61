"""The plan under construction: what a planner writes into."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from torchgraft.codegen.types import element_type
from torchgraft.plans import batch, fusion, pointwise
from torchgraft.plans.operators import plan_operator
from torchgraft.plans.steps import Operand, PlannedLoop, Steps, _Copy, _Fill

#: Plans an op on specs with its arguments and keyword arguments, into the last argument if that is not None.
Nested = Callable[["PlanBuilder", Any, tuple[Any, ...], dict[str, Any], Any], Any]


@dataclass
class PlanBuilder(Steps):
    """Collects a plan's steps. Specs are meta tensors: they have shape, strides and dtype, and views of one lie in its
    memory.

    Attributes:
        nested: plans an op as a part of this plan; see `call`.
    """

    nested: Nested = field(kw_only=True)

    # ---- copies ----

    def contiguous(self, spec: torch.Tensor) -> torch.Tensor:
        """The spec if it is contiguous, else a contiguous temporary with a copy of it."""
        if spec.is_contiguous() and not spec.is_conj() and not spec.is_neg() and not self.is_cpu_scalar(spec):
            return spec
        copy = self.empty_like(spec)
        self.copy(copy, spec)
        return copy

    def cast(self, spec: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The spec if it has that dtype, else a contiguous temporary with its values converted."""
        if spec.dtype == dtype:
            return spec
        copy = self.empty_like(spec, dtype)
        self.copy(copy, spec)
        return copy

    def copy(self, destination: torch.Tensor, source: torch.Tensor) -> None:
        """Copies values, whatever the strides and dtypes; the source is broadcast."""
        if destination.numel() == 0:
            return
        if source.shape != destination.shape:
            source = source.expand(destination.shape)
        plain = (
            source.dtype == destination.dtype
            and source.stride() == destination.stride()
            and pointwise.is_dense(destination)
            and source.is_conj() == destination.is_conj()
            and source.is_neg() == destination.is_neg()
            and not self.is_cpu_scalar(source)
        )
        if plain:
            self.add(_Copy(destination, source, destination.numel() * destination.element_size()))
        elif not plan_operator(self, "copy", [source], [destination]):
            pointwise.plan_copy(self, destination, source)

    def fill(self, destination: torch.Tensor, value: complex) -> None:
        """Sets every element to a number."""
        if destination.numel() == 0:
            return
        if pointwise.is_dense(destination):
            pattern = _pattern(destination.dtype, value)
            self.add(_Fill(destination, destination.numel() * destination.element_size(), pattern))
        elif isinstance(value, complex) or not plan_operator(self, "fill", [], [destination], value=value):
            pointwise.plan_fill(self, destination, value)

    def zero(self, destination: torch.Tensor) -> None:
        """Sets every element to zero."""
        self.fill(destination, 0)

    # ---- operators of the device's own ----

    def operator(
        self,
        name: str,
        inputs: Sequence[Operand],
        outputs: Sequence[torch.Tensor | None],
        /,
        **attributes: Any,
    ) -> bool:
        """Adds an operator of the device's library, if it has it for such tensors: see `operators.plan_operator`."""
        return plan_operator(self, name, inputs, outputs, **attributes)

    # ---- other ops ----

    def call(self, op: Any, *args: Any, **kwargs: Any) -> Any:
        """Plans another op as part of this plan; returns specs of its results. View ops cost nothing."""
        return self.nested(self, op, args, kwargs, None)

    def call_out(self, op: Any, out: Any, *args: Any, **kwargs: Any) -> None:
        """Plans another op (its functional overload) as part of this plan, writing into `out` (a spec or a tuple of
        them)."""
        self.nested(self, op, args, kwargs, out)

    # ---- the end ----

    def settle(self) -> None:
        """Makes few steps of many: the last thing before the plan is finished, or its kernels are looked at."""
        if len(self._steps) == 1 and self.kernels:
            return
        steps = self._steps if self.any_shape else fusion.without_copies(self, self._steps)
        self._steps = []
        for run in fusion.independent(self, fusion.alike_together(self, fusion.fused(self, steps))):
            if isinstance(run, list):
                batch.plan_loops(self, run, pointwise.launch_loop)
            elif isinstance(run, PlannedLoop):
                pointwise.launch_loop(self, run)
            else:
                self.add(run)


_STRUCT = {
    torch.float64: "d",
    torch.float32: "f",
    torch.float16: "e",
    torch.int64: "q",
    torch.int32: "i",
    torch.int16: "h",
    torch.int8: "b",
    torch.uint8: "B",
    torch.bool: "?",
}


def _pattern(dtype: torch.dtype, value: complex) -> bytes:
    """The bytes of one element."""
    element_type(dtype)
    code = _STRUCT.get(dtype)
    if code is not None and value == 0:
        return bytes(struct.calcsize(code))
    tensor = torch.full((1,), value, dtype=dtype, device="cpu")
    return bytes(tensor.view(torch.uint8).tolist())
