"""What `make test` leaves out, that `--rest` has all of that, and slices of it together."""

from __future__ import annotations

from pathlib import Path

from conftest import Script

CONFTEST = """
from selection import select

from torchgraft.cli.conformance import part_of_all

def pytest_addoption(parser):
    parser.addoption("--all", action="store_true")
    parser.addoption("--rest", action="store_true")
    parser.addoption("--slice", type=part_of_all)

def pytest_configure(config):
    config.addinivalue_line("markers", "thorough")
    config.addinivalue_line("markers", "quick")

def pytest_collection_modifyitems(config, items):
    select(config, items)
"""
TESTS = """
import pytest, torch

def test_plain(): pass

@pytest.mark.thorough
def test_long(): pass

@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int8])
@pytest.mark.parametrize("size", [1, 2])
def test_dtypes(dtype, size): pass

@pytest.mark.parametrize("dtype", [torch.float64, torch.int8])
def test_no_quick_dtype(dtype): pass

@pytest.mark.quick(form="cpu")
@pytest.mark.quick(form="gpu", size=[2, 3])
@pytest.mark.parametrize("form", ["cpu", "gpu"])
@pytest.mark.parametrize("size", [1, 2])
def test_marked(form, size): pass

@pytest.mark.parametrize("form", ["cpu", "gpu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_forms(form, dtype): pass

@pytest.mark.quick(dtype=torch.int8)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int8])
def test_named(dtype): pass
"""
SHARING = """
import pytest

@pytest.fixture(scope="module")
def made(): return 1

@pytest.mark.thorough
@pytest.mark.parametrize("number", range(4))
def test_shared(made, number): pass
"""
QUICK = {
    *("test_plain", "test_dtypes[1-dtype0]", "test_dtypes[2-dtype0]"),
    *("test_no_quick_dtype[dtype0]", "test_no_quick_dtype[dtype1]"),
    *("test_forms[dtype0-cpu]", "test_forms[dtype1-cpu]", "test_forms[dtype0-gpu]"),
    *("test_marked[1-cpu]", "test_marked[2-cpu]", "test_marked[2-gpu]", "test_named[dtype1]"),
}
SHARED = {f"test_shared[{number}]" for number in range(4)}
REST = SHARED | {
    *("test_long", "test_forms[dtype1-gpu]", "test_marked[1-gpu]", "test_named[dtype0]"),
    *(f"test_dtypes[{size}-dtype{number}]" for size in (1, 2) for number in (1, 2)),
}


def test_the_two_parts_are_the_whole(script: Script, tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "test_sharing.py").write_text(SHARING)
    slices = [[".", "--rest", "--slice", f"{number}/3"] for number in (3, 7, 5)]
    asked = [["."], [".", "--rest"], [".", "--all"], ["test_it.py::test_long"], *slices]
    printed = script(f"""
        import os
        import pytest

        os.chdir({str(tmp_path)!r})
        for arguments in {asked}:
            pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", *arguments])
            print("----")
    """)
    parts = [{line.partition("::")[2] for line in each.splitlines() if "::" in line} for each in printed.split("----")]
    assert parts[:4] == [QUICK, REST, QUICK | REST, {"test_long"}]
    assert set().union(*parts[4:7]) == REST
    assert sorted(len(part - SHARED) for part in parts[4:7]) == [2, 3, 3]
    assert sorted(len(part & SHARED) for part in parts[4:7]) == [0, 0, 4]  # what they share is made once
