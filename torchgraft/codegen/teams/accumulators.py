"""Variables that elements are taken into one after the other, and the text of what becomes of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torchgraft.codegen.lanes import each_lane, fold_lanes
from torchgraft.codegen.types import value_ctype

Fields = Mapping[str, tuple[str, str]]
"""Of an accumulator: name -> element type and identity, the value that changes nothing."""

#: Elements that a lane sums before it puts the sum aside: a sum of millions would round off what is added last.
RUN = 256


def ctypes(fields: Fields) -> dict[str, str]:
    """C types of an accumulator's fields."""
    return {name: value_ctype(type_) for name, (type_, _) in fields.items()}


def start(fields: Fields) -> str:
    """Declares the fields as variables of their own names, which hold the identities."""
    return " ".join(f"{value_ctype(type_)} {name} = {identity};" for name, (type_, identity) in fields.items())


@dataclass(frozen=True)
class Accumulators:
    """The variables ``tg_<field>`` of a fold, or arrays of `count` of them, whose element is ``tg_<field>[tg_j]``."""

    fields: Fields
    count: int
    cascade: bool

    @property
    def types(self) -> dict[str, str]:
        return ctypes(self.fields)

    @property
    def _at(self) -> str:
        return "[tg_j]" if self.count else ""

    @property
    def declared(self) -> str:
        size = f"[{self.count}]" if self.count else ""
        kinds = ("", "_aside") if self.cascade else ("",)
        variables = " ".join(f"{t} tg_{n}{kind}{size};" for kind in kinds for n, t in self.types.items())
        return f"{variables} {'long tg_steps = 0;' if self.cascade else ''}"

    def _reset(self, kind: str = "") -> str:
        return " ".join(f"tg_{n}{kind}{self._at} = {identity};" for n, (_, identity) in self.fields.items())

    @property
    def start(self) -> str:
        return f"{self._reset()} {self._reset('_aside') if self.cascade else ''}"

    def pieces(
        self,
        begin: str,
        end: str,
        stretch: int,
        loop: Callable[[str, str], str],
        combine: str,
        every: Callable[[str], str],
    ) -> str:
        """The loop over a range in pieces of `stretch` elements, after each of which the partial sum is stored."""
        if not self.cascade:
            return loop(begin, end)
        put = bind(combine, A=f"tg_{{}}_aside{self._at}", B=f"tg_{{}}{self._at}")
        return f"""for (long tg_piece = {begin}; tg_piece < {end}; tg_piece += {stretch}) {{
        const long tg_stop = {end} - tg_piece < {stretch} ? {end} : tg_piece + {stretch};
        {loop("tg_piece", "tg_stop")}
        tg_steps += tg_stop - tg_piece;
        if (tg_steps >= {stretch}) {{ tg_steps = 0; {every(f"{{ {put} }} {self._reset()}")} }}
      }}"""

    def whole(self, combine: str, every: Callable[[str], str]) -> str:
        """Adds the partial sums."""
        put = bind(combine, A=f"tg_{{}}{self._at}", B=f"tg_{{}}_aside{self._at}")
        return every(put) if self.cascade else ""


def tree(count: int, lanes: int, combine: str, types: Mapping[str, str]) -> str:
    """Takes the accumulators in arrays of `count` elements, treated `lanes` at once, into the first."""
    vectors = [
        each_lane(lanes, bind(combine, A="tg_{}[tg_j]", B=f"tg_{{}}[tg_j + {w}]"), place, types)
        for w in (count >> k for k in range(1, (count // lanes).bit_length()))
        for place in range(0, w, lanes)
    ]
    return " ".join([*vectors, fold_lanes(lanes, lambda a, b: bind(combine, A=a, B=b), types)])


def bind(text: str, **accumulators: str | Mapping[str, str]) -> str:
    """Statements with accumulators spelled out: `A="tg_{}[j]"` makes ``tg_sum[j]`` of ``A.sum``."""
    for letter, spelled in accumulators.items():
        if isinstance(spelled, str):
            text = re.sub(rf"\b{letter}\.(\w+)", lambda m, s=spelled: s.format(m[1]), text)  # type: ignore[misc]
        else:
            text = re.sub(rf"\b{letter}\.(\w+)", lambda m, s=spelled: s[m[1]], text)  # type: ignore[misc]
    return text


def scan_step(fields: Fields, load: str, combine: str) -> str:
    """Statements that take element ``c`` into an accumulator in variables of the fields' names."""
    own = " ".join(f"{ctype} tg_{name};" for name, ctype in ctypes(fields).items())
    return f"{own} {bind(load, B='tg_{}')} {bind(combine, A='{}', B='tg_{}')}"
