"""What the kernels of a source take, read from their declarations.

The C family of kernel languages declares kernels alike: a word that marks a function as one, `void`, a name, and
parameters. Comments are left out; macros are not expanded, so a type that only a macro knows has to be told.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch

# C types of numbers, and the value types as which they are passed. Two floats are a complex number.
_VALUE_TYPES = {
    **dict.fromkeys(("char", "int8_t"), "i8"),
    **dict.fromkeys(("uchar", "uint8_t"), "u8"),
    **dict.fromkeys(("short", "int16_t"), "i16"),
    **dict.fromkeys(("ushort", "uint16_t"), "u16"),
    **dict.fromkeys(("int", "int32_t"), "i32"),
    **dict.fromkeys(("uint", "uint32_t"), "u32"),
    **dict.fromkeys(("long", "int64_t", "ptrdiff_t"), "i64"),
    **dict.fromkeys(("ulong", "uint64_t", "size_t"), "u64"),
    "bool": "b8",
    "float": "f32",
    "double": "f64",
    "float2": "c64",
    "double2": "c128",
}
# What tensors a pointer to such numbers may be given: those whose elements have these bytes.
_ELEMENTS: dict[str, tuple[torch.dtype, ...]] = {
    **dict.fromkeys(("char", "int8_t", "uchar", "uint8_t", "bool"), (torch.int8, torch.uint8, torch.bool)),
    **dict.fromkeys(
        ("short", "int16_t", "ushort", "uint16_t"), (torch.int16, torch.uint16, torch.float16, torch.bfloat16)
    ),
    **dict.fromkeys(("int", "int32_t", "uint", "uint32_t"), (torch.int32, torch.uint32)),
    **dict.fromkeys(("long", "int64_t", "ptrdiff_t", "ulong", "uint64_t", "size_t"), (torch.int64, torch.uint64)),
    "half": (torch.float16,),
    "float": (torch.float32, torch.complex64),
    "double": (torch.float64, torch.complex128),
}
_SIGNED = {"char": "char", "short": "short", "int": "int", "long": "long"}
_QUALIFIERS = set("const volatile restrict __restrict __restrict__ struct __private private static".split())
_SPACES = {"__global", "global", "__constant", "constant"}
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_ATTRIBUTE = re.compile(r"__attribute__\s*\(\(.*?\)\)", re.DOTALL)
_FUNCTION = re.compile(r"\bvoid\s+(\w+)\s*\(")


@dataclass(frozen=True)
class Argument:
    """One parameter of a kernel.

    Attributes:
        name, text: the parameter's name and its whole declaration.
        type: the value type of a number ("i32"); "" for a pointer.
        dtypes: of the tensors that a pointer may be given; empty if any will do.
        written: the kernel may write there.
    """

    name: str
    text: str
    type: str = ""
    dtypes: tuple[torch.dtype, ...] = ()
    written: bool = False


@dataclass(frozen=True)
class Signature:
    """One kernel of a source: its name, what it takes, and where in the source its parameters and its body begin."""

    name: str
    arguments: tuple[Argument, ...]
    parameters_at: tuple[int, int]
    body_at: int


def signatures(source: str, words: tuple[str, ...], types: Mapping[str, str]) -> list[Signature]:
    """The kernels that a source defines.

    Args:
        source: of a module.
        words: those that mark a kernel ("__kernel").
        types: the source's own names of C types ({"real": "float"}).

    Raises:
        ValueError: a kernel has a parameter that no argument can be passed for.
    """
    # Blanks in the place of comments keep all positions.
    bare = _COMMENT.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), source)
    bare = _ATTRIBUTE.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), bare)
    found = []
    for mark in re.finditer(rf"\b(?:{'|'.join(words)})\b", bare):
        head = _FUNCTION.search(bare, mark.end())
        if head is None or re.search(r"[{};]", bare[mark.end() : head.start()]):
            continue
        end = _closing(bare, head.end() - 1)
        body = re.compile(r"\s*\{").match(bare, end + 1)
        if body is None:  # a declaration only
            continue
        name = head[1]
        arguments = tuple(_argument(name, text, types) for text in _split(bare[head.end() : end]))
        found.append(Signature(name, arguments, (head.end(), end), body.end()))
    return found


def with_offsets(source: str, kernels: list[Signature]) -> str:
    """The source for a device that passes pointers as an allocation and an offset; its lines keep their numbers."""
    for kernel in reversed(kernels):
        parameters, pointers = [], []
        for argument in kernel.arguments:
            if argument.type:
                parameters.append(argument.text)
                continue
            kind = re.sub(rf"\b{argument.name}\b", "", argument.text).replace("[]", "*").strip()
            space = next(word for word in kind.split() if word in _SPACES)
            parameters.append(f"{space} char* tg_{argument.name}_base, unsigned long tg_{argument.name}_offset")
            pointers.append(f"{kind} {argument.name} = ({kind})(tg_{argument.name}_base + tg_{argument.name}_offset);")
        begin, end = kernel.parameters_at
        lines = "\n" * source.count("\n", begin, end)
        head = source[:begin] + ", ".join(parameters) + lines + source[end : kernel.body_at]
        source = f"{head} {' '.join(pointers)}{source[kernel.body_at :]}"
    return source


def _closing(text: str, at: int) -> int:
    """Where the parenthesis that opens at `at` closes."""
    depth = 0
    for position in range(at, len(text)):
        depth += {"(": 1, ")": -1}.get(text[position], 0)
        if depth == 0:
            return position
    raise ValueError(f"a parenthesis is not closed: {text[at : at + 60]!r}")


def _split(parameters: str) -> list[str]:
    texts = [" ".join(text.split()) for text in parameters.split(",")]
    return [] if texts in ([""], ["void"]) else texts


def _argument(kernel: str, text: str, types: Mapping[str, str]) -> Argument:
    words = re.findall(r"\w+|\*|\[", text)
    names = [word for word in words if word not in "*["]
    if len(names) < 2:
        raise ValueError(f"parameter {text!r} of kernel {kernel} has no name or no type")
    name = names[-1]
    if {"__local", "local", "__shared__"} & set(names):
        raise ValueError(f"parameter {text!r} of kernel {kernel}: declare local memory inside the kernel instead")
    given = [word for word in names[:-1] if word not in _QUALIFIERS | _SPACES]
    ctype = _plain(" ".join(types.get(word, word) for word in given))
    if "*" in words or "[" in words:
        written = "const" not in text.split("*")[0].split() and not {"__constant", "constant"} & set(names)
        dtypes = _ELEMENTS.get(re.sub(r"(2|3|4|8|16)$", "", ctype), ())
        return Argument(name, text, dtypes=dtypes, written=written)
    if ctype not in _VALUE_TYPES:
        raise ValueError(
            f"parameter {text!r} of kernel {kernel}: no Python number can be passed as {ctype!r}; if that is another "
            f"name of one of {', '.join(_VALUE_TYPES)}, say so: types={{{ctype!r}: 'float'}}"
        )
    return Argument(name, text, type=_VALUE_TYPES[ctype])


def _plain(ctype: str) -> str:
    """ "unsigned long int" as "ulong"."""
    words = ctype.split()
    unsigned = "unsigned" in words
    words = [word for word in words if word not in ("unsigned", "signed")]
    if len(words) > 1 and words[-1] == "int":
        words.pop()
    base = " ".join(words) or "int"
    if base == "long long":
        base = "long"
    return f"u{base}" if unsigned and base in _SIGNED else base
