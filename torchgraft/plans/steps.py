"""The steps of a plan under construction, and the memory that they work on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from torchgraft._core import _C
from torchgraft.codegen.compiler import compile_ahead, compiled
from torchgraft.codegen.kernel import Kernel, Parameter, Pointer, Value
from torchgraft.codegen.pointwise import Loop
from torchgraft.codegen.teams import WIDTH, Layout
from torchgraft.codegen.tuning import Target
from torchgraft.codegen.types import BY_NAME, MOVES, element_type
from torchgraft.codegen.walk import GROUP
from torchgraft.plans.device import DeviceTraits
from torchgraft.plans.grid import MULTIPLE, Grid, Partitioner
from torchgraft.plans.rows import CONTIGUOUS, NOT_UNROLLED, Rows, choose_rows
from torchgraft.plans.scalar import Scalar

_ARENA_ALIGN = 256
_WIDEST = {bool: "i64", int: "i64", float: "f64", complex: "c128"}


class WrongElements(TypeError):
    """A launch gives a kernel a tensor of another dtype than it is for."""


class Unsupported(Exception):
    """Raised by a planner that cannot serve a call: this key goes to the CPU fallback, with the text as the reason. Of
    a composite it is the one call that goes to what else is declared of the op, or to the CPU."""


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
    def seed(self) -> _C.LaunchArgument:
        return _C.LaunchArgument.seed()

    @property
    def offset(self) -> _C.LaunchArgument:
        return _C.LaunchArgument.offset(self.add)


@dataclass(frozen=True)
class ErrorReport:
    """Where a kernel reports an error: `words` for a Pointer of type i32, `code` for a Value of type i32."""

    code: int

    @property
    def words(self) -> _C.LaunchArgument:
        return _C.LaunchArgument.error_words()


@dataclass
class _Launch:
    kernel: Kernel
    groups: tuple[int, ...]
    chunking: _C.Chunking | None
    args: list[Any]
    specs: list[torch.Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self.specs = [arg for arg in self.args if isinstance(arg, torch.Tensor)]


@dataclass
class _Copy:
    destination: torch.Tensor
    source: torch.Tensor
    nbytes: int

    @property
    def specs(self) -> list[torch.Tensor]:
        return [self.destination, self.source]


@dataclass
class _Fill:
    destination: torch.Tensor
    nbytes: int
    pattern: bytes

    @property
    def specs(self) -> list[torch.Tensor]:
        return [self.destination]


#: What a program may be given as an input: a spec, a number (also a part of `philox`), or nothing.
Operand = torch.Tensor | Scalar | float | _C.LaunchArgument | None


@dataclass
class Run:
    """A run of a program of the device's, with its inputs and outputs."""

    program: _C.Program
    operands: list[Operand]
    scratch: torch.Tensor | None

    @property
    def specs(self) -> list[torch.Tensor]:
        return [spec for spec in [*self.operands, self.scratch] if isinstance(spec, torch.Tensor)]


def is_number(p: Steps, operand: Operand) -> bool:
    """Whether a run gives it anew."""
    return operand is not None and (not isinstance(operand, torch.Tensor) or p.is_cpu_scalar(operand))


def number_type(operand: Operand) -> str:
    """What a run gives a number as: "f64" or "i64"."""
    if isinstance(operand, torch.Tensor):
        return "f64" if operand.is_floating_point() else "i64"
    if isinstance(operand, _C.LaunchArgument):  # of `philox`
        return "i64"
    type_ = operand.python_type if isinstance(operand, Scalar) else type(operand)
    return "f64" if type_ is float else "i64"


@dataclass
class PlannedLoop:
    """A loop over elements that is not a launch yet: it may become one with others."""

    loop: Loop
    results: Sequence[torch.Tensor]
    inputs: Sequence[torch.Tensor]
    numbers: Sequence[Any]
    any_shape: bool

    @property
    def specs(self) -> list[torch.Tensor]:
        return [*self.results, *self.inputs, *(n for n in self.numbers if isinstance(n, torch.Tensor))]


Step = _Launch | _Copy | _Fill | Run | PlannedLoop


@dataclass
class Steps:
    """A plan's steps, and the memory that they work on: what a `PlanBuilder` collects.

    Attributes:
        device: traits of the device that the plan is for.
        form: "cpu" or "gpu", the form of kernels to use.
        op: the op's name, for messages.
        any_shape: all tensors of the call have one shape and are contiguous, and the plan must serve any such shape.
        gathered: while it is a list, loops over elements are put there instead of becoming steps; see
            plans/batch.py.
        decomposed: ops without a planner of which the parts are being planned, one within the other.
        refused: why the device's own operators do not serve the call; see plans/operators.py.
    """

    device: DeviceTraits
    form: str
    op: str
    any_shape: bool = False
    gathered: list[PlannedLoop] | None = None
    decomposed: list[torch._ops.OpOverload] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    _memory: dict[int, Memory] = field(default_factory=dict)
    _steps: list[Step] = field(default_factory=list)
    _philox: int = 0
    _guards: list[_C.Guard] = field(default_factory=list)

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

    def unite(self, spec: torch.Tensor, other: torch.Tensor) -> None:
        """Makes the memory of a spec that of another one: specs of either lie in it."""
        self._memory[spec.untyped_storage()._cdata] = self.memory(other)

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

    def bits(self, spec: torch.Tensor) -> torch.Tensor:
        """The spec for kernels that move elements, whatever they mean: a view with elements of a type of
        `codegen.types.MOVES`."""
        return spec.view(BY_NAME[MOVES[spec.element_size()]].dtype)

    def table(self, values: torch.Tensor) -> torch.Tensor:
        """Constants that kernels of this plan read: a contiguous tensor on the plan's device, which the plan keeps."""
        spec = self.adopt(torch.empty(values.shape, dtype=values.dtype, device="meta"), "table")
        self.memory(spec).values = values
        return spec

    def check_dtype(self, dtype: torch.dtype) -> None:
        """Raises Unsupported where the device's kernels cannot compute in a dtype. Operators are asked for each."""
        element_type(dtype)
        if not self.device.has_compiler:
            return
        if dtype in (torch.float64, torch.complex128) and not self.device.float64:
            raise Unsupported(f"{self.device.name} cannot compute in {dtype}")

    # ---- steps ----

    def copy(self, destination: torch.Tensor, source: torch.Tensor) -> None:
        """Copies values, whatever the strides and dtypes: what a `PlanBuilder` knows how to plan."""
        raise NotImplementedError("copy")

    def add(self, step: Step) -> None:
        """Has the plan do something next."""
        self._steps.append(step)

    def launch(self, kernel: Kernel, grid: Grid | Sequence[int], /, **arguments: Any) -> None:
        """Runs a kernel; nothing is launched if there are no groups.

        Args:
            kernel: what to run; its `local` is the size of a work-group.
            grid: of `walk` or `rows`, or the number of work-groups in each dimension.
            arguments: by the names of the kernel's parameters: for each Pointer a spec whose elements are of its type,
                None (a null pointer) or an `ErrorReport.words`; for each Value a number, a `Scalar`, the spec of a
                zero-dim CPU tensor, or a part of `philox`. What the grid brings along need not be given.

        Raises:
            TypeError: an argument is missing, is none of the kernel's, or does not suit its parameter.
            Unsupported: the device has no compiler for kernels.
        """
        if not self.device.has_compiler:
            raise Unsupported(self._why_no_kernel())
        if not isinstance(grid, Grid):
            grid = Grid(tuple(grid))
        if len(grid.groups) != kernel.dims:
            raise TypeError(f"kernel {kernel.name} has {kernel.dims} dimensions, not {len(grid.groups)}")
        given = self._named(kernel, grid, arguments)
        if all(g > 0 for g in grid.groups):
            self.add(_Launch(kernel, grid.groups, grid.chunking, given))

    def _why_no_kernel(self) -> str:
        if not self.device.has_programs:
            return "the device has no kernel compiler"
        return "; ".join(dict.fromkeys(self.refused)) or f"no operator does {self.op}, and the device has no compiler"

    def _named(self, kernel: Kernel, grid: Grid, arguments: dict[str, Any]) -> list[Any]:
        """A launch's arguments in the order of the kernel's parameters."""
        out = []
        for param in kernel.params:
            if param.name in arguments:
                given = arguments.pop(param.name)
                self._check_argument(kernel, param, given)
            elif (of_grid := param.name.removeprefix("tg_")) in grid.values:
                given = grid.values[of_grid]
            else:
                raise TypeError(f"argument {param.name!r} of kernel {kernel.name} is missing")
            out.append(given)
        if arguments:
            names = ", ".join(map(repr, arguments))
            raise TypeError(f"kernel {kernel.name} has no parameter {names}")
        return out

    def _check_argument(self, kernel: Kernel, param: Parameter, given: Any) -> None:
        """Refuses what only the kernel would find, and not by an error."""
        if isinstance(given, _C.LaunchArgument) or (type(given) is int and isinstance(param, Value)):
            return
        spec = given if isinstance(given, torch.Tensor) else None
        number = isinstance(given, (int, float, complex, Scalar)) or (spec is not None and self.is_cpu_scalar(spec))
        wrong, error = "", TypeError
        if isinstance(param, Pointer):
            if number or (given is not None and spec is None):
                wrong = f"is a pointer: give a spec or None, not {type(given).__name__}"
            elif spec is not None and element_type(spec.dtype).name != param.type:
                wrong, error = f"points to {param.type}, not to elements of {spec.dtype}", WrongElements
        elif not number:
            wrong = f"is a number of type {param.type}, not {'a tensor' if spec is not None else type(given).__name__}"
        elif isinstance(given, (float, complex)) and not _holds(param.type, given):
            wrong = f"is a number of type {param.type}, not {given!r}"
        if wrong:
            raise error(f"argument {param.name!r} of kernel {kernel.name} {wrong}")

    def walk(self, sizes: int | Sequence[int], cost: int = 1, multiple: int = MULTIPLE, group: int = GROUP) -> Grid:
        """The grid of a kernel made by a `codegen.walk.Walk`; see `plans.grid.Partitioner.walk`."""
        return self.partitioner.walk(sizes, cost, multiple, group)

    def rows(self, outer: int, size: int, inner: int = 1, cost: int = 1) -> tuple[Layout, Grid]:
        """For a `codegen.teams.Team` along the middle of a contiguous (outer, size, inner): how it finds its rows, and
        its grid; `cost` is that of an element relative to an addition."""
        return choose_rows(Rows(self.partitioner, outer, size, inner, cost))

    @property
    def layout(self) -> Layout:
        """Of contiguous rows."""
        return self.partitioner.layout

    def along_rows(self, rows: int, size: int, cost: int = 1, unrolled: bool = True) -> tuple[Layout, Grid]:
        """The same for one that works along contiguous rows, whatever their length; `unrolled` as its kernel allows."""
        return choose_rows(Rows(self.partitioner, rows, size, cost=cost), CONTIGUOUS if unrolled else NOT_UNROLLED)

    def long_rows(self, rows: int, size: int, cost: int = 1) -> Grid:
        """The grid of a `codegen.teams.Team` on contiguous rows."""
        return self.partitioner.long_rows(rows, size, cost)

    def columns(self, outer: int, inner: int, cost: int = 1, width: int = WIDTH) -> tuple[Layout, Grid]:
        """The layout and grid of a `codegen.teams.Team` on rows across memory; see `plans.grid.Partitioner.columns`."""
        return replace(self.layout, across=True), self.partitioner.columns(outer, inner, cost, width)

    def any_number(self, cost: int) -> Grid:
        """The grid of a walk over the elements of a contiguous plan: how many there are is found when it is run."""
        return Grid(
            (1,), {"n": _C.LaunchArgument.numel(), "chunk": _C.LaunchArgument.chunk()}, self.partitioner.chunking(cost)
        )

    @property
    def partitioner(self) -> Partitioner:
        """Partitions work for this plan's device."""
        return Partitioner(self.target)

    @property
    def target(self) -> Target:
        """What kernels of this plan are made for."""
        return self.device.target(self.form)

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
        bounds = (None if bound is None else self._guarded(bound) for bound in (low, high))
        self._guards.append(_C.Guard.within(self._guarded(scalar), *bounds))

    def no_multiple(self, number: Scalar | torch.Tensor | float, modulus: int) -> None:
        """Has later calls planned anew whose number, wrapped or not, is a multiple of a modulus (as 0 is); it stays
        dynamic. Plain numbers are those of a plan that holds this one, and are not looked at."""
        if isinstance(number, (Scalar, torch.Tensor)):
            self._guards.append(_C.Guard.no_multiple(self._guarded(number), modulus))

    def _guarded(self, value: Scalar | torch.Tensor | float) -> _C.GuardValue:
        if isinstance(value, Scalar):
            return _C.GuardValue.scalar(value.index)
        if isinstance(value, torch.Tensor):
            return _C.GuardValue.tensor(self.memory(value).argument)
        return _C.GuardValue.number(value)

    def widest(self, number: Scalar | complex, type_: str) -> str:
        """The element type in which a kernel takes a number of which it makes one of type `type_` itself, so that any
        number goes. Without float64 on the device that is `type_`, in which the number must fit."""
        widest = _WIDEST[number.python_type if isinstance(number, Scalar) else type(number)]
        return widest if widest == "i64" or self.device.float64 else type_

    @property
    def kernels(self) -> list[Kernel]:
        """Those that are launched, in order."""
        return [step.kernel for step in self._steps if isinstance(step, _Launch)]

    @property
    def step_count(self) -> int:
        """How many steps the plan has so far; some may become one."""
        return len(self._steps)

    # ---- the end ----

    def finish(
        self, outputs: list[_C.Output], results: list[torch.Tensor], arguments: int, resizes: list[_C.Resize]
    ) -> _C.Plan:
        """Makes the plan.

        Args:
            outputs: what the op returns.
            results: the specs of new results, in the order of their slots.
            arguments: number of tensor arguments, whose slots come first.
            resizes: out= tensors whose shape changes.
        """
        for memory in self._memory.values():
            if memory.kind in ("argument", "cpu scalar", "number"):
                memory.slot = memory.argument
        for number, spec in enumerate(results):
            self.memory(spec).slot = arguments + number
        temporaries, arena = self._place_temporaries(arguments + len(results))
        kernels = self.kernels
        if len(kernels) > 1:
            compile_ahead(kernels[1:], self.device.index)  # from the end on, while they are made here from the first on
        steps = [self._step(step) for step in self._steps]
        return _C.Plan(
            self.op,
            outputs=outputs,
            resizes=resizes,
            steps=steps,
            temporaries=temporaries,
            arena_bytes=arena,
            slots=arguments + len(results) + len(temporaries),
            philox_count=self._philox,
            guards=self._guards,
        )

    def _place_temporaries(self, first_slot: int) -> tuple[list[_C.Address], int]:
        """Gives each temporary a slot and a place in one arena; those whose uses do not overlap in time share
        memory."""
        if not any(memory.kind == "temporary" for memory in self._memory.values()):
            return [], 0
        lives: dict[int, tuple[Memory, int, int]] = {}
        for time, step in enumerate(self._steps):
            for spec in step.specs:
                memory = self.memory(spec)
                if memory.kind == "temporary":
                    start = lives.get(id(memory), (memory, time, time))[1]
                    lives[id(memory)] = (memory, start, time)
        placed: list[tuple[int, int, int, int]] = []  # offset, end, first use, last use
        out: list[_C.Address] = []
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
            out.append(_C.Address(memory.slot, offset))
            top = max(top, offset + size)
        return out, top

    def _step(self, step: Step) -> _C.LaunchStep | _C.RunStep | _C.CopyStep | _C.FillStep:
        assert not isinstance(step, PlannedLoop), "loops have become launches"
        if isinstance(step, Run):
            return _C.RunStep(step.program, [self._operand(each) for each in [*step.operands, step.scratch]])
        if isinstance(step, _Copy):
            return _C.CopyStep(self._address(step.destination), self._address(step.source), step.nbytes)
        if isinstance(step, _Fill):
            return _C.FillStep(self._address(step.destination), step.nbytes, step.pattern)
        arguments = [self._argument(param, arg) for param, arg in zip(step.kernel.params, step.args, strict=True)]
        nbytes = sum(_extent(spec, step.chunking is not None) for spec in step.specs)
        return _C.LaunchStep(compiled(step.kernel, self.device.index), step.groups, arguments, step.chunking, nbytes)

    def _operand(self, operand: Operand) -> _C.LaunchArgument:
        """What a run gets: an address, or a number."""
        if isinstance(operand, _C.LaunchArgument):
            return operand
        if operand is not None and is_number(self, operand):
            return self._value(number_type(operand), operand)
        assert operand is None or isinstance(operand, torch.Tensor)
        return self._pointer(operand if operand is not None and operand.numel() else None)

    def mark(self) -> tuple[int, int, int]:
        """How far the plan has got; see `back_to`."""
        return len(self._steps), len(self.gathered or ()), self._philox

    def back_to(self, mark: tuple[int, int, int]) -> None:
        """Takes back what has been added since."""
        steps, gathered, self._philox = mark
        del self._steps[steps:]
        if self.gathered is not None:
            del self.gathered[gathered:]

    def _place(self, spec: torch.Tensor) -> tuple[int, int]:
        """The slot that a spec lies in, and where in there, in bytes."""
        return self.memory(spec).slot, int(spec.storage_offset()) * spec.element_size()

    def _address(self, spec: torch.Tensor) -> _C.Address:
        return _C.Address(*self._place(spec))

    def _argument(self, param: Parameter, arg: Any) -> _C.LaunchArgument:
        """What a launch gets for a parameter; `launch` has seen to it that it suits."""
        if type(arg) is int:  # as most are
            return _C.LaunchArgument.constant(param.type, arg)
        if isinstance(arg, _C.LaunchArgument):
            return arg
        return self._pointer(arg) if isinstance(param, Pointer) else self._value(param.type, arg)

    def _pointer(self, arg: torch.Tensor | None) -> _C.LaunchArgument:
        if arg is None:
            return _C.LaunchArgument.null()
        slot, offset = self._place(arg)
        values = self.memory(arg).values
        return _C.LaunchArgument.pointer(slot, offset) if values is None else _C.LaunchArgument.table(values, offset)

    def _value(self, type_: str, arg: Scalar | torch.Tensor | complex) -> _C.LaunchArgument:
        if isinstance(arg, Scalar):
            return _C.LaunchArgument.scalar(arg.index, type_)
        if isinstance(arg, torch.Tensor):
            return _C.LaunchArgument.tensor_value(self.memory(arg).slot, type_)
        return _C.LaunchArgument.constant(type_, arg)


def _extent(spec: torch.Tensor, element: bool) -> int:
    """Bytes from a spec's first element to its last; of one element, where their number is found later."""
    if element or spec.numel() == 0:
        return spec.element_size() * element
    reach = sum((size - 1) * stride for size, stride in zip(spec.shape, spec.stride(), strict=True))
    return (1 + reach) * spec.element_size()


def _holds(type_: str, number: complex) -> bool:
    """Whether a value of an element type may be a number of that Python type."""
    if type_ not in BY_NAME:
        return False
    return BY_NAME[type_].is_complex or (BY_NAME[type_].is_float and not isinstance(number, complex))
