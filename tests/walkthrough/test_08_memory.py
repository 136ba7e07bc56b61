"""The device's memory: how much is used, kept, and what happens when it runs out."""

from __future__ import annotations

import gc

import torch


def test_how_much_is_used(device: str) -> None:
    module = getattr(torch, torch.device(device).type)
    gc.collect()
    # <usage>
    module.reset_peak_memory_stats()
    before = module.memory_allocated()
    x = torch.empty(1024, 1024, device=device)  # 4 MiB
    used = module.memory_allocated() - before
    del x
    peak = module.max_memory_allocated()
    free, total = module.mem_get_info()
    # </usage>
    assert used == 4 * 2**20
    assert peak >= before + used
    assert module.memory_allocated() == before
    assert 0 < free <= total


def test_freed_memory_is_kept_for_the_next_tensor(device: str) -> None:
    module = getattr(torch, torch.device(device).type)
    gc.collect()
    module.empty_cache()
    # More than is left of segments that other tests' tensors are in, which are kept.
    x = torch.empty(2**26, device=device)
    address = x.data_ptr()
    del x
    assert torch.empty(2**26, device=device).data_ptr() == address
    torch.accelerator.synchronize()
    reserved = module.memory_reserved()
    module.empty_cache()
    assert module.memory_reserved() < reserved


def test_out_of_memory(device: str) -> None:
    """An error like any other: what there was is still there."""
    module = getattr(torch, torch.device(device).type)
    kept = torch.ones(3, device=device)
    _, total = module.mem_get_info()
    # <oom>
    try:
        torch.empty(2 * total, dtype=torch.uint8, device=device)
    except torch.OutOfMemoryError as error:
        message = str(error)
    # </oom>
    assert "out of memory. Tried to allocate" in message
    assert kept.tolist() == [1.0, 1.0, 1.0]


def test_the_summary(device: str) -> None:
    module = getattr(torch, torch.device(device).type)
    x = torch.empty(10, device=device)
    assert "allocated memory" in module.memory_summary()
    assert x.shape == (10,)
