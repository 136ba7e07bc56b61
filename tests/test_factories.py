"""New tensors, and ops that give a tensor other storage or another size."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Iterator

import pytest
import torch

pytestmark = pytest.mark.filterwarnings("ignore:.* runs on the CPU")


@pytest.fixture
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual.cpu(), expected, rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.complex64, torch.int64])
def test_empty(device: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, expected = torch.empty(shape, dtype=dtype, device=device), torch.empty(shape, dtype=dtype)
    assert (x.shape, x.stride(), x.dtype) == (expected.shape, expected.stride(), dtype)
    assert x.device.type == torch.device(device).type
    assert x.untyped_storage().nbytes() == expected.untyped_storage().nbytes()


def test_empty_takes_the_default_dtype(device: str) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.empty(1, device=device).dtype is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_memory_formats_and_strides(device: str) -> None:
    for form in (torch.channels_last, torch.contiguous_format):
        made = torch.empty(2, 3, 4, 5, device=device, memory_format=form)
        assert made.stride() == torch.empty(2, 3, 4, 5, memory_format=form).stride()
    assert torch.empty_strided((2, 3), (1, 4), device=device).stride() == (1, 4)
    like = torch.empty_like(torch.empty(3, 4, device=device).t())
    assert like.stride() == (1, 4)


def test_refusals_say_what_to_do(device: str) -> None:
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        torch.empty(2, device=device, pin_memory=True)
    with pytest.raises(RuntimeError, match="negative dimension"):
        torch.empty(-1, device=device)
    with pytest.raises(RuntimeError, match="99"):
        torch.empty(0, device=torch.device(torch.device(device).type, 99))
    with pytest.raises(RuntimeError, match="must match dimensionality of strides"):
        torch.empty_strided((2, 3), (1,), device=device)


def test_deterministic_algorithms_fill_new_memory(device: str, deterministic: None) -> None:
    assert torch.empty(5, device=device).isnan().cpu().all()
    same(torch.empty(3, dtype=torch.int32, device=device), torch.full((3,), 2**31 - 1, dtype=torch.int32))
    assert torch.empty_strided((2, 2), (1, 2), device=device).isnan().cpu().all()
    grown = torch.zeros(2, device=device).resize_(6)
    same(grown[:2], torch.zeros(2))
    assert grown[2:].isnan().cpu().all()


def test_resize_keeps_what_fits(device: str) -> None:
    x = torch.arange(6.0, device=device)
    base = x.untyped_storage().data_ptr()
    x.resize_(2, 2)
    same(x, torch.arange(4.0).view(2, 2))
    assert x.untyped_storage().data_ptr() == base
    x.resize_(4, 5)
    same(x.view(-1)[:6], torch.arange(6.0))
    same(x.resize_(0), torch.empty(0))
    view = torch.arange(6.0, device=device)[4:]
    view.resize_(5)
    same(view[:2], torch.tensor([4.0, 5.0]))
    wide = torch.empty(0, device=device).resize_(1, 2, 3, 4, memory_format=torch.channels_last)
    assert wide.is_contiguous(memory_format=torch.channels_last)


def test_a_storage_can_be_freed_and_come_back(device: str) -> None:
    x = torch.ones(8, device=device)
    x.untyped_storage().resize_(0)
    assert x.untyped_storage().nbytes() == 0
    x.untyped_storage().resize_(32)
    x.fill_(2)
    same(x, torch.full((8,), 2.0))


def test_set(device: str) -> None:
    source = torch.arange(6.0, device=device)
    x = torch.empty(0, device=device)
    assert x.set_(source) is x
    same(x, torch.arange(6.0))
    assert x.data_ptr() == source.data_ptr()
    x.set_(source.untyped_storage(), 1, (2,), (3,))
    same(x, torch.tensor([1.0, 4.0]))
    x.set_(source.untyped_storage())
    assert x.shape == (6,)
    x.set_()
    assert x.numel() == 0
    assert x.device == source.device
    with pytest.raises(RuntimeError, match="devices must match"):
        x.set_(torch.ones(2).untyped_storage(), 0, (2,), (1,))


def test_copies_by_pickle_deepcopy_and_save(device: str) -> None:
    x = torch.arange(12.0).view(3, 4).to(device)
    pair = {"whole": x, "row": x[1]}
    for made in (copy.deepcopy(pair), pickle.loads(pickle.dumps(pair))):
        same(made["row"], torch.arange(4.0, 8.0))
        assert made["row"].device == x.device
    file = io.BytesIO()
    torch.save(pair, file)
    file.seek(0)
    loaded = torch.load(file)
    same(loaded["whole"], torch.arange(12.0).view(3, 4))
    assert loaded["row"].data_ptr() == loaded["whole"][1].data_ptr()
    file.seek(0)
    assert torch.load(file, map_location="cpu")["row"].device.type == "cpu"


def test_zero_tensors_of_forward_mode(device: str) -> None:
    zero = torch._efficientzerotensor((3,), device=device)
    same(zero + 1, torch.ones(3))
    x = torch.ones(3, device=device)
    _, tangent = torch.func.jvp(lambda t: t * 2, (x,), (torch.ones(3, device=device),))
    same(tangent, torch.full((3,), 2.0))
