"""What the programs that inductor generates call."""

from __future__ import annotations

import functools
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from math import prod
from typing import Any, NoReturn

import torch

from torchgraft import backend
from torchgraft._core import _C
from torchgraft.codegen import compiler
from torchgraft.codegen.kernel import Kernel, Pointer, parameters
from torchgraft.plans.device import device_traits
from torchgraft.plans.grid import MULTIPLE, Grid, Partitioner
from torchgraft.raw_kernel import RawKernel, kernel

__all__ = ["Generated", "GeneratedList", "Partition", "compile_ahead", "generated", "kernels_of", "without_effect"]

_log = logging.getLogger("torchgraft.inductor")


# Sizes of which a kernel remembers how they are partitioned: sizes that change may do so for ever.
_MOST_SIZES = 1024


# A launch, and the values of the parameters that a kernel's loops have added; no launch where there are no elements.
_Partitioned = tuple[Callable[..., None] | None, tuple[int, ...]]


class Partition:
    """A kernel and how its walk is partitioned into groups, by what a call says of sizes.

    Attributes:
        made: the kernel itself.
    """

    def __init__(self, made: Kernel, form: str, rank: int, cost: int, multiple: int, origin: str, device: int) -> None:
        self.made, self._device = made, device
        self._origin = origin
        # Autograd hears of what a program writes from torch, which counts it as changes only where it is one to a user.
        arguments = tuple(replace(argument, written=False) for argument in kernel(made).arguments)
        self._kernel = RawKernel(made.name, arguments, made.local, partial(_compiled, made, origin))
        self._form, self._cost, self._multiple = form, cost, multiple
        self._dims = range(rank if rank > 1 else 0)
        self._known: dict[Any, _Partitioned] = {}

    def compile(self) -> None:
        """Compiles it, unless it is.

        Raises:
            KernelCompileError: the device's compiler refused it.
            UnsupportedKernel: the device's language cannot express it.
        """
        _compiled(self.made, self._origin, self._device)

    def _partition(self, sizes: Any) -> _Partitioned:
        if len(self._known) >= _MOST_SIZES:
            self._known.clear()
        self._known[sizes] = dealt = self._partitioned(sizes)
        return dealt

    def _partitioned(self, sizes: Any) -> _Partitioned:
        raise NotImplementedError

    def _grid(self, space: int | Sequence[int]) -> Grid:
        device = device_traits(torch._C._accelerator_getDeviceIndex())
        return Partitioner(device.target(self._form)).walk(space, cost=self._cost, multiple=self._multiple)


class Generated(Partition):
    """A kernel of a generated program: called with its arguments and the sizes of the space that it goes through."""

    def __init__(
        self,
        made: Kernel,
        form: str,
        rank: int,
        cost: int,
        serial: bool,
        multiple: int,
        messages: Sequence[tuple[str, bool]],
        together: bool,
        origin: str,
        device: int,
    ) -> None:
        super().__init__(made, form, rank, cost, multiple, origin, device)
        self._serial, self._together, self._messages = serial, together, messages
        self._code: int | None = None

    def __call__(self, *arguments: Any, sizes: tuple[int, ...]) -> None:
        launch, values = self._known.get(sizes) or self._partition(sizes)
        if launch is None:
            return
        if not self._messages:
            launch(*arguments, *values)
            return
        device = _device_of(arguments)
        first = self._first_code()
        if _C.is_current_stream_capturing():
            launch(*arguments, _C.captured_error_words(self.made.name, device.index), first, *values)
            return
        words = torch.zeros(4, dtype=torch.int32, device=device)
        launch(*arguments, words, first, *values)
        code, low, high, _ = words.tolist()
        if code:
            self._raise(code - first, (high << 32) + (low & 0xFFFFFFFF))

    def _partitioned(self, sizes: tuple[int, ...]) -> _Partitioned:
        grid = self._grid(sizes if self._dims else sizes[0] if sizes else 1)
        values, groups = dict(grid.values), grid.groups
        if self._serial:
            groups, values["chunk"] = (1,), values["n"]
        elif self._together:
            groups, values["chunk"] = (values["n"],), 1
        order = ["n", "chunk", *(f"n{d}" for d in self._dims)]
        launch = self._kernel[groups, self.made.local] if values["n"] else None
        return launch, tuple(values[name] for name in order)

    def _first_code(self) -> int:
        """Of consecutive codes for the messages, in this process."""
        if self._code is None:
            name = backend.name()
            self._code = _C.error_codes([(f"{text} (on {name})", is_index) for text, is_index in self._messages])
        return self._code

    def _raise(self, number: int, index: int) -> NoReturn:
        message, is_index = self._messages[number]
        text = f"{message.format(index)} (on {backend.name()}, in a graph made by torch.compile)"
        raise IndexError(text) if is_index else RuntimeError(text)


class GeneratedList(Partition):
    """The same for a kernel of several tensors: called with the arguments and the sizes of each."""

    def __init__(self, made: Kernel, form: str, rank: int, cost: int, tensors: int, origin: str, device: int) -> None:
        super().__init__(made, form, rank, cost, MULTIPLE, origin, device)
        self._tensors = tensors
        # What stands for the arguments of tensors that there are not: a last launch may have fewer.
        self._nothing = [None if isinstance(each, Pointer) else 0 for each in made.params[::tensors]]

    def __call__(self, *members: tuple[Any, ...], sizes: tuple[tuple[int, ...], ...]) -> None:
        launch, values = self._known.get(sizes) or self._partition(sizes)
        if launch is None:
            return
        missing = self._tensors - len(members)
        arguments = zip(zip(*members, strict=True), self._nothing, strict=False)
        launch(*(each for given, nothing in arguments for each in (*given, *[nothing] * missing)), *values)

    def _partitioned(self, sizes: tuple[tuple[int, ...], ...]) -> _Partitioned:
        missing = self._tensors - len(sizes)
        lasts = list(accumulate(map(prod, sizes)))
        grid = self._grid(lasts[-1])
        dims = [size for d in self._dims for size in (*(each[d] for each in sizes), *[1] * missing)]
        launch = self._kernel[grid.groups, self.made.local] if lasts[-1] else None
        return launch, (*dims, *lasts, *lasts[-1:] * missing, grid.values["n"], grid.values["chunk"])


def generated(
    name: str,
    declarations: str,
    *,
    form: str,
    rank: int,
    cost: int,
    local: tuple[int, ...],
    body: str,
    helpers: str = "",
    serial: bool = False,
    multiple: int = MULTIPLE,
    messages: Sequence[tuple[str, bool]] = (),
    together: bool = False,
    tensors: int = 0,
    origin: str = "",
    device: int = 0,
) -> Generated | GeneratedList:
    """A kernel of a generated program, which is compiled when it is first launched.

    Args:
        name: under which profiles and errors show it.
        declarations: its parameters.
        form: "cpu" or "gpu".
        rank: dimensions of the space that it goes through.
        cost: of an element relative to an addition.
        local: work-items of a group.
        body: statements.
        helpers: functions before the kernel.
        serial: whether one work-item does it all.
        multiple: a CPU's chunks are multiples of this.
        messages: of errors that it reports: each a text, and whether it is an IndexError.
        together: whether the work-items of a group share an element.
        tensors: of a list, if it is a kernel of one.
        origin: the nodes of the graph that it was made of, and the lines of the user's program.
        device: the index of the one that it is for.
    """
    made = Kernel(name, parameters(declarations), body, helpers, local)
    if tensors:
        return GeneratedList(made, form, rank, cost, tensors, origin, device)
    return Generated(made, form, rank, cost, serial, multiple, messages, together, origin, device)


def _compiled(made: Kernel, origin: str, device: int) -> _C.Kernel:
    try:
        return compiler.compiled(made, device)
    except compiler.KernelCompileError as error:
        raise error.of(origin) from None


def compile_ahead(program: Mapping[str, Any]) -> None:
    """Has helpers compile the kernels among a program's names while the first of them are compiled here."""
    backend.open_devices()
    kernels = [each.made for each in kernels_of(program)]
    compiler.compile_ahead(kernels[1:], torch._C._accelerator_getDeviceIndex())


def kernels_of(program: Mapping[str, Any]) -> list[Partition]:
    """Those among a program's names."""
    return [each for each in program.values() if isinstance(each, Partition)]


def without_effect(options: Sequence[str]) -> None:
    """Says once which of the options that a program was generated with change nothing."""
    for option in options:
        _say_without_effect("cudagraphs" if option == "triton.cudagraphs" else "tuning")


@functools.cache
def _say_without_effect(what: str) -> None:
    name = backend.name()
    if what == "cudagraphs":  # which is what the mode asks for, so nothing to warn of
        _log.info(
            "triton.cudagraphs and mode='reduce-overhead' change nothing on '%s': programs are recorded and replayed "
            "in any case, with results in new memory at each call",
            name,
        )
        return
    warnings.warn(
        f"mode='max-autotune' and the options of tuning change nothing on '{name}': its kernels have one shape for "
        "each call, and matrix products and convolutions are those of single ops",
        stacklevel=2,
    )


def _device_of(arguments: Sequence[Any]) -> torch.device:
    """Of the tensors among a kernel's arguments; a number may be a tensor of the CPU."""
    name = backend.name()
    return next(a.device for a in arguments if isinstance(a, torch.Tensor) and a.device.type == name)
