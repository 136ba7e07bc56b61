"""Products of blocks: sums of a few rows and columns are kept in registers."""

from __future__ import annotations

from torchgraft.triton.blocks import Computed
from torchgraft.triton.elements import CTYPES, KEPT
from torchgraft.triton.ir import Op
from torchgraft.triton.refused import Refused
from torchgraft.triton.translate import Translator

__all__ = ["dot"]

# Rows and vectors of sums in registers: with operands these fit into 16 of them.
_ROWS, _VECTORS = 4, 2


def dot(t: Translator, op: Op) -> None:
    a, b, start = (t.as_block(each) for each in op.operands)
    result = op.results[0]
    *batch, m, k = a.type.shape
    n = b.type.shape[-1]
    element = result.type.element
    if any(each.type.element.startswith("f8") for each in (a, b, start)):
        raise Refused("float8", op)
    t.close()
    places = [t.in_array(each) for each in (a, b)]
    alone = isinstance(start, Computed) and op.operands[2].users == [op]
    into = start.array if isinstance(start, Computed) and alone else t.place_of(result)
    if not alone:
        t.in_array(start, into)
    name = _function(t, (KEPT[a.type.element], KEPT[b.type.element], CTYPES[element]), m, n, k)
    if batch:
        t.put(f"for (int batch = 0; batch < {batch[0]}; ++batch)")
        offsets = [f" + batch * {size}" for size in (m * n, m * k, k * n)]
    else:
        offsets = [""] * 3
    t.put(f"{name}({', '.join(each + at for each, at in zip((into, *places), offsets, strict=True))});")
    if element in ("f16", "bf16"):
        t.put(f"VECTORIZE for (int i = 0; i < {result.type.size}; ++i) {into}[i] = tg_narrow_{element}({into}[i]);")
    t.values[result] = Computed(result.type, into)


def _function(t: Translator, types: tuple[str, str, str], m: int, n: int, k: int) -> str:
    """The function that adds a product to a block of sums."""
    a, b, c = types
    name = f"triton_dot_{a}_{b}_{c}_{m}_{n}_{k}"
    lanes = {"float": 16, "double": 8}.get(c, 0)
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
    rows, vectors = min(_ROWS, m), _VECTORS if n % (_VECTORS * lanes) == 0 else 1
    vector = f"{ctype}{lanes}"
    sums = [(r, v) for r in range(rows) for v in range(vectors)]
    lines = [
        f"WIDE inline void {name}({ctype}* c, const {ctype}* a, const {ctype}* b) {{",
        f"  for (int n = 0; n < {n}; n += {vectors * lanes})",
        f"    for (int m = 0; m < {m}; m += {rows}) {{",
    ]
    lines += [f"      {vector} c{r}_{v} = *({vector}u*)(c + (m + {r}) * {n} + n + {v * lanes});" for r, v in sums]
    lines += [f"      PLAIN for (int k = 0; k < {k}; ++k) {{"]
    lines += [f"        const {vector} b{v} = *({vector}u*)(b + k * {n} + n + {v * lanes});" for v in range(vectors)]
    for r in range(rows):
        lines.append(f"        const {vector} x{r} = SPLAT_{vector}(a[(m + {r}) * {k} + k]);")
        lines += [f"        c{r}_{v} = fma(x{r}, b{v}, c{r}_{v});" for v in range(vectors)]
    lines += ["      }"]
    lines += [f"      *({vector}u*)(c + (m + {r}) * {n} + n + {v * lanes}) = c{r}_{v};" for r, v in sums]
    return "\n".join([*lines, "    }", "}"])
