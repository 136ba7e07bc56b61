"""Dialects: how a kernel is spelled in a device's language.

Kernel bodies are written in one neutral text, whose words are listed in docs/kernel-language.md (GLOBAL, BARRIER,
GROUP_ID(d), load_f16(p, i), ...). A dialect gives those words their meaning and renders the signature.
"""

from __future__ import annotations

import functools
import re
from typing import ClassVar

from torchgraft.codegen.kernel import Kernel, Pointer, Value
from torchgraft.codegen.places import ATOMIC_ADDS
from torchgraft.codegen.types import BY_NAME, value_ctype
from torchgraft.codegen.vectors import composed_words
from torchgraft.functions import HELPERS

__all__ = ["Dialect", "UnsupportedKernel", "plain_accesses"]


class UnsupportedKernel(NotImplementedError):
    """A language cannot express a kernel: the op goes to the fallback."""


_WORD = re.compile(r"[A-Za-z_]\w*")


class Dialect:
    """A kernel language. Subclasses declare attributes; they rarely need methods.

    Attributes:
        name: as in a driver's properties.
        prelude: text at the head of every module.
        definitions: name -> text of everything that is included only when a kernel uses the name.
        vectorize: what the word VECTORIZE stands for; `{lanes}` in it becomes the number of float32 lanes.
        vectorize_masked: what VECTORIZE_MASKED does, before a loop whose last elements are treated as a vector, too,
            predicated. Empty: as VECTORIZE.
        vectorize_once: what VECTORIZE_ONCE does, before a loop of as many iterations as a vector has lanes, whose body
            is long; for compilers that unroll such a loop before they look for vectors. Empty: as VECTORIZE.
        kernel_prefix, global_prefix: parts of a signature.
        kernel_words: those that mark a kernel in the language itself.
        group_size_attribute: format of the attribute that fixes a kernel's work-group size.
        options: of the compiler.
    """

    name = ""
    prelude = ""
    definitions: ClassVar[dict[str, str]] = {}
    vectorize = ""
    vectorize_masked = ""
    vectorize_once = ""
    kernel_prefix = ""
    kernel_words: tuple[str, ...] = ()
    global_prefix = ""
    restrict = "restrict"
    group_size_attribute = ""
    options = ""

    def render(self, kernel: Kernel, base_offset: bool, simd_width: int = 16) -> str:
        """The whole source of a module that holds `kernel`.

        Args:
            kernel: what to render.
            base_offset: pointers arrive as an allocation and a byte offset (see TG_CAP_BASE_OFFSET_POINTERS).
            simd_width: float32 lanes of the device's registers.

        Raises:
            UnsupportedKernel: the language cannot express it.
        """
        text = "\n".join([kernel.helpers, self.function(kernel, base_offset)])
        hints = {
            "VECTORIZE": self.vectorize,
            "VECTORIZE_MASKED": self.vectorize_masked or self.vectorize,
            "VECTORIZE_ONCE": self.vectorize_once or self.vectorize,
        }
        words = [f"#define {word} {hint.replace('{lanes}', str(simd_width))}" for word, hint in hints.items()]
        head = [self.prelude, *words, *self._used_definitions(text)]
        return "\n".join([*head, text, ""])

    def function(self, kernel: Kernel, base_offset: bool) -> str:
        """The kernel itself: signature and body."""
        params, head = self.parameters(kernel, base_offset)
        x, y, z = (*kernel.local, 1, 1)[:3]
        return "\n".join(
            [
                f"{self.kernel_prefix} {self.group_size_attribute.format(x=x, y=y, z=z)}",
                f"void {kernel.name}({', '.join(f'{ctype} {name}' for ctype, name in params)}) {{",
                *head,
                kernel.body,
                "}",
            ]
        )

    def parameters(self, kernel: Kernel, base_offset: bool) -> tuple[list[tuple[str, str]], list[str]]:
        """The types and names of a kernel's parameters, and statements at the head of its body."""
        params: list[tuple[str, str]] = []
        head: list[str] = []
        for param in kernel.params:
            if isinstance(param, Value):
                params.append((value_ctype(param.type), param.name))
            elif base_offset:
                pointer = self.pointer(param)
                params += [(f"{self.global_prefix} char*", f"{param.name}_base"), ("ulong", f"{param.name}_offset")]
                head.append(f"  {pointer} {param.name} = ({pointer})({param.name}_base + {param.name}_offset);")
            else:
                restrict = f" {self.restrict}" if param.restrict else ""
                params.append((f"{self.pointer(param)}{restrict}", param.name))
        return params, head

    def pointer(self, param: Pointer) -> str:
        """The type of a pointer parameter."""
        const = "const" if param.const else ""
        return " ".join(filter(None, [self.global_prefix, const, f"{BY_NAME[param.type].storage}*"]))

    def _definition(self, word: str) -> str | None:
        """What a word needs in front of the kernel: the dialect's own meaning of it, or the library's."""
        return self.definitions.get(word) or HELPERS.get(word) or ATOMIC_ADDS.get(word) or _composed().get(word)

    def _used_definitions(self, text: str) -> list[str]:
        """Definitions that the text needs, each after those it needs itself."""
        out: dict[str, str] = {}

        def visit(body: str) -> None:
            for word in _WORD.findall(body):
                definition = None if word in out else self._definition(word)
                if definition is not None:
                    out[word] = ""  # stops a definition that names itself
                    visit(definition)
                    del out[word]
                    out[word] = definition

        visit(text)
        return list(dict.fromkeys(out.values()))


@functools.cache
def _composed() -> dict[str, str]:
    return composed_words()


def plain_accesses() -> dict[str, str]:
    """Loads and stores of single elements as any language like C has them, of types that are computed in themselves:
    what a dialect has for the others takes their place."""
    words = {}
    for name in BY_NAME:
        words[f"load_{name}"] = f"#define load_{name}(p, i) ((p)[i])"
        words[f"store_{name}"] = f"#define store_{name}(p, i, v) ((p)[i] = (v))"
    words["load_b8"] = "#define load_b8(p, i) ((uchar)((p)[i] != 0))"
    words["store_b8"] = "#define store_b8(p, i, v) ((p)[i] = (uchar)((v) != 0))"
    return words
