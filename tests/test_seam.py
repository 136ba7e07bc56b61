"""What torchgraft/inductor takes of torch's private side: as it is said to be, in the torch that is here, and all of it
said. Needs no device."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import torchgraft.inductor
from torchgraft.inductor import seam
from torchgraft.inductor.registration import register

PACKAGE = Path(torchgraft.inductor.__file__).parent
#: Public, or as good as that: documented for those who write passes over graphs.
PUBLIC = ("torch", "torch.fx", "torch.utils._pytree", "torch.utils._config_module", "torch._ops")
USES = list(seam.uses())


def test_it_holds() -> None:
    """Before torch is patched, which another test of the process may have done, and after."""
    assert seam.broken() == []
    register()
    assert seam.broken() == []


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("torch._inductor.gone\n    V", "No module named"),
        ("torch._inductor.ir\n    Gone", "there is none"),
        ("torch._inductor.ir\n    Gone.create(x)", "there is no Gone"),
        ("torch._inductor.ir\n    gone(x)", "there is none"),
        ("torch._inductor.ir\n    IRNode.gone", "there is none"),
        ("torch._inductor.ir\n    is_cpu(y)", "its parameters are (x)"),
        ("torch._inductor.ir\n    is_cpu(x, *, gone)", "its parameters are (x)"),
        ("torch._inductor.ir\n    def is_cpu(x, y)", "its parameters are (x)"),
        ("torch._inductor.lowering\n    to_dtype(x)", "its parameters are"),  # which wants a dtype as well
        ("torch._inductor.codegen.simd\n    SIMDKernel.store(index, name, value)", "its parameters are"),
    ],
)
def test_what_does_not_hold_is_told(line: str, why: str) -> None:
    (told,) = seam.broken(line)
    module, name = line.split("\n    ")
    path = name.removeprefix("def ").partition("(")[0]
    assert told.startswith(f"{module}.{path}: ") and why in told.replace(": 'Any'", "")


def test_each_name_stands_there_once() -> None:
    names = list(map(str, USES))
    assert len(names) == len(set(names))


def imports() -> Iterator[tuple[str, str]]:
    """Modules of torch and the names that the package's sources import from them."""
    for path in sorted(PACKAGE.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch."):
                yield from ((node.module or "", each.name) for each in node.names)
            elif isinstance(node, ast.Import):
                yield from ((each.name, "") for each in node.names if each.name.startswith("torch."))


def test_what_is_imported_is_listed() -> None:
    """With its module, or as the module itself."""
    listed = {(use.module, use.path.partition(".")[0]) for use in USES}
    modules = {use.module for use in USES}
    missing = {
        f"{module}.{name}"
        for module, name in imports()
        if module not in PUBLIC and (module, name) not in listed
        if (f"{module}.{name}" if name else module) not in modules
    }
    assert missing == set()


def modules() -> list[ModuleType]:
    found = pkgutil.iter_modules(torchgraft.inductor.__path__)
    return [importlib.import_module(f"torchgraft.inductor.{each.name}") for each in found]


def classes() -> list[type]:
    """Those of the package that come from private ones of torch."""
    found = {each for module in modules() for each in vars(module).values() if inspect.isclass(each)}
    own = (each for each in found if each.__module__.startswith("torchgraft.inductor"))
    return sorted((each for each in own if torchs(each)), key=lambda each: each.__name__)


def torchs(cls: type) -> list[type]:
    private = tuple({use.module for use in USES})
    return [each for each in cls.__mro__ if each.__module__ in private]


def listed_in(scopes: list[type]) -> dict[str, seam.Use]:
    """The listed names of classes, by the name alone."""
    prefixes = {(each.__module__, each.__name__) for each in scopes}
    split = ((use, *use.path.rpartition(".")) for use in USES)
    return {name: use for use, outer, _, name in split if (use.module, outer) in prefixes}


# What these override is not listed: the printer's methods are named after sympy's classes, the operations are compared
# with Inductor's list of operations by tests/test_inductor.py, and the others answer documented questions of torch's.
BY_OTHERS = ("_Printer", "Operations", "Interface", "_Pass", "_Texts")


def test_what_is_overridden_is_listed() -> None:
    missing = []
    for cls in classes():
        listed, bases = listed_in(torchs(cls)), torchs(cls)
        for name, own in vars(cls).items():
            overrides = any(name in vars(base) for base in bases) and (inspect.isfunction(own) or callable(own))
            overrides &= getattr(own, "__module__", cls.__module__) == cls.__module__  # torch sets some of its own
            if cls.__name__ not in BY_OTHERS and overrides and not name.startswith("__") and name not in listed:
                missing.append(f"{cls.__name__}.{name}")
    assert missing == []


def used_of(cls: type) -> set[str]:
    """Attributes of `self` that a class's text uses."""
    tree = ast.parse(inspect.getsource(cls))
    found = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    return {node.attr for node in found if isinstance(node.value, ast.Name) and node.value.id == "self"}


def test_what_is_inherited_is_listed() -> None:
    """Attributes that a class uses and neither it nor a class of the package has set."""
    missing = []
    for cls in classes():
        if cls.__name__ in BY_OTHERS:
            continue
        listed = listed_in(torchs(cls))
        own: set[str] = set()
        for each in cls.__mro__:
            if each.__module__.startswith("torchgraft"):
                own |= set(vars(each)) | seam._attributes(each)
        missing += [f"{cls.__name__}.{name}" for name in sorted(used_of(cls) - own - listed.keys())]
    assert missing == []


def handled(name: str) -> set[str]:
    """What the package's sources ask of `V.<name>`."""
    found: set[str] = set()
    for path in PACKAGE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == f"V.{name}":
                found.add(node.attr)
    return found


@pytest.mark.parametrize(
    ("name", "scope"),
    [
        ("graph", "GraphLowering"),
        ("graph.sizevars", "SizeVarAllocator"),
        ("graph.wrapper_code", "PythonWrapperCodegen"),
    ],
)
def test_what_the_compilation_is_asked_is_listed(name: str, scope: str) -> None:
    listed = {use.path.rpartition(".")[2] for use in USES if use.path.startswith(f"{scope}.")}
    assert handled(name) and handled(name) <= listed


def test_what_is_replaced_has_the_same_parameters() -> None:
    """The package's own overriding methods can be called as torch's are."""
    for cls in classes():
        listed = listed_in(torchs(cls))
        for name, own in vars(cls).items():
            if name not in listed or not listed[name].replaced or not callable(own):
                continue
            use: Any = listed[name]
            inspect.signature(getattr(cls, name)).bind(
                *(() if isinstance(own, staticmethod) else (None,)),
                *use.parameters,
                **dict.fromkeys(use.keywords),
            )
