"""What every rendering of a team gives; `torchgraft.codegen.teams.team` chooses one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

from torchgraft.codegen.kernel import Kernel, Parameter, Value
from torchgraft.codegen.teams.accumulators import Fields
from torchgraft.codegen.teams.layout import Layout
from torchgraft.codegen.types import value_ctype

_COLUMN_VALUES = ("outer", "outer_stride", "size", "stride", "inner", "inner_stride", "span", "chunk")
_RUN_VALUES = (*_COLUMN_VALUES, "run", "run_stride", "part")
ROW_VALUES = ("rows", "size", "chunk")
ROW_OF_RUNS = "const long o = row / inner, tg_base = o * outer_stride + (row - o * inner) * inner_stride;"
_PART = "  const long tg_begin = GROUP_ID(1) * part, tg_end = tg_begin + part < size ? tg_begin + part : size;\n"


class Rendering(ABC):
    """The text of what a team does, for one way in which rows lie. Methods are as those of `Team`.

    Attributes:
        layout, group, width: as of `Team`.
        head: declarations at the head of the kernel, by name.
    """

    def __init__(self, layout: Layout, group: int, width: int) -> None:
        self.layout, self.group, self.width = layout, group, width
        self.head: dict[str, str] = {}

    # ---- names ----

    @property
    @abstractmethod
    def at(self) -> str: ...

    @property
    def row(self) -> str:
        return "row"

    @property
    def column(self) -> str:
        return "(row - o * inner)"

    # ---- what a team does ----

    @abstractmethod
    def each(self, statements: str, vectorize: bool, size: str) -> str: ...

    def leader(self, statements: str) -> str:
        return f"{{ {statements} }}"

    def let(self, name: str, type_: str, value: str) -> str:
        return f"const {value_ctype(type_)} {name} = {value};"

    def let_of_many(self, name: str, type_: str, value: str) -> str:
        return self.let(name, type_, value)

    def var(self, name: str, type_: str, value: str) -> str:
        return f"{value_ctype(type_)} {f'{name} = {value};' if value else f'{name};'}"

    @property
    def sync(self) -> str:
        return ""

    @abstractmethod
    def fold(self, fields: Fields, step: str, combine: str, cascade: bool, size: str, alone: bool) -> str: ...

    @abstractmethod
    def scan(self, fields: Fields, load: str, combine: str, then: str, ahead: str) -> str: ...

    def meet(self, types: Mapping[str, str], combine: str) -> str:
        """A work-item of its own has met."""
        return ""

    # ---- the kernel ----

    @property
    def values(self) -> tuple[str, ...]:
        """Parameters that the launch gives, but of rows of runs."""
        return _COLUMN_VALUES

    @property
    @abstractmethod
    def local(self) -> int:
        """Work-items of a group."""

    @abstractmethod
    def body(self, statements: tuple[str, ...]) -> str:
        """The loop over rows."""

    def kernel(
        self, name: str, params: tuple[Parameter, ...], statements: tuple[str, ...], helpers: str, dims: int
    ) -> Kernel:
        body = self.body(statements)
        if self.layout.runs:
            params = (*params, *(Value(v, "i64") for v in _RUN_VALUES))
            return Kernel(name, params, _PART + body, helpers, (self.local, 1))
        params = (*params, *(Value(v, "i64") for v in self.values))
        return Kernel(name, params, body, helpers, (self.local, *[1] * (dims - 1)))

    # ---- parts of texts ----

    def bounds(self, size: str) -> tuple[str, str]:
        """The elements that the group has of a row, or of `size` others."""
        return ("tg_begin", "tg_end") if self.layout.runs and not size else ("0", size or "size")

    def over(self, loop: Callable[[str, str], str], size: str = "") -> str:
        """What `loop` makes of a range of elements, for the row or for each run of it, or of `size` elements."""
        if size or not self.layout.runs:
            return loop(*self.bounds(size))
        return f"""for (long tg_number = tg_begin / run, tg_from = tg_begin; tg_from < tg_end; ++tg_number) {{
      const long tg_to = (tg_number + 1) * run < tg_end ? (tg_number + 1) * run : tg_end;
      const long tg_run = tg_base + tg_number * (run_stride - run * stride);
      {loop("tg_from", "tg_to")}
      tg_from = tg_to;
    }}"""


def joined(statements: tuple[str, ...]) -> str:
    """The statements of a row."""
    return "\n    ".join(filter(None, statements))
