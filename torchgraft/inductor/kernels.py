"""Inductor's fused loops as kernels of the kernel language, in both forms.

What Inductor calls a kernel is some nodes over the same elements: x, or x and r where r is reduced. It becomes a walk
over x (`codegen/walk.py`). Without a reduction the walk goes over elements, in the CPU form over groups of a few where
the loop along memory is short: that loop is written out. With one, an element of the walk is:

* a *row*: loops over r, as many as the nodes need one after the other, with what is accumulated in lanes side by side,
  or, where a CPU's rows are shorter than a vector, written out: then vectors go across rows;
* or *columns*, in the CPU form and where neighbours in x touch in memory: as many rows side by side as there are
  lanes, and the loops over r go round them;
* or the row of a *team*, in the GPU form and where rows are long or few: the loops over r are shared out among the
  work-items of a group, which meet after each of them. All have the row's values; the first one stores them.

Divisions are only left in indices that fit into no loops (`indices.py`).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import sympy
import torch
from torch._inductor.codegen.common import CSE, CSEVariable, DeferredLine
from torch._inductor.codegen.simd import SIMDKernel
from torch._inductor.ir import get_device_type
from torch._inductor.utils import (
    IndentedBuffer,
    prefix_is_reduction,
    sympy_index_symbol,
    sympy_subs,
    upcast_compute_type,
)
from torch._inductor.virtualized import OpsValue, V
from torch.utils._ordered_set import OrderedSet

from torchgraft.codegen.kernel import Kernel, Parameter, Pointer, Value
from torchgraft.codegen.places import add_into_place, is_addable
from torchgraft.codegen.teams import RUN, Layout, Team, bind
from torchgraft.codegen.types import BY_NAME, element_type, value_ctype
from torchgraft.codegen.vectors import vector_lanes
from torchgraft.codegen.walk import FEW, GROUP, Walk
from torchgraft.inductor.indices import Loop, Loops, divisions, printed
from torchgraft.inductor.invariants import by_loop
from torchgraft.inductor.operations import FUNCTIONS, Operations, as_type, literal
from torchgraft.inductor.options import form
from torchgraft.inductor.reductions import Reduction, reduction
from torchgraft.plans.device import device_traits

__all__ = ["GeneratedKernel", "Text"]

#: Columns that are treated side by side.
WIDTH = 64
# Vectors of partial results of a row, so that additions need not wait for each other. Of elements with more statements
# than these, or with functions, nothing waits: they have one.
_VECTORS, _FEW_STATEMENTS = 4, 12
# Rows of fewer elements are a work-item's each on a GPU.
_SHORT = 16
# Loops shorter than this are no vectors.
_SHORTEST = 8
# Operations of the elements of a loop that is written out, at most, of which a function is as many: a compiler takes
# its time.
_WRITTEN_OUT, _FUNCTION = 1024, 16
# Short rows are a work-item's each on a GPU, if there are some of them. Where neighbours touch in memory, which
# work-items side by side read at once, so are longer ones, if there are as many as this.
_MANY_ROWS = 2048


# Ops with indices, in the terms of the program before it is decomposed, by what they raise where one is out of range.
_RAISE_RUNTIME_ERRORS = frozenset(
    "gather index_add max_unpool2d max_unpool3d multi_margin_loss multilabel_margin_loss_forward scatter scatter_add "
    "scatter_reduce".split()
)
_RAISE_INDEX_ERRORS = frozenset(
    "embedding index index_copy index_fill index_put index_select nll_loss_forward nll_loss2d_forward put take".split()
)


class _TypedCSE(CSE):
    """Names for expressions, declared with the types of their values."""

    def newvar(self, *args: Any, **kwargs: Any) -> CSEVariable:
        variable = super().newvar(*args, **kwargs)
        self.prefix = f"{_ctype(variable.dtype)} " if variable.dtype is not None else "UNTYPED "
        return variable


@dataclass(frozen=True)
class Text:
    """What a kernel does, without a name, and before it is known to how many tensors.

    Attributes:
        walk: over its elements.
        parameters: those of the statements.
        statements: the loops of the walk.
        helpers: functions before the kernel.
    """

    walk: Walk
    parameters: tuple[Parameter, ...]
    statements: str
    helpers: str

    def kernel(self, name: str) -> Kernel:
        """The whole kernel, for the elements of one tensor."""
        return self.walk.kernel(name, self.parameters, self.statements, self.helpers)


class GeneratedKernel(SIMDKernel):
    """One of Inductor's kernels.

    Attributes:
        form: "cpu" or "gpu".
        has_reduction: whether something is reduced.
        serial: whether a single work-item does it all, since elements write to the same place.
        messages: of the errors that the kernel may report: each a text, and whether it is an IndexError.
        team: the work-items that share a row, if they do.
    """

    overrides = Operations
    kexpr = staticmethod(printed)

    def __init__(self, tiling: dict[str, sympy.Expr], **kwargs: Any) -> None:
        self.form = form(_device())
        super().__init__(tiling, **kwargs)
        self.has_reduction: bool = kwargs["features"].is_reduction()
        self.cse = _TypedCSE("", ";")
        self.serial = False
        self.vectorized = True
        self.messages: list[tuple[str, bool]] = []
        self._helpers: dict[str, str] = {}
        self._trees: list[Loops] = []
        self._walked: list[Loop] = []  # outermost first; the last one is that of the lanes, where there are columns
        self._reduced: list[Loop] = []  # outermost first
        self._short: Loop | None = None  # of a few iterations, which are written out for each element of the walk
        self.team: Team | None = None
        self._columns = False
        self._lanes = 1
        self._flat = False  # whether rows are short and vectors go across them
        self._levels = 0  # how many times over what is accumulated is stored as a partial sum
        self._kept: OrderedSet[CSEVariable] = OrderedSet()  # variables that later loops of the row see
        self._before: list[str] = []
        self._after = IndentedBuffer()
        self._numbers = itertools.count()
        self._accumulates = False
        self._functions = 0  # that are called for each element
        self._cascades: list[
            list[str]
        ] = []  # statements that store what the loop accumulates as partial sums, for each level

    # ---- indices ----

    def get_index_dtype_as_torch_dtype(self) -> torch.dtype:
        return torch.int64

    def dtype_to_str(self, dtype: torch.dtype) -> str:
        return _ctype(dtype)

    def finalize_indexing(self, indices: Sequence[sympy.Expr]) -> None:
        """Decides on the loops, once all indices are known."""
        used = [super(GeneratedKernel, self).prepare_indexing(index) for index in dict.fromkeys(indices)]
        symbols = set().union(*(index.free_symbols for index in used)) if used else set()
        first = 0
        for tree in self.range_trees:
            entries = [entry for entry in tree.nodes.values() if entry.symbol() in symbols]
            # Of rows, cut loops would be shorter ones to accumulate along; to a GPU a division by a number is nothing.
            cuts = self.form == "cpu" and not self.has_reduction
            divided = [cut for index in used for cut in divisions(index, entries)] if cuts else []
            self._trees.append(Loops.of(tree, entries, first, divided))
            first += len(self._trees[-1].loops)
        in_loops = [self._as_loops(index) for index in used]
        walked = [loop for trees in self._trees if not _is_reduced(trees) for loop in reversed(trees.loops)]
        reduced = [loop for trees in self._trees if _is_reduced(trees) for loop in reversed(trees.loops)]
        units = {loop: sum(_stride(index, loop) == 1 for index in in_loops) for loop in (*walked, *reduced)}
        self._walked, self._reduced = _innermost_last(walked, units), _innermost_last(reduced, units)
        if self.has_reduction:
            self._choose_lanes(units)
            self._levels = self._levels_of(self._steps)
        elif self.form == "cpu" and len(self._walked) > 1:
            self._set_short_apart(in_loops, units)

    def _set_short_apart(self, indices: Iterable[sympy.Expr], units: dict[Loop, int]) -> None:
        """Where a loop along memory is short, such as that over a pixel's colours, has vectors go along another: whole
        vectors of all first colours, of the second ones and so on."""
        for short in filter(_is_short, reversed(self._walked)):
            if not self._may_be_written_out(short.size):
                continue
            others = _innermost_last([loop for loop in self._walked if loop != short], units)
            long = others[-1]
            interleaved = (_stride(index, short) == 1 and _stride(index, long) != 0 for index in indices)
            if _hint(long.size) >= _SHORTEST and any(interleaved):
                self._short, self._walked = short, others
                return

    def _choose_lanes(self, units: dict[Loop, int]) -> None:
        """Decides on what a CPU treats side by side, and on whether a row is a work-item's or a team's on a GPU."""
        inner = units[self._reduced[-1]] if self._reduced else 0
        across = bool(self._walked) and units[self._walked[-1]] > inner and _hint(self._walked[-1].size) >= 4
        if self.form == "gpu":
            rows, size = (_hint(sympy.Mul(*(loop.size for loop in loops))) for loops in (self._walked, self._reduced))
            sizes = device_traits(_device()).tuning.rows
            short = size < _SHORT or (size <= sizes.gpu_short and rows >= sizes.some)
            if not (short or (across and rows >= _MANY_ROWS) or self._adds_into_places):
                self.team = Team(Layout("gpu"), group=FEW if size <= RUN else GROUP)
            return
        self._columns = across
        if self._columns:
            self._lanes = WIDTH
        elif self._reduced:
            self._choose_lanes_of_rows()

    def _choose_lanes_of_rows(self) -> None:
        """Decides on how many elements of a row a CPU accumulates side by side, or on whether it treats neighbouring
        rows side by side, though they do not lie so: short ones have too few elements for vectors."""
        size, row = self._reduced[-1].size, sympy.Mul(*(loop.size for loop in self._reduced))
        many = bool(self._walked) and _hint(self._walked[-1].size) >= _SHORTEST
        short = isinstance(row, sympy.Integer) and row < self._vector
        able = device_traits(_device()).outer_vectors
        self._flat = able and many and short and self._may_be_written_out(row)
        if not self._flat and _hint(size) >= self._vector:
            self._lanes = self._vector * (_VECTORS if _hint(size) >= _VECTORS * self._vector else 1)

    def _may_be_written_out(self, times: sympy.Integer) -> bool:
        """Whether the text of an element is short enough to stand so many times."""
        counts = self.features.op_counts()
        functions = sum(count for name, count in counts.items() if name in FUNCTIONS)
        return bool(times * (sum(counts.values()) + _FUNCTION * functions) <= _WRITTEN_OUT)

    @cached_property
    def _vector(self) -> int:
        """Lanes of a vector register."""
        return vector_lanes(device_traits(_device()).simd_width)

    @property
    def _steps(self) -> sympy.Expr:
        """How many elements of a row one accumulator takes."""
        return sympy.Mul(*(loop.size for loop in self._reduced)) / self._side_by_side

    @property
    def _side_by_side(self) -> int:
        """Elements of a row that are accumulated side by side."""
        if self.team is not None:
            return self.team.group
        return 1 if self._columns else min(self._lanes, self._vector)

    @property
    def _adds_into_places(self) -> bool:
        """Whether stores are sums into memory that others add to, which may take a single work-item."""
        writes = (dep for node in self.features.scheduler_nodes() for dep in node.read_writes.writes)
        return any(getattr(dep, "mode", None) is not None for dep in writes)

    @staticmethod
    def _levels_of(steps: sympy.Expr) -> int:
        """How many levels it takes until none accumulates more than a run; two levels do for rows of unknown size."""
        return next((level for level in range(2) if steps.is_number and steps <= RUN ** (level + 1)), 2)

    def _as_loops(self, index: sympy.Expr) -> sympy.Expr:
        """An index in the variables of the loops."""
        replaced = {}
        for symbol in index.free_symbols:
            entry = self.range_tree_nodes.get(symbol)
            if entry is not None:
                trees = next(each for each in self._trees if each.tree is entry.root)
                replaced[symbol] = trees.index(entry)
        if not replaced:
            return index
        sizes = {loop.variable: loop.size for trees in self._trees for loop in trees.loops}
        return V.graph.sizevars.simplify_with_ranges(sympy_subs(index, replaced), sizes)

    def prepare_indexing(self, index: sympy.Expr) -> sympy.Expr:
        return self._as_loops(super().prepare_indexing(index))

    # ---- loads and stores ----

    def load(self, name: str, index: sympy.Expr) -> CSEVariable:
        dtype = V.graph.get_dtype(name)
        pointer, index = self.args.input(name), self.prepare_indexing(index)
        type_ = element_type(dtype).name
        if _is_number(name):
            text = f"({value_ctype(type_)})({pointer})"
        else:
            text = f"load_{type_}({pointer}, {self.index_to_str(index)})"
        return self.cse.generate(self.loads, text, dtype=upcast_compute_type(dtype), shape=())

    def store(self, name: str, index: sympy.Expr, value: CSEVariable, mode: str | None = None) -> None:
        line = self._stored(name, index, value, mode)
        if self.is_indirect_indexing(index):
            self.vectorized = False
        self.stores.writeline(DeferredLine(name, line))

    def store_reduction(self, name: str, index: sympy.Expr, value: CSEVariable) -> None:
        head = "" if self.team is None else "if (tg_lane == 0) "
        self._after.writeline(DeferredLine(name, head + self._stored(name, index, value, None)))

    def _stored(self, name: str, index: sympy.Expr, value: CSEVariable, mode: str | None) -> str:
        pointer, index = self.args.output(name), self.prepare_indexing(index)
        type_ = element_type(V.graph.get_dtype(name)).name
        at, text = self.index_to_str(index), as_type(value, type_)
        if mode is None:
            # To store rounds as a conversion does.
            narrowed = re.fullmatch(rf"tg_narrow_{type_}\((.*)\)", self._definition(text))
            return f"store_{type_}({pointer}, {at}, {narrowed[1] if narrowed else text});"
        if mode != "atomic_add":
            raise NotImplementedError(f"stores of kind {mode}")
        self.vectorized = False
        if self.form == "gpu" and is_addable(type_, device_traits(_device()).long_atomics):
            self.helper(f"tg_add_into_place_{type_}", add_into_place(type_))
            return f"tg_add_into_place_{type_}({pointer} + ({at}), {text});"
        self.serial = True
        sum_ = f"load_{type_}({pointer}, tg_at) {'|' if type_ == 'b8' else '+'} {text}"
        return f"{{ const long tg_at = {at}; store_{type_}({pointer}, tg_at, {sum_}); }}"

    def helper(self, name: str, text: str) -> None:
        """Has a function of this name stand before the kernel."""
        self._helpers[name] = text

    def masked(self, mask: CSEVariable, body: Callable[[], Any], other: complex) -> CSEVariable:
        """A value that is only computed where the mask is true."""
        inside = IndentedBuffer()
        stale = self.cse.invalidated_stores
        with self.swap_buffers(inside):
            self.cse.invalidated_stores = stale  # which a new scope does not have: they are read from memory there too
            value = body()
            value = value.value if isinstance(value, OpsValue) else value
        type_ = element_type(value.dtype).name
        variable = self.cse.newvar(dtype=value.dtype, shape=())
        self.compute.writeline(f"{value_ctype(type_)} {variable} = {literal(other, type_)};")
        self.compute.writeline(f"if ({mask}) {{")
        self.compute.splice(inside)
        self.compute.writeline(f"{variable} = {value}; }}")
        return variable

    def check_bounds(self, expr: sympy.Expr, size: sympy.Expr, lower: bool, upper: bool) -> None:
        index, bound = self.index_to_str(self._as_loops(expr)), self.index_to_str(size)
        wrong = [f"{index} < 0"] if lower else []
        wrong += [f"{index} >= {bound}"] if upper else []
        if wrong:
            index = self._as_given(index)
            of_size = f"of size {size}" if isinstance(size, sympy.Integer) else "of its size"
            message = f"index {{}} is out of bounds for a dimension {of_size}"
            self.report(" || ".join(wrong), index, message, self._raises_index_error(size))

    def _raises_index_error(self, size: sympy.Expr) -> bool:
        """Whether an index out of range is an IndexError of the op that the node was made of, without a compiler. Of
        several ops with indices in one node it is one with a dimension of the size; if those are of both kinds, it is
        an IndexError."""
        node = self.current_node.node if self.current_node else None
        names = {origin: _name_of_op(origin) for origin in (node.get_origins() if node else ())}
        indexing = [origin for origin, name in names.items() if name in _RAISE_RUNTIME_ERRORS | _RAISE_INDEX_ERRORS]
        of_size = [origin for origin in indexing if _indexes(origin, size)] or indexing
        return not of_size or any(names[origin] in _RAISE_INDEX_ERRORS for origin in of_size)

    def _as_given(self, index: str) -> str:
        """The variable that an index was before Inductor added the size to it where it is negative."""
        choice = re.fullmatch(r"\((\w+) \? \w+ : (?:\(long\)\()?(\w+)\)+", self._definition(index))
        given = choice and self.cse.varname_map.get(choice[2])
        is_negative: Any = Operations.lt
        if choice and given and self._definition(choice[1]) == is_negative(given, 0):
            return choice[2]
        return index

    def _definition(self, name: str) -> str:
        """The expression that a variable is, if it is known."""
        return next((str(text) for text, variable in self.cse._cache.items() if variable.name == name), "")

    def device_assert_async(self, cond: CSEVariable, msg: str) -> None:
        self.report(f"!({cond})", "0", msg.replace("{", "(").replace("}", ")"), False)

    def report(self, wrong: str, index: str, message: str, is_index: bool) -> None:
        """Reports an error of an element, and leaves the rest of it undone."""
        if (message, is_index) not in self.messages:
            self.messages.append((message, is_index))
        code = f"tg_code + {self.messages.index((message, is_index))}"
        leave = "return" if self.team is not None and not self.inside_reduction else "continue"
        self.compute.writeline(f"if ({wrong}) {{ tg_report(tg_errors, {code}, {index}); {leave}; }}")

    # ---- reductions ----

    def reduction(
        self,
        dtype: torch.dtype,
        src_dtype: torch.dtype,
        reduction_type: str,
        value: CSEVariable | tuple[CSEVariable, ...],
    ) -> CSEVariable | tuple[CSEVariable, ...]:
        key: Any = (src_dtype, reduction_type, value)
        if key not in self.cse.reduction_cache:
            self.cse.reduction_cache[key] = self._reduction(dtype, src_dtype, reduction_type, value)
        return self.cse.reduction_cache[key]

    def _reduction(self, dtype: torch.dtype, src_dtype: torch.dtype, kind: str, value: Any) -> Any:
        values = value if isinstance(value, tuple) else (value,)
        source, result = _compute(src_dtype), _compute(dtype)
        of = source if kind in ("max", "min", "argmax", "argmin", "online_softmax_reduce") else result
        if kind == "any":
            of = "b8"
        made = reduction(kind, of, "b8" if kind == "any" else result)
        name, side_by_side = f"tmp_r{next(self._numbers)}", self._lanes > 1
        array, lane = (f"[{self._lanes}]", "[tg_l]") if side_by_side else ("", "")
        for field, (type_, identity) in made.fields.items():
            self._before.append(f"{value_ctype(type_)} {name}_{field}{array};")
            self._before.append(self._all_lanes(f"{name}_{field}{lane} = {identity};"))
        step = made.step
        for k, each in enumerate(values):
            step = re.sub(rf"\bV{k}\b", f"({as_type(each, of)})", step)
        if "INDEX" in step:
            # Of several dimensions the place comes with the value: patches.py, `extremes_have_places`.
            place = as_type(values[1], "i64") if len(values) > 1 else self.index_to_str(self._place())
            step = step.replace("INDEX", f"({place})")
        self.compute.writeline(bind(step, A=f"{name}_{{}}{lane}"))
        self._accumulates = True
        if made.rounds:
            self._cascade(made, name, array, lane)
        if side_by_side and not self._columns:
            for half in (self._lanes >> k for k in range(1, self._lanes.bit_length())):
                combine = bind(made.combine, A=f"{name}_{{}}[tg_l]", B=f"{name}_{{}}[tg_l + {half}]")
                self._after.splice(self._each_lane(half, combine))
        if self.team is not None:
            types = {f"{name}_{field}": value_ctype(type_) for field, (type_, _) in made.fields.items()}
            combine = bind(made.combine, A=f"A.{name}_{{}}", B=f"B.{name}_{{}}")
            self._after.splice(self.team.meet(types, combine))
        place = lane if self._columns else "[0]" if side_by_side else ""
        results = []
        for field, (type_, _) in made.fields.items():
            variable = self.cse.namedvar(f"{name}_{field}{place}", dtype=BY_NAME[type_].dtype, shape=())
            self._kept.add(variable)
            results.append(variable)
        if kind in ("argmax", "argmin"):
            return results[0]
        return tuple(results) if len(results) > 1 else results[0]

    def _cascade(self, made: Reduction, name: str, array: str, lane: str) -> None:
        """Cascaded summation: what the loop accumulates is stored after every run, and added up in the end."""
        places = [f"{name}_{{}}", *(f"{name}_{{}}_aside{level}" for level in range(self._levels))]
        reset = [
            " ".join(f"{place.format(field)}{lane} = {first};" for field, (_, first) in made.fields.items())
            for place in places
        ]
        for level, (source, target) in enumerate(itertools.pairwise(places)):
            for field, (type_, _) in made.fields.items():
                self._before.append(f"{value_ctype(type_)} {target.format(field)}{array};")
            self._before.append(self._all_lanes(reset[level + 1]))
            combine = bind(made.combine, A=f"{target}{lane}", B=f"{source}{lane}")
            if len(self._cascades) <= level:
                self._cascades.append([])
            self._cascades[level].append(f"{combine} {reset[level]}")
            whole = bind(made.combine, A=f"{places[0]}{lane}", B=f"{target}{lane}")
            self._after.writeline(whole if self._columns else self._all_lanes(whole))

    def _all_lanes(self, statements: str) -> str:
        """Statements for each of what is accumulated side by side."""
        if self._lanes == 1:
            return statements
        if self._columns:
            return f"VECTORIZE for (int tg_l = 0; tg_l < {self._lanes}; ++tg_l) {{ {statements} }}"
        return _text(self._each_lane(self._lanes, statements))

    def _each_lane(self, lanes: int, *statements: str | IndentedBuffer) -> IndentedBuffer:
        """Statements for so many lanes of a row, a vector or less at a time: where places in arrays are all known
        beforehand, the arrays are registers."""
        text, step = IndentedBuffer(), min(lanes, self._vector)
        # A compiler may write a long body out before it makes a vector of it.
        vector = "VECTORIZE_ONCE " if self.vectorized and _functions_in(map(_text, statements)) else self._hint
        hint = vector if lanes >= self._vector else "UNROLL "
        for first in range(0, lanes, step):
            text.splice(_block(f"{hint}for (int tg_l = {first}; tg_l < {first + step}; ++tg_l) {{", *statements))
        return text

    def _place(self) -> sympy.Expr:
        """An element's place in its row."""
        number, stride = sympy.S.Zero, sympy.S.One
        for trees in reversed([each for each in self._trees if _is_reduced(each)]):
            number, stride = number + stride * trees.number, stride * trees.tree.numel
        return number

    # ---- the text ----

    def codegen_body(self) -> None:
        """Puts what has been collected into a loop, or after the last one where nothing is reduced.

        Lines are kept as they are, not as text: which stores are needed is known at the very end.
        """
        statements = IndentedBuffer()
        rows_own = self.team is not None and not self.inside_reduction
        if rows_own and self.stores:
            # What one stores others may still read, or read later.
            stores = _block("if (tg_lane == 0) {", self.stores)
            self.stores.clear()
            for line in ("BARRIER;", stores, "BARRIER;"):
                self.stores.splice(line)
        for part in (self.loads, self.compute, self.stores):
            statements.splice(part)
            part.clear()
        after, self._after = self._after, IndentedBuffer()
        if not (statements or after):
            return
        if self.has_reduction and self.inside_reduction:
            self.body.writelines(self._before)
            self.body.splice(self._loop(statements))
            self.body.splice(self._over_lanes(after) if self._columns and after else after)
            if self.team is not None and after:
                self.body.writeline("BARRIER;")
            self.cse.invalidate(self._kept)
        elif self._columns:
            self.body.splice(self._over_lanes(statements))
            self.cse.invalidate(self._kept)
        else:
            self.body.splice(statements)
            self._kept.update(self.cse.varname_map.values())
        self._before, self._accumulates, self._cascades = [], False, []

    def _over_lanes(self, statements: IndentedBuffer) -> IndentedBuffer:
        """Statements for each of the columns side by side."""
        head = f"{self._hint}for (int tg_l = 0; tg_l < tg_m; ++tg_l) {{"
        return _block(head, f"const long {self._walked[-1].variable} = tg_base + tg_l;", statements)

    def _loop(self, statements: IndentedBuffer) -> IndentedBuffer:
        """Statements for each element of a row, or of the columns side by side."""
        if not self._reduced:
            return _block("{", self._over_lanes(statements) if self._columns else statements)
        *outer, inner = self._reduced
        if self.team is not None and outer and _hint(inner.size) < self.team.group:
            outer, inner, statements = [], *self._as_one(statements)
        if self.team is not None or self._columns:
            text = self._along(inner, statements)
        else:
            text = self._along_without_invariants(inner, statements)
        for loop in reversed(outer):
            text = _block(f"{'UNROLL ' if self._flat else ''}{self._for(loop)} {{", text)
        return _block("{", "int tg_steps = 0, tg_runs = 0;", text) if self._cascades else text

    def _along_without_invariants(self, loop: Loop, statements: IndentedBuffer) -> IndentedBuffer:
        """The innermost loop, with what is the same for all of its elements before it."""
        found = by_loop(statements._lines, [], [str(loop.variable), "tg_l"])
        if not found.once:
            return self._along(loop, statements)
        before, each = IndentedBuffer(), IndentedBuffer()
        before.writelines(found.once)
        each.writelines(found.each)
        return _block("{", before, self._along(loop, each))

    def _as_one(self, statements: IndentedBuffer) -> tuple[Loop, IndentedBuffer]:
        """All loops of a row as a single one: a team has nothing to share in an inner one that is short."""
        one = Loop(sympy_index_symbol("tg_one"), sympy.Mul(*(loop.size for loop in self._reduced)), sympy.S.One)
        text, rest = IndentedBuffer(), str(one.variable)
        for loop in reversed(self._reduced[1:]):
            size = self.index_to_str(loop.size)
            text.writeline(f"const long {loop.variable} = {rest} % ({size});")
            rest = f"{rest} / ({size})"
        text.writeline(f"const long {self._reduced[0].variable} = {rest};")
        text.splice(statements)
        return one, text

    def _along(self, loop: Loop, statements: IndentedBuffer) -> IndentedBuffer:
        """The innermost loop, in pieces where partial sums are stored between them."""
        size = self.index_to_str(loop.size)
        if not self._cascades:
            return self._stretch(loop, "0", size, statements)
        run = RUN * self._side_by_side
        if isinstance(loop.size, sympy.Integer) and loop.size <= run:
            return _block(
                "{", self._stretch(loop, "0", size, statements), f"tg_steps += {size};", self._cascade_text(run)
            )
        return _block(
            f"for (long tg_piece = 0; tg_piece < {size}; tg_piece += {run}) {{",
            f"const long tg_stop = {size} - tg_piece < {run} ? {size} : tg_piece + {run};",
            self._stretch(loop, "tg_piece", "tg_stop", statements),
            "tg_steps += (int)(tg_stop - tg_piece);",
            self._cascade_text(run),
        )

    def _cascade_text(self, run: int) -> IndentedBuffer:
        """Puts aside what a run has accumulated."""
        text = IndentedBuffer()
        for level, statements in reversed(list(enumerate(self._cascades))):
            inner, text = text, IndentedBuffer()
            text.writeline(f"if (tg_steps >= {run}) {{" if level == 0 else f"if (++tg_runs == {RUN}) {{")
            text.writeline("tg_steps = 0;" if level == 0 else "tg_runs = 0;")
            for each in statements:
                text.writeline(self._all_lanes(each))
            text.splice(inner)
            text.writeline("}")
        return text

    def _stretch(self, loop: Loop, begin: str, end: str, statements: IndentedBuffer) -> IndentedBuffer:
        """The innermost loop over a part of it."""
        variable = loop.variable
        if self.team is not None:
            # As many rounds for all members: see `Walk.together` of what a compiler may do otherwise.
            head = f"for (long tg_round = {begin}; tg_round < {end}; tg_round += {self.team.group}) {{"
            own = f"const long {variable} = tg_round + tg_lane;"
            return _block(head, own, f"if ({variable} >= {end}) continue;", statements)
        head = f"for (long {variable} = {begin}; {variable} < {end}; ++{variable}) {{"
        if self._columns:
            return _block(head, self._over_lanes(statements))
        if self._lanes > 1 and self._accumulates:
            return self._in_lanes(loop, begin, end, statements)
        if self._flat:
            return _block(f"UNROLL {head}", statements)
        hint = self._hint if not self._accumulates and self.form == "cpu" else ""
        return _block(f"{hint}{head}", statements)

    @property
    def _hint(self) -> str:
        return "VECTORIZE " if self.vectorized else ""

    def _for(self, loop: Loop) -> str:
        return f"for (long {loop.variable} = 0; {loop.variable} < {self.index_to_str(loop.size)}; ++{loop.variable})"

    def _in_lanes(self, loop: Loop, begin: str, end: str, statements: IndentedBuffer) -> IndentedBuffer:
        """The innermost loop in steps of all lanes, and of fewer for what is left."""
        text = IndentedBuffer()
        text.writeline(f"long tg_first = {begin};")
        place = f"const long {loop.variable} = tg_first + tg_l;"
        left, static = loop.size, isinstance(loop.size, sympy.Integer)
        body = _text(statements)
        several = len(body.splitlines()) <= _FEW_STATEMENTS and not _functions_in([body])
        fewer = range(self._vector.bit_length()) if static else (0, 2, self._vector.bit_length() - 1)
        for lanes in dict.fromkeys((*([self._lanes] if several else []), *(self._vector >> k for k in fewer))):
            if static and left < lanes:
                continue
            whole = f"for (; tg_first + {lanes} <= {end}; tg_first += {lanes}) {{"
            text.splice(_block(whole, self._each_lane(lanes, place, statements)))
            left = left % lanes
        return _block("{", text)

    def text(self) -> Text:
        """What it does, once all nodes are in it."""
        self.codegen_body()
        # A single work-item is what the CPU form has in a group.
        self.form = "cpu" if self.serial else self.form
        group = GROUP if self.team is None else self.team.group
        walk = Walk(self.form, self._rank, prefix="tg_", group=group, together=self.team is not None)
        if self.has_reduction:
            text = self.body.getvalue()
            self._functions = _functions_in([text])
            body = walk.each("\n".join((*self._places, text)), vectorize=self._flat and self.vectorized)
        else:
            body = self._elements(walk)
        if self.team is not None:
            body = f"  {self.team.declarations}\n  const int tg_lane = LOCAL_ID(0);\n{body}"
        return Text(walk, tuple(self._parameters()), body, "\n".join(self._helpers.values()))

    def _elements(self, walk: Walk) -> str:
        """The loops over elements, with what is the same for several of them outside."""
        variables = [str(loop.variable) for loop in self._walked]
        short = [str(self._short.variable)] if self._short else []
        statements = by_loop(self.body.getvalue().splitlines(), variables[:-1], variables[-1:] + short)
        *outer, own = self._places or [""]
        each, row = [str(line) for line in statements.each], (*outer, *statements.row)
        self._functions = _functions_in(each)
        if self._short:
            each = self._written_out(self._short, each)
        loops = walk.each("\n".join((own, *each)), row="\n".join(map(str, row)), vectorize=self.vectorized)
        return "\n".join((*map(str, statements.once), loops))

    def _written_out(self, loop: Loop, lines: list[str]) -> list[str]:
        """A short loop's statements, iteration by iteration: all values, then all stores, which lie together."""
        declared = [found[1] for line in lines if (found := _DECLARED.match(line.strip()))]
        stores = sum(line.strip().startswith("store_") for line in lines)
        if len(declared) + stores < len(lines):
            return [f"UNROLL {self._for(loop)} {{", *lines, "}"]
        named = re.compile(rf"\b({'|'.join((str(loop.variable), *declared))})\b")

        def iteration(line: str, c: int) -> str:
            return named.sub(lambda m: f"{c}L" if m[1] == str(loop.variable) else f"{m[1]}_{c}", line)

        out = [iteration(line, c) for c in range(int(loop.size)) for line in lines]
        return sorted(out, key=lambda line: line.strip().startswith("store_"))

    @property
    def _places(self) -> list[str]:
        """Declarations of where an element is, for each loop of the walk."""
        last = len(self._walked) - 1
        places = []
        for k, loop in enumerate(self._walked):
            number = "tg_i" if self._rank == 0 else f"tg_i{k} + tg_j" if k == last else f"tg_i{k}"
            if self._columns and k == last:
                size = self.index_to_str(loop.size)
                places.append(f"const long tg_base = ({number}) * {WIDTH};")
                places.append(f"const int tg_m = (int)({size} - tg_base < {WIDTH} ? {size} - tg_base : {WIDTH});")
            else:
                places.append(f"const long {loop.variable} = {number};")
        return places

    @property
    def _rank(self) -> int:
        return len(self._walked) if len(self._walked) > 1 else 0

    @property
    def sizes(self) -> list[sympy.Expr]:
        """Of the space that the walk goes through."""
        sizes = [loop.size for loop in self._walked]
        if self._columns:
            sizes[-1] = (sizes[-1] + WIDTH - 1) // WIDTH
        return sizes

    @property
    def cost(self) -> int:
        """Of an element of the walk relative to an addition, once there is a text."""
        cost = 1 + 4 * self._functions
        for loop in (*self._reduced, *([self._short] if self._short else ())):
            cost *= _hint(loop.size)
        return cost * (WIDTH if self._columns else 1)

    def _parameters(self) -> list[Parameter]:
        definitions, calls, _, _ = self.args.python_argdefs()
        parameters: list[Parameter] = []
        for definition, call in zip(definitions, calls, strict=True):
            name = definition.name
            if isinstance(call, sympy.Expr):
                parameters.append(Value(name, "i64" if call.is_integer else "f64"))
                continue
            type_ = element_type(V.graph.get_dtype(call)).name
            if _is_number(call):
                parameters.append(Value(name, type_))
            else:
                parameters.append(Pointer(name, type_, const=name.startswith("in_ptr")))
        if self.messages:
            parameters += [Pointer("tg_errors", "i32"), Value("tg_code", "i32")]
        return parameters

    def call_kernel(self, name: str, node: Any = None, deallocate_ws: bool = True) -> None:
        given = [*self.given(), f"sizes={self.sizes_given()}"]
        V.graph.wrapper_code.generate_kernel_call(
            name, given, device=V.graph.get_current_device_or_throw(), triton=False
        )

    def given(self) -> list[str]:
        """The arguments of its call, as the program has them."""
        wrapper = V.graph.wrapper_code
        _, calls, _, _ = self.args.python_argdefs()
        return [wrapper.codegen_python_sizevar(c) if isinstance(c, sympy.Expr) else str(c) for c in calls]

    def sizes_given(self) -> str:
        """The sizes of the walk, as the program has them."""
        wrapper = V.graph.wrapper_code
        sizes = [wrapper.codegen_python_sizevar(V.graph.sizevars.simplify(size)) for size in self.sizes]
        return f"({''.join(f'{size}, ' for size in sizes)})"


_DECLARED = re.compile(r"(?:const )?\w+ (\w+) = [^{}]*;$")


def _functions_in(lines: Iterable[str]) -> int:
    """How many calls of functions there are that cost more than an operation."""
    return sum(len(re.findall(r"\btg_\w+_f\d\d\(", line)) for line in lines)


def _text(statements: str | IndentedBuffer) -> str:
    return statements if isinstance(statements, str) else str(statements.getvalue())


def _block(head: str, *parts: str | IndentedBuffer) -> IndentedBuffer:
    """Statements behind a head that opens a brace."""
    out = IndentedBuffer()
    out.writeline(head)
    for part in parts:
        if isinstance(part, str):
            out.writeline(part)
        else:
            out.splice(part)
    out.writeline("}")
    return out


def _innermost_last(loops: list[Loop], units: dict[Loop, int]) -> list[Loop]:
    """The loops with the one last along which the most operands lie in memory, the innermost one of equals."""
    if not loops:
        return []
    best = max(range(len(loops)), key=lambda k: (units[loops[k]], k))
    return [*loops[:best], *loops[best + 1 :], loops[best]]


def _is_short(loop: Loop) -> bool:
    return isinstance(loop.size, sympy.Integer) and loop.size < _SHORTEST


def _is_reduced(trees: Loops) -> bool:
    return bool(prefix_is_reduction(trees.tree.prefix))


def _stride(index: sympy.Expr, loop: Loop) -> sympy.Expr:
    return sympy_subs(index, {loop.variable: sympy.S.One}) - sympy_subs(index, {loop.variable: sympy.S.Zero})


def _device() -> int:
    """The index of the device that a kernel is made for."""
    return V.graph.get_current_device_or_throw().index or 0


def _name_of_op(origin: torch.fx.Node) -> str:
    """The op that a node of the graph is of in the user's program, without the underscore of one that writes to its
    operand."""
    op = origin.meta.get("original_aten") or origin.target
    return op._schema.name.partition("::")[2].rstrip("_") if isinstance(op, torch._ops.OpOverload) else ""


def _indexes(origin: torch.fx.Node, size: sympy.Expr) -> bool:
    """Whether a node's first operand has a dimension of this size."""
    value = origin.all_input_nodes[0].meta.get("val") if origin.all_input_nodes else None
    sizes = value.shape if isinstance(value, torch.Tensor) else ()
    exprs = (each.node.expr if isinstance(each, torch.SymInt) else sympy.Integer(each) for each in sizes)
    return any(V.graph.sizevars.statically_known_equals(each, size) for each in exprs)


def _is_number(name: str) -> bool:
    """Whether a buffer is a tensor of the CPU without dimensions, whose value is given to a kernel."""
    buffer = V.graph.try_get_buffer(name)
    return buffer is not None and get_device_type(buffer) == "cpu" and not buffer.get_size()


def _compute(dtype: torch.dtype) -> str:
    return BY_NAME[element_type(dtype).name].compute


def _ctype(dtype: torch.dtype) -> str:
    return value_ctype(element_type(dtype).name)


def _hint(size: sympy.Expr) -> int:
    return int(V.graph.sizevars.optimization_hint(size, fallback=1 << 10))
