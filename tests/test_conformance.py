"""The conformance run itself: that it passes what is right, finds what is wrong, and survives what it finds."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import TESTS, Script

from torchgraft.cli import main
from torchgraft.testing.conformance import CHECKS, Case, cases, quick, report, run_case
from torchgraft.testing.conformance.compare import difference
from torchgraft.testing.conformance.exceptions import Declared, read_exceptions
from torchgraft.testing.conformance.freedom import FREEDOMS
from torchgraft.testing.conformance.layout import Sample, on_device
from torchgraft.testing.conformance.runner import read_results, store_results
from torchgraft.testing.conformance.ways import dispatched, farthest, way


def test_a_case_has_all_checks_and_is_native(device: str) -> None:
    result = run_case(Case("add", torch.float32), device, samples=2)
    assert set(result.checks) == set(CHECKS) - {"errors"}  # the database has none that fit one device
    assert all(check.samples and not check.failed and check.fallbacks == 0 for check in result.checks.values())
    assert run_case(Case("gather", torch.float32), device, samples=1).checks["errors"].samples > 2


def test_random_results_are_compared_by_kind(device: str) -> None:
    result = run_case(Case("rand_like", torch.float32), device, samples=2)
    assert result.correct and result.checks["values"].samples == 2


def test_what_computes_samples(script: Script) -> None:
    """Operators of the device's have a sign of their own, and each case says how many samples they are."""
    printed = script("""
        import json
        from dataclasses import asdict
        import torch, torchgraft
        from operator_driver import OperatorDriver
        from torchgraft.testing.conformance import Case, report, run_case
        driver = OperatorDriver()
        driver.refuses = {"softmax"}
        torchgraft.register("npu", [driver])
        torchgraft.fallback.set_mode("silent")
        records = []
        for op in ("nn.functional.relu", "softmax", "view", "mm"):
            result = run_case(Case(op, torch.float32), torch.device("npu"), samples=3)
            records.append({**asdict(result), "status": "ran"})
        print(json.dumps([record["checks"] for record in records]))
        print(json.dumps([report.state(record) for record in records]))
        print(report.figures(records))
        print(*report.markdown(records, "A test").splitlines(), sep="\\n")
    """).splitlines()
    checks = json.loads(printed[0])
    relu, softmax, view, mm = ({name: check["by"] for name, check in each.items()} for each in checks)
    assert relu["values"] == {"operators": 3} and relu["layouts"]["operators"] > 3 and "cpu" not in relu["layouts"]
    assert softmax["values"] == {"cpu": 3} and not softmax["out= dtype"]  # of which nothing has results
    assert set(view["values"]) == {"kernels"}
    assert mm["values"]["operators"] >= 1 and mm["values"]["cpu"] >= 1  # of no inner elements
    assert json.loads(printed[1]) == ["operators", "fallback", "native", "fallback"]
    assert "native 1, decomposed 0, composite 0, operators 1)" in printed[2]
    assert re.search(r"; samples: \d+ of \d+ without fallback \([\d.]+ %\), of them by operators \d+$", printed[2])
    table = "\n".join(printed[3:])
    assert "| nn.functional.relu | ◆ |" in table and "◆ operators" in table and "| view | ● |" in table
    assert re.search(r"\| mm \| ○ᵍ? \d+/\d+ \| aten::mm", table) and re.search(r"\| softmax \| ○ᵍ? \|", table)
    assert "3/8: so many of its samples" in table
    assert "| native | decomposed | composite | operators |" in table


def test_fewer_samples_without_the_cpu_are_a_regression() -> None:
    def record(own: int, cpu: int) -> dict[str, Any]:
        check = {"samples": 10, "failed": 0, "refused": 0, "fallbacks": cpu, "by": {"operators": own, "cpu": cpu}}
        return {"case": "mm[float32]", "status": "ran", "checks": {"values": check}, "fell_back": {"aten::mm": cpu}}

    lines = report.regressions([record(3, 7)], {"mm[float32]": record(5, 5)})
    assert lines == ["mm[float32] had 5 samples without fallback, has 3 of 10"]
    assert not report.regressions([record(5, 5)], {"mm[float32]": record(3, 7)})
    older = record(5, 5)
    del older["checks"]["values"]["by"]
    assert not report.regressions([record(3, 7)], {"mm[float32]": older})


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
    overflown = torch.tensor([1.0, float("inf")])
    assert difference(exact.float(), overflown, lambda: exact) == ""
    assert difference(overflown, exact.float(), lambda: exact)
    cancelled = torch.tensor([1e8, 50.0]), torch.tensor([1e8, 0.0]), torch.tensor([1e8, 0.0], dtype=torch.float64)
    assert difference(*cancelled[:2], lambda: cancelled[2])
    assert difference(*cancelled[:2], lambda: cancelled[2], normwise=True) == ""
    assert difference(cancelled[0] * 10, cancelled[1] * 10, lambda: cancelled[2], normwise=True)
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
    assert conform(device, results, r"^(abs|erf|erfc|lgamma|digamma|frac)\[") == 1
    return results


def conform(device: str, results: Path, ops: str, *more: str) -> int:
    options = ["--import", "torchgraft_opencl"] if torch.device(device).type == "ocl" else []
    options += ["--import", "broken_ops", "--dtypes", "float32", "--samples", "1", "--jobs", "1", "--timeout", "15"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(TESTS), prepend=":")  # where workers find broken_ops
        return main(["conformance", "--device", device, "--results", str(results), "--ops", ops, *options, *more])


@pytest.mark.thorough
def test_what_is_wrong_crashes_or_hangs_is_a_result(run: Path) -> None:
    records = {name: report.state(record) for name, record in read_results(run).items()}
    assert records == {
        "abs[float32]": "native",
        "erf[float32]": "crash",
        "erfc[float32]": "wrong",
        "lgamma[float32]": "crash",
        "digamma[float32]": "fallback",
        "frac[float32]": "wrong",
    }
    raw = read_results(run)
    (message,) = report.failures(raw["frac[float32]"]).values()
    assert re.fullmatch(r"\(float32\[.*\], out=float64\[.*\]\): accepted, but the CPU raises RuntimeError: .*", message)
    assert raw["frac[float32]"]["checks"]["out= dtype"]["failed"]
    assert raw["erf[float32]"]["message"] == "SIGABRT" and raw["erf[float32]"]["phase"] == "device"
    assert raw["lgamma[float32]"]["status"] == "timeout"
    assert "aten::digamma" in raw["digamma[float32]"]["fell_back"]


@pytest.mark.thorough
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


@pytest.mark.thorough
def test_declared_exceptions_must_fail(run: Path, tmp_path: Path) -> None:
    records = list(read_results(run).values())
    declared = [
        Declared(r"erf\[.*", "crash", "a test"),
        Declared(r"erfc\[.*", "out=", "a test"),
        Declared(r"abs\[.*", "values", "out of date"),
        Declared(r"atan\[.*", "values", "was not run"),
        Declared(r"abs\[.*", "a later check", "was not run either"),
    ]
    lines, stale = report.unexpected(records, declared)
    assert [exception.cases for exception in stale] == [r"abs\[.*"]
    assert not any(line.startswith(("erf[", "erfc[float32] out=:")) for line in lines)
    assert any(line.startswith("lgamma[float32] timeout") for line in lines)
    file = tmp_path / "exceptions.toml"
    file.write_text('[[exception]]\ncases = "add.*"\ncheck = "values"\nreason = " "\n')
    with pytest.raises(ValueError, match="`reason`"):
        read_exceptions(file)


@pytest.mark.thorough
def test_coverage(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, table = tmp_path / "page.html", tmp_path / "table.md"
    assert main(["coverage", str(run), "--html", str(page), "--markdown", str(table), "--title", "A test"]) == 0
    out = capsys.readouterr().out
    assert "6 cases: correct 2 (33.33 %), without fallback 1 (16.67 %: native 1, decomposed 0, composite 0)" in out
    assert re.search(r"\| digamma \| ○ᵍ? \| aten::digamma", table.read_text())
    assert "| abs | ● |" in table.read_text()
    text = page.read_text()
    assert "{{" not in text and not re.search(r"(src|href)\s*=", text)  # it loads nothing
    data = json.loads(text.split('id="data">')[1].split("</script>")[0])
    assert {op["name"]: op["cases"][0]["state"] for op in data["ops"]}["erfc"] == "wrong"
    assert main(["coverage", str(tmp_path / "none.jsonl")]) == 2


@pytest.mark.thorough
def test_a_stored_run_is_what_later_ones_are_measured_by(
    run: Path, device: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored, again = tmp_path / "stored.jsonl.gz", tmp_path / "again.jsonl.gz"
    assert main(["coverage", str(run), "--store", str(stored)]) == 0
    kept = read_results(stored)
    assert report.figures(kept.values()) == report.figures(read_results(run).values())
    store_results(reversed(list(read_results(run).values())), again)
    assert again.read_bytes() == stored.read_bytes()
    assert main(["coverage", str(run), "--against", str(stored)]) == 0

    better = read_results(run)
    falling = better["digamma[float32]"]
    falling["fell_back"], falling["way"] = {}, "composite"
    for check in falling["checks"].values():
        check["fallbacks"] = 0
    wrong = better["erfc[float32]"]
    for check in wrong["checks"].values():
        check["failed"] = 0
    store_results(better.values(), stored)
    capsys.readouterr()
    assert main(["coverage", str(run), "--against", str(stored)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("digamma[float32] was composite, falls back: aten::") for line in lines)
    assert any(line.startswith("erfc[float32] was correct (native), is wrong: ") for line in lines)
    assert not any(line.startswith(("abs", "erf[", "lgamma")) for line in lines)

    # a check that is newer than the stored run fails, passes, or is declared
    older = read_results(run)
    for record in older.values():
        record["checks"].pop("out= dtype", None)
    lines = report.regressions(read_results(run).values(), older)
    assert [line.partition(":")[0] for line in sorted(lines)] == [
        "erfc[float32] out= dtype",
        "frac[float32] out= dtype",
    ]
    assert all(line.endswith("does not have)") for line in lines)
    declared = [Declared("(erfc|frac).*", "out= dtype", "a test")]
    assert not report.regressions(read_results(run).values(), older, declared)

    # gradients alone
    falling["checks"]["backward"]["fallbacks"] = 1
    store_results([falling], again)
    falling["checks"]["backward"]["fallbacks"] = 0
    (line,) = report.regressions(read_results(again).values(), {"digamma[float32]": falling})
    assert line.startswith("digamma[float32] had gradients of its own, which fall back")

    # what a run of its own prints and returns
    results = tmp_path / "results.jsonl"
    assert conform(device, results, r"^abs\[", "--compare", str(stored)) == 0
    assert conform(device, results, r"^(abs|erfc)\[", "--compare", str(stored)) == 1
    assert "regression: erfc[float32] was correct" in capsys.readouterr().out
    assert conform(device, results, r"^abs\[", "--compare", str(tmp_path / "none.gz")) == 2


def test_the_documented_table_is_the_stored_runs() -> None:
    """`make conformance-record` makes both."""
    page = (TESTS.parent / "docs" / "coverage.md").read_text()
    title = page.splitlines()[0].removeprefix("# ")
    records = read_results(TESTS / "conformance" / "pocl.jsonl.gz").values()
    compiled = read_results(TESTS / "conformance" / "pocl-compiled.jsonl.gz").values()
    assert page == report.markdown(records, title, compiled)
    assert "| float32, compiled |" in page
    declared = read_exceptions(TESTS / "conformance" / "exceptions-ocl.toml")
    lines, stale = report.unexpected(records, declared)
    assert len(lines) < 10 and not stale
    assert report.unexpected(compiled, declared) == ([], [])


def test_a_quick_slice_has_every_op_and_rotates() -> None:
    given = list(cases(r"^(add|cross|bitwise_not)\["))
    slices = [list(map(str, quick(given, rotation))) for rotation in range(8)]
    for names in slices:
        assert [name.partition("[")[0] for name in names] == ["add", "add", "bitwise_not", "cross", "cross"]
        assert {"add[float32]", "cross[float32]"} <= set(names)
    assert {name for names in slices for name in names} == set(map(str, given))


def test_ways(device: str) -> None:
    where = torch.device(device)
    x = torch.ones(3, 3, device=device)

    def way_of(call: object) -> str:
        return way(dispatched(call, where), where)  # type: ignore[arg-type]

    assert way_of(lambda: x + 1) == "native"
    assert way_of(lambda: x.trace()) == "decomposed"
    assert way_of(lambda: x.nonzero()) == "composite"
    assert way_of(lambda: torch.nn.functional.mse_loss(x, x) + x.t()) == "composite"
    torch.library.define("conformance_test::on_the_cpu", "(Tensor x) -> Tensor")
    torch.library.impl("conformance_test::on_the_cpu", "CPU", torch.Tensor.clone)
    assert way_of(lambda: torch.ops.conformance_test.on_the_cpu(x)) == "fallback"
    assert way_of(lambda: torch.nn.functional.linear(x.t(), x)) == "native"  # a view carries, one kernel computes
    assert farthest(["native", "fallback", "composite"]) == "fallback" and farthest([]) == ""


def test_what_torch_leaves_open_is_compared_by_what_is_defined() -> None:
    x = torch.tensor([2.0, 1.0, 2.0])
    sample = Sample(x, (), {})
    sort = FREEDOMS["sort"].results

    def same(a: object, b: object, results: object = sort, of: Sample = sample) -> bool:
        return not difference(results(of, a), results(of, b), None)  # type: ignore[operator]

    right = (torch.tensor([1.0, 2.0, 2.0]), torch.tensor([1, 0, 2]))
    assert same(right, (right[0], torch.tensor([1, 2, 0])))
    assert not same(right, (right[0], torch.tensor([1, 2, 2])))  # one twice
    assert not same(right, (right[0], torch.tensor([0, 1, 2])))
    stable = Sample(x, (), {"stable": True})
    assert not same(right, (right[0], torch.tensor([1, 2, 0])), of=stable)

    gradients = FREEDOMS["sort"].gradients
    assert same((torch.tensor([1.0, 5.0, 2.0]),), (torch.tensor([2.0, 5.0, 1.0]),), gradients)
    assert not same((torch.tensor([1.0, 5.0, 2.0]),), (torch.tensor([5.0, 1.0, 2.0]),), gradients)

    top = Sample(x, (1,), {})
    largest = FREEDOMS["topk"].results
    assert same((x[:1], torch.tensor([0])), (x[:1], torch.tensor([2])), largest, top)
    assert not same((x[:1], torch.tensor([0])), (x[:1], torch.tensor([1])), largest, top)
    mode = FREEDOMS["mode"].results
    assert same((x[0], torch.tensor(0)), (x[0], torch.tensor(2)), mode)
    assert not same((x[0], torch.tensor(0)), (x[0], torch.tensor(1)), mode)

    matrix = torch.randn(4, 3, dtype=torch.float64)
    for name, function, flip in (
        ("linalg.svd", torch.linalg.svd, lambda u, s, v: (-u, s, -v)),
        ("linalg.qr", torch.linalg.qr, lambda q, r: (-q, -r)),
        ("linalg.eigh", lambda a: torch.linalg.eigh(a.T @ a), lambda values, vectors: (values, -vectors)),
        (
            "linalg.eig",
            lambda a: torch.linalg.eig(a[:3]),
            lambda values, vectors: (values.flip(0), vectors.flip(1) * 1j),
        ),
    ):
        found = function(matrix)
        given = {"linalg.eigh": matrix.T @ matrix, "linalg.eig": matrix[:3]}.get(name, matrix)
        results, of = FREEDOMS[name].results, Sample(given, (), {})
        assert same(found, flip(*found), results, of), name
        assert not same(found, [found[0] * 1.1, *found[1:]], results, of), name
        assert not same(found, [*found[:-1], found[-1] * 1.1], results, of), name
    kept = FREEDOMS["resize_"].results
    short = Sample(torch.ones(2), ((3,),), {})
    assert torch.equal(kept(short, torch.tensor([1.0, 1.0, 7.0])), kept(short, torch.tensor([1.0, 1.0, -3.0])))
    assert not torch.equal(kept(short, torch.tensor([1.0, 2.0, 7.0])), kept(short, torch.tensor([1.0, 1.0, 7.0])))
    assert all(freedom.reason for freedom in FREEDOMS.values())
    nothing = torch.empty(0, 3)
    assert same((nothing,), (nothing,), gradients, Sample(nothing, (0,), {}))


@pytest.mark.thorough
def test_inputs_of_less_precision_than_the_result_decide_about_rounding(device: str) -> None:
    """Weights in float32 for data in float64, whose small difference is divided by."""
    result = run_case(Case("cov", torch.float64), device)
    assert result.checks["values"].samples > 30
    assert not result.checks["values"].failed


def test_where_the_cpu_errs_in_double_precision_the_database_judges(device: str) -> None:
    from scipy import special

    x = torch.tensor([5.1], dtype=torch.float64)
    exact = torch.from_numpy(special.y1(x.numpy()))
    assert (torch.special.bessel_y1(x) - exact).abs().max() > 1e-9  # if torch's CPU is better, this test is over
    result = run_case(Case("special.bessel_y1", torch.float64), device, samples=2)
    assert result.checks["values"].samples == 2 and not result.checks["values"].failed


@pytest.mark.thorough
def test_a_device_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = tmp_path / "results.jsonl"
    assert main(["conformance", "--device", "nowhere", "--results", str(results), "--ops", "^abs", "--jobs", "1"]) == 2
    assert "cases cannot be run on 'nowhere'" in capsys.readouterr().err and not results.read_text()
