"""Where the time goes: torch's profiler, with the device's kernels in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function


@pytest.fixture
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("in_a_folder")
def test_a_table_and_a_trace(device: str, capsys: pytest.CaptureFixture[str]) -> None:
    if torch.device(device).type != "ocl":
        pytest.skip("the activity is named for the device that is shown")
    model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10)).to(device)
    images = torch.randn(256, 512, device=device)
    model(images).sum().backward()
    capsys.readouterr()
    # <profile>
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.OCL]) as prof:
        with record_function("forward"):
            loss = model(images).sum()
        with record_function("backward"):
            loss.backward()

    print(prof.key_averages().table(sort_by="self_device_time_total", row_limit=10))
    prof.export_chrome_trace("trace.json")
    # </profile>
    table = capsys.readouterr().out
    for expected in ("Self OCL", "aten::addmm", "forward", "Self OCL time total"):
        assert expected in table
    events = json.loads(Path("trace.json").read_text())["traceEvents"]
    kernels = [event for event in events if event.get("cat") == "kernel"]
    assert all(kernel["dur"] > 0 and kernel["args"]["External id"] for kernel in kernels)
    assert "relu_f32" in {kernel["name"] for kernel in kernels}


def test_some_steps_of_many(device: str) -> None:
    model = torch.nn.Linear(32, 32).to(device)
    images = torch.randn(8, 32, device=device)
    tables = []
    # <schedule>
    with profile(
        schedule=torch.profiler.schedule(skip_first=2, wait=1, warmup=1, active=2, repeat=1),
        on_trace_ready=lambda prof: tables.append(prof.key_averages().table()),
    ) as prof:
        for _ in range(8):
            model(images)
            prof.step()
    # </schedule>
    (table,) = tables
    assert "aten::linear" in table
    assert "ProfilerStep*" in table


def test_memory(device: str) -> None:
    # <memory>
    with profile(profile_memory=True) as prof:
        images = torch.empty(1024, 1024, device=device)

    (row,) = [row for row in prof.key_averages() if row.key == "aten::empty"]
    print(row.self_device_memory_usage)  # bytes
    # </memory>
    assert row.self_device_memory_usage == images.nbytes
