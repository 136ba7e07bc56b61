"""mypy knows what registering a backend adds to torch, by the plug-in torchgraft.mypy."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import torchgraft
from torchgraft import mypy
from torchgraft.device_module import namespace, storages

ROOT = Path(torchgraft.__file__).parents[1]

CONFIGURATION = """
[tool.mypy]
strict = true
plugins = ["torchgraft.mypy"]

[tool.torchgraft]
backends = ["foo", "my_npu"]
"""

RIGHT = """
import torch
from torch.nn.utils.rnn import PackedSequence
from typing_extensions import assert_type

class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x

x = torch.ones(2).foo()
assert_type(x, torch.Tensor)
assert_type(x.is_foo, bool)
assert_type(torch.ones(2).foo(0, non_blocking=True, memory_format=torch.preserve_format), torch.Tensor)
assert_type(torch.nn.Parameter(x).foo("foo:1"), torch.Tensor)
assert_type(torch.ones(2).my_npu().is_my_npu, bool)

assert_type(torch.nn.Linear(2, 2).foo(), torch.nn.Linear)
assert_type(Model().foo(torch.device("foo")), Model)

storage = x.untyped_storage().foo(1, non_blocking=True)
assert_type(storage, torch.UntypedStorage)
assert_type(storage.is_foo, bool)

def more(packed: PackedSequence, typed: torch.TypedStorage) -> None:
    assert_type(packed.foo(0), PackedSequence)
    assert_type(packed.is_foo, bool)
    assert_type(typed.foo(), torch.TypedStorage)
    assert_type(typed.is_foo, bool)

assert_type(torch.foo.is_available(), bool)
assert_type(torch.foo.memory_allocated(), int)
assert_type(torch.foo.memory.memory_allocated("foo:0"), int)
assert_type(torch.foo.get_device_properties(0).total_memory, int)
assert_type(torch.foo.default_generators, tuple[torch.Generator, ...])
stream = torch.foo.Stream(priority=-1)
with torch.foo.device(1), torch.foo.stream(stream):
    torch.foo.synchronize()
start, end = torch.foo.Event(enable_timing=True), torch.foo.Event(enable_timing=True)
start.record(stream)
assert_type(start.elapsed_time(end), float)
torch.foo.manual_seed_all(1)
torch.foo.set_rng_state(torch.foo.get_rng_state())
torch.my_npu.empty_cache()
"""

# Each line is wrong, and the plug-in must not hide it.
WRONG = """
torch.ones(2).bar()
torch.ones(2).is_bar
torch.ones(2).foo(1.5)
torch.ones(2).foo().nonsense
torch.nn.Linear(2, 2).bar()
torch.nn.Linear(2, 2).foo(non_blocking=True)
torch.ones(1).untyped_storage().bar()
torch.bar
torch.foo.nonsense
torch.foo.make_device_module
torch.foo.torch
torch.foo.memory_allocated(device=[])
torch.foo.memory_allocated().nonsense
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a user's files lie; what mypy has read of torch is kept for the next test."""
    folder = tmp_path_factory.mktemp("typing")
    (folder / "pyproject.toml").write_text(CONFIGURATION)
    return folder


def check(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    return subprocess.run(
        [sys.executable, "-m", "mypy", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.mark.thorough
class TestMypy:
    def test_what_is_right(self, folder: Path) -> None:
        (folder / "right.py").write_text(RIGHT)
        for _ in range(2):  # and once more with what mypy has kept on disk
            done = check(folder, "right.py")
            assert done.returncode == 0, done.stdout + done.stderr

    def test_what_is_wrong(self, folder: Path) -> None:
        (folder / "wrong.py").write_text("import torch\n" + WRONG)
        done = check(folder, "wrong.py")
        assert done.returncode == 1, done.stdout + done.stderr
        lines = ["import torch", *WRONG.splitlines()]
        wrong = {number for number, line in enumerate(lines, 1) if line.startswith("torch.")}
        assert {int(number) for number in re.findall(r"^wrong\.py:(\d+): error", done.stdout, re.MULTILINE)} == wrong

    def test_without_the_plug_in_nothing_is_known(self, folder: Path) -> None:
        """Otherwise the plug-in would not be needed any more."""
        (folder / "without.toml").write_text("[tool.mypy]\nstrict = true\n")
        (folder / "right.py").write_text(RIGHT)
        done = check(folder, "--config-file", "without.toml", "--cache-dir", "without", "right.py")
        assert '"Tensor" has no attribute "foo"' in done.stdout
        assert 'Module has no attribute "foo"' in done.stdout

    def test_the_names_are_part_of_what_is_kept(self, folder: Path) -> None:
        """A backend that is configured later is found although torch has been read before."""
        check(folder, "-c", "import torch")
        text = (folder / "pyproject.toml").read_text()
        (folder / "pyproject.toml").write_text(text.replace('"my_npu"', '"my_npu", "late"'))
        done = check(folder, "-c", "import torch; torch.ones(2).late(); torch.late.synchronize()")
        (folder / "pyproject.toml").write_text(text)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.thorough
def test_what_setup_installs_is_found(tmp_path: Path) -> None:
    """In editable form: mypy follows paths, not the finders that setuptools makes otherwise."""
    setup = runpy.run_path(str(ROOT / "scripts" / "setup"))
    package, site = tmp_path / "package", tmp_path / "site"
    (package / "editable_one").mkdir(parents=True)
    (package / "editable_one" / "__init__.py").write_text("answer: int = 42\n")
    (package / "editable_one" / "py.typed").touch()
    (package / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
        '[project]\nname = "editable-one"\nversion = "0"\n[tool.setuptools]\npackages = ["editable_one"]\n'
    )
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-build-isolation", "--target", site]
    subprocess.run([*pip, *setup["EDITABLE"], package], check=True, timeout=120)
    (path,) = [line for file in site.glob("*.pth") for line in file.read_text().splitlines()]
    assert path == str(package)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pyproject.toml", '[tool.torchgraft]\nbackends = ["foo", "bar"]\n'),
        ("mypy.ini", "[mypy]\nstrict = True\n[torchgraft]\nbackends = foo, bar\n"),
    ],
)
def test_configuration(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert mypy._configured_backends(str(tmp_path / name)) == ["foo", "bar"]
    (tmp_path / name).write_text(text.replace("foo", "Foo-1"))
    with pytest.raises(ValueError, match="'Foo-1' cannot name a device"):
        mypy._configured_backends(str(tmp_path / name))


def test_the_namespace_is_that_of_the_module(device: str) -> None:
    """What checkers are told is what there is, name by name; but for torch's storages of old."""
    module = torch.get_device_module(device)
    offered = set(module.__all__) - set(storages.make_storages("any"))
    names = {name for name in dir(namespace) if not name.startswith(("_", "@"))}  # pytest adds some with @
    known = names - {"TYPE_CHECKING", "annotations", "torch"}
    assert offered == known | {"default_generators"}
    for name in known:
        assert getattr(namespace, name) is getattr(module, name), name
    assert namespace.default_generators == module.default_generators
    with pytest.raises(AttributeError, match="'nonsense'"):
        getattr(namespace, "nonsense")  # noqa: B009
