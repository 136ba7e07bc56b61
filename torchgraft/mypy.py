"""A plug-in for mypy: it knows the methods that torch generates for a backend, and the module `torch.<name>`.

    [tool.mypy]
    plugins = ["torchgraft.mypy"]

    [tool.torchgraft]
    backends = ["foo"]    # besides those that are installed where mypy runs

torch sets `Tensor.foo()`, `Tensor.is_foo` and the like at run time (`generate_methods_for_privateuse1_backend`), and
`torch.foo` is made by `torchgraft.register`; no type checker can see either. The plug-in gives them their types, and
anything else stays an error.
"""

from __future__ import annotations

import configparser
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mypy.nodes import ARG_OPT, ARG_STAR, ARG_STAR2, GDEF, Argument, MypyFile, SymbolTableNode, Var
from mypy.options import Options
from mypy.plugin import ClassDefContext, Plugin, ReportConfigContext
from mypy.plugins.common import add_attribute_to_class, add_method_to_class
from mypy.semanal import SemanticAnalyzer
from mypy.types import AnyType, NoneType, Type, TypeOfAny, TypeVarId, TypeVarType, UnionType
from mypy.typevars import fill_typevars

from torchgraft.registration.installed import backend_names
from torchgraft.registration.naming import check_name

__all__ = ["TorchgraftPlugin", "plugin"]

#: What `torch.<name>` is, for the checker.
NAMESPACE = "torchgraft.device_module.namespace"


class TorchgraftPlugin(Plugin):
    """Adds to torch's classes what registering a backend adds to them."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.backends = sorted({*backend_names(), *_configured_backends(options.config_file)})

    def report_config_data(self, ctx: ReportConfigContext) -> Any:
        # What mypy has kept of torch is of no use if the names are others now.
        return {"backends": self.backends} if ctx.id.partition(".")[0] == "torch" else None

    def get_additional_deps(self, file: MypyFile) -> list[tuple[int, str, int]]:
        return [(10, NAMESPACE, -1)] if file.fullname == "torch" and self.backends else []

    def get_customize_class_mro_hook(self, fullname: str) -> Callable[[ClassDefContext], None] | None:
        if fullname not in _METHODS or not self.backends:
            return None
        return lambda context: self._add(context, _METHODS[fullname])

    def _add(self, context: ClassDefContext, add: Callable[[_Class, str], None]) -> None:
        each = _Class(context)
        for backend in self.backends:
            add(each, backend)
            each.add_module(backend)


class _Class:
    """A class of torch's, to which methods are added."""

    def __init__(self, context: ClassDefContext) -> None:
        assert isinstance(context.api, SemanticAnalyzer)
        self.api, self.definition = context.api, context.cls
        self.itself = fill_typevars(self.definition.info)

    def named(self, fullname: str) -> Type:
        found = self.api.named_type_or_none(fullname)
        if found is not None:
            return found
        # torch's modules import each other in circles, so that it may not be known yet: mypy comes again.
        if not self.api.final_iteration:
            self.api.defer()
        return AnyType(TypeOfAny.special_form)

    def add_property(self, name: str) -> None:
        """A property that is a bool."""
        variable = add_attribute_to_class(
            self.api, self.definition, name, self.named("builtins.bool"), overwrite_existing=True
        )
        variable.is_property = True

    def add_conversion(
        self, name: str, result: Type, *arguments: Argument, self_type: TypeVarType | None = None
    ) -> None:
        """A method `name(device=None, ...)`."""
        place = UnionType(
            [self.named("builtins.int"), self.named("builtins.str"), self.named("torch._C.device"), NoneType()]
        )
        every = [_argument("device", place, ARG_OPT), *arguments]
        add_method_to_class(self.api, self.definition, name, every, result, self_type, self_type)

    def add_module(self, backend: str) -> None:
        """`torch.<backend>`. Adding it once would do, but which class comes first is mypy's affair."""
        torch, namespace = self.api.modules.get("torch"), self.api.modules.get(NAMESPACE)
        if torch is not None and namespace is not None:
            torch.names[backend] = SymbolTableNode(GDEF, namespace, plugin_generated=True)


def _argument(name: str, kind: Type, how: Any) -> Argument:
    return Argument(Var(name, kind), kind, None, how)


def _non_blocking(each: _Class) -> Argument:
    return _argument("non_blocking", each.named("builtins.bool"), ARG_OPT)


_ANYTHING = AnyType(TypeOfAny.explicit)

# As torch.utils.backend_registration writes them.


def _tensor_methods(each: _Class, backend: str) -> None:
    each.add_property(f"is_{backend}")
    more = _argument("kwargs", _ANYTHING, ARG_STAR2)
    each.add_conversion(backend, each.itself, _non_blocking(each), more)


def _module_methods(each: _Class, backend: str) -> None:
    owner = f"torch.nn.modules.module.Module.{backend}"
    any_module = TypeVarType("T", f"{owner}.T", TypeVarId(-1, namespace=owner), [], each.itself, _ANYTHING)
    each.add_conversion(backend, any_module, self_type=any_module)


def _storage_methods(each: _Class, backend: str) -> None:
    each.add_property(f"is_{backend}")
    each.add_conversion(backend, each.itself, _non_blocking(each))


def _packed_sequence_methods(each: _Class, backend: str) -> None:
    each.add_property(f"is_{backend}")
    more = [_argument("args", _ANYTHING, ARG_STAR), _argument("kwargs", _ANYTHING, ARG_STAR2)]
    add_method_to_class(each.api, each.definition, backend, more, each.itself)


_METHODS: dict[str, Callable[[_Class, str], None]] = {
    "torch._tensor.Tensor": _tensor_methods,
    "torch.nn.modules.module.Module": _module_methods,
    "torch.nn.utils.rnn.PackedSequence": _packed_sequence_methods,
    "torch.storage.TypedStorage": _storage_methods,
    "torch.storage.UntypedStorage": _storage_methods,
}


def _configured_backends(config_file: str | None) -> list[str]:
    """`backends` of the section [tool.torchgraft] of pyproject.toml, or [torchgraft] of mypy.ini or setup.cfg."""
    if config_file is None:
        return []
    path = Path(config_file)
    if path.suffix == ".toml":
        configured = tomllib.loads(path.read_text()).get("tool", {}).get("torchgraft", {}).get("backends", [])
        names = [str(name) for name in configured]
    else:
        parser = configparser.ConfigParser()
        parser.read(path)
        names = parser.get("torchgraft", "backends", fallback="").replace(",", " ").split()
    for name in names:
        check_name(name)
    return names


def plugin(version: str) -> type[Plugin]:
    """What mypy calls."""
    return TorchgraftPlugin
