"""Streams and events: work that overlaps, waits, and is timed."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.no_fallback


def test_a_launch_returns_at_once_and_a_result_waits(device: str) -> None:
    a = torch.randn(64, 64, device=device)
    # <synchronize>
    b = a @ a  # queued
    torch.accelerator.synchronize()  # done
    total = b.sum().item()  # reading a value waits by itself
    # </synchronize>
    assert total == pytest.approx((a.cpu() @ a.cpu()).sum().item(), rel=1e-3, abs=1e-2)


def test_two_streams(device: str) -> None:
    # <streams>
    side = torch.Stream(device)
    x = torch.ones(1000, device=device)

    side.wait_stream(torch.accelerator.current_stream())  # x must be there
    with side:
        y = x * 2
    torch.accelerator.current_stream().wait_stream(side)  # y must be there
    y.record_stream(torch.accelerator.current_stream())  # and its memory not be used again too early
    total = y.sum()
    # </streams>
    assert total.item() == 2000


def test_timing(device: str) -> None:
    a = torch.randn(256, 256, device=device)
    # <time>
    start, end = (torch.Event(device, enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(10):
        a = torch.tanh(a @ a)
    end.record()
    end.synchronize()
    milliseconds = start.elapsed_time(end)
    # </time>
    assert 0 < milliseconds < 60_000
    assert end.query()
