"""Results that lie over themselves or over an input are refused where torch's CPU refuses them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import torchgraft.plans

Op = Callable[[torch.device], object]


def floats(device: torch.device, *shape: int) -> torch.Tensor:
    return torch.randn(*shape).to(device)


def line(device: torch.device) -> torch.Tensor:
    """Three elements in the memory of one."""
    return floats(device, 1).expand(3)


def index(device: torch.device) -> torch.Tensor:
    return torch.tensor([0, 1, 2], device=device)


OVER_ITSELF: dict[str, Op] = {
    "scatter_": lambda d: line(d).scatter_(0, index(d), floats(d, 3)),
    "index_add_": lambda d: line(d).index_add_(0, index(d), floats(d, 3)),
    "index_copy_": lambda d: line(d).index_copy_(0, index(d), floats(d, 3)),
    "put_": lambda d: line(d).put_(index(d), floats(d, 3)),
    "masked_scatter_": lambda d: line(d).masked_scatter_(index(d) > 0, floats(d, 3)),
    "normal_": lambda d: line(d).normal_(),
    "bernoulli_": lambda d: line(d).bernoulli_(),
    "clamp_": lambda d: line(d).clamp_(0),
    "cumsum": lambda d: torch.cumsum(floats(d, 3), 0, out=line(d)),
    "sort": lambda d: torch.sort(floats(d, 3), out=(line(d), index(d))),
    "cat": lambda d: torch.cat([floats(d, 1), floats(d, 2)], out=line(d)),
    "take": lambda d: torch.take(floats(d, 3), index(d), out=line(d)),
    "arange": lambda d: torch.arange(3, out=line(d)),
    "mm": lambda d: torch.mm(floats(d, 3, 3), floats(d, 3, 3), out=floats(d, 1, 1).expand(3, 3)),
}

OVER_AN_INPUT: dict[str, Op] = {
    "scatter_": lambda d: (x := floats(d, 3)).scatter_(0, index(d), x),
    "index_add_": lambda d: (x := floats(d, 6)).index_add_(0, index(d), x[3:]),
    "index_put_": lambda d: (x := floats(d, 6)).index_put_((index(d),), x[:3]),
    "put_": lambda d: (x := floats(d, 6)).put_(index(d), x[:3]),
    "gather": lambda d: torch.gather(x := floats(d, 3), 0, index(d), out=x),
    "index_select": lambda d: torch.index_select(x := floats(d, 6), 0, index(d), out=x[2:5]),
    "masked_select": lambda d: torch.masked_select(x := floats(d, 3), index(d) >= 0, out=x),
    "kthvalue": lambda d: torch.kthvalue(x := floats(d, 3), 1, out=(x[0], index(d)[0])),
    "gather_grown": lambda d: torch.gather(index(d), 0, (x := index(d))[1:], out=x[:1]),
    "cat": lambda d: torch.cat([(x := floats(d, 6))[:2], x[2:4]], out=x[2:]),
    "stack": lambda d: torch.stack([(x := floats(d, 6))[0], x[1]], out=x[1:3]),
    "add": lambda d: torch.add((x := floats(d, 6))[:4], 1, out=x[2:]),
    "masked_fill_": lambda d: (x := floats(d, 6) > 0)[1:].masked_fill_(x[:-1], False),
}


@pytest.mark.parametrize("op", OVER_ITSELF.values(), ids=OVER_ITSELF)
def test_result_over_itself(op: Op, device: torch.device) -> None:
    for place in (torch.device("cpu"), device):
        with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
            op(place)


@pytest.mark.parametrize("op", OVER_AN_INPUT.values(), ids=OVER_AN_INPUT)
def test_result_over_an_input(op: Op, device: torch.device) -> None:
    for place in (torch.device("cpu"), device):
        with pytest.raises(RuntimeError, match="some elements of the input tensor and the written-to tensor"):
            op(place)


ALLOWED: dict[str, Op] = {
    "fill_": lambda d: line(d).fill_(2.0),
    "zero_": lambda d: line(d).zero_(),
    "masked_fill_": lambda d: line(d).masked_fill_(index(d) >= 0, 3.0),
    "index_fill_": lambda d: line(d).index_fill_(0, index(d), 4.0),
    "index_put_": lambda d: line(d).index_put_((index(d),), torch.tensor(5.0).to(d)),
    "scatter": lambda d: torch.scatter(x := torch.zeros(3).to(d), 0, index(d), torch.ones(3).to(d), out=x),
    "sort": lambda d: torch.sort(x := torch.tensor([3.0, 1.0, 2.0]).to(d), out=(x, index(d)))[0],
    "gather_between": lambda d: torch.gather((x := torch.arange(6.0).to(d))[::2], 0, index(d), out=x[1::2]),
    "threshold_": lambda d: torch.threshold_(torch.ones(1).to(d).expand(3), 2.0, 5.0),
    "nothing_expanded": lambda d: torch.empty(0, 1).to(d).expand(0, 3).add_(1),
}


@pytest.mark.filterwarnings("ignore:Use of")
@pytest.mark.parametrize("op", ALLOWED.values(), ids=ALLOWED)
def test_allowed(op: Op, device: torch.device) -> None:
    expected, actual = op(torch.device("cpu")), op(device)
    assert isinstance(expected, torch.Tensor)
    assert isinstance(actual, torch.Tensor)
    assert torch.equal(actual.cpu(), expected)


def test_masked_scatter_from_itself(device: torch.device) -> None:
    x = torch.randn(6)
    y = x.to(device)
    y.masked_scatter_(y > 0, y)  # as if the source were read first
    assert torch.equal(y.cpu(), x.masked_scatter(x > 0, x))


GROWN: dict[str, Op] = {
    "mul": lambda d: torch.mul(x := floats(d, 5, 1), floats(d, 5), out=x),
    "ldexp_": lambda d: floats(d, 5, 1).ldexp_(floats(d, 5)),
    "where": lambda d: torch.where(x := floats(d, 5, 1) > 0, x, floats(d, 5) > 0, out=x),
}


@pytest.mark.parametrize("op", GROWN.values(), ids=GROWN)
def test_an_input_does_not_grow(op: Op, device: torch.device) -> None:
    for place in (torch.device("cpu"), device):
        with pytest.raises(RuntimeError, match=r"output with shape \[5, 1\] doesn't match the broadcast shape"):
            op(place)


DEPRECATED: dict[str, Op] = {
    "masked_fill_": lambda d: line(d).masked_fill_(index(d) >= 0, 3.0),
    "index_fill_": lambda d: line(d).index_fill_(0, index(d), torch.tensor(4.0).to(d)),
    "index_put_": lambda d: line(d).index_put_((index(d),), torch.tensor(5.0).to(d)),
}


@pytest.mark.parametrize("name", DEPRECATED)
def test_filling_expanded_tensors_is_deprecated(name: str, device: torch.device) -> None:
    torchgraft.plans.clear()  # said when a plan is made
    for place in (torch.device("cpu"), device):
        with pytest.warns(UserWarning, match=f"Use of {name} on expanded tensors is deprecated"):
            DEPRECATED[name](place)


def test_an_out_that_is_resized(device: str) -> None:
    """Some ops look at it before, as it is given, and some after, when it no longer lies over itself."""
    results = []
    for where in (device, "cpu"):
        x, index = torch.rand(4, 4, device=where), torch.tensor([1], device=where)
        ops: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
            "cumsum": lambda out, x=x: torch.cumsum(x, 0, out=out),
            "sum": lambda out, x=x: torch.sum(x, 0, out=out),
            "mm": lambda out, x=x: torch.mm(x, x, out=out),
            "add": lambda out, x=x: torch.add(x, x, out=out),
            "exp": lambda out, x=x: torch.exp(x, out=out),
            "index_select": lambda out, x=x, index=index: torch.index_select(x, 0, index, out=out),
            "take": lambda out, x=x, index=index: torch.take(x, index, out=out),
        }
        found = {}
        for name, op in ops.items():
            for shape in ((3,), (4, 4)):  # which changes, and which may stay
                out = torch.ones((), device=where).expand(shape)
                try:
                    found[name, shape] = str(op(out).shape)
                except RuntimeError as error:
                    found[name, shape] = "more than one element" in str(error)
        results.append(found)
    assert results[0] == results[1]
