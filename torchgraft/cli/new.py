"""Writes a package that brings a new device into PyTorch. It installs, imports and passes its tests at once, on memory
of the host; filling in its driver is all that is left to do. What its device computes by itself is --kernels: nothing,
kernels that a C++ compiler makes, or the programs of a library of operators."""

from __future__ import annotations

import argparse
import importlib.util
import keyword
import re
import sys
import textwrap
from pathlib import Path

from torchgraft.registration.naming import check_name

HELP = "write a package for a new device"

#: Real files, of a package named "skeleton": its name is replaced, in capitals too. Each layer is laid over those
#: before it. Lines that end with the mark [operators], in a comment where it is code, are for a device that has them.
TEMPLATES = Path(__file__).parent / "templates"
HEADER = Path(__file__).parents[1] / "include" / "torchgraft" / "driver.h"
#: By the driver's language and what the device computes.
LAYERS = {
    ("python", "none"): ["python"],
    ("c", "none"): ["python", "c", "accelerator"],
    ("c", "c++"): ["python", "c", "cxx"],
    ("c", "programs"): ["python", "c", "accelerator"],
}
MARK = re.compile(r" *(?:/\* )?\[operators\](?: \*/)?$", re.MULTILINE)
# Under their own names they would have an effect where they lie, or be left out of distributions.
RENAMED = {"dot-github": ".github", "dot-gitignore": ".gitignore"}

NEXT_STEPS = """\
Wrote {folder}: the device '{name}', with a driver in {language} on memory of the host{computes}.

    pip install {folder}     # then `import torch` is enough: torch.ones(3, device="{name}")
    pytest {folder}          # the rules of drivers, and the device as torch sees it

What is left to do is {driver}; each of its functions says what it must do.
"""
#: What is said of each kind of kernels.
COMPUTES = {"none": "", "c++": " and kernels in C++", "programs": " and a few operators"}
PLACES = {
    "none": "",
    "c++": """\
A device of your own has its compiler in compiler.c and its loader in loader.c beside it, where they are marked:
YOUR COMPILER HERE, YOUR LOADER HERE.
""",
    "programs": """\
A device of your own has its library in operators.c beside it, where it is marked: YOUR LIBRARY HERE.
""",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = __doc__
    parser.epilog = textwrap.dedent("""\
        example:
          torchgraft new foo && pip install ./foo && pytest foo
          torchgraft new foo --kernels programs      # for a maker whose library has operators""")
    parser.add_argument(
        "name",
        metavar="NAME",
        help="of the device, in torch.device(NAME), and of the package: lower-case letters and underscores",
    )
    parser.add_argument(
        "--driver",
        choices=["python", "c"],
        help="the driver's language: python to begin with (the default without kernels), or C11, which is quicker",
    )
    parser.add_argument(
        "--kernels",
        choices=list(COMPUTES),
        help="what the device computes: none, and ops run on the CPU; c++, kernels of the system's compiler, or yours "
        "(the default with --driver c); programs, operators of a library",
    )
    parser.add_argument(
        "--directory",
        type=Path,
        default=Path(),
        metavar="DIR",
        help="where to make the folder NAME, which must not be there yet (default: here)",
    )


def run(arguments: argparse.Namespace) -> int:
    name, folder = arguments.name, arguments.directory / arguments.name
    try:
        driver, kernels = choice(arguments.driver, arguments.kernels)
        check_package_name(name)
        write_package(name, driver, kernels, folder)
    except (ValueError, OSError) as error:
        print(f"torchgraft new: {error}", file=sys.stderr)
        return 1
    language, suffix = {"python": ("Python", "py"), "c": ("C", "c")}[driver]
    shown = folder if folder.is_absolute() else f"./{folder}"
    file = folder / "src" / name / f"driver.{suffix}"
    print(
        NEXT_STEPS.format(folder=shown, name=name, language=language, computes=COMPUTES[kernels], driver=file), end=""
    )
    print(PLACES[kernels], end="")
    return 0


def choice(driver: str | None, kernels: str | None) -> tuple[str, str]:
    """The language and the kernels, of which either may be left out. Raises ValueError for what there is not."""
    kernels = kernels or {"c": "c++"}.get(driver or "", "none")
    driver = driver or ("python" if kernels == "none" else "c")
    if (driver, kernels) not in LAYERS:
        raise ValueError(f"--kernels {kernels} needs --driver c: the skeleton in Python has none")
    return driver, kernels


def check_package_name(name: str) -> None:
    """Raises ValueError for what cannot name both a device and a Python package."""
    check_name(name)
    _check_attributes(name)
    if name.strip("_") != name:
        raise ValueError(f"{name!r} cannot name a package: it would begin or end with an underscore")
    if keyword.iskeyword(name) or keyword.issoftkeyword(name):
        raise ValueError(f"{name!r} cannot name a package: it is a keyword of Python")
    if name == "skeleton" or name in sys.stdlib_module_names or name in ("tests", "torchgraft"):
        raise ValueError(f"{name!r} cannot name a package: a module of this name exists, and would be hidden")
    if _is_installed(name) and not _is_backend(name):
        raise ValueError(
            f"{name!r} cannot name a package: one of this name is installed here, and is no backend of torch's"
        )


def _check_attributes(name: str) -> None:
    """The rest of what registering would refuse; it needs torch, without which a package can be written, too."""
    try:
        from torchgraft.registration.register import check_attributes, registered_name
    except ImportError:
        return
    if name != registered_name():  # which has these names because it was installed from such a package before
        check_attributes(name)


def _is_installed(name: str) -> bool:
    spec = importlib.util.find_spec(name)
    return spec is not None and spec.origin is not None  # a folder without __init__.py is not in the way


def _is_backend(name: str) -> bool:
    from torchgraft.registration.installed import backend_names

    return name in backend_names()


def write_package(name: str, driver: str, kernels: str, folder: Path) -> None:
    """Writes the package's files.

    Args:
        name: of device and package; see `check_package_name`.
        driver, kernels: a key of `LAYERS`.
        folder: which must not be there yet.

    Raises:
        FileExistsError: it is.
    """
    if folder.exists() or folder.is_symlink():
        raise FileExistsError(f"{folder} exists already; nothing was written")
    texts = {
        _renamed(path.relative_to(TEMPLATES / layer), name): _filled_in(path.read_text(), name, kernels)
        for layer in LAYERS[driver, kernels]
        for path in sorted((TEMPLATES / layer).rglob("*"))
        if path.is_file() and not _is_by_product(path.relative_to(TEMPLATES))
        if kernels != "none" or "operators" not in path.name
    }
    if driver == "c":
        texts[Path("include/torchgraft/driver.h")] = HEADER.read_text()
    for path, text in texts.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


def _is_by_product(path: Path) -> bool:
    """Whether a tool left it in a checkout: .ruff_cache and the like."""
    return any(part.startswith((".", "__pycache__")) for part in path.parts)


def _renamed(path: Path, name: str) -> Path:
    return Path(*(RENAMED.get(part, part.replace("skeleton", name)) for part in path.parts))


def _filled_in(text: str, name: str, kernels: str) -> str:
    if kernels == "none":
        text = "".join(line for line in text.splitlines(keepends=True) if not MARK.search(line))
    capitals = re.sub(r"(?:^|_)([a-z])", lambda match: match[1].upper(), name)
    return MARK.sub("", text).replace("skeleton", name).replace("Skeleton", capitals)
