"""TORCHGRAFT_DEVICES: which of the devices that all drivers offer are used, and in which order."""

from __future__ import annotations

import textwrap

import pytest
import torch
from conftest import Script

from torchgraft import _C

# Each case is a forked child of a process that has registered the drivers and opened nothing.
PREAMBLE = """
import os
import torch, torchgraft
from numpy_driver import NumpyDriver
from torchgraft.driver import DeviceKind, DeviceProperties

class Rack(NumpyDriver):
    def __init__(self, name, *devices):
        super().__init__(devices=len(devices))
        self.name = name
        self.rack = devices

    def device_properties(self, device):
        name, kind, platform, uuid = self.rack[device]
        return DeviceProperties(name, 1 << 30, kind=kind, platform=platform, uuid=uuid, vendor="Acme Inc.")

CPU, GPU, ACCELERATOR = DeviceKind
torchgraft.register("rack", [
    Rack("first", ("Big 1", GPU, "Red", "u1"), ("Big 2", GPU, "Red", "u2"), ("Host", CPU, "Red", "host")),
    Rack("second", ("Big 1 (again)", GPU, "Blue", "u1"), ("Host", CPU, "Blue", "host"),
         ("Odd", ACCELERATOR, "Blue", "")),
    Rack("third", ("Odd", ACCELERATOR, "Blue", "")),
])

def used(wishes):
    '''The places of the devices that become rack:0, rack:1, ..., and the errors.'''
    if wishes is None:
        os.environ.pop("TORCHGRAFT_DEVICES", None)
    else:
        os.environ["TORCHGRAFT_DEVICES"] = wishes
    found = torchgraft._C.found_devices()
    order = sorted((device["index"], place) for place, device in enumerate(found) if device["index"] >= 0)
    assert [index for index, _ in order] == list(range(torch.rack.device_count()))
    for index, place in order:
        assert torch.rack.get_device_name(index) == found[place]["name"]
        assert torch.full((2,), 3.0, device=f"rack:{index}").sum().item() == 6
    return [place for _, place in order], torchgraft._C.device_errors()

def in_child(check):
    child = os.fork()
    if child == 0:
        try:
            check()
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


@pytest.fixture
def check(script: Script) -> Script:
    return lambda text: script(PREAMBLE + textwrap.dedent(text), TORCHGRAFT_FALLBACK="silent")


@pytest.mark.thorough
def test_what_entries_mean(check: Script) -> None:
    check("""
    cases = {
        None: [0, 1, 2, 5, 6],      # each physical device once; those without a uuid are never the same
        "": [0, 1, 2, 5, 6],
        " , ": [0, 1, 2, 5, 6],
        "0": [0],
        "2,0": [2, 0],              # the order is the user's
        "0,3": [0, 3],              # twice the same device, since it was said
        "0,0": [0],
        "gpu": [0, 1],
        "GPU": [0, 1],
        "cpu , gpu": [2, 0, 1],
        "accelerator": [5, 6],
        "blue": [3, 4, 5, 6],       # of the platform, also where another came first
        "again": [3],
        "again,gpu": [3, 1],
        "red,blue": [0, 1, 2, 5, 6],
        "second": [3, 4, 5],        # a driver
        "acme": [0, 1, 2, 5, 6],    # a vendor
        "big 2": [1],
    }
    for wishes, places in cases.items():
        def run():
            found = used(wishes)
            assert found == (places, ""), (wishes, found)
        in_child(run)
    """)


def test_what_matches_nothing_is_told(check: Script) -> None:
    check("""
    def partly():
        places, errors = used("1,7,green")
        assert places == [1]
        assert errors.startswith("TORCHGRAFT_DEVICES is '1,7,green': '7', 'green' matches none of these devices:")
        lines = errors.splitlines()
        assert lines[1] == "  0: Big 1 (gpu, first, Red)" and lines[7] == "  6: Odd (accelerator, third, Blue)", lines
        try:
            torch.ones(2, device="rack:1")
        except RuntimeError as error:
            assert "'green' matches none" in str(error), error
        else:
            raise AssertionError

    def nothing(wishes, reason):
        def run():
            assert used(wishes)[0] == [] and not torch.rack.is_available()
            try:
                torch.ones(2, device="rack")
            except RuntimeError as error:
                assert reason in str(error), error
            else:
                raise AssertionError
        return run

    in_child(partly)
    for wishes in ("-1", "99999999999999999999", "nosuch"):
        in_child(nothing(wishes, "matches none of these devices"))
    in_child(nothing("none", "so no device is used"))
    """)


def test_duplicates_are_marked(check: Script) -> None:
    check("""
    found = torchgraft._C.found_devices()
    assert [device["duplicate_of"] for device in found] == [-1, -1, -1, 0, 2, -1, -1]
    assert [device["index"] for device in found] == [0, 1, 2, -1, -1, 3, 4]
    assert [device["kind"] for device in found[:3]] == ["gpu", "gpu", "cpu"]
    """)


def test_the_device_under_test_is_among_the_found(device: str) -> None:
    found = _C.found_devices()
    used = [each for each in found if each["index"] >= 0]
    assert len(used) == _C.device_count()
    for each in used:
        assert _C.device_properties(each["index"])["name"] == each["name"]
        assert each["kind"] in ("cpu", "gpu", "accelerator")
    module = torch.get_device_module(device)
    assert module.get_device_properties(device).kind in ("cpu", "gpu", "accelerator")
