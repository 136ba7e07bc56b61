"""The conformance run itself: that it passes what is right, finds what is wrong, and survives what it finds."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from conftest import TESTS

from torchgraft.cli import main
from torchgraft.testing.conformance import CHECKS, Case, cases, report, run_case
from torchgraft.testing.conformance.compare import difference
from torchgraft.testing.conformance.exceptions import Declared, read_exceptions
from torchgraft.testing.conformance.layout import Sample, on_device
from torchgraft.testing.conformance.runner import read_results


def test_a_case_has_all_checks_and_is_native(device: str) -> None:
    result = run_case(Case("add", torch.float32), device, samples=2)
    assert set(result.checks) == set(CHECKS) - {"errors"}  # the database has none that fit one device
    assert all(check.samples and not check.failed and check.fallbacks == 0 for check in result.checks.values())
    assert run_case(Case("gather", torch.float32), device, samples=1).checks["errors"].samples > 2


def test_random_results_are_compared_by_kind(device: str) -> None:
    result = run_case(Case("rand_like", torch.float32), device, samples=2)
    assert result.correct and result.checks["values"].samples == 2


def test_names_of_cases() -> None:
    case = Case.parse("nn.functional.pad.constant[float16]")
    assert case.info.name == "nn.functional.pad" and str(case) == "nn.functional.pad.constant[float16]"
    for wrong in ("add", "add[float99]", "no_such_op[float32]"):
        with pytest.raises(ValueError, match="no case is called"):
            Case.parse(wrong)
    assert [str(case) for case in cases(r"^cross\[", [torch.float32, torch.bool])] == ["cross[float32]"]


def test_a_sample_on_the_device_keeps_strides_offsets_and_aliasing(device: str) -> None:
    base = torch.arange(24.0).view(4, 6)
    sample = Sample(base[1:, ::2], (base[0].expand(3, 6), [base.to(torch.complex64)[0].conj()]), {"device": "cpu"})
    moved = on_device(sample, torch.device(device))
    for mine, given in (
        (moved.input, sample.input),
        (moved.args[0], sample.args[0]),
        (moved.args[1][0], sample.args[1][0]),
    ):
        assert mine.device.type == torch.device(device).type
        assert (mine.stride(), mine.storage_offset(), mine.is_conj()) == (
            given.stride(),
            given.storage_offset(),
            given.is_conj(),
        )
        assert torch.equal(mine.cpu(), given)
    moved.args[0][0, 0] = 5
    assert moved.input.untyped_storage()._cdata == moved.args[0].untyped_storage()._cdata
    assert moved.kwargs["device"] == torch.device(device)


def test_when_results_are_the_same() -> None:
    exact = torch.tensor([1.0, 1e8], dtype=torch.float64)
    on_cpu = exact.float() * (1 + 1e-4)  # a CPU kernel with an error of its own
    as_good, worse = exact.float() * (1 - 2e-4), exact.float() * (1 - 1e-3)
    assert difference(as_good, on_cpu, lambda: exact) == ""
    assert "Greatest absolute difference" in difference(worse, on_cpu, lambda: exact)
    assert "difference" in difference(as_good, on_cpu, None)
    nan = torch.tensor([float("nan")])
    assert difference(nan, nan, None) == "" and difference(nan, torch.ones(1), None)
    assert "shape" in difference(torch.ones(2), torch.ones(1, 2), None)
    assert "dtype" in difference(torch.ones(2), torch.ones(2, dtype=torch.float64), None)
    assert difference([torch.ones(2)], [torch.ones(2), 1], None) == "1 results instead of 2"
    assert difference(torch.ones(2), torch.zeros(2), None, values=False) == ""


@pytest.fixture(scope="module")
def run(device: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of a run on a device with a wrong, a crashing and a hanging op."""
    results = tmp_path_factory.mktemp("run") / "results.jsonl"
    assert conform(device, results, r"^(abs|erf|erfc|lgamma|svd)\[") == 1
    return results


def conform(device: str, results: Path, ops: str, *more: str) -> int:
    options = ["--import", "torchgraft_opencl"] if torch.device(device).type == "ocl" else []
    options += ["--import", "broken_ops", "--dtypes", "float32", "--samples", "1", "--jobs", "1", "--timeout", "30"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(TESTS), prepend=":")  # where workers find broken_ops
        return main(["conformance", "--device", device, "--results", str(results), "--ops", ops, *options, *more])


def test_what_is_wrong_crashes_or_hangs_is_a_result(run: Path) -> None:
    records = {name: report.state(record) for name, record in read_results(run).items()}
    assert records == {
        "abs[float32]": "native",
        "erf[float32]": "crash",
        "erfc[float32]": "wrong",
        "lgamma[float32]": "crash",
        "svd[float32]": "fallback",
    }
    raw = read_results(run)
    assert raw["erf[float32]"]["message"] == "SIGABRT" and raw["erf[float32]"]["phase"] == "device"
    assert raw["lgamma[float32]"]["status"] == "timeout"
    assert "aten::_linalg_svd.U" in raw["svd[float32]"]["fell_back"]


def test_an_interrupted_run_goes_on(run: Path, device: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    results = tmp_path / "results.jsonl"
    whole = run.read_text()
    results.write_text(whole + '{"case": "sgn[float32]", "sta')
    before = results.stat().st_mtime_ns
    assert conform(device, results, r"^(abs|erf|sgn)\[") == 1
    assert set(read_results(results)) == {*read_results(run), "sgn[float32]"}
    assert report.state(read_results(results)["sgn[float32]"]) == "native"
    assert results.stat().st_mtime_ns > before and results.read_text().startswith(whole)
    assert "erf[float32] crash: SIGABRT" in capfd.readouterr().out


def test_declared_exceptions_must_fail(run: Path, tmp_path: Path) -> None:
    records = list(read_results(run).values())
    declared = [
        Declared(r"erf\[.*", "crash", "a test"),
        Declared(r"erfc\[.*", "out=", "a test"),
        Declared(r"abs\[.*", "values", "out of date"),
        Declared(r"atan\[.*", "values", "was not run"),
    ]
    lines, stale = report.unexpected(records, declared)
    assert [exception.cases for exception in stale] == [r"abs\[.*"]
    assert not any(line.startswith(("erf[", "erfc[float32] out=")) for line in lines)
    assert any(line.startswith("lgamma[float32] timeout") for line in lines)
    file = tmp_path / "exceptions.toml"
    file.write_text('[[exception]]\ncases = "add.*"\ncheck = "values"\nreason = " "\n')
    with pytest.raises(ValueError, match="`reason`"):
        read_exceptions(file)


def test_coverage(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, table = tmp_path / "page.html", tmp_path / "table.md"
    assert main(["coverage", str(run), "--html", str(page), "--markdown", str(table), "--title", "A test"]) == 0
    assert "5 cases: correct 2 (40.00 %), native 1 (20.00 %)" in capsys.readouterr().out
    assert re.search(r"\| svd \| ○ᵍ? \| aten::_linalg_svd.U", table.read_text())
    text = page.read_text()
    assert "{{" not in text and not re.search(r"(src|href)\s*=", text)  # it loads nothing
    rows = json.loads(text.split('id="data">')[1].split("</script>")[0])
    assert {row["op"]: row["state"] for row in rows}["erfc"] == "wrong"
    assert main(["coverage", str(tmp_path / "none.jsonl")]) == 2


def test_a_device_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = tmp_path / "results.jsonl"
    assert main(["conformance", "--device", "nowhere", "--results", str(results), "--ops", "^abs", "--jobs", "1"]) == 2
    assert "cases cannot be run on 'nowhere'" in capsys.readouterr().err and not results.read_text()
