"""Triton's own tests of its language on the device: a command for developers, and the plugin of pytest that it runs.

    python tests/triton_core.py [--device ocl] [--slice I/N] [--jobs N] [-k WORDS] [--record]

The tests of the version of Triton that is installed are fetched into build/triton-core and stay there; where GitHub is
out of reach, put them there. What does not pass is compared with triton_core.toml: there, by reasons, is how many tests
of each function are refused or look at a GPU, and how many just fail. More is an error, and fewer asks for `--record`,
by which the catalogue gets shorter. A run of a part, or with another version than the catalogue's, looks for kinds of
failures alone that are not in it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tomllib
import urllib.error
import urllib.request
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
CATALOGUE = TESTS / "triton_core.toml"
FOLDER = TESTS.parent / "build/triton-core"
SOURCE = "https://raw.githubusercontent.com/triton-lang/triton/v{version}/python/{path}"
FILES = ("conftest.py", "test/conftest.py", "test/unit/language/test_core.py")  # the first is there from 3.9 on

# Why a test may not pass, by what it says: patterns, and what becomes of them. Anything else may be a wrong answer.
REASONS = {
    r"torchgraft does not compile (.*?)(?: \(\S+:\d+\))?$": r"not compiled: \1",
    r"type (fp8\w+) not supported": r"not compiled: \1",
    r"Unknown key: '(\w+)'": r"looks at what GPUs have of a kernel: \1",
    r"(?:not compiled with|compiled without) CUDA": "asks for CUDA",
}

Kind = tuple[str, str]  # the reason, or "" of what just fails, and the test's function


# ---- the plugin ----


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--core-outcomes", help="a file to which a line is added for each test")
    parser.addoption("--core-slice", default="0/1", help="I/N: about an N-th of the tests")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    number, parts = map(int, config.getoption("--core-slice").split("/"))
    items[:] = [item for item in items if zlib.crc32(item.nodeid.encode()) % parts == number]


class _Recorder:
    def __init__(self, path: str) -> None:
        self._path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.outcome == "passed":
            return
        crash = getattr(report.longrepr, "reprcrash", None)
        message = "" if report.outcome == "passed" else crash.message if crash else str(report.longrepr)
        with open(self._path, "a") as file:
            print(json.dumps([report.nodeid.rpartition("::")[2], report.outcome, message]), file=file)


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # of pytest-xdist's processes the one that has all reports
        config.pluginmanager.register(_Recorder(config.getoption("--core-outcomes")))


# ---- the command ----


def fetch(version: str) -> Path:
    """The folder with the tests of a version of Triton."""
    folder = FOLDER / version
    for path in FILES:
        target, url = folder / path, SOURCE.format(version=version, path=path)
        if target.exists():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                target.write_bytes(answer.read())
        except urllib.error.HTTPError as error:
            if error.code != 404 or target.name != "conftest.py":
                sys.exit(f"triton_core: {url} cannot be had: {error}")
            target.write_text("")
        except (urllib.error.URLError, TimeoutError) as error:
            sys.exit(f"triton_core: {url} cannot be had ({error}); put the file there: {target}")
    return folder


def kind_of(test: str, message: str) -> Kind:
    """Why a test does not pass, and its function."""
    function = test.partition("[")[0]
    for pattern, reason in REASONS.items():
        if found := re.search(pattern, message, re.MULTILINE):
            return found.expand(reason), function
    return "", function


def run(folder: Path, options: argparse.Namespace) -> dict[str, tuple[str, str]]:
    """What has become of each test, and the message of what does not pass."""
    outcomes = folder / "outcomes.jsonl"
    outcomes.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "triton_core", "-p", "no:cacheprovider", "-W", "ignore"]
    command += ["-c", os.devnull, "--rootdir", str(folder), "--tb", "short", "--no-header", "--show-capture", "no"]
    command += ["--device", options.device, "--core-outcomes", str(outcomes), "--core-slice", options.slice, "-rN"]
    if options.jobs > 1:
        command += ["--numprocesses", str(options.jobs)]
    if options.k:
        command += ["-k", options.k]
    command += [str(path) for path in sorted(folder.rglob("test_*.py"))]
    paths = [str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    log = folder / "log.txt"
    print(f"triton_core: the tests run; {log} has what pytest says", flush=True)
    with log.open("w") as file:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        subprocess.run(command, env=environment, stdout=file, stderr=subprocess.STDOUT, check=False)
    if not outcomes.exists():
        sys.exit(f"triton_core: no test has run; see {log}")
    lines = map(json.loads, outcomes.read_text().splitlines())
    return {test: (outcome, message) for test, outcome, message in lines}


def read() -> tuple[str, Counter[Kind]]:
    """The catalogue: its version of Triton, and how many tests are of each kind."""
    told = tomllib.loads(CATALOGUE.read_text())
    counts = Counter({("", function): count for function, count in told["failed"].items()})
    for reason, functions in told["because"].items():
        counts.update({(reason, function): count for function, count in functions.items()})
    return told["triton"], counts


def write(version: str, counts: Counter[Kind]) -> None:
    by_reason: dict[str, list[str]] = defaultdict(list)
    for (reason, function), count in sorted(counts.items()):
        by_reason[reason].append(f"{function} = {count}")
    lines = ["# What of Triton's own tests does not pass on `ocl`; see triton_core.py, which writes this.", ""]
    lines += [f'triton = "{version}"', "", "[failed]", *by_reason.pop("", [])]
    for reason, functions in by_reason.items():
        lines += ["", f"[because.{json.dumps(reason)}]", *functions]
    CATALOGUE.write_text("\n".join([*lines, ""]))


def compare(found: Counter[Kind], known: Counter[Kind], whole: bool) -> tuple[list[str], list[str]]:
    """Kinds of which there are more than the catalogue says, and those of which there are fewer, as lines."""

    def lines(kinds: Iterable[Kind]) -> list[str]:
        return [
            f"{function}: {found[reason, function]}, not {known[reason, function]}: {reason or 'fails'}"
            for reason, function in sorted(kinds)
        ]

    if not whole:
        return lines(kind for kind in found if kind not in known), []
    more, fewer = found - known, known - found
    return lines(more), lines(fewer)


def main() -> None:
    import triton

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="ocl")
    parser.add_argument("--slice", default="0/1", metavar="I/N", help="about an N-th of the tests, the I-th from 0 on")
    parser.add_argument("--jobs", type=int, default=1, help="processes among which pytest-xdist shares them")
    parser.add_argument("-k", metavar="WORDS", help="as of pytest")
    parser.add_argument("--record", action="store_true", help="write the catalogue: of a whole run")
    options = parser.parse_args()
    version = triton.__version__
    whole = options.slice == "0/1" and not options.k
    if options.record and not whole:
        parser.error("--record is for a whole run")
    outcomes = run(fetch(version), options)
    failures = {test: kind_of(test, message) for test, (outcome, message) in outcomes.items() if outcome == "failed"}
    found = Counter(failures.values())
    totals = Counter(outcome for outcome, _ in outcomes.values())
    reasons = sum(count for (reason, _), count in found.items() if reason)
    print(f"triton_core: {totals['passed']} pass, {reasons} cannot, {totals['failed'] - reasons} fail, "
          f"{totals['skipped']} are skipped")  # fmt: skip
    if options.record:
        write(version, found)
        return
    catalogued, known = read()
    more, fewer = compare(found, known, whole and version == catalogued)
    for line in more:
        print(f"new: {line}")
    for test, kind in failures.items():
        if kind not in known:
            print(f"  {test}: {outcomes[test][1].strip().splitlines()[0][:300]}")
    for line in fewer:
        print(f"better: {line}; --record writes that down")
    sys.exit(1 if more or fewer else 0)


if __name__ == "__main__":
    main()
