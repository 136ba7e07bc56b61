"""Triton's intermediate representation above layouts (TTIR), read from its text.

Triton's Python objects do not reach all of a module (arrays among attributes, constants, the order of blocks in a
region); its text does. The grammar here is MLIR's, as far as Triton's own, `arith`, `math`, `scf` and `cf` need it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

__all__ = ["Block", "Function", "Op", "Region", "Type", "Unreadable", "Value", "read", "unquoted", "walk"]


class Unreadable(Exception):
    """A text of Triton's has what is not known."""


@dataclass(frozen=True)
class Type:
    """Of a value.

    Attributes:
        shape: of a block; empty of a scalar.
        element: of each element, as "f32" or "i1"; of pointers what they point to.
        is_pointer: whether the elements are pointers.
    """

    shape: tuple[int, ...]
    element: str
    is_pointer: bool = False

    @property
    def size(self) -> int:
        count = 1
        for n in self.shape:
            count *= n
        return count

    def of(self, shape: tuple[int, ...]) -> Type:
        """The same elements in another shape."""
        return Type(shape, self.element, self.is_pointer)


@dataclass(eq=False, repr=False)
class Value:
    """What an op computes, or an argument.

    Attributes:
        name: as in the text, without the percent sign.
        users: the ops that have it as operand, regions' terminators among them.
        owner: the op that computes it; None of arguments.
    """

    name: str
    type: Type
    users: list[Op] = field(default_factory=list)
    owner: Op | None = None


@dataclass(eq=False, repr=False)
class Op:
    """An op.

    Attributes:
        words: what stands in its text without a name for it, as "slt" of a comparison.
        attributes: by name, as text.
        targets: of branches, labels and what they pass.
        where: the line of the program, as "file.py:12"; empty where it is not known.
        block: where it stands.
    """

    name: str
    results: list[Value] = field(default_factory=list)
    operands: list[Value] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    attributes: dict[str, str] = field(default_factory=dict)
    regions: list[Region] = field(default_factory=list)
    targets: list[tuple[str, list[Value]]] = field(default_factory=list)
    where: str = ""
    block: Block | None = None

    def integer(self, name: str) -> int:
        """An attribute that is an integer."""
        return int(self.attributes[name].split(":")[0])


@dataclass(eq=False, repr=False)
class Block:
    """Ops in their order."""

    label: str
    arguments: list[Value] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)


@dataclass(eq=False, repr=False)
class Region:
    blocks: list[Block] = field(default_factory=list)

    @property
    def only(self) -> Block:
        (block,) = self.blocks
        return block


@dataclass(eq=False, repr=False)
class Function:
    name: str
    arguments: list[Value]
    body: Region


def read(text: str) -> Function:
    """The kernel of a module.

    Raises:
        Unreadable: the text is none that is known.
    """
    return _Reader(text).function()


_TOKEN = re.compile(
    r'"(?:[^"\\]|\\.)*"'
    r"|%[\w$.-]+(?:\#\d+)?|\^\w+|@[\w$.]+|->"
    r"|(?:tensor|dense|array|!tt\.ptr|!tt\.tensordesc|loc|\#[\w.]+)(?=[<(])|[!#][\w.]+"
    r"|-?0x[0-9A-Fa-f]+|-?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|[A-Za-z_][\w.$]*|[^\s]"
)
_OPENING, _CLOSING = "<({[", ">)}]"
_NAMES = re.compile(r"((?:%[\w$.-]+(?::\d+)?)(?:, %[\w$.-]+(?::\d+)?)*) = ")
_TYPE = re.compile(r"tensor<.*>|!tt\.ptr<.*>|[fi]\d+|bf16|index|f8\w+|!tt\.tensordesc<.*>")


def _tokens(text: str) -> list[str]:
    """Words and signs; a type, a dense constant or a location is one of them."""
    out, at = [], 0
    while found := _TOKEN.search(text, at):
        word, at = found[0], found.end()
        if at < len(text) and text[at] in "<(" and re.fullmatch(r"tensor|dense|array|!tt\.\w+|loc|#[\w.]+", word):
            end = _matching(text, at)
            word, at = word + text[at:end], end
        out.append(word)
    return out


def _matching(text: str, start: int) -> int:
    """The end of what begins with a bracket; text in quotes has none."""
    depth, at = 0, start
    while at < len(text):
        if text[at] == '"':
            at = text.index('"', at + 1)
        elif text[at] in _OPENING:
            depth += 1
        elif text[at] in _CLOSING and text[at - 1 : at + 1] != "->":
            depth -= 1
            if depth == 0:
                return at + 1
        at += 1
    raise Unreadable(f"brackets do not match: {text}")


def read_type(text: str) -> Type:
    """A type, as "tensor<64x32xf32>".

    Raises:
        Unreadable: it is another kind of type.
    """
    text = text.strip()
    block = re.fullmatch(r"tensor<((?:\d+x)*)(.+)>", text)
    shape, element = (
        ((), text) if block is None else (tuple(map(int, block[1].split("x")[:-1])), block[2].split(",")[0])
    )
    pointer = re.fullmatch(r"!tt\.ptr<(\w+)(?:, .*)?>?", element)
    if pointer is not None:
        return Type(shape, pointer[1], True)
    if not re.fullmatch(r"i\d+|f\d+|bf16|index|f8\w+", element):
        raise Unreadable(f"a value of type {text}")
    return Type(shape, element)


def unquoted(text: str) -> str:
    """What a string in quotes says."""
    return re.sub(r"\\([0-9A-F]{2}|.)", lambda m: chr(int(m[1], 16)) if len(m[1]) == 2 else m[1], text[1:-1])


class _Reader:
    def __init__(self, text: str) -> None:
        places = dict(re.findall(r"^(#loc\d*) = loc\((.*)\)$", text, re.MULTILINE))
        self._places = {name: _place(told, places) for name, told in places.items()}
        lines = [line.strip() for line in text.splitlines()]
        self._lines = [line for line in lines if line and not line.startswith("#loc")]
        self._at = 0
        self._scopes: list[dict[str, Value]] = [{}]

    def function(self) -> Function:
        heads = [n for n, line in enumerate(self._lines) if line.startswith("tt.func public")]
        if len(heads) != 1 or any("tt.func private" in line for line in self._lines):
            raise Unreadable("functions that are called, which Triton's inliner should have left none of")
        self._at = heads[0]
        head = self._lines[self._at]
        found = re.search(r"@\"?([\w$.<>-]+)\"?\(", head)
        assert found is not None
        inner = head[found.end() : _matching(head, found.end() - 1) - 1]
        arguments = self._arguments(inner)
        self._at += 1
        body, _ = self._region()
        return Function(found[1], arguments, body)

    def _arguments(self, text: str) -> list[Value]:
        """Names with types, of a function or a block."""
        tokens, out = _tokens(text), []
        for n, token in enumerate(tokens):
            if token.startswith("%") and tokens[n + 1 : n + 2] == [":"]:
                out.append(self._define(token, read_type(tokens[n + 2])))
        return out

    def _define(self, name: str, kind: Type) -> Value:
        value = Value(name.lstrip("%"), kind)
        self._scopes[-1][name] = value
        return value

    def _find(self, name: str) -> Value:
        for scope in reversed(self._scopes):
            if name in scope:
                return scope[name]
            if name + "#0" in scope:
                return scope[name + "#0"]
        raise Unreadable(f"no value {name}")

    def _region(self, arguments: list[tuple[str, Type]] | None = None) -> tuple[Region, str]:
        """What stands up to the bracket that closes it, and the line with that."""
        self._scopes.append({})
        first = Block("")
        first.arguments = [self._define(name, kind) for name, kind in arguments or ()]
        region = Region([first])
        while not self._lines[self._at].startswith("}"):
            line = self._lines[self._at]
            if line.startswith("^"):
                self._at += 1
                label = re.match(r"\^(\w+)", line)
                assert label is not None
                block = Block(label[1], self._arguments(line))
                if not first.ops and not first.arguments and region.blocks == [first]:
                    region.blocks = [block]
                else:
                    region.blocks.append(block)
            else:
                op = self._op()
                op.block = region.blocks[-1]
                op.block.ops.append(op)
        closing = self._lines[self._at]
        self._at += 1
        self._scopes.pop()
        return region, closing

    def _op(self) -> Op:
        line = self._lines[self._at]
        self._at += 1
        names: list[str] = []
        if found := _NAMES.match(line):
            for each in found[1].split(", "):
                name, _, count = each.partition(":")
                names += [name] if not count else [f"{name}#{k}" for k in range(int(count))]
            line = line[found.end() :]
        name = line.split(None, 1)[0].split("(")[0].strip('"')
        op = Op(name)
        if line.endswith("{"):
            self._structured(op, names, line)
        else:
            self._plain(op, names, line)
        for result in op.results:
            result.owner = op
        for operand in op.operands + [each for _, passed in op.targets for each in passed]:
            operand.users.append(op)
        return op

    # ---- ops without regions ----

    def _plain(self, op: Op, names: list[str], line: str) -> None:
        tokens = self._without_place(op, _tokens(line)[1:])
        if op.name in ("cf.br", "cf.cond_br"):
            self._branch(op, line)
            return
        types = self._read(op, tokens)
        for value, kind in zip(names, _result_types(op, types, len(names)), strict=True):
            op.results.append(self._define(value, kind))

    def _without_place(self, op: Op, tokens: list[str]) -> list[str]:
        out = []
        for token in tokens:
            if token.startswith("loc("):
                op.where = _place(token[4:-1], {}, self._places)
            else:
                out.append(token)
        return out

    def _read(self, op: Op, tokens: list[str]) -> list[str]:
        """Takes operands, words and attributes out of a text, and returns the types behind its last colon."""
        types: list[str] = []
        at = 0
        while at < len(tokens):
            token = tokens[at]
            if token == "{" or (token == "<" and tokens[at + 1 : at + 2] == ["{"]):
                at = _attributes(tokens, at, op)
                continue
            if token.startswith("%"):
                op.operands.append(self._find(token))
            elif token == ":":
                types = []
            elif _TYPE.fullmatch(token) or token in ("->", "to", "*"):
                types.append(token)
            elif token.startswith(('"', "dense")) or re.match(r"[\w-]", token):
                op.words.append(token)
            at += 1
        return types

    def _branch(self, op: Op, line: str) -> None:
        condition = re.match(r"cf\.cond_br (%[\w$.#-]+)", line)
        if condition is not None:
            op.operands.append(self._find(condition[1]))
        for label, passed in re.findall(r"\^(\w+)(?:\(([^)]*)\))?", line):
            names = re.findall(r"%[\w$.#-]+", passed.split(":")[0])
            op.targets.append((label, [self._find(name) for name in names]))

    # ---- ops with regions ----

    def _structured(self, op: Op, names: list[str], line: str) -> None:
        types: list[Type] | None
        arguments: list[tuple[str, Type]]
        match op.name:
            case "scf.for":
                types, arguments = self._for_head(op, line)
            case "scf.if":
                found = re.match(r"scf\.if (%[\w$.#-]+)(?: -> \((.*)\))?", line)
                assert found is not None
                op.operands.append(self._find(found[1]))
                types, arguments = _types(found[2] or ""), []
            case "scf.while":
                types, arguments = self._while_head(op, line)
            case _:
                types, arguments = None, []
                self._read(op, _tokens(line[: line.rindex("{")])[1:])
        region, closing = self._region(arguments)
        op.regions.append(region)
        while closing.endswith("{"):
            region, closing = self._region()
            op.regions.append(region)
        tail = self._without_place(op, _tokens(closing.lstrip("})")))
        if types is None:
            text = self._read(op, tail)
            types = _result_types(op, text, len(names))
        for value, kind in zip(names, types, strict=True):
            op.results.append(self._define(value, kind))

    def _for_head(self, op: Op, line: str) -> tuple[list[Type], list[tuple[str, Type]]]:
        found = re.match(
            r"scf\.for (unsigned )?(%[\w$.#-]+) = (%[\w$.#-]+) to (%[\w$.#-]+) step (%[\w$.#-]+)\s*"
            r"(?:iter_args\((.*?)\) -> \((.*?)\))?\s*(?:: (\w+))? *\{",
            line,
        )
        if found is None:
            raise Unreadable(f"a loop: {line}")
        if found[1]:
            op.words.append("unsigned")
        op.operands += [self._find(found[n]) for n in (3, 4, 5)]
        carried = re.findall(r"(%[\w$.#-]+) = (%[\w$.#-]+)", found[6] or "")
        types = _types(found[7] or "")
        op.operands += [self._find(start) for _, start in carried]
        index = read_type(found[8]) if found[8] else op.operands[0].type
        return types, [(found[2], index), *((name, kind) for (name, _), kind in zip(carried, types, strict=True))]

    def _while_head(self, op: Op, line: str) -> tuple[list[Type], list[tuple[str, Type]]]:
        found = re.match(r"scf\.while (?:\((.*?)\) )?: (.*?) -> (.*?) *(?:attributes .*)?\{$", line)
        if found is None:
            raise Unreadable(f"a loop: {line}")
        carried = re.findall(r"(%[\w$.#-]+) = (%[\w$.#-]+)", found[1] or "")
        op.operands += [self._find(start) for _, start in carried]
        before = _types(found[2].strip("()"))
        return _types(found[3].strip("()")), [(name, kind) for (name, _), kind in zip(carried, before, strict=True)]


def _types(text: str) -> list[Type]:
    return [read_type(token) for token in _tokens(text) if _TYPE.fullmatch(token)]


def _attributes(tokens: list[str], at: int, op: Op) -> int:
    """Reads `{name = value, ...}`, and returns where it ends."""
    angular = tokens[at] == "<"
    at += 2 if angular else 1
    while tokens[at] != "}":
        name, value = tokens[at], []
        at += 1
        if tokens[at] == "=":
            at, depth = at + 1, 0
            while depth or tokens[at] not in (",", "}"):
                depth += (tokens[at] in _OPENING) - (tokens[at] in _CLOSING)
                value.append(tokens[at])
                at += 1
        op.attributes[name] = " ".join(value)
        at += tokens[at] == ","
    return at + (2 if angular else 1)


_FIRST = {"tt.addptr", "tt.advance"}


def _result_types(op: Op, tokens: list[str], count: int) -> list[Type]:
    """What the results are, by the types in the text."""
    if count == 0:
        return []
    for sign in ("->", "to"):
        if sign in tokens:
            told = [read_type(each) for each in tokens[tokens.index(sign) + 1 :] if each != "*"]
            return told * count if len(told) == 1 else told
    told = [read_type(each) for each in tokens if each != "*"]
    if not told and op.words in (["true"], ["false"]):
        return [Type((), "i1")]
    if not told:
        raise Unreadable(f"{op.name} without a type")
    if op.name in ("arith.cmpi", "arith.cmpf"):
        return [Type(told[0].shape, "i1")]
    if op.name == "tt.load":
        return [Type(told[0].shape, told[0].element)]
    return [told[0] if op.name in _FIRST else told[-1]] * count


def _place(told: str, aliases: dict[str, str], known: dict[str, str] | None = None) -> str:
    """The line of a location: of one in a function that was called, the caller's."""
    for _ in range(100):
        if found := re.fullmatch(r'"(.*?)":(\d+):\d+(?: to .*)?', told):
            return f"{found[1]}:{found[2]}"
        if told in aliases:
            told = aliases[told]
        elif known is not None and told in known:
            return known[told]
        elif found := re.fullmatch(r"callsite\((.*) at (.*)\)", told):
            told = found[2]
        elif found := re.fullmatch(r'".*?"\((.*)\)', told):
            told = found[1]
        else:
            return ""
    return ""


def walk(region: Region) -> Iterator[Op]:
    """All ops of a region, those of inner ones behind their owner."""
    for block in region.blocks:
        for op in block.ops:
            yield op
            for inner in op.regions:
                yield from walk(inner)
