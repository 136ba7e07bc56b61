"""Runs of programs on a bench: tensors of every layout in device memory, with guard bytes around each.

A run's tensors and its scratch lie in one block of memory. What the block holds afterwards, beside what it should hold,
tells what the run wrote that it should not have written.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchgraft.driver import ProgramSource, ProgramTensor, Wish
from torchgraft.driver_table import TableDriver, run_record
from torchgraft.testing.protocol.bench import Bench, noise
from torchgraft.testing.protocol.operator_calls import Call, Number, dtype_name, expected

__all__ = ["LAYOUTS", "Block", "EndlessWishes", "Prepared", "laid_out", "prepared", "record_of", "source_of"]

GUARD = 256  # bytes on each side of a tensor and of the scratch
UNTOUCHED = 0xC3  # what lies where a run has still to write, and where it must not
LEAD = 3  # elements before a tensor that begins inside an allocation

#: How the tensors of a call lie, inputs and outputs.
LAYOUTS = (
    ("contiguous", "contiguous"),
    ("transposed", "contiguous"),
    ("contiguous", "transposed"),
    ("channels last", "channels last"),
    ("with gaps", "with gaps"),
    ("at an offset", "at an offset"),
    ("repeated", "contiguous"),
)


class EndlessWishes(AssertionError):
    """A driver wishes for other strides although it was given those that it had wished for."""


# ---- Layouts ----


def laid_out(tensor: torch.Tensor, how: str) -> torch.Tensor:
    """The tensor with other strides; of one that is repeated, the values are other ones too."""
    if how == "repeated":
        return tensor[:1].expand(tensor.shape) if tensor.dim() else tensor
    made = torch.empty_strided(tensor.shape, _strides(tensor, how), dtype=tensor.dtype)
    if how == "at an offset":
        made = torch.empty(tensor.numel() + LEAD, dtype=tensor.dtype)[LEAD:].view(tensor.shape)
    return made.copy_(tensor)


def _strides(tensor: torch.Tensor, how: str) -> list[int]:
    order = list(range(tensor.dim()))  # the last lies closest together
    if how == "transposed":
        order.reverse()
    elif how == "channels last" and tensor.dim() > 2:
        order = [0, *order[2:], 1]
    strides, step = [0] * tensor.dim(), 2 if how == "with gaps" else 1
    for d in reversed(order):
        strides[d], step = step, step * tensor.shape[d]
    return strides


def _wished(tensor: torch.Tensor, wish: Wish) -> torch.Tensor:
    """The tensor as a driver wishes it to be, or the tensor itself where it lies so."""
    how = {Wish.CONTIGUOUS: "contiguous", Wish.CHANNELS_LAST: "channels last"}.get(wish)
    if how is None or (how == "channels last" and tensor.dim() < 3):
        return tensor
    order = [0, *range(2, tensor.dim()), 1] if how == "channels last" else list(range(tensor.dim()))
    return tensor if tensor.permute(order).is_contiguous() else laid_out(tensor, how)


# ---- Programs ----


@dataclass
class Prepared:
    """A program, and the call that it was prepared for, as its tensors have to lie."""

    call: Call
    outputs: list[torch.Tensor | None]  # with what should come out
    program: Any
    scratch_bytes: int

    def with_values_of(self, call: Call) -> Prepared:
        """The same program for a call of other values."""
        inputs = [
            _laid_out_like(new, old) if isinstance(new, torch.Tensor) and isinstance(old, torch.Tensor) else new
            for new, old in zip(call.inputs, self.call.inputs, strict=True)
        ]
        call = replace(call, inputs=inputs)
        outputs = [
            None if new is None or old is None else _laid_out_like(new, old)
            for new, old in zip(expected(call), self.outputs, strict=True)
        ]
        return replace(self, call=call, outputs=outputs)


def _laid_out_like(tensor: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    if any(stride == 0 and size > 1 for stride, size in zip(other.stride(), other.shape, strict=True)):
        tensor = tensor[:1].expand(tensor.shape)
        assert tensor.stride() == other.stride(), "repeated along the first dimension"
        return tensor
    return torch.empty_strided(other.shape, other.stride(), dtype=other.dtype).copy_(tensor)


def source_of(call: Call, outputs: Sequence[torch.Tensor | None]) -> ProgramSource:
    """What a driver is asked for."""
    inputs, results = (tuple(map(record_of, each)) for each in (call.inputs, outputs))
    return ProgramSource(call.format, call.operator, call.data, dict(call.attributes), inputs, results)


def record_of(given: torch.Tensor | Number | None) -> ProgramTensor | None:
    if given is None:
        return None
    if isinstance(given, Number):
        return ProgramTensor(dtype_name(given.dtype), (), (), True)
    return ProgramTensor(dtype_name(given.dtype), tuple(given.shape), tuple(given.stride()))


@contextlib.contextmanager
def prepared(bench: Bench, call: Call, layout: tuple[str, str] = LAYOUTS[0]) -> Iterator[Prepared]:
    """A program for the call, or, where the driver wishes for other strides, for its tensors copied accordingly.

    Raises:
        NotImplementedError: the device has it not, as it says.
        EndlessWishes: see there.
    """
    if layout[0] != "contiguous":
        call = replace(call, inputs=[_moved(each, layout[0]) for each in call.inputs])
    results = [None if each is None else laid_out(each, layout[1]) for each in expected(call)]
    for output, given in call.over.items():
        result, below = results[output], call.inputs[given]
        if result is not None and isinstance(below, torch.Tensor):
            results[output] = _laid_out_like(result, below)
    outputs: list[torch.Tensor | None] = results
    if call.format == "operator":
        call, outputs = _as_wished(bench, call, results)
    program, scratch_bytes = bench.driver.program_create(bench.device, source_of(call, outputs))
    try:
        yield Prepared(call, outputs, program, scratch_bytes)
    finally:
        bench.driver.program_destroy(program)


def _moved(given: torch.Tensor | Number | None, how: str) -> torch.Tensor | Number | None:
    """A tensor with other strides; one that is repeated already stays."""
    return laid_out(given, how) if isinstance(given, torch.Tensor) and given.is_contiguous() else given


def _as_wished(bench: Bench, call: Call, outputs: list[torch.Tensor | None]) -> tuple[Call, list[torch.Tensor | None]]:
    count = len(call.inputs)
    tensors = [*call.inputs, *outputs]
    for _ in range(2):
        source = source_of(replace(call, inputs=tensors[:count]), tensors[count:])  # type: ignore[arg-type]
        wishes = bench.driver.program_supports(bench.device, source) or [Wish.NONE] * len(tensors)
        assert len(wishes) == len(tensors), "a wish for each tensor, or None"
        wanted = [
            _wished(each, Wish(wish)) if isinstance(each, torch.Tensor) else each
            for each, wish in zip(tensors, wishes, strict=True)
        ]
        if all(new is old for new, old in zip(wanted, tensors, strict=True)):
            return replace(call, inputs=tensors[:count]), tensors[count:]  # type: ignore[return-value]
        tensors = wanted
    raise EndlessWishes(f"it wishes for {[Wish(each).name for each in wishes]}, having been given what it wished for")


# ---- Memory ----


@dataclass
class Place:
    """Where a tensor, or the scratch, lies in a block."""

    begin: int  # bytes, without the guard before it
    nbytes: int
    lead: int = 0  # bytes before the first element

    @property
    def address(self) -> int:
        return self.begin + self.lead


def _span(tensor: torch.Tensor) -> int:
    """The bytes from the first element to the last."""
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (1 + reach) * tensor.element_size()


class Block:
    """The memory of one run: what is in it before, and what should be in it afterwards."""

    def __init__(self, bench: Bench, of: Prepared, seed: int = 0) -> None:
        self.bench, self.of = bench, of
        self.places: list[Place | None] = []
        self.nbytes = 0
        self.numbers = [bench.host(_number(each)) if isinstance(each, Number) else None for each in of.call.inputs]
        for each in of.call.inputs:
            self.places.append(self._place(each) if isinstance(each, torch.Tensor) else None)
        for number, output in enumerate(of.outputs):
            below = of.call.over.get(number)
            if output is not None and below is not None:
                self.places.append(self.places[below])
            else:
                self.places.append(None if output is None else self._place(output))
        self.scratch_place = self._room(of.scratch_bytes) if of.scratch_bytes else None
        self.before = torch.full((self.nbytes,), UNTOUCHED, dtype=torch.uint8)
        for each, place in zip(of.call.inputs, self.places, strict=False):
            if isinstance(each, torch.Tensor) and place is not None:
                _write(self.before, place, each)
        if self.scratch_place is not None:
            garbage = torch.frombuffer(bytearray(noise(self.scratch_place.nbytes, seed + 77)), dtype=torch.uint8)
            self._part(self.before, self.scratch_place).copy_(garbage)

        self.decoy = bench.allocate(self.nbytes)

    @property
    def content(self) -> bytes:
        return self.before.numpy().tobytes()

    def _place(self, tensor: torch.Tensor) -> Place:
        lead = LEAD * tensor.element_size() if tensor.storage_offset() else 0
        return self._room(lead + _span(tensor), lead)

    def _room(self, nbytes: int, lead: int = 0) -> Place:
        """Room with guards around it, aligned as allocations are."""
        align = self.bench.properties.address_align
        begin = -(-(self.nbytes + GUARD) // align) * align
        self.nbytes = begin + nbytes + GUARD
        return Place(begin, nbytes, lead)

    @staticmethod
    def _part(block: torch.Tensor, place: Place, guard: int = 0) -> torch.Tensor:
        return block[place.begin - guard : place.begin + place.nbytes + guard]

    def allocate(self) -> int:
        """Memory of the device with what the block has before a run."""
        return self.bench.allocate(self.nbytes, self.content)

    def addresses(self, base: int) -> list[int]:
        """What a run is given, for a block that begins there; numbers are where the host has them."""
        numbers = [None if each is None else each.address for each in self.numbers]
        numbers += [None] * len(self.of.outputs)
        return [
            number if number is not None else 0 if place is None else base + place.address
            for number, place in zip(numbers, self.places, strict=True)
        ]

    def scratch(self, base: int) -> int:
        return 0 if self.scratch_place is None else base + self.scratch_place.address

    def set_numbers(self, given: bool = True) -> None:
        """The numbers of the call or, once they have been read, others."""
        for buffer, each in zip(self.numbers, self.of.call.inputs, strict=True):
            if buffer is not None and isinstance(each, Number):
                buffer.content = _number(each if given else Number(type(each.value)(57)))

    def submit(self, base: int, stream: Any = None) -> None:
        """Submits a run. What the driver was given is overwritten when the call returns: it was the caller's."""
        bench, driver = self.bench, self.bench.driver
        stream = bench.stream if stream is None else stream
        addresses, scratch = self.addresses(base), self.scratch(base)
        elsewhere = [self.decoy] * len(addresses)  # where a driver finds itself that still looks there
        self.set_numbers()
        if isinstance(driver, TableDriver):
            run = bench.keep(run_record(self.of.program, addresses, scratch))
            try:
                driver.submit(bench.device, stream, run)
            finally:
                run.packed[:] = elsewhere
                run.scratch = self.decoy
        else:
            try:
                driver.program_run(bench.device, stream, self.of.program, addresses, scratch)
            finally:
                addresses[:] = elsewhere
        self.set_numbers(False)

    def run(self, base: int, stream: Any = None) -> bytes:
        """Runs it and returns what the block has then."""
        self.submit(base, stream)
        return self.bench.read(base, self.nbytes, stream)

    # What the block has afterwards

    def check_values(self, after: bytes, relative: bool = False) -> None:
        """Raises AssertionError where results are not what they should be; `relative`: to the size that they have."""
        block = _tensor(after)
        for number, (output, place) in enumerate(zip(self.of.outputs, self._outputs(), strict=True)):
            if output is not None and place is not None:
                _assert_close(_read(block, place, output), output, f"output {number}", relative)

    def check_inputs(self, after: bytes) -> None:
        """Raises AssertionError where an input was written."""
        block, written = _tensor(after), set(self.of.call.over.values())
        for number, place in enumerate(self.places[: len(self.of.call.inputs)]):
            if place is not None and number not in written:
                self._same(block, place, GUARD, f"input {number}")

    def check_beside_results(self, after: bytes) -> None:
        """Raises AssertionError where something beside a result's elements was written."""
        block, before = _tensor(after), self.before.clone()
        for output, place in zip(self.of.outputs, self._outputs(), strict=True):
            if output is not None and place is not None:
                for each in (block, before):
                    _elements(each, place, output).zero_()
        for number, place in enumerate(self._outputs()):
            if place is not None:
                self._same(block, place, GUARD, f"output {number}", before)

    def check_beside_scratch(self, after: bytes) -> None:
        """Raises AssertionError where something beside the scratch was written."""
        place = self.scratch_place
        if place is not None:
            block = _tensor(after)
            for begin in (place.begin - GUARD, place.begin + place.nbytes):
                self._same(block, Place(begin, GUARD), 0, f"the scratch of {place.nbytes} bytes")

    def check(self, after: bytes) -> None:
        """All of it."""
        self.check_values(after)
        self.check_inputs(after)
        self.check_beside_results(after)
        self.check_beside_scratch(after)

    def check_untouched(self, after: bytes) -> None:
        """Raises AssertionError where anything but the scratch was written."""
        block = _tensor(after)
        for number, place in enumerate(self.places):
            if place is not None:
                self._same(block, place, GUARD, f"tensor {number}")

    def _outputs(self) -> list[Place | None]:
        return self.places[len(self.of.call.inputs) :]

    def _same(
        self, block: torch.Tensor, place: Place, guard: int, what: str, before: torch.Tensor | None = None
    ) -> None:
        now = self._part(block, place, guard)
        then = self._part(self.before if before is None else before, place, guard)
        differ = (now != then).nonzero().flatten() - guard
        if differ.numel():
            raise AssertionError(
                f"{differ.numel()} bytes at or beside {what} were written, the first at {int(differ[0])} of its "
                f"{place.nbytes}"
            )


def _number(given: Number) -> bytes:
    kind = ctypes.c_int64 if isinstance(given.value, int) else ctypes.c_double
    return bytes(kind(given.value))  # type: ignore[arg-type]


def _tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _view(block: torch.Tensor, place: Place, like: torch.Tensor) -> torch.Tensor:
    """The block's memory there, as the tensor lies."""
    flat = block[place.begin : place.begin + place.nbytes].view(torch.uint8)
    flat = flat[: len(flat) // like.element_size() * like.element_size()].clone().view(like.dtype)
    return flat.as_strided(like.shape, like.stride(), place.lead // like.element_size())


def _elements(block: torch.Tensor, place: Place, like: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor's elements, in the block itself."""
    size = like.element_size()
    strides = [each * size for each in like.stride()]
    start = block.storage_offset() + place.address
    return block.as_strided([*like.shape, size], [*strides, 1], start)


def _read(block: torch.Tensor, place: Place, like: torch.Tensor) -> torch.Tensor:
    if like.dtype is torch.bool:  # a truth is 0 or 1
        return _view(block, place, like.view(torch.uint8))
    return _view(block, place, like)


def _write(block: torch.Tensor, place: Place, tensor: torch.Tensor) -> None:
    once = tensor
    for d, stride in enumerate(tensor.stride()):
        if stride == 0:
            once = once.narrow(d, 0, 1)
    data = torch.empty(once.numel(), dtype=once.dtype)
    data.view(once.shape).copy_(once)
    _elements(block, place, once).copy_(data.view(torch.uint8).view(*once.shape, tensor.element_size()))


#: Relative and absolute; more than a type's own rounding, since sums come in any order.
_TOLERANCES = {
    torch.float64: (1e-9, 1e-10),
    torch.float32: (1e-4, 1e-5),
    torch.float16: (5e-3, 5e-3),
    torch.bfloat16: (3e-2, 3e-2),
}


def _assert_close(actual: torch.Tensor, wanted: torch.Tensor, what: str, relative: bool) -> None:
    if wanted.dtype is torch.bool:
        wanted = wanted.to(torch.uint8)
    rtol, atol = _TOLERANCES.get(wanted.dtype, (0.0, 0.0))
    finite = wanted[wanted.isfinite()].double().abs()
    if finite.numel():  # an error is of the size of what was added up, which a sum near zero does not show
        atol *= finite.mean().item() if relative else max(1.0, finite.mean().item())
    try:
        torch.testing.assert_close(actual, wanted, rtol=rtol, atol=atol, equal_nan=True, check_stride=False)
    except AssertionError as error:
        differ = ~torch.isclose(actual, wanted, rtol=rtol, atol=atol, equal_nan=True)
        first = tuple(int(each) for each in differ.nonzero()[0])
        raise AssertionError(f"{what}: {error}\nat {first}: {actual[first]} and not {wanted[first]}") from None
