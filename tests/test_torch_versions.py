"""Which versions of torch work: what is said of them, which core is taken, and what any other torch is told."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Script

from torchgraft import _C, _core, ops, plans
from torchgraft._version import TORCH_BELOW, TORCH_FROM
from torchgraft.plans import registry, versions

ROOT = Path(__file__).parents[1]
HERE = _core.minor(torch.__version__)

REFUSED = """
    import warnings
    import torch
    torch.__version__ = "{version}"
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        import torchgraft
    (warning,) = warned
    try:
        torchgraft.register
    except ImportError as error:
        assert str(error) == str(warning.message)
        print(error)
"""


@pytest.mark.parametrize("version", ["2.12.0", "2.16.0a0+git1234", "3.0.1+cpu", "1.13"])
def test_a_torch_out_of_range(script: Script, version: str) -> None:
    """It is told when torchgraft is imported, and the core is not tried: its symbols would not be found."""
    said = script(REFUSED.format(version=version))
    assert _core.supported() in said and f"this is torch {version}" in said and _core.requirement() in said


def test_a_torch_out_of_range_leaves_torch_usable(script: Script) -> None:
    said = script(
        """
        import sys, warnings
        import torch
        torch.__version__ = "2.16.0"
        warnings.simplefilter("ignore")
        from torchgraft.autoload import autoload
        autoload()
        assert torch.ones(2).sum() == 2 and "torchgraft._C" not in sys.modules
        try:
            torch.ones(2, device="ocl")
        except (RuntimeError, ImportError) as error:
            print(error)
        """,
        TORCHGRAFT_BACKEND="ocl",
    )
    assert _core.supported() in said


def test_versions_are_read_without_importing_torch(script: Script) -> None:
    said = script(
        """
        import sys, types
        package = types.ModuleType("torchgraft")
        package.__path__ = ["PACKAGE"]
        sys.modules["torchgraft"] = package
        from torchgraft import _core
        print(_core.torch_version())
        assert "torch" not in sys.modules
        """.replace("PACKAGE", str(ROOT / "torchgraft")),
        fresh=True,
    )
    assert said.split() == [torch.__version__]


def test_a_newer_torch_with_a_core(script: Script, copied: Path) -> None:
    """Whoever compiles one is not refused: what of Inductor is used is looked at when it is."""
    own = core_named(copied, TORCH_BELOW)
    said = script(f"""
        import sys
        sys.path.insert(0, {str(copied.parents[1])!r})
        import torch
        torch.__version__ = "{TORCH_BELOW[0]}.{TORCH_BELOW[1]}.0a0"
        from torchgraft import _core
        print(_core.find())
    """)
    assert said.split()[-1] == str(own)


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copy of the package without any core: the folder of its cores."""
    package = tmp_path / "torchgraft"
    shutil.copytree(ROOT / "torchgraft", package, ignore=shutil.ignore_patterns("torch2_*", "__pycache__"))
    return package / "_core"


def told(script: Script, package: Path) -> str:
    return script(f"""
        import sys
        sys.path.insert(0, {str(package)!r})
        import torchgraft
        assert torchgraft.__file__.startswith({str(package)!r})
        try:
            torchgraft.register
        except ImportError as error:
            print(error)
        else:
            print(torchgraft._C.__file__)
    """)


def core_named(cores: Path, minor: tuple[int, int]) -> Path:
    """This torch's core as if it were that of another version."""
    target = cores / f"torch{minor[0]}_{minor[1]}" / Path(_C.__file__).name
    target.parent.mkdir()
    shutil.copy(_C.__file__, target)
    return target


def test_the_core_of_this_torch_is_taken(script: Script, copied: Path) -> None:
    """Beside cores of other versions, and before one that an older torchgraft left in the package itself."""
    own, _ = core_named(copied, HERE), core_named(copied, (2, HERE[1] + 1))
    (copied.parent / own.name).write_bytes(b"not a library")
    assert told(script, copied.parents[1]).split() == [str(own)]


def test_without_a_core_for_this_torch(script: Script, copied: Path) -> None:
    assert "it has not been compiled" in told(script, copied.parents[1])
    core_named(copied, (2, 3)), core_named(copied, (2, 10))
    said = told(script, copied.parents[1])
    assert f"into torch {torch.__version__} (there is none for it, only for torch 2.3, 2.10)" in said
    assert "pip install --force-reinstall" in said


def test_a_core_in_the_wrong_folder(script: Script, copied: Path) -> None:
    """A core looks itself at the torch that it is loaded into."""
    core_named(copied, other := (2, 14 if HERE[1] == 13 else 13))
    said = script(f"""
        import sys
        sys.path.insert(0, {str(copied.parents[1])!r})
        import torch
        torch.__version__ = "{other[0]}.{other[1]}.7"
        import torchgraft
        try:
            torchgraft.register
        except ImportError as error:
            print(error)
    """)
    assert f"compiled for torch {torch.__version__.split('+')[0]}, and this is {other[0]}.{other[1]}.7" in said


def test_one_range_everywhere() -> None:
    """What cannot be computed from torchgraft/_version.py says the same as it."""
    assert (ROOT / "pyproject.toml").read_text().count(f'"{_core.requirement()}"') == 2  # to build it, and to use it
    workflow = (ROOT / "torchgraft/cli/templates/python/dot-github/workflows/ci.yml").read_text()
    (pinned,) = re.findall(r"torch==(\S+)\.\*", workflow)
    assert TORCH_FROM <= _core.minor(pinned) < TORCH_BELOW
    for page in ("README.md", "docs/troubleshooting.md", "docs/torch-versions.md"):
        assert _core.supported() in (ROOT / page).read_text(), page


# ---- Ops that some versions have ----


def test_ops_that_some_versions_have() -> None:
    """What is said of them is so in this torch; and each is only there for a version that works, or it is no matter."""
    for name, span in versions.PARTIAL.items():
        assert hasattr(torch.ops.aten, name) == (HERE in span), name
        worked = [(2, second) in span for second in range(TORCH_FROM[1], TORCH_BELOW[1])]
        assert True in worked and False in worked, f"{name} is the same for all versions that work"


def test_an_op_is_declared_where_it_is() -> None:
    Span = versions.Span
    some = {"old": Span(until=(2, 13)), "new": Span(since=(2, 14)), "both": Span((2, 13), (2, 14))}
    names = ("old", "mm", "aten::new", "both.out", "newer")

    def left(version: tuple[int, int]) -> list[str]:
        return list(versions.here(names, version, some))

    assert left((2, 12)) == ["old", "mm", "newer"]
    assert left((2, 13)) == ["mm", "both.out", "newer"]
    assert left((2, 14)) == ["mm", "aten::new", "newer"]


@pytest.mark.parametrize("declare", [plans.planner, plans.composite, plans.decomposition])
def test_declarations_of_ops_that_this_torch_lacks(declare: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are left out if that is known; an op that should be there stays an error."""

    def function() -> None: ...

    with pytest.raises(ValueError, match="there is no op aten::gone_long_ago"):
        declare("gone_long_ago")(function)
    monkeypatch.setitem(versions.PARTIAL, "gone_long_ago", versions.Span(until=HERE))
    before = dict(registry.ENTRIES)
    assert declare("gone_long_ago")(function) is function
    assert before == registry.ENTRIES
    monkeypatch.setitem(versions.PARTIAL, "gone_long_ago", versions.Span(since=HERE))
    with pytest.raises(ValueError, match="there is no op aten::gone_long_ago"):
        declare("gone_long_ago")(function)


def test_rows_of_ops_that_this_torch_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (
        lambda name: ops.row(name, "x"),
        lambda name: ops.reduction(name, combine="a + b", identity="0"),
        plans.decompose,
    )
    for row in rows:
        with pytest.raises(ValueError, match="there is no op aten::gone_long_ago"):
            row("gone_long_ago")
    monkeypatch.setitem(versions.PARTIAL, "gone_long_ago", versions.Span(until=HERE))
    for row in rows:
        row("gone_long_ago")
