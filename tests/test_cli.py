"""`torchgraft doctor` and `torchgraft devices`: what they find where all is well, and where each thing is wrong; and
`torchgraft cache`."""

from __future__ import annotations

import importlib.util
import json
import re
import runpy
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Script

from torchgraft import _C
from torchgraft.cli import doctor, main
from torchgraft.codegen.cache import KernelCache
from torchgraft.diagnosis import Finding, child, host
from torchgraft.diagnosis.families import differences
from torchgraft.diagnosis.probes import PROBES
from torchgraft.testing import needs

# Looked for and not imported: that would register it, and this process may have another backend.
needs_opencl = pytest.mark.skipif(
    importlib.util.find_spec("torchgraft_opencl") is None, reason="needs torchgraft_opencl"
)

REGISTER = """
    import os, time
    import torchgraft
    from numpy_driver import NumpyDriver, as_bytes
    from torchgraft.driver import CopyKind, DeviceKind, DeviceProperties

    class Twice(NumpyDriver):
        def device_properties(self, device):
            return DeviceProperties(f"Acme {device}", 1 << 30, kind=DeviceKind.GPU, platform="Acme", uuid="same")

    class Broken(NumpyDriver):
        name = "broken"
        def device_count(self):
            raise OSError("the cable is loose")

    class Wrong(NumpyDriver):
        name = "wrong"
        def copy(self, device, stream, destination, source, nbytes, kind, blocking):
            super().copy(device, stream, destination, source, nbytes, kind, blocking)
            if kind == CopyKind.DEVICE_TO_HOST and nbytes > 1 << 20:
                as_bytes(destination, 1)[0] ^= 255

    class Crashing(NumpyDriver):
        def device_count(self):
            print("about to crash", flush=True)
            os.abort()

    torchgraft.register("npy", [{drivers}])
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes a module that registers drivers, for `--import`."""

    def write(drivers: str) -> str:
        monkeypatch.syspath_prepend(str(tmp_path))
        (tmp_path / "registers.py").write_text(textwrap.dedent(REGISTER).replace("{drivers}", drivers))
        return "registers"

    return write


def of(report: dict[str, Any], section: str) -> dict[str, dict[str, str]]:
    return {finding["subject"]: finding for finding in report["sections"].get(section, [])}


@pytest.mark.thorough
def test_the_doctor_finds_the_device_under_test_well(
    device: str, module: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["doctor", "--json", *(["--import", module("NumpyDriver()")] if device == "npy" else [])]
    status = main(arguments)
    report = json.loads(capsys.readouterr().out)
    assert report["usable"] is True, report
    assert status == 0
    versions = of(report, "versions")
    assert {finding["state"] for finding in versions.values()} == {"ok"}
    assert versions["torch"]["text"].startswith(torch.__version__)
    assert f"compiled for torch {torch.__version__.split('+')[0]}" in versions["C++ core"]["text"]
    name = torch.device(device).type
    assert of(report, "registration")["backend"]["text"].startswith(f"'{name}', registered by ")
    assert of(report, "devices")["number 0"]["text"].startswith(f"{name}:0: ")
    probed = of(report, f"{name}:0")
    assert list(probed) == list(PROBES)
    assert {finding["state"] for finding in probed.values()} <= {"ok", "note"}
    compiler = _C.device_properties(0)["has_compiler"]
    assert probed["compiler"]["state"] == ("ok" if compiler else "note")
    if name == "ocl":
        opencl = of(report, "backend ocl")
        assert any(subject.startswith("platform ") for subject in opencl)
        assert any("memory model: " in finding["text"] for finding in opencl.values())


@pytest.mark.thorough
def test_each_fault_of_a_driver_is_found(module: Any, capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["doctor", "--import", module("Broken(), Wrong(devices=1)")])
    text = capsys.readouterr().out
    assert status == 1
    assert "WARN  errors: broken: OSError: the cable is loose" in text
    assert "FAIL  memory: fails: AssertionError: 1 of 1048576 elements are not what the CPU computes" in text
    assert "FAIL  copy to and from the device: fails: AssertionError: what comes back is not what was sent" in text
    assert "  ok    int64: right" in text
    summary = text[text.index("summary") :]
    assert "FAIL  npy:0: memory" in summary
    assert "WARN  devices: errors" in summary
    assert "not usable: " in summary


@pytest.mark.thorough
@needs_opencl
def test_a_kernel_that_does_not_compile(script: Script, tmp_path: Path) -> None:
    """Each thing that is tried tells which ops were the CPU's, and why, whether the results are right or not."""
    printed = script(
        """
        import json, torch
        from dataclasses import asdict
        from torchgraft.diagnosis.worker import _tried

        for subject in ("kernels: matrix products", "kernels: matrix products", "kernels: softmax and losses"):
            print(json.dumps(asdict(_tried(subject, torch.device("ocl:0")))))
        """,
        autoload=True,
        TORCHGRAFT_BACKEND="ocl",
        TORCHGRAFT_CACHE_DIR=str(tmp_path),
        TORCHGRAFT_COMPILE_HELPERS="0",
        TORCHGRAFT_FALLBACK="error",  # which is what programs may do, not what is tried
        TORCHGRAFT_OPENCL_FAIL="module_compile:1",
    )
    first, again, other = (Finding(**json.loads(line)) for line in printed.splitlines())
    assert first.state == again.state == "warning"
    for finding in (first, again):
        assert finding.text.startswith("right\non the CPU, and slow there: aten::")
        assert "up to date" in finding.advice
    assert re.search(r"^kernel \w+ does not compile: module_compile: fails because", first.text, re.MULTILINE)
    assert other == Finding("kernels: softmax and losses", "ok", "right")


@needs_opencl
@pytest.mark.thorough
def test_the_doctor_says_what_does_not_compile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TORCHGRAFT_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TORCHGRAFT_OPENCL_FAIL", "module_compile:1,module_compile:30")
    status = main(["doctor", "--backend", "ocl"])
    text = capsys.readouterr().out
    assert status == 1
    assert text.count("does not compile: module_compile: fails because") == 2
    assert "usable, with ops on the CPU: 0 problems, " in text
    assert ", 0 warnings" not in text
    summary = text[text.index("summary") :]
    assert "WARN  ocl:0: " in summary


def test_families_are_compared_with_the_cpu(device: str) -> None:
    def wrong(make: Any, on: torch.device) -> list[torch.Tensor]:
        x = make(3)
        return [x, x + 1 if on.type == "cpu" else x, x * torch.nan]  # no kernel is right about what is no number

    assert differences(wrong, torch.device(device)) == (2, 3)


@pytest.mark.thorough
def test_the_operators_of_a_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a section of their own; one that ends the process is named."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "registers_operators.py").write_text(
        textwrap.dedent("""
            import os, torchgraft
            from operator_driver import OperatorDriver
            class Crashing(OperatorDriver):
                def program_run(self, device, stream, program, addresses, scratch):
                    if program.source.name == "topk" and program.source.inputs[0].sizes == (4, 6):
                        os.abort()
                    super().program_run(device, stream, program, addresses, scratch)
            driver = Crashing() if os.environ.get("CRASHES") else OperatorDriver()
            driver.refuses = {"sort"}
            torchgraft.register("npu", [driver])
        """)
    )
    report = doctor.examine(modules=["registers_operators"])
    assert "operators of npu:0" in report.tried
    found = {finding.subject: finding for finding in report.sections["operators of npu:0"]}
    assert found["offered"].text.startswith("35 of 36: copy, matmul, ")
    assert found["refused"].text.startswith("sort: NotImplementedError: the library has no sort")
    assert found["next"].text == "give sort (docs/operators.md)"
    families = {f.subject: f for f in report.sections["npu:0"] if f.subject.startswith("kernels: ")}
    assert families["kernels: matrix products"] == Finding("kernels: matrix products", "ok", "right")
    assert families["kernels: sorting and scans"].state == "note"
    assert "aten::sort" in families["kernels: sorting and scans"].text

    monkeypatch.setenv("CRASHES", "1")
    (last,) = doctor.examine(modules=["registers_operators"]).sections["operators of npu:0"]
    assert (last.subject, last.state) == ("topk of npu:0", "problem") and "SIGABRT" in last.text


@pytest.mark.thorough
def test_a_driver_that_crashes(module: Any) -> None:
    report = doctor.examine(modules=[module("Crashing()")])
    assert not report.usable
    last = report.sections["devices"][-1]
    assert last.state == "problem"
    assert "SIGABRT" in last.text
    assert "about to crash" in last.text
    assert "has not survived" in last.advice


def test_a_driver_that_never_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    talk = """
        import json, sys, time
        print(json.dumps({"section": "devices", "begin": "devices"}), flush=True)
        time.sleep(600)
    """
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    started: list[subprocess.Popen[bytes]] = []

    def start(*_: object) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen([sys.executable, "-c", textwrap.dedent(talk)], **pipes))  # type: ignore[call-overload]
        return started[0]

    monkeypatch.setattr(doctor, "start", start)
    report = doctor.examine(timeout=3)
    (finding,) = report.findings()
    assert not report.usable
    assert "no answer within 3 seconds" in finding.text
    assert started[0].returncode is not None  # it was ended


def pretend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **files: str) -> None:
    """Puts modules before all others of processes that are started."""
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])


def test_a_core_that_does_not_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(tmp_path, monkeypatch, sitecustomize="import sys; sys.modules['torchgraft._C'] = None")
    report = doctor.examine().as_json()
    assert report["usable"] is False
    core = of(report, "versions")["C++ core"]
    assert core["state"] == "problem"
    assert core["text"].startswith("compiled for torch 2.")
    assert "does not load" in core["text"]
    assert "pip install" in core["advice"]
    assert of(report, "versions")["torch"]["state"] == "ok"
    # What does not need the core is told all the same.
    assert of(report, "registration")["registration"]["state"] == "problem"
    assert any(subject.startswith("ICD file") for subject in of(report, "backend ocl"))


def test_without_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pretend(tmp_path, monkeypatch, torch="raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')")
    report = doctor.examine().as_json()
    assert report["usable"] is False
    missing = of(report, "versions")["torch"]
    assert missing["state"] == "problem"
    assert "pip install torch" in missing["advice"]
    assert of(report, "versions")["python"]["state"] == "ok"
    assert any(subject.startswith("library") for subject in of(report, "backend ocl"))
    # The whole command, where torch is missing for it, too.
    command = [sys.executable, "-m", "torchgraft", "devices"]
    done = subprocess.run(command, env=child.environment(None, ()), capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "No module named 'torch'" in done.stderr


def test_no_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHGRAFT_OPENCL_LIBRARY", "/nowhere/libOpenCL.so")
    monkeypatch.setenv("TORCHGRAFT_SECRET_TOKEN", "hunter2")
    report = doctor.examine(backend="ocl").as_json()
    assert "hunter2" not in json.dumps(report)
    assert of(report, "environment")["TORCHGRAFT_SECRET_TOKEN"]["state"] == "note"
    assert report["usable"] is False
    opencl = of(report, "backend ocl")
    assert opencl["library /nowhere/libOpenCL.so"]["state"] == "warning"
    assert opencl["OpenCL devices"]["state"] == "problem"
    assert "pocl" in opencl["OpenCL devices"]["advice"]
    assert of(report, "devices")["errors"]["state"] == "problem"
    assert of(report, "environment")["TORCHGRAFT_OPENCL_LIBRARY"]["state"] == "note"


def test_devices(module: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    name = module("Twice(), NumpyDriver(devices=1), Broken()")
    assert main(["devices", "--import", name]) == 0
    out, err = capsys.readouterr()
    assert "0  npy:0: Acme 0, gpu\n" in out
    assert "1  not used, the same device as 0: Acme 1, gpu\n" in out
    assert "2  npy:1: NumPy" in out
    assert "     memory    1024 MiB\n" in out
    assert "     can       event timing\n" in out
    assert "     uuid      same\n" in out
    assert "the cable is loose" in err

    monkeypatch.setenv("TORCHGRAFT_DEVICES", "1,nosuch")
    assert main(["devices", "--json", "--import", name]) == 0
    listing = json.loads(capsys.readouterr().out)
    assert listing["backend"] == "npy"
    assert [(row["number"], row["device"], row["duplicate_of"]) for row in listing["devices"]] == [
        (0, None, None),
        (1, "npy:0", 0),
        (2, None, None),
    ]
    assert listing["devices"][2]["capabilities"] == ["EVENT_TIMING"]
    assert "'nosuch' matches none" in listing["errors"]


def test_devices_of_nothing(module: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", "--import", module("Broken()")]) == 1
    out, err = capsys.readouterr()
    assert out == "no devices\n"
    assert "the cable is loose" in err


def test_the_kernel_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def finding() -> Finding:
        (found,) = host.kernel_cache()
        return found

    folder = tmp_path / "kernels"
    monkeypatch.setenv("TORCHGRAFT_CACHE_DIR", str(folder))
    monkeypatch.delenv("TORCHGRAFT_CACHE", raising=False)
    assert "will be made" in finding().text
    KernelCache().write(KernelCache.key("some"), bytes(3 << 20))
    assert finding().state == "ok"
    assert "1 kernels, 3.0 MiB of at most 512.0" in finding().text
    folder.chmod(0o777)
    assert finding().state == "warning"
    assert "chmod go-w" in finding().advice
    monkeypatch.setenv("TORCHGRAFT_CACHE", "0")
    assert "switched off" in finding().text
    monkeypatch.delenv("TORCHGRAFT_CACHE")
    for unusable in ("/dev/null/kernels", "/proc/kernels"):  # which refuse root, too
        monkeypatch.setenv("TORCHGRAFT_CACHE_DIR", unusable)
        assert finding().state == "warning"
        assert f"{unusable} cannot be written: " in finding().text


def test_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def said(*arguments: str, status: int = 0) -> str:
        assert main(["cache", *arguments]) == status
        out, err = capsys.readouterr()
        return out if status == 0 else err

    folder = tmp_path / "kernels"
    monkeypatch.setenv("TORCHGRAFT_CACHE_DIR", str(folder))
    monkeypatch.setenv("TORCHGRAFT_CACHE_SIZE", "4M")
    monkeypatch.delenv("TORCHGRAFT_CACHE", raising=False)
    empty = f"directory  {folder}\nkernels    0\nsize       0.0 MiB\nbound      4.0 MiB\n"
    assert said() == empty
    assert said("clear") == f"removed 0 kernels, 0.0 MiB; 0 kernels, 0.0 MiB left in {folder}\n"
    assert not folder.exists()
    cache = KernelCache(bound=1 << 30)
    for i in range(6):
        cache.write(KernelCache.key(str(i)), bytes((1 << 20) - 52))
    assert "kernels    6\nsize       6.0 MiB\nbound      4.0 MiB\n" in said()
    facts = json.loads(said("--json"))
    assert facts == {
        "directory": str(folder),
        "enabled": True,
        "kernels": 6,
        "size": 6 << 20,
        "bound": 4 << 20,
        "distrust": None,
    }
    assert said("prune") == f"removed 2 kernels, 2.0 MiB; 4 kernels, 4.0 MiB left in {folder}\n"
    assert said("prune", "--to", "3.5M").startswith("removed 1 kernel, 1.0 MiB; 3 kernels")
    assert "'much' is not a size" in said("prune", "--to", "much", status=1)
    assert [cache.read(KernelCache.key(str(i))) is None for i in range(6)] == [True] * 3 + [False] * 3
    folder.chmod(0o777)
    assert "not used   " in said()
    assert "nothing was removed" in said("clear", status=1)
    folder.chmod(0o700)
    monkeypatch.setenv("TORCHGRAFT_CACHE", "0")
    assert "not used   switched off" in said()
    assert said("clear").startswith("removed 3 kernels, 3.0 MiB; 0 kernels")
    assert not list(folder.iterdir())


def test_the_torch_that_the_core_is_for(tmp_path: Path) -> None:
    assert host.compiled_for_torch(Path(_C.__file__)) == torch.__version__.split("+")[0]
    nothing = tmp_path / "other.so"
    nothing.write_bytes(b"\x7fELF")
    assert host.compiled_for_torch(nothing) is None


def test_a_torch_out_of_range(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.11.0")
    (finding,) = host.core()
    assert finding.state == "problem"
    assert "works with torch 2." in finding.text and "this is torch 2.11.0" in finding.text


@pytest.mark.parametrize(
    ("missing", "told"),
    [
        (["expecttest"], "torchgraft conformance needs expecttest, which is not installed"),
        (["expecttest", "tqdm"], "torchgraft conformance needs expecttest and tqdm, which are not installed"),
    ],
)
def test_without_the_extra(
    missing: list[str], told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known = importlib.util.find_spec
    monkeypatch.setattr(needs, "find_spec", lambda name: None if name in missing else known(name))
    assert main(["conformance", "--device", "npy"]) == 2
    assert capsys.readouterr().err == f"torchgraft conformance: {told}: pip install torchgraft[testing]\n"


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert doctor.HELP in text
    assert "devices" in text


def test_what_apt_says_is_told_in_words(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """`make setup` where a release of Debian has no oclgrind."""
    setup = runpy.run_path(str(Path(__file__).parents[1] / "scripts" / "setup"))
    failed = subprocess.CompletedProcess([], 100, stderr="E: Unable to locate package oclgrind\n")
    monkeypatch.setitem(setup["apt_install"].__globals__, "apt", lambda: ["apt-get"])
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    assert setup["apt_install"]("oclgrind") is False
    failed.stderr = "E: Could not get lock /var/lib/dpkg/lock\nW: something\n"
    assert setup["apt_install"]("oclgrind") is False
    said = capsys.readouterr()
    assert said.err == ""
    assert said.out.splitlines() == [
        "setup:   oclgrind: this system has no such package",
        "setup:   oclgrind: not installed, apt-get says: Could not get lock /var/lib/dpkg/lock",
    ]
