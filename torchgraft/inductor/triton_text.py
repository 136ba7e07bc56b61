"""Triton kernels of users' in generated programs: as text, so that a program from the disk has them in any process.

The text is that of torch for its own devices: a kernel's source with that of the functions and the constants that it
uses. torch launches it by a launcher of Inductor's own; here it is launched as Triton does it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from torch._inductor import ir
from torch._inductor.codegen.triton import TritonKernel
from torch._inductor.codegen.wrapper import user_defined_triton_kernel_transitive_closure_source_code

from torchgraft import backend

__all__ = ["Definition", "defined"]


@dataclass(frozen=True)
class Definition:
    """A kernel with what is known of its calls.

    Attributes:
        text: the expression that makes it in a program.
        kept: which of the autotuner's configurations, by their place: the others are like one of these.
    """

    text: str
    kept: tuple[int, ...]


def defined(
    kernel: Any,
    configs: Sequence[Any],
    arguments: Mapping[str, Any],
    restored: Sequence[str],
    zeroed: Sequence[str],
    epilogue: Any,
) -> Definition:
    """The text of a kernel.

    Args:
        kernel: Triton's `JITFunction`.
        configs: of the autotuner around it, if there is one.
        arguments: by name: nodes of Inductor's, symbols and numbers, and whatever a constant may be.
        restored: arguments that the autotuner restores after a trial.
        zeroed: arguments that it sets to zero before one.
        epilogue: what Inductor has fused into the source, if anything.

    Raises:
        NotImplementedError: it is given what has no text.
    """
    for name, value in arguments.items():
        if isinstance(value, ir.TMADescriptor):
            raise _refused(kernel, f"its argument {name} is a descriptor that is made outside of it")
    constants = {
        each.name: arguments[each.name] for each in kernel.params if each.is_constexpr if each.name in arguments
    }
    kept: dict[str, int] = {}
    for place, config in enumerate(configs):  # those that differ in warps and stages are one here
        kept.setdefault(_literals(kernel, config.kwargs), place)
    tuned = [f"({values}, {_options(configs[place])})" for values, place in kept.items()]
    text = (
        f"tg_triton_kernel({kernel.__name__!r}, {_source(kernel, epilogue)!r}, {_literals(kernel, constants)}, "
        f"[{', '.join(tuned)}], {list(restored)!r}, {list(zeroed)!r})"
    )
    return Definition(text, tuple(kept.values()))


def _options(config: Any) -> dict[str, Any]:
    """What a configuration has besides constants."""
    return {name: value for name, value in config.all_kwargs().items() if name not in config.kwargs}


def _source(kernel: Any, epilogue: Any) -> str:
    """The text of a module with the kernel and all that it uses."""
    given = {
        "do_not_specialize": [each.name for each in kernel.params if each.do_not_specialize],
        "do_not_specialize_on_alignment": [each.name for each in kernel.params if each.do_not_specialize_on_alignment],
        "debug": kernel.debug,
    }
    options = ", ".join(f"{name}={value!r}" for name, value in given.items() if value)
    lines = [TritonKernel.gen_common_triton_imports(), *_imports(kernel), f"@triton.jit({options})"]
    source = user_defined_triton_kernel_transitive_closure_source_code(kernel, epilogue)
    return "\n".join([*lines, source, *_aliases(kernel)])


def _imports(kernel: Any) -> Iterator[str]:
    """Modules by the names that the kernel and its functions have for them: torch's text has those alone that it
    imports itself."""
    for name, value in _globals(kernel):
        if isinstance(value, ModuleType):
            yield f"import {value.__name__} as {name}"


def _aliases(kernel: Any) -> Iterator[str]:
    """Functions that are used by another name than that of their source."""
    for name, value in _globals(kernel):
        if _is_function(value) and value.__name__ != name:
            yield f"{name} = {value.__name__}"


def _globals(kernel: Any) -> Iterable[tuple[str, Any]]:
    """Global names that a kernel uses, and the functions that it calls.

    Raises:
        NotImplementedError: one name has two meanings in them, and would have one in the text.
    """
    found: dict[str, Any] = {}
    functions = [kernel]
    for each in functions:  # which grows
        for name in each.fn.__code__.co_names:
            if name not in each.fn.__globals__:
                continue
            value = each.fn.__globals__[name]
            if not _is_same(found.setdefault(name, value), value):
                raise _refused(kernel, f"it and the functions that it calls mean different things by {name!r}")
            if _is_function(value) and value not in functions:
                functions.append(value)
    names = [each.__name__ for each in functions]
    for name in names:
        if names.count(name) > 1 or (name in found and found[name] not in functions):
            raise _refused(kernel, f"it and the functions that it calls mean different things by {name!r}")
    return found.items()


def _is_same(one: Any, other: Any) -> bool:
    from triton.language import constexpr

    if isinstance(one, constexpr) and isinstance(other, constexpr):
        one, other = one.value, other.value
    return one is other or (type(one) is type(other) and isinstance(one, (bool, int, str, float)) and one == other)


def _is_function(value: Any) -> bool:
    from triton import JITFunction

    return isinstance(value, JITFunction)


def _literals(kernel: Any, values: Mapping[str, Any]) -> str:
    return "{" + ", ".join(f"{name!r}: {_literal(kernel, name, value)}" for name, value in values.items()) + "}"


def _literal(kernel: Any, name: str, value: Any) -> str:
    """A constant as text that the program evaluates."""
    from triton.language import constexpr, dtype

    if isinstance(value, constexpr):
        value = value.value
    if value is None or isinstance(value, (bool, int, str)):
        return repr(value)
    if isinstance(value, float):
        return f"float({str(value)!r})"
    if isinstance(value, dtype):
        return f"tg_triton_dtype({value.name!r})"
    if isinstance(value, (tuple, list)) and type(value) in (tuple, list):
        inner = "".join(f"{_literal(kernel, name, each)}, " for each in value)
        return f"({inner})" if isinstance(value, tuple) else f"[{inner}]"
    raise _refused(kernel, f"its argument {name} is a constant of type {type(value).__name__}, which has no text")


def _refused(kernel: Any, why: str) -> NotImplementedError:
    return NotImplementedError(
        f"torch.compile cannot put the Triton kernel {kernel.__name__} into a program for '{backend.name()}': {why}. "
        'Call it outside of the compiled function, or compile with backend="graft"'
    )
