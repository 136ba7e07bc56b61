"""Builds the C++ core, `torchgraft._C`, for the minor version of torch that is here; see torchgraft/_core/__init__.py.

The build is one small ninja file: csrc/**/*.cpp, compiled against the headers of the installed torch and linked with
its libraries. Torch's headers take longer than our text, so each folder is one unit, and the bindings, which need
pybind11's templates, another: a third of the time of files one by one. (A precompiled header was tried: with g++ 12 it
takes longer to load than it saves.) Only what has changed is compiled, on all processors, through ccache where that is
installed.

Environment: CXX, CXXFLAGS (appended), LDFLAGS, MAX_JOBS, TORCHGRAFT_PYTHON_INCLUDE (the folder of Python.h);
TORCHGRAFT_CORES, the folders of cores for other versions of torch, compiled in place before, that go into the wheel
too (torch2_14 torch2_15).
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
LIBRARIES = ["c10", "torch_cpu", "torch", "torch_python"]


def installed_torch() -> Path | None:
    """Where torch is, found without the seconds that importing it takes."""
    spec = importlib.util.find_spec("torch")
    return Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else None


def torch_directory() -> Path:
    if (found := installed_torch()) is None:
        raise SystemExit(
            "torchgraft is compiled against the torch it will run with, and there is no torch here. Install torch "
            "first, then torchgraft: pip install --no-build-isolation torchgraft"
        )
    return found


def torch_version() -> str:
    """As 2.13.0+cpu; empty without torch, which a source distribution is made without."""
    if (found := installed_torch()) is None:
        return ""
    match = re.search(r"^__version__ = ['\"](.+)['\"]$", (found / "version.py").read_text(), re.MULTILINE)
    return match[1] if match else ""


def core_name() -> str:
    """The core's full name, in a folder of the minor version of torch: cores for several lie side by side."""
    return f"torchgraft._core.torch{'_'.join(torch_version().split('.')[:2])}._C"


def compiler() -> str:
    if "CXX" in os.environ:
        return os.environ["CXX"]
    found = shutil.which("g++") or shutil.which("clang++") or shutil.which("c++")
    if not found:
        raise SystemExit(
            "torchgraft needs a C++20 compiler to build: install g++ (Debian: apt-get install g++) or set CXX."
        )
    return f"{ccache} {found}" if (ccache := shutil.which("ccache")) else found


def python_include() -> list[str]:
    candidates = [
        os.environ.get("TORCHGRAFT_PYTHON_INCLUDE", ""),
        sysconfig.get_path("include"),
        sysconfig.get_path("platinclude"),
    ]
    found = [path for path in candidates if path and (Path(path) / "Python.h").exists()]
    if not found:
        raise SystemExit("Python.h was not found: install Python's headers (Debian: apt-get install python3-dev).")
    return found[:1]


def write_units(sources: list[str], folder: Path) -> list[Path]:
    """Files that include the sources of one unit each, those first that take longest."""
    units: dict[str, list[str]] = {"dispatch": [], "bindings": [], "runtime": []}
    for source in sources:
        path = Path(source)
        binds = "bindings" in path.stem or path.stem.startswith("python_")
        units.setdefault("bindings" if binds else path.parent.name, []).append(source)
    written = []
    for name, members in units.items():
        unit = folder / f"{name}.cpp"
        text = "".join(f'#include "{ROOT / member}"\n' for member in members)
        if not unit.exists() or unit.read_text() != text:  # or it would be compiled anew
            unit.write_text(text)
        written.append(unit)
    return written


class NinjaBuild(build_ext):
    """Builds the one extension with ninja, incrementally, under build/."""

    def build_extension(self, ext: Extension) -> None:
        target = Path(self.get_ext_fullpath(ext.name)).resolve()
        target.parent.mkdir(parents=True, exist_ok=True)
        # Objects stay in one place whatever pip's temporary directories are, so that only what changed is compiled.
        python = f"{sysconfig.get_platform()}-{sysconfig.get_config_var('py_version_nodot')}"
        objects = ROOT / "build" / f"core-{python}-torch-{torch_version()}"
        objects.mkdir(parents=True, exist_ok=True)
        jobs = os.environ.get("MAX_JOBS", str(os.cpu_count() or 1))
        try:
            with open(objects / "lock", "w") as lock:  # two builds in one folder would spoil ninja's records
                fcntl.flock(lock, fcntl.LOCK_EX)
                (objects / "build.ninja").write_text(self.ninja_file(ext, target, objects))
                subprocess.run([self.ninja(), "-C", str(objects), "-j", jobs], check=True)
        except subprocess.CalledProcessError as error:
            raise SystemExit(
                f"the C++ core did not compile (ninja ended with {error.returncode}); the messages are above"
            ) from None

    def run(self) -> None:
        super().run()
        for name in [] if self.inplace else os.environ.get("TORCHGRAFT_CORES", "").split():
            core = next((ROOT / "torchgraft/_core" / name).glob(f"_C{sysconfig.get_config_var('EXT_SUFFIX')}"))
            target = Path(self.build_lib, "torchgraft/_core", name, core.name)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(core, target)

    def copy_extensions_to_source(self) -> None:
        for ext in self.extensions:  # the folder of a version that is new in this tree
            ROOT.joinpath(*ext.name.split(".")[:-1]).mkdir(parents=True, exist_ok=True)
        super().copy_extensions_to_source()

    @staticmethod
    def ninja() -> str:
        if found := shutil.which("ninja"):
            return found
        import ninja  # the wheel, where its script is not on PATH

        return str(Path(ninja.BIN_DIR) / "ninja")

    @staticmethod
    def ninja_file(ext: Extension, target: Path, objects: Path) -> str:
        torch = torch_directory()
        cxx = compiler()
        includes = [
            *(f"-I{path}" for path in (ROOT / "torchgraft/include", ROOT / "csrc")),
            *(
                f"-isystem {path}"
                for path in (
                    *(torch / "include" / folder for folder in (".", "torch/csrc/api/include", "kineto")),
                    *python_include(),
                )
            ),
        ]
        flags = "-std=c++20 -O2 -g0 -fPIC -fvisibility=hidden -Wall -Wno-unused-function -DNDEBUG"
        flags += f" -D_GLIBCXX_USE_CXX11_ABI=1 -DTORCH_EXTENSION_NAME=_C {os.environ.get('CXXFLAGS', '')}"
        libraries = f"-L{torch / 'lib'} " + " ".join(f"-l{name}" for name in LIBRARIES)
        lines = [
            f"cxx = {cxx}",
            f"flags = {flags} {' '.join(includes)}",
            "rule compile",
            "  command = $cxx $flags -MMD -MF $out.d -c $in -o $out",
            "  depfile = $out.d",
            "  deps = gcc",
            "  description = C++ $in",
            "rule link",
            f"  command = $cxx -shared {os.environ.get('LDFLAGS', '')} $in -o $out {libraries}",
            "  description = link $out",
        ]
        outputs = []
        for unit in write_units(ext.sources, objects):
            outputs.append(f"{unit.stem}.o")
            lines.append(f"build {outputs[-1]}: compile {unit}")
        lines.append(f"build {target}: link {' '.join(outputs)}")
        return "\n".join(lines) + "\n"


sources = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "csrc").rglob("*.cpp"))
setup(ext_modules=[Extension(core_name(), sources)], cmdclass={"build_ext": NinjaBuild})
