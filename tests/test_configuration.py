"""docs/configuration.md has every environment variable that the sources read, and no other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import Script

from torchgraft.diagnosis import host
from torchgraft.registration import environment

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "configuration.md"
READ = re.compile(
    r"""(?:getenv\(|environ\.get\(|environ\.setdefault\(|environ\[|find_variable\()\s*["']([A-Z][A-Z0-9_]+)["']"""
    r"""|["']([A-Z][A-Z0-9_]+)["']\s+(?:not\s+)?in\s+os\.environ"""
)
# Set for processes that are started, not read.
WRITTEN = {"PYTHONPATH"}
# By which torchrun tells its processes apart.
OF_TORCHRUN = {"LOCAL_RANK", "RANK", "WORLD_SIZE"}


def read_by(*folders: str) -> set[str]:
    """The variables that the sources in these folders (or files) read."""
    files = [
        file
        for folder in folders
        for file in ([ROOT / folder] if (ROOT / folder).is_file() else sorted((ROOT / folder).rglob("*")))
        if file.suffix in (".py", ".cpp", ".h")
    ]
    assert files
    found = {name for file in files for names in READ.findall(file.read_text()) for name in names if name}
    return found - WRITTEN - OF_TORCHRUN


def on_page() -> set[str]:
    """The variables in the first columns of the page's tables."""
    rows = re.findall(r"^\| (`.*?`) \|", PAGE.read_text(), re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([A-Z][A-Z0-9_]+)`", row)}


def test_the_pattern_finds_each_way_of_reading() -> None:
    text = """os.environ.get("AA") os.environ["BB"] "CC" in os.environ std::getenv("DD") find_variable("E_1")
    os.environ.get('FF') os.environ.get(
        "GG", "HH")"""
    assert {name for found in READ.findall(text) for name in found if name} == {
        "AA",
        "BB",
        "CC",
        "DD",
        "E_1",
        "FF",
        "GG",
    }
    assert {"TORCHGRAFT_DEVICES", "TORCHGRAFT_FALLBACK"} <= read_by("torchgraft", "csrc")


def test_every_variable_is_on_the_page() -> None:
    from torchgraft_opencl.diagnosis import VARIABLES as OPENCL

    known = read_by("torchgraft", "csrc", "opencl", "setup.py", "tests/conftest.py")
    known |= set(environment.VARIABLES) | set(OPENCL)
    assert known - on_page() == set(), "not on the page"
    assert on_page() - known == set(), "on the page, but nothing reads them"


def test_the_toolkits_list_is_what_it_reads() -> None:
    assert read_by("torchgraft", "csrc") - set(environment.VARIABLES) == set()
    # torch reads its own.
    assert set(environment.VARIABLES) - read_by("torchgraft", "csrc") <= {"TORCH_DEVICE_BACKEND_AUTOLOAD"}


def test_the_opencl_packages_list_is_what_it_reads() -> None:
    from torchgraft_opencl.diagnosis import VARIABLES

    read = {name for name in read_by("opencl/csrc", "opencl/torchgraft_opencl") if name.startswith("TORCHGRAFT_")}
    assert read == {name for name in VARIABLES if name.startswith("TORCHGRAFT_")}


def test_what_is_set_and_what_is_misspelt(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in environment.in_force():
        monkeypatch.delenv(name)
    assert environment.in_force() == {} == environment.misspelt()
    monkeypatch.setenv("TORCHGRAFT_DEVICE", "gpu")
    monkeypatch.setenv("TORCHGRAFT_FALLBACK", "silent")
    others = {"TORCHGRAFT_ACME_SPEED", "TORCHGRAFT_TEST_DEVICE", "TORCHGRAFT_TEST_SEED"}  # of a backend, of tests
    for name in others:
        monkeypatch.setenv(name, "9")
    assert set(environment.in_force()) == {"TORCHGRAFT_DEVICE", "TORCHGRAFT_FALLBACK", *others}
    assert environment.misspelt() == {"TORCHGRAFT_DEVICE": "TORCHGRAFT_DEVICES"}


def test_no_values_of_unknown_variables_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in environment.in_force():
        monkeypatch.delenv(name)
    monkeypatch.setenv("TORCHGRAFT_FALLBACK", "silent")
    monkeypatch.setenv("TORCHGRAFT_SECRET_TOKEN", "hunter2")
    monkeypatch.setenv("TORCHGRAFT_DEVICE", "hunter2")  # misspelt
    assert environment.in_force()["TORCHGRAFT_FALLBACK"] == "silent"
    assert "hunter2" not in environment.in_force().values()
    findings = {finding.subject: finding for finding in host.environment_variables()}
    assert set(findings) == {"TORCHGRAFT_FALLBACK", "TORCHGRAFT_SECRET_TOKEN", "TORCHGRAFT_DEVICE"}
    assert "'silent'" in findings["TORCHGRAFT_FALLBACK"].text
    assert findings["TORCHGRAFT_DEVICE"].state == "warning"
    assert not any("hunter2" in str(finding) for finding in findings.values())


NEARLY = {"TORCHGRAFT_CAHCE_DIR": "/tmp", "TORCHGRAFT_OPENCL_MEMROY": "svm"}
MEANINGLESS = {"TORCHGRAFT_CACHE": "maybe", "TORCHGRAFT_FALLBACK": "loud", "TORCHGRAFT_PROGRESS": "yes"}


@pytest.mark.thorough
def test_mistakes_are_warned_of_once_when_the_devices_are_opened(script: Script) -> None:
    out = script(
        """
        import warnings
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            import torch
            print(len(caught))
            for _ in range(2):
                torch.ones(2, device="ocl").add(1)
        for each in caught:
            print(each.filename, each.message)
        """,
        autoload=True,
        TORCHGRAFT_MINE="1",
        TORCHGRAFT_MEMORY_CACHING="",
        **NEARLY,
        **MEANINGLESS,
    )
    first, *others = out.splitlines()
    assert first == "0", "nothing is looked at while torch is imported"
    assert others == [
        "<string> the environment has TORCHGRAFT_CAHCE_DIR, which nothing reads: is TORCHGRAFT_CACHE_DIR meant?",
        "<string> the environment has TORCHGRAFT_OPENCL_MEMROY, which nothing reads: is TORCHGRAFT_OPENCL_MEMORY "
        "meant?",
        "<string> TORCHGRAFT_CACHE is 'maybe', which means nothing: it may be 0 or 1",
        "<string> TORCHGRAFT_PROGRESS is 'yes', which means nothing: it may be 0 or 1",
        "<string> TORCHGRAFT_FALLBACK is 'loud', which means nothing: it may be warn, silent or error",
    ]


@pytest.mark.parametrize(
    ("name", "value", "right"),
    [
        ("TORCHGRAFT_CACHE", "0", True),
        ("TORCHGRAFT_CACHE", "", True),
        ("TORCHGRAFT_CACHE", "off", False),
        ("TORCHGRAFT_FALLBACK", " Silent ", True),
        ("TORCHGRAFT_FALLBACK", "quiet", False),
        ("TORCHGRAFT_MEMORY_CACHING", "no", False),
    ],
)
def test_values(monkeypatch: pytest.MonkeyPatch, name: str, value: str, right: bool) -> None:
    monkeypatch.setenv(name, value)
    assert (name not in environment.meaningless()) == right
    states = {finding.subject: finding.state for finding in host.environment_variables()}
    assert states[name] == ("note" if right else "warning")


@pytest.mark.thorough
def test_a_backend_that_is_not_installed(script: Script) -> None:
    out = script(
        """
        import warnings
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            import torch
        print(*(each.message for each in caught))
        import torchgraft_opencl  # the name is free for what was meant
        print(torch.ones(1, device="ocl").item())
        """,
        autoload=True,
        TORCHGRAFT_BACKEND="oclx",
    )
    assert out.splitlines() == [
        "TORCHGRAFT_BACKEND is 'oclx', for which no installed package has a driver: is 'ocl' meant? No backend is "
        "registered",
        "1.0",
    ]
