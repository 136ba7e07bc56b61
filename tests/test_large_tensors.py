"""Tensors of more than 2**31 elements: no index, length or offset is of 32 bits.

Single elements are compared, before and behind the 2**31st; the tensors hold zeros but for a few known places.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.no_fallback

N = 2**31 + 4096
FAR = 2**31 + 77
PLACES = {0: 5, 1000: 6, 2**31 - 1: 7, 2**31: 8, FAR: 9, N - 1: 10}
NEEDED = 10  # GiB: three tensors and what an op takes beside them


def available() -> float:
    """GiB of the host's memory that are free, where it says so."""
    info = Path("/proc/meminfo")
    lines = info.read_text().splitlines() if info.exists() else []
    found = [int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    return found[0] / 2**20 if found else 0.0


@pytest.fixture(scope="module")
def x(device: str) -> Iterator[torch.Tensor]:
    """N bytes, zero but for `PLACES`."""
    if available() < NEEDED and "TORCHGRAFT_TEST_LARGE" not in os.environ:
        pytest.skip(f"needs {NEEDED} GiB of memory, and {available():.1f} are free; TORCHGRAFT_TEST_LARGE=1 tries it")
    properties = torch.get_device_module(device).get_device_properties(device)
    if properties.total_memory < NEEDED * 2**30:
        pytest.skip(f"needs {NEEDED} GiB of memory, and {device} has {properties.total_memory / 2**30:.1f}")
    tensor = torch.zeros(N, dtype=torch.uint8, device=device)
    for place, value in PLACES.items():
        tensor[place] = value
    yield tensor
    del tensor
    torch.get_device_module(device).empty_cache()


@pytest.fixture(autouse=True)
def _give_back(device: str) -> Iterator[None]:
    yield
    torch.get_device_module(device).empty_cache()


def at(tensor: torch.Tensor, place: int) -> int:
    """One element."""
    return int(tensor[place].item())


@pytest.mark.parametrize("place", PLACES)
def test_elements_are_where_they_were_put(x: torch.Tensor, place: int) -> None:
    assert at(x, place) == PLACES[place]
    assert x[place : place + 1].cpu().tolist() == [PLACES[place]]
    assert x.narrow(0, max(place - 2, 0), 3).cpu().max() == PLACES[place]


ELEMENTWISE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "add": lambda x: x + 1,
    "clone": lambda x: x.clone() + 1,
    "copy to steps": lambda x: (
        torch.zeros(N // 8, 8, dtype=torch.uint8, device=x.device)
        .t()
        .copy_(x.view(N // 8, 8).t())
        .t()
        .reshape(-1)
        .add_(1)
    ),
    "where": lambda x: torch.where(x == 0, 1, x + 1),
    "fill in place": lambda x: torch.empty_like(x).fill_(1).add_(x),
}


@pytest.mark.quick(name=["add", "copy to steps"])
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise(x: torch.Tensor, name: str) -> None:
    result = ELEMENTWISE[name](x)
    assert result.shape == x.shape
    assert {place: at(result, place) - 1 for place in PLACES} == PLACES
    assert {at(result, place) for place in (1, 2**31 - 2, 2**31 + 1, N - 2)} == {1}


@pytest.mark.thorough
def test_reductions(x: torch.Tensor) -> None:
    assert x.sum().item() == sum(PLACES.values())
    assert (x == 0).sum().item() == N - len(PLACES)
    assert (x.max().item(), x.argmax().item()) == (10, N - 1)
    assert torch.nonzero(x).flatten().tolist() == list(PLACES)
    rows = x.view(-1, 4096)
    assert torch.nonzero(rows.sum(1)).flatten().tolist() == sorted({place // 4096 for place in PLACES})
    assert torch.nonzero(rows.amax(0)).flatten().tolist() == sorted({place % 4096 for place in PLACES})
    assert rows.argmax(1)[2**31 // 4096].item() == 4095  # the last of the three in its row


def test_places_by_index(x: torch.Tensor) -> None:
    index = torch.tensor(list(PLACES), device=x.device)
    expected = list(PLACES.values())
    assert x[index].tolist() == expected
    assert x.index_select(0, index).tolist() == expected
    assert x.gather(0, index).tolist() == expected
    assert x.take(index).tolist() == expected
    assert x[-index - 1].tolist() == x.flip(0)[index].tolist()
    assert torch.masked_select(x, x > 0).tolist() == expected


@pytest.mark.thorough
def test_writing_by_index(x: torch.Tensor) -> None:
    y = torch.zeros_like(x)
    index = torch.tensor(list(PLACES), device=x.device)
    values = torch.tensor(list(PLACES.values()), dtype=torch.uint8, device=x.device)
    y[index] = values
    assert torch.equal(x, y)
    y.zero_().scatter_(0, index, values)
    assert torch.equal(x, y)
    y.zero_().index_copy_(0, index, values)
    assert torch.equal(x, y)
    y.zero_().index_add_(0, index, values)
    assert torch.equal(x, y)


@pytest.mark.thorough
def test_moved(x: torch.Tensor) -> None:
    y = x.flip(0)
    assert {N - 1 - place: at(y, N - 1 - place) for place in PLACES} == {N - 1 - p: v for p, v in PLACES.items()}
    del y
    y = torch.cat([x[5:], x[:5]])
    assert at(y, FAR - 5) == 9 and at(y, N - 5) == 5 and at(y, 2**31 - 5) == 8
    del y
    y = x.view(-1, 4096).t().contiguous()
    assert {place: at(y[place % 4096], place // 4096) for place in PLACES} == PLACES
    assert y.sum().item() == sum(PLACES.values())
    del y
    y = x.roll(3)
    assert at(y, FAR + 3) == 9 and at(y, 3) == 5 and at(y, 2) == 10


@pytest.mark.thorough
def test_an_output_past_the_limit_of_small_arguments(device: str, x: torch.Tensor) -> None:
    row = torch.arange(4, dtype=torch.uint8, device=device)
    y = row.repeat(N // 4)
    assert [at(y, place) for place in (1, 2**31 + 2, N - 1)] == [1, 2, 3]
    assert y.sum().item() == N // 4 * 6


@pytest.mark.thorough
def test_from_and_to_the_host(x: torch.Tensor) -> None:
    part = x[2**31 - 2 :].cpu()
    assert part.nonzero().flatten().tolist() == [place - 2**31 + 2 for place in PLACES if place >= 2**31 - 2]
    y = torch.zeros_like(x)
    y[2**31 - 2 :].copy_(part)
    assert y.sum().item() == sum(value for place, value in PLACES.items() if place >= 2**31 - 2)
