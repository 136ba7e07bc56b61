"""Products of blocks: sums of a few rows and columns are kept in registers."""

from __future__ import annotations

from torchgraft.triton.blocks import REGISTERS, Block, Computed
from torchgraft.triton.elements import CTYPES, KEPT
from torchgraft.triton.ir import Op, Value
from torchgraft.triton.refused import Refused
from torchgraft.triton.team import TeamTranslator
from torchgraft.triton.translate import Translator

__all__ = ["dot"]

# Rows and vectors of sums in registers: with operands these fit into 16 of them, as vectors as wide as registers do.
_ROWS, _VECTORS = 6, 2
# Sums that a work-item of a group has at a time.
_MOST_SUMS = 64


def dot(t: Translator, op: Op) -> None:
    if isinstance(t, TeamTranslator):
        _dealt(t, op)
    else:
        _serial(t, op)


def _serial(t: Translator, op: Op) -> None:
    """A product by one work-item."""
    *batch, m, k = op.operands[0].type.shape
    n, result = op.operands[1].type.shape[-1], op.results[0]
    (a, b), into = _operands(t, op)
    types = tuple(op.operands[d].type.element for d in range(2))
    name = _function(t, (KEPT[types[0]], KEPT[types[1]], CTYPES[result.type.element]), m, n, k)
    offsets = [""] * 3
    if batch:
        t.put(f"for (int batch = 0; batch < {batch[0]}; ++batch)")
        offsets = [f" + batch * {size}" for size in (m * n, m * k, k * n)]
    t.put(f"{name}({', '.join(each + at for each, at in zip((into, a, b), offsets, strict=True))});")
    if result.type.element in ("f16", "bf16"):
        rounded = f"tg_narrow_{result.type.element}({into}[i])"
        t.put(f"VECTORIZE for (int i = 0; i < {result.type.size}; ++i) {into}[i] = {rounded};")
    t.values[result] = Computed(result.type, into)


def _operands(t: Translator, op: Op) -> tuple[list[str], str]:
    """Where the operands lie, and where the sums do: what they begin with lies there already."""
    blocks: list[Block] = [t.as_block(each) for each in op.operands]
    result = op.results[0]
    if any(each.type.element.startswith("f8") for each in blocks):
        raise Refused("float8", op)
    t.close()
    places = [t.in_array(each) for each in blocks[:2]]
    start = blocks[2]
    is_last = op.operands[2].users == [op] and _is_as_often(op, op.operands[2])
    if isinstance(start, Computed) and is_last and t.suits(start.array, result):
        return places, start.array
    into = t.place_of(result)
    t.in_array(start, into)
    return places, into


def _is_as_often(op: Op, value: Value) -> bool:
    """Whether a value is computed as often as an op runs: what is read in each turn of a loop must stay."""
    assert op.block is not None
    return value in op.block.arguments if value.owner is None else value.owner.block is op.block


def _function(t: Translator, types: tuple[str, str, str], m: int, n: int, k: int) -> str:
    """The function that adds a product to a block of sums."""
    a, b, c = types
    name = f"triton_dot_{a}_{b}_{c}_{m}_{n}_{k}"
    lanes = {"float": t.lanes, "double": max(4, t.lanes // 2)}.get(c, 0)
    if a == b == c and lanes and n % lanes == 0:
        text = _in_registers(name, c, lanes, m, n, k)
    else:
        text = f"""\
TG_FUNCTION void {name}({c}* c, const {a}* a, const {b}* b) {{
  for (int m = 0; m < {m}; ++m)
    for (int k = 0; k < {k}; ++k) {{
      const {c} x = a[m * {k} + k];
      VECTORIZE for (int n = 0; n < {n}; ++n) c[m * {n} + n] += x * ({c})b[k * {n} + n];
    }}
}}"""
    t.helpers[name] = text
    return name


def _in_registers(name: str, ctype: str, lanes: int, m: int, n: int, k: int) -> str:
    vectors = _VECTORS if n % (_VECTORS * lanes) == 0 else 1
    whole, rest = m // _ROWS * _ROWS, m % _ROWS
    lines = [
        f"WIDE inline void {name}({ctype}* c, const {ctype}* a, const {ctype}* b) {{",
        f"  for (int n = 0; n < {n}; n += {vectors * lanes}) {{",
    ]
    if whole:
        lines += [
            f"    for (int m = 0; m < {whole}; m += {_ROWS}) {{",
            *_sums(ctype, lanes, _ROWS, vectors, n, k),
            "    }",
        ]
    if rest:
        lines += [f"    {{ const int m = {whole};", *_sums(ctype, lanes, rest, vectors, n, k), "    }"]
    return "\n".join([*lines, "  }", "}"])


def _sums(ctype: str, lanes: int, rows: int, vectors: int, n: int, k: int) -> list[str]:
    """Adds to the sums of so many rows and vectors, from `m` and `n` on."""
    vector = f"{ctype}{lanes}"
    sums = [(r, v) for r in range(rows) for v in range(vectors)]
    lines = [f"      {vector} c{r}_{v} = *({vector}u*)(c + (m + {r}) * {n} + n + {v * lanes});" for r, v in sums]
    lines += [f"      PLAIN for (int k = 0; k < {k}; ++k) {{"]
    lines += [f"        const {vector} b{v} = *({vector}u*)(b + k * {n} + n + {v * lanes});" for v in range(vectors)]
    for r in range(rows):
        lines.append(f"        const {vector} x{r} = SPLAT_{vector}(a[(m + {r}) * {k} + k]);")
        lines += [f"        c{r}_{v} = fma(x{r}, b{v}, c{r}_{v});" for v in range(vectors)]
    lines += ["      }"]
    return lines + [f"      *({vector}u*)(c + (m + {r}) * {n} + n + {v * lanes}) = c{r}_{v};" for r, v in sums]


def _dealt(t: TeamTranslator, op: Op) -> None:
    """A product by a group's work-items: each adds to the elements that it has, some of its rows at a time."""
    result = op.results[0]
    (a, b), into = _operands(t, op)
    *batch, m, n = result.type.shape
    depth, nest = op.operands[0].type.shape[-1], t.nest(result.type.shape)
    row, column = len(batch), len(batch) + 1
    rows, columns = nest.trips[-2:]
    some = max(1, min(rows, _MOST_SUMS // columns))
    ctype, element = CTYPES[result.type.element], result.type.element

    def at(d: int, number: str) -> str:
        return f"({number}) * {nest.lanes[d]} + {nest.lane(d)}"

    if into.startswith(REGISTERS):
        first = f"j0 * {rows * columns} + " if batch and nest.trips[0] > 1 else ""
        held = f"{into}[{first}(j + r) * {columns} + c]"
    else:
        first = f"i0 * {m * n} + " if batch else ""
        held = f"{into}[{first}({at(row, 'j + r')}) * {n} + {at(column, 'c')}]"
    in_a, in_b = (f"i0 * {size} + " if batch else "" for size in (m * depth, depth * n))
    each_row, each_column = f"UNROLL for (int r = 0; r < {some}; ++r)", f"UNROLL for (int c = 0; c < {columns}; ++c)"
    sums = f"s[r * {columns} + c]"
    product = f"fma(x[r], y[c], {sums})" if ctype in ("float", "double") else f"{sums} + x[r] * y[c]"
    rounded = f"tg_narrow_{element}({sums})" if element in ("f16", "bf16") else sums
    inside = [
        f"UNROLL for (int j = 0; j < {rows}; j += {some}) {{",
        f"{ctype} s[{some * columns}];",
        f"{each_row} {each_column} {sums} = {held};",
        f"PLAIN for (int k = 0; k < {depth}; ++k) {{",
        f"{ctype} x[{some}], y[{columns}];",
        f"{each_row} x[r] = {a}[{in_a}({at(row, 'j + r')}) * {depth} + k];",
        f"{each_column} y[c] = {b}[{in_b}k * {n} + {at(column, 'c')}];",
        f"{each_row} {each_column} {sums} = {product};",
        "}",
        f"{each_row} {each_column} {held} = {rounded};",
        "}",
    ]
    t.phase(nest.batches(inside), [into])
    t.values[result] = Computed(result.type, into)
