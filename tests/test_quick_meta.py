"""Results of rows as `Row.quick_meta` says them, against torch's meta functions and, where those break, torch's CPU."""

from __future__ import annotations

import random
import subprocess
import sys
from typing import Any

import pytest
import torch

from torchgraft.ops.table import Row
from torchgraft.plans.elementwise import wrapped_number
from torchgraft.plans.meta import ask_meta
from torchgraft.plans.registry import ENTRIES, Entry
from torchgraft.plans.schema import Parameter, call_by_name, parameters

SHAPES: list[tuple[int, ...]] = [(2, 3), (3,), (2, 1), (), (0, 3), (4,)]
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]

ROWS = [
    name
    for name, entry in ENTRIES.items()
    if isinstance(entry.plan, Row) and entry.op is entry.functional and entry.options.quick_meta is not None
]


def some(parameter: Parameter, dtype: torch.dtype, kept: set[str]) -> Any:
    """A value for an argument."""
    if parameter.type in ("Tensor", "Optional[Tensor]"):
        if parameter.type == "Optional[Tensor]" and random.random() < 0.3:
            return None
        if parameter.name in ("other", "exponent") and random.random() < 0.2:
            return wrapped_number(random.choice([torch.bool, torch.int64, torch.float64]))
        shape = () if parameter.name == "value" else random.choice(SHAPES[:5] if random.random() < 0.9 else SHAPES)
        return (torch.rand(shape) * 3 + 1).to(torch.bool if parameter.name in kept else dtype)
    if "number" in parameter.type or "float" in parameter.type:
        return random.choice([True, 2, 1.5]) if "number" in parameter.type else 1.5
    if "str" in parameter.type and random.random() < 0.3:
        return "a mode that is none"
    if parameter.type == "int":
        return random.choice([-2, 1, 3])
    return 1 if parameter.default is None and parameter.type == "bool" else parameter.default


def said(meta: Any) -> Any:
    """What it says of the result, or the type of what it raises; None if nothing."""
    try:
        result = meta()
    except Exception as error:
        return type(error)
    return None if result is None else (result.dtype, result.shape, result.stride() if result.numel() else None)


@pytest.mark.parametrize("name", ROWS)
def test_it_says_what_torch_says(name: str) -> None:
    entry: Entry = ENTRIES[name]
    row, quick = entry.plan, entry.options.quick_meta
    assert isinstance(row, Row) and quick is not None
    asked = 0
    for _ in range(25):
        dtype = random.choice(FLOATS)
        on_cpu = {a.name: some(a, dtype, row._are("keeps")) for a in parameters(entry.op)}
        if not any(isinstance(v, torch.Tensor) and not v.is_meta and v.dtype == dtype for v in on_cpu.values()):
            continue
        given = {
            n: v if not isinstance(v, torch.Tensor) or v is wrapped_number(v.dtype) else v.to("meta")
            for n, v in on_cpu.items()
        }
        if isinstance(said(lambda given=given: entry.options.refusals.check(given)), type):  # before any meta function
            continue
        mine = said(lambda given=given: quick(**given))
        if mine is None:
            continue
        asked += 1
        torchs = said(lambda given=given: ask_meta(entry.op, given))
        if torchs in (AttributeError, TypeError, ValueError):  # a reference that was not written for numbers
            torchs = said(lambda on_cpu=on_cpu: call_by_name(entry.op, entry.op, on_cpu))
        if torchs is not NotImplementedError:  # which the planner refuses
            assert mine == torchs, given
    if not any(a.type == "int" for a in parameters(entry.op)):  # such a number may be out of range
        assert asked, "it never said anything"


def test_modes_that_there_are_not_are_refused(device: str) -> None:
    x = torch.ones(3, device=device)
    for call in (
        lambda: torch.nn.functional.gelu(x, approximate="asdf"),
        lambda: torch.div(x, x, rounding_mode="asdf"),
        lambda: torch.polygamma(-1, x),
        lambda: torch.mvlgamma(x + 5, 0),
        lambda: torch.nn.functional.softshrink(x, -1.0),
    ):
        with pytest.raises(RuntimeError):
            call()


@pytest.mark.quick(call=["x + y"])
@pytest.mark.parametrize(
    "call", ["x + y", "x * 2", "x.add_(y)", "torch.mul(x, y, out=y)", "torch.relu(x)", "torch.where(x > 0, x, y)"]
)
def test_first_ops_import_no_symbolic_algebra(device: str, call: str) -> None:
    program = f"""
import sys, torch
x, y = torch.ones(3, device="{device}"), torch.ones(3, device="{device}")
{call}
assert "sympy" not in sys.modules and "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
