"""Calls that nobody thought of: ops of the tables with random dtypes, shapes, strides, offsets and aliasing, against
torch's CPU.

Hypothesis draws an overload (functional, in-place or out=) and its arguments, and makes what fails small. With CI set
the draws are always the same; otherwise they differ in every run, and TORCHGRAFT_TEST_SEED repeats them.
TORCHGRAFT_TEST_EXAMPLES is how many there are for each form of kernels.
"""

from __future__ import annotations

import functools
import os
import re
from dataclasses import dataclass
from typing import Any

import hypothesis
import pytest
import torch
from conftest import random_examples
from hypothesis import strategies as st

from torchgraft.plans import ENTRIES
from torchgraft.plans.registry import Entry
from torchgraft.plans.schema import parameters
from torchgraft.testing.conformance.check import attempt, describe, widen
from torchgraft.testing.conformance.compare import difference
from torchgraft.testing.conformance.layout import Sample, each_tensor, on_device

pytestmark = pytest.mark.no_fallback

DTYPES = [
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
]

#: Ops for whose arguments as they are drawn here torch's CPU is no judge, and why.
LEFT_OUT = {
    "(hard|soft)shrink_backward": "of NaN the CPU's vectors give 0 and its single numbers the gradient",
    r"special_\w*polynomial_\w+": "the CPU gives some number or other for NaN",
    r"special_(airy_ai|bessel_[jy][01])": "in float64 the CPU is off by 1e-7 to 3e-6; the conformance run asks SciPy",
    r"log_sigmoid_(forward|backward)": "what the second result holds is between the device's own two ops",
    r"polygamma": "at its poles, at whole numbers, the CPU gives what rounding leaves",
    r"logit(_backward)?": "for an eps above 0.5 the CPU's code for vectors and its code for single numbers differ",
    r"native_dropout_backward": "its own function never gives it complex numbers",
}


@dataclass(frozen=True)
class Call:
    """An overload with arguments on the CPU."""

    entry: Entry
    arguments: dict[str, Any]
    converts: bool = False  # into an out= of another dtype than the result's

    def __repr__(self) -> str:
        return f"{self.entry.op}{describe(Sample(None, (), self.arguments))}"

    def sample(self) -> Sample:
        return Sample(None, (), self.arguments)

    def run(self, sample: Sample) -> Any:
        given = {a.name: sample.kwargs[a.name] for a in parameters(self.entry.op) if a.name in sample.kwargs}
        positional = [given.pop(a.name) for a in parameters(self.entry.op) if not a.keyword_only and a.name in given]
        return self.entry.op(*positional, **given)


def tables() -> list[Entry]:
    """The overloads of the pointwise table and the reductions."""
    return [
        entry
        for name, entry in sorted(ENTRIES.items())
        if entry.op.namespace == "aten"
        and not any(re.fullmatch(f"aten::{names}", entry.functional._schema.name) for names in LEFT_OUT)
        and (entry.options.pointwise or getattr(entry.plan, "__module__", "") == "torchgraft.ops.reductions")
    ]


@st.composite
def shapes(draw: st.DrawFn) -> tuple[int, ...]:
    """Up to four dimensions, some of them of no or of one element, and now and then a long one."""
    sizes = st.sampled_from([2, 3, 1, 5, 17, 2, 3, 1, 5, 3, 2, 0])
    shape = draw(st.lists(sizes, max_size=4).map(tuple))
    return (*shape[:1], 1030) if draw(st.integers(0, 15)) == 0 else shape


@st.composite
def tensors(
    draw: st.DrawFn, shape: tuple[int, ...], dtype: torch.dtype, written: bool = False, finite: bool = False
) -> torch.Tensor:
    """A tensor of a shape, as one may lie in memory: at an offset, with steps, transposed, expanded."""
    layout = draw(st.sampled_from(["plain", "offset", "step", "transposed", "plain" if written else "expanded"]))
    seed = draw(st.integers(0, 2**16)) * 4 + (1 if finite else draw(st.integers(0, 3)))
    sizes = list(shape)
    if layout == "expanded":
        sizes = [1 if draw(st.booleans()) else n for n in sizes]
    if layout == "transposed":
        order = draw(st.permutations(range(len(sizes))))
        base = values([sizes[d] for d in order], dtype, seed)
        return base.permute([order.index(d) for d in range(len(sizes))])
    if layout == "step":
        return values([*sizes[:-1], sizes[-1] * 3], dtype, seed)[..., 1::3] if sizes else values([4], dtype, seed)[2]
    if layout == "offset":
        ahead = draw(st.integers(1, 9))
        count = torch.Size(sizes).numel()
        return values([count + ahead], dtype, seed)[ahead:].view(sizes)
    return values(sizes, dtype, seed).expand(shape)


def values(sizes: list[int], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Numbers near zero, where functions differ most; among real ones also NaN, infinity and zeros of both signs."""
    generator = torch.Generator().manual_seed(seed)
    if not (dtype.is_floating_point or dtype.is_complex):
        low, high = (0, 2) if dtype == torch.bool else (0 if dtype == torch.uint8 else -5, 6)
        return torch.randint(low, high, sizes, generator=generator).to(dtype)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    made = torch.randn(sizes, dtype=wide, generator=generator) * 2
    if dtype.is_floating_point and seed % 4 == 0 and made.numel() > 4:
        made.view(-1)[:4] = torch.tensor([float("nan"), float("inf"), 0.0, -0.0])
    return made.to(dtype)


def internal(entry: Entry) -> bool:
    """Whether torch alone calls it, with what its own functions have checked."""
    return entry.op._schema.name.startswith("aten::_") or "_backward" in entry.op._schema.name


@st.composite
def calls(draw: st.DrawFn) -> Call:
    """An overload of the tables and its arguments."""
    entry = draw(st.sampled_from(tables()))
    shape, dtype = draw(shapes()), draw(st.sampled_from(DTYPES))
    # Arguments of several dtypes. That heaviside refuses them only the CPU's kernel says, not its meta function.
    mixed = not internal(entry) and "heaviside" not in entry.op._schema.name and draw(st.integers(0, 3)) == 0
    arguments: dict[str, Any] = {}
    for a in parameters(entry.op):
        if a.is_out:
            continue
        if a.type in ("Tensor", "Optional[Tensor]"):
            if a.type != "Tensor" and draw(st.booleans()):
                continue
            mine = draw(st.sampled_from(DTYPES)) if mixed else dtype
            if a.name in ("mask", "condition"):
                mine = torch.bool
            sizes = shape
            if arguments and entry.options.pointwise:  # the first one has the whole shape
                sizes = tuple(1 if draw(st.integers(0, 3)) == 0 else n for n in shape)
                sizes = sizes[draw(st.integers(0, len(sizes))) :]
            # Beside complex numbers infinities make different ones of NaN and infinity, as the order of terms is.
            arguments[a.name] = draw(tensors(sizes, mine, a.is_written, finite=mixed))
        elif a.name == "dtype":
            continue
        elif a.name == "dim" and a.type == "int":
            arguments[a.name] = draw(st.integers(-max(len(shape), 1), max(len(shape) - 1, 0)))
        elif a.name == "dim" and "List" in a.type:
            arguments[a.name] = draw(st.sets(st.integers(0, max(len(shape) - 1, 0)), max_size=len(shape)).map(list))
        else:
            drawn = SCALARS[a.type]
            if a.type.startswith("Optional") and draw(st.booleans()):
                continue
            if drawn is not None:
                arguments[a.name] = draw(drawn)
    converts = entry.kind == "out" and add_outs(draw, entry, arguments)
    return Call(entry, arguments, converts)


#: By the schema's type; None leaves the default.
SCALARS: dict[str, st.SearchStrategy[Any] | None] = {
    **dict.fromkeys(("number", "Optional[number]"), st.sampled_from([0, 1, 2, -1, 0.5, -1.5, True])),
    **dict.fromkeys(("float", "Optional[float]"), st.sampled_from([0.0, 1.0, 0.5, 2.0])),
    **dict.fromkeys(("int", "Optional[int]"), st.integers(0, 3)),
    "bool": st.booleans(),
    "str": None,
    "Optional[str]": None,
}


def add_outs(draw: st.DrawFn, entry: Entry, arguments: dict[str, Any]) -> bool:
    """Results' memory: of the right form or of another dtype, which is returned, and empty where it has to be
    resized."""
    call = Call(Entry(entry.functional, entry.functional, "functional", entry.plan, entry.options), dict(arguments))
    made = attempt(call.run, call.sample())
    hypothesis.assume(not isinstance(made, Exception))
    results = each_tensor(made)
    names = [a.name for a in parameters(entry.op) if a.is_out]
    converts = False
    for name, result in zip(names, results, strict=True):
        other = draw(st.integers(0, 5)) == 0
        dtype = draw(st.sampled_from(DTYPES)) if other else result.dtype
        converts |= dtype != result.dtype
        empty = draw(st.integers(0, 3)) == 0
        arguments[name] = draw(tensors((0,) if empty else tuple(result.shape), dtype, written=True))
    return converts


def cpu_alone(call: Call, error: Exception) -> bool:
    """Whether other devices may answer where torch's CPU does not: it lacks a kernel for the dtype, or `out=` would
    need a conversion, which the CPU makes for some ops and refuses for others."""
    return isinstance(error, NotImplementedError) or call.converts


@pytest.mark.quick(form="cpu")
@random_examples(int(os.environ.get("TORCHGRAFT_TEST_EXAMPLES", "60")))
@hypothesis.given(call=calls())
def test_any_call_of_the_tables(form: str, device: str, call: Call) -> None:
    on_cpu = on_device(call.sample(), torch.device("cpu"))
    mine = on_device(call.sample(), torch.device(device))
    expected = attempt(call.run, on_cpu)
    actual = attempt(call.run, mine, torch.device(device))
    hypothesis.event(f"{call.entry.kind}, {'refused' if isinstance(expected, Exception) else 'computed'}")
    if isinstance(expected, Exception):
        hypothesis.assume(not internal(call.entry) and not cpu_alone(call, expected))
        assert isinstance(actual, type(expected)), f"{actual!r} instead of {expected!r}"
        return
    hypothesis.assume(not (call.converts and isinstance(actual, RuntimeError)))  # see `cpu_alone`
    refused = isinstance(actual, NotImplementedError) and "is not permitted" in str(actual)
    hypothesis.assume(not refused)  # for a dtype that the tables leave to the CPU
    assert not isinstance(actual, Exception), repr(actual)

    @functools.cache
    def exactly() -> Any:
        wide = on_device(call.sample(), torch.device("cpu")).map_leaves(widen)
        return call.run(wide), each_tensor(wide.arguments())

    found, wanted = (actual, each_tensor(mine.arguments())), (expected, each_tensor(on_cpu.arguments()))
    assert not (message := difference(found, wanted, exactly)), message


def test_all_forms_of_both_tables_are_drawn() -> None:
    drawn = tables()
    assert len(drawn) > 300 and {entry.kind for entry in drawn} == {"functional", "inplace", "out"}
    assert {entry.options.pointwise for entry in drawn} == {True, False}
