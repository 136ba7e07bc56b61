"""A Triton kernel as a kernel of the plan engine's: text, parameters, and what a launch needs to know."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torchgraft.codegen.kernel import Kernel, Parameter, Pointer, Value
from torchgraft.triton import ir
from torchgraft.triton.elements import stored
from torchgraft.triton.ops import Group, translated
from torchgraft.triton.refused import Refused
from torchgraft.triton.translate import Translator

__all__ = ["Translated", "translate"]

# A work-item does a share of the launch's programs.
_HEAD = """\
  const long programs = (long)g0 * g1 * g2;
  const long first_program = programs * GROUP_ID(0) / NUM_GROUPS(0);
  const long last_program = programs * (GROUP_ID(0) + 1) / NUM_GROUPS(0);
  PLAIN for (long program = first_program; program < last_program; ++program) {
    const int p0 = program % g0, p1 = program / g0 % g1, p2 = program / g0 / g1;"""


@dataclass(frozen=True)
class Translated:
    """What becomes of a kernel.

    Attributes:
        parameters: of each argument the name, the element type, whether it is a pointer, and whether what it points to
            is written.
        apart: the body where no two arguments share memory of which one is written.
        shared: the body elsewhere; empty where it is the same.
        reports: errors that it reports: assertions of the program's.
        items: work-items of a group.
        scratch: bytes that a group has in global memory.
    """

    name: str
    parameters: tuple[tuple[str, str, bool, bool], ...]
    helpers: str
    apart: str
    shared: str
    reports: tuple[str, ...] = ()
    items: int = 1
    scratch: int = 0

    def kernel(self, shared: bool) -> Kernel:
        """The kernel.

        Args:
            shared: arguments share memory.
        """
        params: list[Parameter] = [
            Pointer(name, element, const=not written) if is_pointer else Value(name, element)
            for name, element, is_pointer, written in self.parameters
        ]
        params += [Value(f"g{d}", "i32") for d in range(3)]
        if self.scratch:
            params += [Value("group_scratch", "i64"), Pointer("scratch", "u8")]
        if self.reports:
            params += [Value("code", "i32"), Pointer("errors", "i32")]
        body = (shared and self.shared) or self.apart
        return Kernel(self.name, tuple(params), body, helpers=self.helpers, local=(self.items,))

    def written(self) -> bytes:
        """For Triton's cache."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def read(cls, data: bytes) -> Translated:
        told: dict[str, Any] = json.loads(data)
        told |= {"parameters": tuple(map(tuple, told["parameters"])), "reports": tuple(told["reports"])}
        return cls(**told)


def translate(text: str, group: Group | None = None, lanes: int = 16) -> Translated:
    """A module of Triton's, with its places in the program, as text.

    Args:
        group: what a program may have of a GPU; None for CPUs, where it is one work-item.
        lanes: float32 elements of a CPU's vectors.

    Raises:
        Refused: it has what cannot be compiled.
    """
    try:
        function = ir.read(text)
        apart, shared = (
            translated(each, is_apart, group, lanes) for each, is_apart in ((function, True), (ir.read(text), False))
        )
    except ir.Unreadable as error:
        raise Refused(str(error)) from error
    parameters = []
    for n, argument in enumerate(function.arguments):
        kind = argument.type
        element = stored(kind.element) if kind.is_pointer else {"i1": "i32"}.get(kind.element, kind.element)
        if not kind.is_pointer and element in ("f16", "bf16"):
            element = "f32"
        parameters.append((f"arg{n}", element, kind.is_pointer, f"arg{n}" in apart.stored))
    bodies = [_body(each) for each in (apart, shared)]
    return Translated(
        "triton_" + re.sub(r"\W", "_", function.name),  # no word of the language's
        tuple(parameters),
        "\n".join((apart.helpers | shared.helpers).values()),
        bodies[0],
        bodies[1] if bodies[1] != bodies[0] else "",
        tuple(apart.reports),
        apart.items,
        max(apart.scratch, shared.scratch),
    )


def _body(translator: Translator) -> str:
    lines = translator.finished()
    heads = [f"  {line}" for line in translator.heads]
    return "\n".join([*heads, _HEAD, *indented(lines, 2), "  }"])


def indented(lines: Sequence[str], depth: int) -> list[str]:
    out = []
    for line in lines:
        depth -= line.startswith("}")
        out.append("  " * depth + line)
        depth += line.endswith("{")
    return out
