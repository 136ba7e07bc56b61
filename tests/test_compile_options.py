"""Options of the device in torch.compile, and what torch's compilers are told of the device before anything is
compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._inductor.utils
from conftest import Script
from torch._dynamo.device_interface import get_registered_device_interfaces

import torchgraft
from torchgraft import plans
from torchgraft.inductor import options, replay
from torchgraft.inductor.interface import Interface
from torchgraft.plans.device import kernel_form
from torchgraft.plans.versions import HERE

BY_NAME = HERE >= (2, 15)  # torch.compile(options={"ocl.record": False})


def work(x: torch.Tensor) -> torch.Tensor:
    return (x.cos() * 3).sum(-1)


@pytest.fixture
def x(device: str, compiled_afresh: None) -> torch.Tensor:
    return torch.rand(70, 300, device=device)


def recordings_of(function: Callable[..., Any], x: torch.Tensor) -> int:
    before = plans.stats().compiled_graphs
    for _ in range(4):
        torch.testing.assert_close(function(x).cpu(), work(x.cpu()))
    return plans.stats().compiled_graphs - before


def test_programs_need_not_be_recorded(x: torch.Tensor) -> None:
    assert recordings_of(torch.compile(work), x) == 1
    torch._dynamo.reset()
    why = replay.refusals["its option says so"]
    with options.patch(record=False):
        assert recordings_of(torch.compile(work), x) == 0
    assert replay.refusals["its option says so"] == why + 1 and options.record


def test_the_form_of_generated_kernels(device: str, x: torch.Tensor) -> None:
    if device == "cxx":
        pytest.skip("a group has one work-item")
    other = "gpu" if kernel_form(0) == "cpu" else "cpu"
    with options.patch(kernel_form=other):
        result, (program,) = torch._inductor.utils.run_and_get_code(torch.compile(work), x)
    assert f"form={other!r}" in program and options.form(0) == kernel_form(0)
    torch.testing.assert_close(result.cpu(), work(x.cpu()))


def test_a_form_that_there_is_not(x: torch.Tensor) -> None:
    with options.patch(kernel_form="tpu"), pytest.raises(Exception, match="'cpu' or 'gpu', not 'tpu'"):
        torch.compile(work)(x)
    torch.testing.assert_close(torch.compile(work)(x).cpu(), work(x.cpu()))


@pytest.mark.skipif(not BY_NAME, reason="torch takes no options of devices before 2.15")
def test_by_the_devices_name(device: str, x: torch.Tensor) -> None:
    name = torch.device(device).type
    assert recordings_of(torch.compile(work, options={f"{name}.record": False}), x) == 0
    with pytest.raises(RuntimeError, match="Unexpected optimization option"):
        torch.compile(work, options={f"{name}.gone": False})


def test_the_device_is_known_before_anything_is_compiled(device: str, script: Script) -> None:
    assert dict(get_registered_device_interfaces())[torch.device(device).type] is Interface
    said = script(
        """
        import sys
        import torch
        from torch._dynamo.device_interface import get_registered_device_interfaces

        assert "torchgraft.inductor.registration" not in sys.modules
        print(dict(get_registered_device_interfaces())["ocl"].__module__, torch.ocl.is_initialized())
        """,
        autoload=True,
    )
    assert said.split() == ["torchgraft.inductor.interface", "False"]


@pytest.mark.skipif(not BY_NAME, reason="torch asks no device what its code depends on before 2.15")
def test_the_keys_of_generated_code_know_the_devices(device: str) -> None:
    from torch._inductor.codecache import CacheBase

    told: Any = CacheBase.get_system()["device_interfaces"]
    properties = torch.get_device_module(torch.device(device).type).get_device_properties(0)
    assert told[torch.device(device).type]["torchgraft"] == torchgraft.__version__
    assert [properties.name, properties.driver_version] == told[torch.device(device).type]["devices"][0][:2]
