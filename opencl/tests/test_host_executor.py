"""What the driver does on a CPU without OpenCL's workers, turned off part by part: TORCHGRAFT_OPENCL_HOST."""

from __future__ import annotations

import os
import random
import struct
from ctypes import c_float
from pathlib import Path

import pytest
from driver_table import POCL, Driver, DriverError, driver_of, floats, run_program

from torchgraft.driver import CopyKind

# What each does with small launches, by the driver's word; on PoCL.
WAYS = {
    "off": ["workers", ""],
    "caller": ["device", "TORCHGRAFT_OPENCL_HOST=caller"],
    "team": ["device", "TORCHGRAFT_OPENCL_HOST=team"],
    "code": ["direct", ""],
}


def check_commands(driver: Driver, seed: int, size: int, rounds: int = 40) -> None:
    """Copies, fills and launches in one stream, with waits or without, beside the same on the host."""
    choose = random.Random(seed)
    kernel = driver.kernel("__kernel void add(__global float* x, float c) { x[get_global_id(0)] += c; }", "add")
    mine, other = [0.0] * size, [0.0] * size
    with (
        driver.new_stream() as stream,
        driver.new_block(stream, b"\0", 4 * size) as a,
        driver.new_block(stream, b"\0", 4 * size) as b,
    ):
        for _ in range(rounds):
            count = choose.choice((16, size // 64 * 16, size))
            value = float(choose.randrange(100))  # float32 adds such numbers exactly
            match choose.choice(("launch", "copy", "fill", "write", "wait")):
                case "launch":
                    driver.launch(stream, kernel, [count // 16], [16], a, c_float(value), nbytes=4 * count)
                    mine[:count] = [x + value for x in mine[:count]]
                case "copy":
                    driver.call("copy", 0, stream, b, a, 4 * count, CopyKind.DEVICE_TO_DEVICE, 0)
                    other[:count] = mine[:count]
                case "fill":
                    driver.call("fill", 0, stream, a, struct.pack("f", value), 4, 4 * count)
                    mine[:count] = [value] * count
                case "write":
                    driver.write(stream, a, struct.pack("f", value) * count)
                    mine[:count] = [value] * count
                case "wait":
                    driver.call("stream_synchronize", 0, stream)
        assert floats(driver.read(stream, a, 4 * size)) == mine
        assert floats(driver.read(stream, b, 4 * size)) == other


@pytest.mark.parametrize("mode", WAYS)
def test_each_part_may_be_left_out(mode: str, tmp_path: Path) -> None:
    """In a process of its own, where PoCL is opened anew."""
    driver_of(tmp_path, POCL)
    if "POCL_DEVICES" in os.environ:
        pytest.skip("POCL_DEVICES is set")
    run_program(
        f"""
        from pathlib import Path
        from driver_table import Driver
        from test_direct_calls import way
        from test_host_executor import WAYS, check_commands
        driver = Driver(Path(), copy=False)
        assert way(driver) == WAYS[{mode!r}], way(driver)
        for seed in range(8):
            check_commands(driver, seed, 1 << 10)
        check_commands(driver, 8, 1 << 18)
        """,
        TORCHGRAFT_OPENCL_HOST=mode,
    )


def test_graphs_without_it() -> None:
    """A network's step of training, recorded and replayed while all work is queued."""
    run_program(
        """
        import torch, torchgraft_opencl
        from torch import nn
        torchgraft_opencl.register()
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 4))
        same = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 4))
        same.load_state_dict(network.state_dict())
        network.to("ocl")
        optimizers = [torch.optim.SGD(each.parameters(), lr=0.1, momentum=0.9) for each in (network, same)]
        x = torch.randn(8, 20, device="ocl")
        def step(module, optimizer, x):
            optimizer.zero_grad(set_to_none=True)
            loss = module(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss
        with torch.ocl.stream(torch.ocl.Stream()):
            step(network, optimizers[0], x)
        torch.ocl.synchronize()
        step(same, optimizers[1], x.cpu())
        optimizers[0].zero_grad(set_to_none=True)
        graph = torch.ocl.Graph()
        with torch.ocl.graph(graph):
            loss = step(network, optimizers[0], x)
        for _ in range(10):
            new = torch.randn(8, 20)
            x.copy_(new)
            graph.replay()
            torch.testing.assert_close(loss.cpu(), step(same, optimizers[1], new))
        """,
        TORCHGRAFT_OPENCL_HOST="off",
    )


def test_other_values_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DriverError, match="TORCHGRAFT_OPENCL_HOST is 'none': it may be off, caller, team or code"):
        Driver(tmp_path, TORCHGRAFT_OPENCL_HOST="none")
