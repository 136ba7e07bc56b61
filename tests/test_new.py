"""`torchgraft new`: the packages that it writes install, pass their own tests, and are clean and typed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

import torchgraft
from torchgraft.cli import main

ROOT = Path(torchgraft.__file__).parents[1]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
# What a device on host memory has no use for; whatever else is skipped would be an omission.
REASONS = {
    "one device only",
    "the driver does not time single commands",
    "the driver reserves no addresses",
    "the driver takes no graphs",
    "the driver's waits have no limit",
}
NO_KERNELS = {"the device does not claim COMPILER"}
ADDRESSES = {
    "the device does not claim UNIFIED_MEMORY",
    "the driver has no copies between devices: they go by way of the host",
}
NO_BINARIES = {"the driver keeps no programs on disk"}
#: By what is chosen: the package's name, the options, and what its tests skip.
KINDS = {
    "python": ("foo", ["--driver", "python"], REASONS | NO_KERNELS),
    "c": ("my_new_accelerator", ["--driver", "c"], REASONS),
    "memory": ("of_memory", ["--driver", "c", "--kernels", "none"], REASONS | NO_KERNELS | ADDRESSES),
    "programs": ("of_programs", ["--kernels", "programs"], REASONS | NO_KERNELS | ADDRESSES | NO_BINARIES),
}


@dataclass
class Package:
    """A package as written, a key of `KINDS`, and where it is installed together with the others."""

    name: str
    kind: str
    folder: Path
    site: Path

    def run(self, *command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs a command in the package's folder, where what is installed beside it can be imported."""
        path = os.pathsep.join([str(self.site), str(ROOT), *filter(None, sys.path)])
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("TORCH")}
        return subprocess.run(
            [str(each) for each in command],
            cwd=self.folder,
            env={**inherited, "PYTHONPATH": path, **environment},
            capture_output=True,
            text=True,
            timeout=600,
        )

    def python(self, program: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return self.run(sys.executable, "-c", program, **environment)


def passes(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr[-5000:]
    return done.stdout


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Package]:
    """One of each kind, installed side by side."""
    where = tmp_path_factory.mktemp("new")
    made = {kind: Package(name, kind, where / name, where / "site") for kind, (name, _, _) in KINDS.items()}
    for package in made.values():
        assert main(["new", package.name, *KINDS[package.kind][1], "--directory", str(where)]) == 0
    install = ["install", "--no-build-isolation", "--no-deps", "--no-index", "--target", made["c"].site]
    passes(made["c"].run(*PIP, *install, *(package.folder for package in made.values())))
    return made


@pytest.fixture(params=KINDS)
def package(request: pytest.FixtureRequest, packages: dict[str, Package]) -> Package:
    return packages[request.param]


@pytest.mark.thorough
def test_its_own_tests_pass(package: Package) -> None:
    printed = passes(package.run(sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider"))
    tests = int(re.findall(r"(\d+) passed", printed)[0])
    assert tests > 100
    skipped = set(re.findall(r"^SKIPPED \[\d+\] \S+: (.*)$", printed, re.MULTILINE))
    assert {reason for reason in skipped if not reason.startswith("the device has no ")} == KINDS[package.kind][2]
    assert any("the library has no" in reason for reason in skipped) == (package.kind == "programs")


@pytest.mark.thorough
def test_a_network_trains_on_a_few_operators(packages: dict[str, Package]) -> None:
    """Those of the skeleton are enough for one, and what they are not enough for says why."""
    passes(
        packages["programs"].python(
            """if True:
        import copy, torch, torchgraft
        from torch import nn
        x, y = torch.randn(32, 8), torch.randn(32, 4).softmax(1)
        network = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4), nn.Tanh())

        def losses_on(device):
            model = copy.deepcopy(network).to(device)
            optimizer, losses = torch.optim.SGD(model.parameters(), 0.1), []
            for _ in range(5):
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(model(x.to(device)), y.to(device))
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            return losses, model(x.to(device)).softmax(1).cpu()

        with torchgraft.fallback("error"):
            mine = losses_on("of_programs")
        torch.testing.assert_close(mine, losses_on("cpu"))
        assert mine[0][4] < mine[0][0]
        with torchgraft.fallback("silent"):
            torch.ones(3, device="of_programs").cumsum(0)
        assert "the library has no cumulative" in str(torchgraft.fallback_report())
        """,
            TORCHGRAFT_BACKEND="of_programs",
        )
    )


@pytest.mark.thorough
def test_more_devices(packages: dict[str, Package], tmp_path: Path) -> None:
    """The driver's text says that two devices work as well."""
    package = Package("two", "python", tmp_path / "two", packages["python"].site)
    assert main(["new", "two", "--directory", str(tmp_path)]) == 0
    driver = package.folder / "src/two/driver.py"
    driver.write_text(driver.read_text().replace("DEVICES = 1", "DEVICES = 2"))
    path = os.pathsep.join([str(package.folder / "src"), str(ROOT), *filter(None, sys.path)])
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "tests/test_driver.py", "tests/test_device.py"]
    printed = passes(package.run(*command, "-k", "peer or between or current_device", PYTHONPATH=path))
    assert "3 passed" in printed


@pytest.mark.parametrize("command", [["check"], ["format", "--check"]], ids=" ".join)
def test_it_is_clean(package: Package, command: list[str]) -> None:
    passes(package.run(sys.executable, "-m", "ruff", *command, "."))


@pytest.mark.thorough
def test_it_is_typed(package: Package) -> None:
    passes(package.run(sys.executable, "-m", "mypy", MYPYPATH=f"{package.folder / 'src'}:{ROOT}"))


@pytest.mark.thorough
def test_distributions(package: Package, tmp_path: Path) -> None:
    """A source distribution is enough to build the wheel from."""
    passes(package.python(f"from setuptools import build_meta; build_meta.build_sdist({str(tmp_path)!r})"))
    source = next(tmp_path.glob("*.tar.gz"))
    passes(package.run(*PIP, "wheel", "--no-build-isolation", "--no-deps", "--no-index", "-w", tmp_path, source))
    wheel = next(tmp_path.glob("*.whl"))
    files = set(zipfile.ZipFile(wheel).namelist())
    assert {f"{package.name}/__init__.py", f"{package.name}/driver.py", f"{package.name}/py.typed"} <= files
    if package.kind != "python":
        assert f"{package.name}/lib{package.name}.so" in files
        assert "-py3-none-linux_" in wheel.name
        with tarfile.open(source) as archive:
            names = archive.getnames()
        assert any(name.endswith("include/torchgraft/driver.h") for name in names)
    else:
        assert wheel.name.endswith("-py3-none-any.whl")


def test_nothing_of_the_template_is_left(package: Package) -> None:
    files = [path for path in package.folder.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert {".gitignore", "README.md", "pyproject.toml", "ci.yml", "py.typed"} <= {path.name for path in files}
    for path in files:
        assert "skeleton" not in str(path)
        if path.suffix in (".py", ".toml", ".md", ".c", ".h", ".yml"):
            assert "skeleton" not in path.read_text().lower(), path
            assert "[operators]" not in path.read_text(), path


def test_it_wants_the_torchgraft_that_wrote_it(package: Package) -> None:
    from packaging.requirements import Requirement

    text = (package.folder / "pyproject.toml").read_text()
    requirement = Requirement(re.findall(r'dependencies = \["(torchgraft.*)"\]', text)[0])
    assert torchgraft.__version__ in requirement.specifier


@pytest.mark.thorough
class TestTwoInstalledBackends:
    """A process has room for one; the second says why it cannot be used, and what to do."""

    def test_the_first_by_name_wins(self, packages: dict[str, Package]) -> None:
        first, second = packages["python"].name, packages["c"].name
        assert first < second
        passes(
            packages["c"].python(f"""if True:
            import torch, torchgraft
            assert torch.ones(2, device="{first}").sum().item() == 2
            try:
                import {second}
            except torchgraft.RegistrationError as error:
                assert "'{first}' is registered already" in str(error), error
            else:
                raise AssertionError("no error")
            torch.ones(2, device="{first}").add_(1)  # and the first is none the worse for it
            """)
        )

    def test_the_environment_chooses(self, packages: dict[str, Package]) -> None:
        for package in packages.values():
            program = f"import torch; assert torch.ones(2, device='{package.name}').sum().item() == 2"
            passes(package.python(program, TORCHGRAFT_BACKEND=package.name))

    def test_importing_one_before_torch_chooses(self, packages: dict[str, Package]) -> None:
        name = packages["c"].name
        passes(packages["c"].python(f"import {name}, torch; torch.ones(2, device='{name}')"))


class TestRefusals:
    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("Foo", "lower-case letters and underscores"),
            ("npu2", "lower-case letters and underscores"),
            ("../x", "lower-case letters and underscores"),
            ("cuda", "torch itself uses this name"),
            ("nn", "torch.nn exists"),
            ("json", "would be hidden"),
            ("tests", "would be hidden"),
            ("class", "keyword"),
            ("_foo", "underscore"),
            ("pytest", "one of this name is installed"),
        ],
    )
    def test_names(self, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, message: str) -> None:
        assert main(["new", name, "--directory", str(tmp_path / "parent")]) == 1
        told = capsys.readouterr().err
        assert message in told
        assert repr(name) in told
        assert not (tmp_path / "parent").exists()

    def test_a_folder_that_exists(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "foo").mkdir()
        (tmp_path / "foo" / "mine.txt").write_text("mine")
        assert main(["new", "foo", "--directory", str(tmp_path)]) == 1
        assert "exists already; nothing was written" in capsys.readouterr().err
        assert [path.name for path in (tmp_path / "foo").iterdir()] == ["mine.txt"]

    def test_an_unknown_kind_of_driver(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit):
            main(["new", "foo", "--driver", "cobol"])
        assert "invalid choice: 'cobol'" in capsys.readouterr().err

    @pytest.mark.parametrize("kernels", ["c++", "programs"])
    def test_what_the_skeleton_in_python_has_not(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], kernels: str
    ) -> None:
        assert main(["new", "foo", "--driver", "python", "--kernels", kernels, "--directory", str(tmp_path)]) == 1
        assert f"--kernels {kernels} needs --driver c" in capsys.readouterr().err
        assert list(tmp_path.iterdir()) == []


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["new", "--help"])
    assert ended.value.code == 0
    told = capsys.readouterr().out
    for word in ("NAME", "--driver", "--kernels", "--directory", "pip install ./foo && pytest foo"):
        assert word in told


def test_next_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new", "foo", "--driver", "c"]) == 0
    told = capsys.readouterr().out
    for line in ("pip install ./foo", "pytest ./foo", 'torch.ones(3, device="foo")', "foo/src/foo/driver.c"):
        assert line in told
    assert "kernels in C++" in told


@pytest.mark.parametrize(
    ("kernels", "places"),
    [
        ("c++", {"compiler.c": "YOUR COMPILER HERE", "loader.c": "YOUR LOADER HERE"}),
        ("programs", {"operators.c": "YOUR LIBRARY HERE"}),
    ],
)
def test_the_marked_places_are_in_a_driver_in_c(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    kernels: str,
    places: dict[str, str],
) -> None:
    """Where an author puts a compiler and a loader, or a library: what is printed, the README and the files agree."""
    monkeypatch.chdir(tmp_path)
    assert main(["new", "foo", "--kernels", kernels]) == 0
    told, readme = capsys.readouterr().out, Path("foo/README.md").read_text()
    for file, mark in places.items():
        for text in (told, readme):
            assert file in text
            assert mark in text
        marked = [path.name for path in Path("foo/src/foo").iterdir() if mark in path.read_text()]
        assert marked == [file]


def test_nothing_of_operators_is_in_a_driver_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new", "foo", "--driver", "c", "--kernels", "none"]) == 0
    assert "YOUR" not in capsys.readouterr().out
    files = [path for path in Path("foo").rglob("*") if path.is_file() and path.name != "driver.h"]
    assert len(files) > 10
    for path in files:
        assert not re.search(r"operator|program_|PROGRAMS", path.name + path.read_text()), path
