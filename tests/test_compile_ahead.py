"""Kernels that helpers compile: those of the backward pass during the forward pass, and the later ones of a plan."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch
from conftest import Script

from torchgraft import _C
from torchgraft.codegen import ahead

pytestmark = pytest.mark.skipif(
    not (_C.device_properties(0)["has_compiler"] and _C.device_properties(0)["kind"] == "cpu")
    or _C.device_properties(0)["driver"] == "python",
    reason="helpers are for CPU devices of drivers in shared libraries",
)

NETWORK = """
import os, sys, time, torch
from pathlib import Path
from torch import nn
from torchgraft.codegen import ahead, compiler

torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.GELU(), nn.MaxPool2d(2), nn.Conv2d(4, 8, 1), nn.Flatten(),
    nn.Linear(72, 5),
).to("{device}")
x, y = torch.randn(6, 2, 8, 8).to("{device}"), torch.tensor([0, 1, 2, 3, 4, 0]).to("{device}")

def settled():
    "Waits until nothing has been compiled for a while."
    last, since = None, time.monotonic()
    while time.monotonic() - since < 3:
        found = sum(1 for path in Path(os.environ["TORCHGRAFT_CACHE_DIR"]).rglob("*") if path.is_file())
        if found != last:
            last, since = found, time.monotonic()
        time.sleep(0.05)

def gradients(loss):
    return [round(g.cpu().double().abs().sum().item(), 3) for g in torch.autograd.grad(loss, list(model.parameters()))]
"""


def run(text: str, device: str, tmp_path: Path, helpers: str = "1", timeout: float = 120) -> str:
    """What a program prints that starts without kernels on disk."""
    changes = {
        "TORCHGRAFT_CACHE_DIR": str(tmp_path / "kernels"),
        "POCL_CACHE_DIR": str(tmp_path / "pocl"),
        "TORCHGRAFT_COMPILE_HELPERS": helpers,
    }
    program = NETWORK.format(device=device) + textwrap.dedent(text)
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **changes}, timeout=timeout, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.thorough
def test_a_backward_pass_finds_its_kernels(device: str, tmp_path: Path) -> None:
    text = """
    loss = nn.functional.cross_entropy(model(x), y)
    settled()
    before = compiler.counts.compiled
    found = gradients(loss)
    print(compiler.counts.compiled - before, compiler.counts.loaded, found)
    """
    compiled, loaded, found = run(text, device, tmp_path / "with").split(maxsplit=2)
    assert int(compiled) <= 1
    assert int(loaded) >= 8
    all_of_them, none, expected = run(text, device, tmp_path / "without", helpers="0").split(maxsplit=2)
    assert int(none) == 0
    assert int(all_of_them) >= 8
    assert found == expected


@pytest.mark.thorough
def test_a_plan_shares_its_kernels_with_a_helper(device: str, tmp_path: Path) -> None:
    text = """
    torch.set_grad_enabled(False)
    model(x)  # starts the helper
    settled()
    before = compiler.counts.compiled, compiler.counts.loaded
    a = torch.randn(70, 3, 40, device="{device}")
    torch.nn.functional.batch_norm(a.half(), None, None, training=True)
    print(compiler.counts.compiled - before[0], compiler.counts.loaded - before[1])
    """.replace("{device}", device)
    compiled, loaded = map(int, run(text, device, tmp_path).split())
    assert compiled >= 1
    assert loaded >= 1


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("helpers", "text"),
    [
        ("0", "model(x)"),
        ("1", "torch.relu(x.detach())"),  # one kernel, and no gradient
        ("1", "with torch.no_grad(): torch.relu(x)"),
    ],
)
def test_no_helper_without_need(device: str, tmp_path: Path, helpers: str, text: str) -> None:
    printed = run(f"{text}\ntime.sleep(0.5)\nprint(ahead._helpers, ahead._thread)", device, tmp_path, helpers)
    assert printed.split() == ["[]", "None"]


@pytest.mark.thorough
def test_a_helper_that_is_killed(device: str, tmp_path: Path) -> None:
    text = """
    loss = nn.functional.cross_entropy(model(x), y)
    ahead._helpers[0].kill()
    first = gradients(loss)
    model.double(), gradients(nn.functional.cross_entropy(model(x.double()), y))
    print(first)
    """
    expected = run("print(gradients(nn.functional.cross_entropy(model(x), y)))", device, tmp_path / "without", "0")
    assert run(text, device, tmp_path / "with") == expected


@pytest.mark.thorough
def test_helpers_that_can_do_nothing(device: str, tmp_path: Path) -> None:
    """As where a driver does not load without what this process has loaded. All is compiled here, and that is said."""
    text = """
    import warnings
    from torchgraft import backend
    backend.libraries[:] = [("no_such_library.so", "table")]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model(x)
        for dtype in (torch.float64, torch.bfloat16):
            model.to(dtype)(x.to(dtype)).sum().backward()
            settled()
    told = [str(each.message) for each in caught if "compiled by this process alone" in str(each.message)]
    running = [each for each in ahead._helpers if each.poll() is None]
    print(len(told), "no driver's library loads" in told[0], len(running))
    """
    assert run(text, device, tmp_path).split() == ["1", "True", "0"]


@pytest.mark.thorough
def test_the_end_of_a_program_ends_helpers(device: str, tmp_path: Path) -> None:
    text = """
    nn.functional.cross_entropy(model(x), y)
    print(ahead._helpers[0].pid)
    """
    begin = time.monotonic()
    process = int(run(text, device, tmp_path, timeout=60))
    while Path(f"/proc/{process}/stat").exists() and time.monotonic() - begin < 60:
        if Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            break
        time.sleep(0.05)
    else:
        assert not Path(f"/proc/{process}").exists()


@pytest.mark.thorough
def test_a_program_ends_while_a_task_goes_on(device: str, tmp_path: Path) -> None:
    """Through C++, as a gradient's tracing is: a thread that Python ends there takes the process with it."""
    text = """
        inner = torch.empty(2, 2, device="meta", requires_grad=True)

        class Slow(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2

            @staticmethod
            def backward(ctx, g):
                print("begun", flush=True)
                time.sleep(4)
                print("done", flush=True)
                return g

        ahead.later(lambda: Slow.apply(inner).sum().backward())
        time.sleep(0.5)
    """
    assert run(text, device, tmp_path).split() == ["begun", "done"]


def test_a_forked_process_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "_thread", object())
    child = os.fork()
    if child == 0:
        os._exit(0 if ahead._thread is None and ahead._helpers == [] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_how_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHGRAFT_COMPILE_HELPERS", "")
    assert 0 <= ahead.helper_limit() <= 3
    monkeypatch.setenv("TORCHGRAFT_COMPILE_HELPERS", "7")
    assert ahead.helper_limit() == 7
    monkeypatch.setenv("TORCHGRAFT_COMPILE_HELPERS", "many")
    with pytest.raises(ValueError, match="TORCHGRAFT_COMPILE_HELPERS is a number of processes, not 'many'"):
        ahead.helper_limit()


def test_a_program_without_drivers_of_libraries(script: Script) -> None:
    script(
        """
        import os
        os.environ["TORCHGRAFT_COMPILE_HELPERS"] = "1"
        import torch, torchgraft
        from numpy_driver import NumpyDriver
        torchgraft.register("npy", [NumpyDriver()])
        from torchgraft.codegen import ahead
        x = torch.ones(3, device="npy", requires_grad=True)
        (x * 2).sum().backward()
        assert x.grad.tolist() == [2, 2, 2]
        assert not ahead.is_possible() and ahead._thread is None
        """
    )


def test_gradients_of_the_calling_thread_are_left_alone(device: str) -> None:
    """What is expected is found on meta tensors, in another thread."""
    from torchgraft.plans import ahead as expected

    x = torch.randn(4, device=device, requires_grad=True)
    before = torch.is_grad_enabled(), x.grad, x.requires_grad
    specs = {"self": torch.empty(4, device="meta", requires_grad=True)}
    from torchgraft.plans.call import plan_nested

    expected._compile_gradient(torch.ops.aten.relu.default, specs, 0, plan_nested)
    assert (torch.is_grad_enabled(), x.grad, x.requires_grad) == before
    assert torch._C._len_torch_dispatch_stack() == 0
