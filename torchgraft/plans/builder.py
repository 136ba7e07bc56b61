"""The plan under construction: what a planner writes into."""

from __future__ import annotations

import functools
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from torchgraft import _C
from torchgraft.codegen import pointwise
from torchgraft.codegen.compiler import compiled, simd_width
from torchgraft.codegen.kernel import Kernel, Pointer
from torchgraft.codegen.types import element_type
from torchgraft.plans.scalar import Scalar

_ARENA_ALIGN = 256
_WIDEST = {bool: "i64", int: "i64", float: "f64", complex: "c128"}


class Unsupported(Exception):
    """Raised by a planner that cannot serve a call: this key goes to the CPU fallback, with the text as the reason."""


@dataclass(frozen=True)
class DeviceTraits:
    """What planners may want to know of the device."""

    index: int
    name: str
    kind: str
    compute_units: int
    local_memory: int
    max_work_group_size: int
    simd_width: int  # float32 elements of a vector register, a power of two
    float64: bool
    has_compiler: bool


@functools.cache
def device_traits(index: int) -> DeviceTraits:
    """The traits of a device of the backend."""
    p = _C.device_properties(index)
    capabilities = int(p["capabilities"])
    return DeviceTraits(
        index=index,
        name=str(p["name"]),
        kind="cpu" if p["kind"] == "cpu" else "gpu",
        compute_units=max(1, int(p["compute_units"])),
        local_memory=int(p["local_memory"]),
        max_work_group_size=int(p["max_work_group_size"]),
        simd_width=simd_width(index),
        float64=bool(capabilities & 1 << 2),
        has_compiler=bool(capabilities & 1 << 1),
    )


@functools.cache
def kernel_form(index: int) -> str:
    """ "cpu" or "gpu": which form of a kernel a device gets. TORCHGRAFT_KERNEL_FORM forces one."""
    forced = os.environ.get("TORCHGRAFT_KERNEL_FORM", "")
    if forced in ("cpu", "gpu"):
        return forced
    if forced:
        raise ValueError(f"TORCHGRAFT_KERNEL_FORM is 'cpu' or 'gpu', not {forced!r}")
    return device_traits(index).kind


@dataclass(eq=False)
class Memory:
    """What specs point into: a tensor argument, a new result or a temporary."""

    kind: str  # "argument", "cpu scalar" or "number" (one that torch wrapped as such), "result", "temporary", "table"
    holder: torch.Tensor  # keeps the meta storage, whose address is the key, alive
    argument: int = -1
    slot: int = -1
    values: torch.Tensor | None = None  # of a table
    number: complex | None = None  # what a "number" was when the plan was made

    @property
    def nbytes(self) -> int:
        return self.holder.untyped_storage().nbytes()


@dataclass(frozen=True)
class Philox:
    """A reservation of random numbers, as launch arguments: `seed` and `offset`, both u64."""

    add: int

    @property
    def seed(self) -> tuple[str]:
        return ("seed",)

    @property
    def offset(self) -> tuple[str, int]:
        return ("offset", self.add)


@dataclass(frozen=True)
class ErrorReport:
    """Where a kernel reports an error: `words` for a Pointer of type i32, `code` for a Value of type i32."""

    code: int
    words: tuple[str] = ("errors",)


@dataclass
class _Launch:
    kernel: Kernel
    groups: tuple[int, ...]
    chunking: tuple[int, int, int, int] | None
    args: list[Any]


@dataclass
class _Copy:
    destination: torch.Tensor
    source: torch.Tensor
    nbytes: int


@dataclass
class _Fill:
    destination: torch.Tensor
    nbytes: int
    pattern: bytes


@dataclass
class PlanBuilder:
    """Collects a plan's steps. Specs are meta tensors: they have shape, strides and dtype, and views of one lie in its
    memory.

    Attributes:
        device: traits of the device that the plan is for.
        form: "cpu" or "gpu", the form of kernels to use.
        op: the op's name, for messages.
        any_shape: all tensors of the call have one shape and are contiguous, and the plan must serve any such shape.
        gathered: while it is a list, loops over elements are put there instead of becoming launches; see
            codegen/batch.py.
    """

    device: DeviceTraits
    form: str
    op: str
    any_shape: bool = False
    gathered: list[pointwise.PlannedLoop] | None = None
    _memory: dict[int, Memory] = field(default_factory=dict)
    _steps: list[_Launch | _Copy | _Fill] = field(default_factory=list)
    _philox: int = 0
    _guards: list[tuple[Any, Any, Any, float]] = field(default_factory=list)

    # ---- memory ----

    def adopt(self, spec: torch.Tensor, kind: str, argument: int = -1) -> torch.Tensor:
        """Makes a meta tensor's storage known as an argument or a result."""
        self._memory[spec.untyped_storage()._cdata] = Memory(kind, spec, argument)
        return spec

    def memory(self, spec: torch.Tensor) -> Memory:
        """The memory that a spec lies in; a meta tensor seen for the first time becomes a temporary."""
        key = spec.untyped_storage()._cdata
        found = self._memory.get(key)
        if found is None:
            found = self._memory[key] = Memory("temporary", spec)
        return found

    def is_cpu_scalar(self, spec: torch.Tensor) -> bool:
        """True of a zero-dim CPU tensor, whose value is read when the plan is run."""
        return self.memory(spec).kind in ("cpu scalar", "number")

    def is_wrapped_number(self, spec: torch.Tensor) -> bool:
        """True of a Python number that arrives as a tensor, and counts as a number in type promotion."""
        return self.memory(spec).kind == "number"

    def peek(self, number: Scalar | torch.Tensor | complex) -> complex | None:
        """The value of a number, wrapped or not, for uses on which the plan does not depend; None of other tensors."""
        if isinstance(number, torch.Tensor):
            return self.memory(number).number
        return number.peek() if isinstance(number, Scalar) else number

    def empty(self, shape: Sequence[int], dtype: torch.dtype, strides: Sequence[int] | None = None) -> torch.Tensor:
        """A temporary, uninitialised."""
        spec = (
            torch.empty(tuple(shape), dtype=dtype, device="meta")
            if strides is None
            else torch.empty_strided(tuple(shape), tuple(strides), dtype=dtype, device="meta")
        )
        return self.adopt(spec, "temporary")

    def empty_like(self, spec: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        """A contiguous temporary of a spec's shape."""
        return self.empty(spec.shape, dtype or spec.dtype)

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

    def table(self, values: torch.Tensor) -> torch.Tensor:
        """Constants that kernels of this plan read: a contiguous tensor on the plan's device, which the plan keeps."""
        spec = self.adopt(torch.empty(values.shape, dtype=values.dtype, device="meta"), "table")
        self.memory(spec).values = values
        return spec

    # ---- steps ----

    def launch(self, kernel: Kernel, groups: Sequence[int], args: Sequence[Any]) -> None:
        """Runs a kernel.

        Args:
            kernel: what to run; its `local` is the size of a work-group.
            groups: number of work-groups in each dimension; nothing is launched if one is 0.
            args: for each Pointer a spec or None (a null pointer) or an `ErrorReport.words`; for each Value a number,
                a `Scalar`, the spec of a zero-dim CPU tensor, or a part of `philox`.
        """
        if len(args) != len(kernel.params):
            raise TypeError(f"kernel {kernel.name} takes {len(kernel.params)} arguments, not {len(args)}")
        if len(groups) != kernel.dims:
            raise TypeError(f"kernel {kernel.name} has {kernel.dims} dimensions, not {len(groups)}")
        if all(g > 0 for g in groups):
            self._steps.append(_Launch(kernel, tuple(groups), None, list(args)))

    def launch_over_elements(self, kernel: Kernel, chunking: tuple[int, int, int, int], args: Sequence[Any]) -> None:
        """Runs a kernel over the elements of a contiguous plan; its groups are found when the plan is run.

        `chunking` is (multiple, single, per_group, max_groups): see Chunking in csrc/dispatch/plan.h. The arguments
        may contain ("numel",) and ("chunk",).
        """
        self._steps.append(_Launch(kernel, (1,), chunking, list(args)))

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
            self._steps.append(_Copy(destination, source, destination.numel() * destination.element_size()))
        else:
            pointwise.plan_copy(self, destination, source)

    def fill(self, destination: torch.Tensor, value: complex) -> None:
        """Sets every element to a number."""
        if destination.numel() == 0:
            return
        if pointwise.is_dense(destination):
            pattern = _pattern(destination.dtype, value)
            self._steps.append(_Fill(destination, destination.numel() * destination.element_size(), pattern))
        else:
            pointwise.plan_fill(self, destination, value)

    def zero(self, destination: torch.Tensor) -> None:
        """Sets every element to zero."""
        self.fill(destination, 0)

    def philox(self, count: int) -> Philox:
        """Reserves `count` counters of the call's generator; each gives four 32-bit numbers."""
        reserved = Philox(self._philox)
        self._philox += (count + 3) // 4 * 4
        return reserved

    def error(self, message: str, raises: type[IndexError] | type[RuntimeError] = IndexError) -> ErrorReport:
        """Where a kernel may report an error; "{}" in the message becomes the index that the kernel gives to
        tg_report."""
        where = f"{torch._C._get_privateuse1_backend_name()}:{self.device.index}"
        return ErrorReport(_C.error_code(f"{message} (on {where}, in {self.op})", raises is IndexError))

    def within(
        self, scalar: Scalar | float, low: Scalar | float | None, high: Scalar | float | None, message: str
    ) -> None:
        """Refuses values of a scalar outside [low, high] with a RuntimeError, in later calls too; the scalar stays
        dynamic.

        Args:
            scalar: of the call. Plain numbers are those of a plan that holds this one, and are not looked at.
            low, high: None for no bound.
            message: of the error, with "{}" for the value.
        """
        if not isinstance(scalar, Scalar):
            return
        value, least, most = (x.peek() if isinstance(x, Scalar) else x for x in (scalar, low, high))
        if not ((least is None or least <= value) and (most is None or value <= most)):  # type: ignore[operator]
            raise RuntimeError(message.format(value))
        self._guards.append((self._guarded(scalar), self._guarded(low), self._guarded(high), 0.0))

    def no_multiple(self, number: Scalar | torch.Tensor | float, modulus: int) -> None:
        """Has later calls planned anew whose number, wrapped or not, is a multiple of a modulus (as 0 is); it stays
        dynamic. Plain numbers are those of a plan that holds this one, and are not looked at."""
        if isinstance(number, (Scalar, torch.Tensor)):
            self._guards.append((self._guarded(number), None, None, float(modulus)))

    def _guarded(self, value: Scalar | torch.Tensor | float | None) -> tuple[str, Any] | None:
        if value is None:
            return None
        if isinstance(value, Scalar):
            return "scalar", value.index
        return ("tensor", self.memory(value).argument) if isinstance(value, torch.Tensor) else ("number", float(value))

    def widest(self, number: Scalar | complex, type_: str) -> str:
        """The element type in which a kernel takes a number of which it makes one of type `type_` itself, so that any
        number goes. Without float64 on the device that is `type_`, in which the number must fit."""
        widest = _WIDEST[number.python_type if isinstance(number, Scalar) else type(number)]
        return widest if widest == "i64" or self.device.float64 else type_

    @property
    def step_count(self) -> int:
        """How many steps the plan has so far."""
        return len(self._steps)

    # ---- other ops ----

    def call(self, op: Any, *args: Any, **kwargs: Any) -> Any:
        """Plans another op as part of this plan; returns specs of its results. View ops cost nothing."""
        from torchgraft.plans.registry import plan_nested

        return plan_nested(self, op, args, kwargs, None)

    def call_out(self, op: Any, out: Any, *args: Any, **kwargs: Any) -> None:
        """Plans another op (its functional overload) as part of this plan, writing into `out` (a spec or a tuple of
        them)."""
        from torchgraft.plans.registry import plan_nested

        plan_nested(self, op, args, kwargs, out)

    # ---- the end ----

    def finish(
        self, outputs: list[tuple[Any, ...]], results: list[torch.Tensor], arguments: int, resizes: list[Any]
    ) -> _C.Plan:
        """Makes the plan.

        Args:
            outputs: descriptions of what the op returns, where a spec stands for its slot.
            results: the specs of new results, in the order of their slots.
            arguments: number of tensor arguments, whose slots come first.
            resizes: (argument, sizes, strides) of out= tensors whose shape changes.
        """
        for memory in self._memory.values():
            if memory.kind in ("argument", "cpu scalar", "number"):
                memory.slot = memory.argument
        for number, spec in enumerate(results):
            self.memory(spec).slot = arguments + number
        temporaries, arena = self._place_temporaries(arguments + len(results))
        steps = [self._step(step) for step in self._steps]
        return _C.Plan(
            {
                "op": self.op,
                "outputs": [self._resolve(output) for output in outputs],
                "resizes": resizes,
                "steps": steps,
                "temporaries": temporaries,
                "arena_bytes": arena,
                "slots": arguments + len(results) + len(temporaries),
                "philox_count": self._philox,
                "guards": self._guards,
                "tables": [memory.values for memory in self._memory.values() if memory.values is not None],
            }
        )

    def _specs_of(self, step: _Launch | _Copy | _Fill) -> list[torch.Tensor]:
        if isinstance(step, _Launch):
            return [arg for arg in step.args if isinstance(arg, torch.Tensor)]
        return [step.destination, step.source] if isinstance(step, _Copy) else [step.destination]

    def _place_temporaries(self, first_slot: int) -> tuple[list[tuple[int, int]], int]:
        """Gives each temporary a slot and a place in one arena; those whose uses do not overlap in time share
        memory."""
        lives: dict[int, tuple[Memory, int, int]] = {}
        for time, step in enumerate(self._steps):
            for spec in self._specs_of(step):
                memory = self.memory(spec)
                if memory.kind == "temporary":
                    start = lives.get(id(memory), (memory, time, time))[1]
                    lives[id(memory)] = (memory, start, time)
        placed: list[tuple[int, int, int, int]] = []  # offset, end, first use, last use
        out: list[tuple[int, int]] = []
        top = 0
        for memory, start, end in sorted(lives.values(), key=lambda life: life[1]):
            size = max(1, -(-memory.nbytes // _ARENA_ALIGN)) * _ARENA_ALIGN
            offset = 0
            for taken, taken_end, used_from, used_to in sorted(placed):
                if used_to < start or used_from > end or taken_end <= offset:
                    continue
                if taken >= offset + size:
                    break
                offset = taken_end
            placed.append((offset, offset + size, start, end))
            memory.slot = first_slot + len(out)
            out.append((memory.slot, offset))
            top = max(top, offset + size)
        return out, top

    def _step(self, step: _Launch | _Copy | _Fill) -> tuple[Any, ...]:
        if isinstance(step, _Copy):
            return ("copy", *self._address(step.destination), *self._address(step.source), step.nbytes)
        if isinstance(step, _Fill):
            return ("fill", *self._address(step.destination), step.nbytes, step.pattern)
        args = [self._argument(param, arg) for param, arg in zip(step.kernel.params, step.args, strict=True)]
        return ("launch", compiled(step.kernel, self.device.index), list(step.groups), step.chunking, args)

    def _address(self, spec: torch.Tensor) -> tuple[int, int]:
        return self.memory(spec).slot, int(spec.storage_offset()) * spec.element_size()

    def _argument(self, param: Any, arg: Any) -> tuple[Any, ...]:
        if isinstance(param, Pointer):
            if arg is None:
                return ("null",)
            if isinstance(arg, torch.Tensor):
                slot, offset = self._address(arg)
                values = self.memory(arg).values
                return ("pointer", slot, offset) if values is None else ("table", values, offset)
            return tuple(arg)
        if isinstance(arg, Scalar):
            return ("scalar", arg.index, param.type)
        if isinstance(arg, torch.Tensor):
            return ("tensor", self.memory(arg).slot, param.type)
        if isinstance(arg, tuple):
            return (*arg, param.type) if arg[0] in ("numel", "chunk") else arg
        return ("constant", param.type, arg)

    def _resolve(self, output: tuple[Any, ...]) -> tuple[Any, ...]:
        if output[0] == "list":
            return ("list", [self._resolve(item) for item in output[1]])
        return tuple(self.memory(part).slot if isinstance(part, torch.Tensor) else part for part in output)


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
