"""Type promotion where it depends on more than the arguments: the default dtype, and the `out=` that is given."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


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
