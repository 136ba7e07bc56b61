"""Type promotion where it depends on more than the arguments: the default dtype, and the `out=` that is given."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from torchgraft.ops.table import Row
from torchgraft.plans import ENTRIES
from torchgraft.plans.registry import Entry, run_own_meta


@pytest.fixture(params=[torch.float64, torch.float16, torch.bfloat16], ids=str)
def default_dtype(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    before = torch.get_default_dtype()
    yield request.param
    torch.set_default_dtype(before)


@pytest.mark.no_fallback
def test_the_default_dtype_counts_at_every_call(default_dtype: torch.dtype, device: torch.device) -> None:
    x = torch.arange(1, 4, device=device)

    def dtypes() -> set[torch.dtype]:
        return {
            result.dtype for result in (x / 2, x + 0.5, x.sqrt(), x.true_divide(x), torch.full((2,), 0.5).to(device))
        }

    assert dtypes() == {torch.float32}
    torch.set_default_dtype(default_dtype)
    assert dtypes() == {default_dtype}
    torch.set_default_dtype(torch.float32)
    assert dtypes() == {torch.float32}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_results_are_rounded_to_their_type_before_out(dtype: torch.dtype, device: torch.device) -> None:
    x = torch.tensor([1.0, 3.1416, 65000.0]).to(dtype)
    expected, actual = torch.empty(3, dtype=torch.float64), torch.empty(3, dtype=torch.float64, device=device)
    torch.add(x, x, out=expected)
    torch.add(x.to(device), x.to(device), out=actual)
    assert actual.tolist() == expected.tolist()


@pytest.mark.parametrize("op", [torch.neg, torch.floor, torch.round, torch.sign, torch.abs, torch.nan_to_num])
def test_unary_ops_want_an_out_of_their_type(op: torch._ops.OpOverload, device: torch.device) -> None:
    for place in (torch.device("cpu"), device):
        with pytest.raises(RuntimeError):
            op(torch.ones(2, device=place), out=torch.empty(2, dtype=torch.float64, device=place))


def test_in_place_results_fit_their_tensor(device: torch.device) -> None:
    x = torch.ones(3, dtype=torch.int64, device=device)
    with pytest.raises(RuntimeError, match="result type Float can't be cast to the desired output type Long"):
        x.add_(1.5)
    assert x.tolist() == [1, 1, 1]


def test_put_takes_values_of_the_tensors_type(device: torch.device) -> None:
    x = torch.ones(3, dtype=torch.float64, device=device)
    where = torch.tensor([0], device=device)
    with pytest.raises(
        RuntimeError, match="source and destination dtypes match, got Double for the destination and Int"
    ):
        x[where] = torch.tensor([2], dtype=torch.int32, device=device)
    with pytest.raises(RuntimeError, match="same dtype"):
        x.put_(where, torch.tensor([2.0], device=device))
    assert x.tolist() == [1, 1, 1]


DTYPES = (torch.bool, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64)
NUMBERS = (True, 2, 1.5)


def _rows(operands: int) -> list[Entry]:
    """Rows of the table whose results are made of so many tensors and numbers."""
    rows = []
    for entry in ENTRIES.values():
        wanted = [a for a in entry.op._schema.arguments if not a.kwarg_only and not a.has_default_value()]
        plain = all(str(a.type) in ("Tensor", "number") for a in wanted) and len(wanted) == operands
        # Gradients have one type.
        own = entry.op.namespace == "aten" and entry.kind == "functional" and "backward" not in entry.op.__name__
        if own and plain and isinstance(entry.plan, Row):
            rows.append(entry)
    return rows


def _operands(type_: str) -> list[tuple[Any, Any]]:
    """Operands as torch's CPU gets them and as meta functions do, with and without dimensions."""
    if type_ == "number":
        return [(number, number) for number in NUMBERS]
    given = [torch.ones(shape, dtype=dtype) for shape in ((2,), ()) for dtype in DTYPES]
    return [(x, x.to("meta")) for x in given]


def _spec(entry: Entry, arguments: tuple[Any, ...]) -> Any:
    names = [a.name for a in entry.op._schema.arguments]
    if entry.options.meta is None:
        return entry.op(*arguments)
    return run_own_meta(entry, dict(zip(names, arguments, strict=False)))


def test_rows_promote_as_the_cpu_does(device: torch.device) -> None:
    """Every row of two operands, of all pairs of dtypes that torch's CPU takes."""
    torch.empty(1, device=device)
    checked = set()
    for entry in _rows(2):
        types = [str(a.type) for a in entry.op._schema.arguments[:2]]
        for pair in itertools.product(*map(_operands, types)):
            real, specs = zip(*pair, strict=True)
            if not any(isinstance(x, torch.Tensor) for x in real):
                continue
            try:
                expected = entry.op(*real)
            except (RuntimeError, NotImplementedError):
                continue
            got = _spec(entry, specs)
            told = [(x.dtype, x.shape) if isinstance(x, torch.Tensor) else x for x in real]
            assert got.dtype == expected.dtype, (entry.op, told)
            checked.add(entry.op)
    assert len(checked) > 50


@pytest.mark.no_fallback
def test_powers_of_two_keep_the_exponents_type(device: torch.device) -> None:
    """ldexp of whole numbers and of exponents without dimensions, which torch's meta function takes for float32."""
    for one, two in itertools.product(DTYPES, DTYPES[1:]):
        shapes = [((3,), ()), ((), ()), ((3,), (3,))]
        for x, exponent in ((torch.full(a, 3).to(one), torch.full(b, 2).to(two)) for a, b in shapes):
            expected = torch.ldexp(x, exponent)
            for given in (exponent.to(device), exponent if exponent.dim() == 0 else exponent.to(device)):
                got = torch.ldexp(x.to(device), given)
                assert got.dtype == expected.dtype, (one, two, x.shape, exponent.shape)
                assert got.tolist() == expected.tolist()
