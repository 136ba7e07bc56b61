"""A device whose compiler refuses kernels still runs every model, and so does one that has no compiler.

Programs are run beside the CPU: on an OpenCL device of whose compilations all fail, or every second one, by the
driver's fault injection and without kernels on disk; on one whose dialect refuses everything; on one without any.
"""

from __future__ import annotations

import random
import textwrap
from pathlib import Path

import pytest
import torch
from conftest import Script


def failing(turns: range) -> str:
    return ",".join(f"module_compile:{turn}" for turn in turns)


def without_words(when: str) -> str:
    """Registers a device whose dialect refuses the kernels that are rendered when `when` is true."""
    return f"""
from torchgraft.codegen.dialect import UnsupportedKernel
from torchgraft.codegen.dialects.cxx import Cxx
from cxx_driver import CxxDriver
class Speechless(Cxx):
    def render(self, kernel, *rest, **options):
        if {when}:
            raise UnsupportedKernel(f"there are no words for {{kernel.name}}")
        return super().render(kernel, *rest, **options)
class Mute(CxxDriver):
    kernel_dialect = Speechless()
torchgraft.register("mute", [Mute()])
DEVICE = "mute"
"""


#: What one direction keeps for the other is then the CPU's own. Autograd knows in which a thread is.
HALVES = {
    "cannot say forwards": "torch._C._current_graph_task_id() == -1",
    "cannot say backwards": "torch._C._current_graph_task_id() != -1",
}

#: What is registered, and the environment. The driver counts compilations.
DEVICES = {
    "refuses all": ('DEVICE = "ocl"', {"TORCHGRAFT_OPENCL_FAIL": failing(range(1, 5000))}),
    "refuses every second": ('DEVICE = "ocl"', {"TORCHGRAFT_OPENCL_FAIL": failing(range(2, 10000, 2))}),
    "cannot say anything": (without_words("True"), {}),
    **{device: (without_words(when), {}) for device, when in HALVES.items()},
    "has no compiler": (
        """
from numpy_driver import NumpyDriver
torchgraft.register("npy", [NumpyDriver()])
DEVICE = "npy"
""",
        {},
    ),
    "has operators": (
        """
from operator_driver import OperatorDriver
torchgraft.register("npu", [OperatorDriver()])
DEVICE = "npu"
""",
        {},
    ),
}


def run(script: Script, device: str, text: str, tmp_path: Path, fallback: str = "silent", timeout: float = 900) -> str:
    """What a program prints on one of `DEVICES`."""
    registered, changes = DEVICES[device]
    known = torch._C._get_privateuse1_backend_name()
    if "ocl" in registered and known != "ocl":
        pytest.skip("the faults are the OpenCL driver's")
    seed = random.randrange(2**31)
    head = f"import warnings, torch, torchgraft\nprint('seed', {seed})\ntorch.manual_seed({seed})\n{registered}\n"
    environment = {
        "TORCHGRAFT_CACHE_DIR": str(tmp_path / "kernels"),
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"),
        "TORCHGRAFT_COMPILE_HELPERS": "0",
        "TORCHGRAFT_FALLBACK": fallback,
        **changes,
    }
    printed = script(head + textwrap.dedent(text), autoload="ocl" in registered, timeout=timeout, **environment)
    return printed.partition("\n")[2]


@pytest.mark.quick(device="refuses all", program="modules")
@pytest.mark.parametrize("device", [pytest.param(d, marks=pytest.mark.thorough) if d in HALVES else d for d in DEVICES])
@pytest.mark.parametrize("program", ["modules", "optimizers", "transformer", "compiled"])
def test_programs(script: Script, program: str, device: str, tmp_path: Path) -> None:
    if program == "compiled" and device in ("has no compiler", "has operators"):
        pytest.skip("there is no torch.compile for it")
    run(script, device, f"import programs_beside_cpu\nprograms_beside_cpu.{program}(DEVICE)", tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize("device", DEVICES)
def test_all_functions(script: Script, device: str, tmp_path: Path) -> None:
    """Those of torch.nn.functional and a fifth of the others in PyTorch's operator database, forward and backward."""
    text = f"""
    from torchgraft.testing.conformance.cases import cases
    from torchgraft.testing.conformance.check import CHECKS, run_case
    wanted = {{name: CHECKS[name] for name in ("values", "in-place", "backward")}}
    known = list(cases("", [torch.float32]))
    fifth = known[{random.randrange(5)}::5]
    asked = [case for case in known if case.op.startswith("nn.functional") or case in fifth]
    wrong = []
    for case in asked:
        result = run_case(case, DEVICE, samples=1, checks=wanted)
        wrong += [f"{{case}}, {{name}}: {{each.message}}" for name, each in result.checks.items() if each.failed]
    assert not wrong, "\\n".join(wrong)
    print(len(asked))
    """
    assert int(run(script, device, text, tmp_path, timeout=1800)) > 150


def test_why_is_told(script: Script, tmp_path: Path) -> None:
    text = """
    x = torch.ones(3, device=DEVICE)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        x.exp(), x.exp()
    (warning,) = caught
    text = str(warning.message)
    assert "aten::exp runs on the CPU" in text and "does not compile" in text and "asks for it" in text, text
    assert warning.filename == "<string>"
    row = torchgraft.fallback_report()["aten::exp"]
    assert row.calls == 2 and row.reason.startswith("kernel exp") and row.reason.endswith("does not compile")
    assert row.reason in str(torchgraft.fallback_report())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.compile(lambda x: x.sin() * 2)(x)
    texts = [str(each.message) for each in caught]
    (told,) = [text for text in texts if "a program of torch.compile runs op by op" in text]
    assert "does not compile" in told and "asks for it" in told
    with torchgraft.fallback("error"):
        for refused in (lambda: x.cos(), lambda: torch.compile(lambda x: x.tan() + 1)(x)):
            try:
                refused()
            except torchgraft.plans.KernelCompileError as error:
                assert "asks for it" in error.log
            else:
                raise AssertionError("nothing may run on the CPU")
    print(x.cos().sum().item())  # it may again
    """
    assert run(script, "refuses all", text, tmp_path, fallback="warn").splitlines()[-1].startswith("1.62")
