"""The folder in which PoCL compiles: the driver gives it another one where its own cannot be written.

Folders that cannot be written are files, or lie in /proc, since root may write anywhere else.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parent
PREFIX = "torchgraft-pocl-"

PROGRAM = """
    import ctypes, json, os, sys
    from pathlib import Path
    sys.modules["torch"] = None  # the driver needs none, and importing it takes seconds
    from driver_table import LIBRARY, Driver
    from torchgraft_opencl.diagnosis import diagnose

    def temporary():
        return [[path.name, oct(path.stat().st_mode & 0o777)] for path in Path(os.environ["TMPDIR"]).iterdir()]

    getenv = ctypes.CDLL(None).getenv  # os.environ does not see what the driver changes
    getenv.restype = ctypes.c_char_p
    ctypes.CDLL(str(LIBRARY))
    loaded = temporary()
    {before}
    driver = Driver(Path(), copy=False)
    told = {{"loaded": loaded, "opened": temporary(), "count": driver.count, "message": driver.count_message}}
    told["variable"] = (getenv(b"POCL_CACHE_DIR") or b"").decode()
    if driver.count:
        stream, address = driver.created("stream_create", 0, 0), driver.created("allocate", 0, 64)
        driver.write(stream, address, b"x" * 64)
        twice = "kernel void twice(global uchar* p) {{ p[get_global_id(0)] *= 2; }}"
        driver.launch(stream, driver.kernel(twice, "twice"), [64], [1], address)
        told["right"] = driver.read(stream, address, 64) == b"\\xf0" * 64
    told["findings"] = {{finding.subject: [finding.state, finding.text, finding.advice] for finding in diagnose()}}
    print(json.dumps(told), flush=True)
    {after}
"""

Process = Callable[..., "subprocess.Popen[str]"]
Run = Callable[..., dict[str, Any]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What such a process has for temporary files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    return folder


@pytest.fixture
def process(folder: Path) -> Process:
    """A process that uses PoCL, through the driver alone, with just these variables."""
    try:
        ctypes.CDLL("libpocl.so.2")
    except OSError as error:
        pytest.skip(str(error))

    def start(before: str = "", after: str = "", **variables: str) -> subprocess.Popen[str]:
        path = os.pathsep.join([str(TESTS), *filter(None, sys.path)])
        return subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(PROGRAM).format(before=before, after=after)],
            env={"PATH": os.defpath, "PYTHONPATH": path, "TMPDIR": str(folder), **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


@pytest.fixture
def run(process: Process) -> Run:
    """What such a process tells, and what it prints on standard error."""

    def run(before: str = "", after: str = "", **variables: str) -> dict[str, Any]:
        started = process(before, after, **variables)
        out, err = started.communicate(timeout=120)
        assert started.returncode == 0, err
        told: dict[str, Any] = json.loads(out)
        return {**told, "said": err}

    return run


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({}, "/tmp/pocl/kcache: neither HOME nor XDG_CACHE_HOME is set"),
        ({"HOME": "/dev/null"}, "/dev/null: it is not a folder"),
        ({"HOME": "/proc/nonexistent"}, "/proc: writing a file in it fails: "),
        ({"HOME": "/root", "XDG_CACHE_HOME": "/dev/null"}, "/dev/null: it is not a folder"),
        ({"HOME": "/dev/null", "POCL_CACHE_DIR": ""}, "/dev/null: it is not a folder"),  # PoCL itself aborts
    ],
)
def test_without_a_home(run: Run, folder: Path, variables: dict[str, str], named: str) -> None:
    told = run(**variables)
    assert told["loaded"] == []  # nothing is done before the devices are asked for
    assert told["count"] >= 1
    assert told["right"]
    ((name, mode),) = told["opened"]
    assert name.startswith(PREFIX)
    assert mode == "0o700"
    assert list(folder.iterdir()) == []  # removed at the end
    assert told["variable"] == ""
    assert told["said"] == ""
    state, text, _ = told["findings"]["PoCL's cache"]
    assert state == "note"
    assert named in text
    assert "a temporary folder" in text


@pytest.mark.parametrize(
    ("named", "problem"),
    [
        ("/proc/nonexistent", "/proc: writing a file in it fails: "),
        ("/dev/full", "/dev/full: it is not a folder"),
        ("/dev/null/kernels", "/dev/null: it is not a folder"),
    ],
)
def test_a_named_folder_that_cannot_be_used(run: Run, folder: Path, named: str, problem: str) -> None:
    told = run(POCL_CACHE_DIR=named, HOME="/root")
    assert told["right"]
    assert len(told["opened"]) == 1
    assert list(folder.iterdir()) == []
    assert told["variable"] == named  # processes that are started choose for themselves
    assert told["said"].count("\n") == 1
    assert f"POCL_CACHE_DIR is '{named}', and that cannot be used ({problem}" in told["said"]
    assert "a temporary folder is used instead" in told["said"]
    state, text, advice = told["findings"]["PoCL's cache"]
    assert state == "warning"
    assert problem in text
    assert "POCL_CACHE_DIR" in advice


@pytest.mark.parametrize(("variable", "place"), [("HOME", ".cache/pocl/kcache"), ("POCL_CACHE_DIR", "")])
def test_pocls_own_choice_stays(run: Run, tmp_path: Path, variable: str, place: str) -> None:
    home = tmp_path / "home"
    told = run(**{variable: str(home)})
    assert told["right"]
    assert told["opened"] == []
    assert told["said"] == ""
    assert list((home / place).iterdir())
    assert not list(home.rglob(".torchgraft*"))
    state, text, _ = told["findings"]["PoCL's cache"]
    assert (state, text) == ("ok", f"{(home / place)} can be written")
    assert told["findings"]["platform Portable Computing Language"][0] == "ok"


def test_a_link_that_leads_nowhere(run: Run, tmp_path: Path) -> None:
    (link := tmp_path / "link").symlink_to(tmp_path / "nowhere")
    told = run(POCL_CACHE_DIR=str(link))
    assert told["right"]
    assert f"{link}: it is not a folder" in told["said"]


def test_a_full_disk(run: Run, tmp_path: Path) -> None:
    """Files may not grow here, wherever they are: so there is nothing left to try, and the error says so."""
    told = run("import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))", HOME=str(tmp_path))
    assert told["count"] == 0
    assert f"{tmp_path}: writing a file in it fails: File too large" in told["message"]
    assert "no temporary folder can be made" in told["message"]
    assert "install PoCL" not in told["message"]
    findings = told["findings"]
    assert findings["platform Portable Computing Language"][0] == "note"
    assert findings["platform Portable Computing Language"][1].endswith("; devices: 0")
    assert findings["PoCL's cache"][0] == "warning"
    assert findings["OpenCL devices"][0] == "problem"
    assert "apt-get install" not in findings["OpenCL devices"][2]


def test_no_temporary_folder_without_pocl(run: Run, folder: Path) -> None:
    told = run(TORCHGRAFT_OPENCL_LIBRARY="/nowhere.so", POCL_CACHE_DIR="/dev/null")
    assert told["count"] == 0
    assert told["opened"] == []
    assert "POCL_CACHE_DIR" not in told["message"] + told["said"]


def test_leftovers_are_removed(process: Process, run: Run, folder: Path) -> None:
    """What a killed process left goes; what another one uses, or is about to, stays."""
    waiting = process(after="import time; time.sleep(600)")
    killed = process(after="import time; time.sleep(600)")
    names = [json.loads(each.stdout.readline())["opened"] for each in (waiting, killed) if each.stdout is not None]
    in_use = {path.name for path in folder.iterdir()}
    assert len(in_use) == 2
    assert all(name in in_use for listed in names for name, _ in listed)
    killed.kill()
    assert killed.wait() == -signal.SIGKILL
    (folder / f"{PREFIX}new").mkdir()
    (folder / "others").mkdir()
    (folder / f"{PREFIX}link").symlink_to(folder / "others")
    for name in [*in_use, "others"]:
        os.utime(folder / name, (0, 0))
    assert run()["right"]
    left = {path.name for path in folder.iterdir()}
    assert len(left & in_use) == 1
    assert left - in_use == {f"{PREFIX}new", f"{PREFIX}link", "others"}
    waiting.terminate()
    waiting.wait()


def test_readers_of_the_environment_are_left_alone(run: Run) -> None:
    """Other threads may be reading the variables when the devices are opened: the list that they have stays as it is,
    also where it is one that the C library would enlarge."""
    before = """
        libc = ctypes.CDLL(None)
        libc.setenv(b"OF_THE_PROGRAM", b"1", 1)  # after which the list is the C library's to enlarge

        def variables(first):
            return list(iter(iter(ctypes.cast(first, ctypes.POINTER(ctypes.c_char_p))).__next__, None))

        first = ctypes.c_void_p.in_dll(libc, "environ").value
        seen = variables(first)
    """
    after = """
        assert variables(first) == seen, (seen, variables(first))
        now = variables(ctypes.c_void_p.in_dll(libc, "environ").value)
        added = {b"POCL_WORK_GROUP_SPECIALIZATION=0", b"HWLOC_PLUGINS_PATH=/dev/null"}
        assert set(now) - set(seen) == added, now
    """
    assert run(textwrap.dedent(before), textwrap.dedent(after), HOME="/dev/null")["right"]


def test_nothing_sets_variables_behind_other_threads() -> None:
    """By the C library, whose functions for that may move what other threads read."""
    from driver_table import LIBRARY

    from torchgraft import _core

    for library in (LIBRARY, Path(_core.find())):
        names = set(library.read_bytes().split(b"\0"))
        assert b"getenv" in names  # the names of what it calls are there
        assert not names & {b"setenv", b"unsetenv", b"putenv", b"clearenv"}, library
