"""Attention whose scores are changed and masked by functions that a user has given, for CPUs.

As `attention.py` does it: a work-item takes as many queries as two vectors hold, and goes over keys block by block.
Here the blocks are those that a table lists for the queries: of some the functions say which keys count, of others all
do. Blocks in neither list are not looked at.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from torchgraft.codegen.kernel import Kernel, parameters
from torchgraft.codegen.types import value_ctype
from torchgraft.kernels.attention import (
    _QUERY,
    BLOCK,
    Variant,
    _common,
    _each,
    _gathered,
    _operands,
    _pack,
    _pointers,
    _rows,
    _scores,
    _unpack,
)

__all__ = ["Functions", "forward"]


@dataclass(frozen=True)
class Functions:
    """What becomes of a score, in the kernel language.

    Attributes:
        score: statements that set `tg_s`, the score, from itself and its place: `tg_b`, `tg_h`, `tg_m`, `tg_n`.
        mask: statements that set `tg_kept`, which is true, to false where it does not count.
        captured: element types of the tensors `c0`, `c1`, ... that they read.
        helpers: definitions of functions that they call.
        has_full: whether there are blocks in which all scores count.
    """

    score: str
    mask: str
    captured: tuple[str, ...]
    helpers: str
    has_full: bool


def _changed(v: Variant, f: Functions) -> str:
    """Applies the functions to the scores of a block of keys (rows) by queries (lanes)."""

    def each(statements: str) -> str:
        return f"""\
    PLAIN for (int tg_r = 0; tg_r < n; ++tg_r) {{
      const int tg_b = (int)b, tg_h = (int)h, tg_n = (int)k0 + tg_r, tg_first = (int)q0, tg_last = (int)q0 + nq - 1;
      {v.scalar}* tg_row = ({v.scalar}*)st + tg_r * {v.lanes};
      VECTORIZE
      for (int tg_i = 0; tg_i < {v.lanes}; ++tg_i) {{
        const int tg_m = min(tg_first + tg_i, tg_last);
        {v.scalar} tg_s = tg_row[tg_i];
{statements}
        tg_row[tg_i] = tg_s;
      }}
    }}
"""

    mask = f"bool tg_kept = true;\n{f.mask}\n        tg_s = tg_kept ? tg_s : ({v.scalar})-INFINITY;" if f.mask else ""
    both = f"        {{ {f.score} }}\n        {{ {mask} }}"
    if not f.has_full or not f.mask:
        return each(both) if f.score or f.mask else ""
    return f"    if (tg_list == 0) {{\n{each(both)}    }} else {{\n{each(f.score) if f.score else ''}    }}\n"


@functools.cache
def forward(v: Variant, f: Functions) -> Kernel:
    """Parameters: `q`, `k`, `v`, `out` with their strides; `lse` and `largest` [batch, heads, queries], to base 2;
    `counts` [.., .., blocks of queries] and `places` [.., .., blocks of queries, blocks of keys] of the blocks with a
    mask, `full_counts` and `full_places` of those without, if there are; `table_b`, `table_h`, how far apart tables of
    a batch and a head are, in rows; `q_blocks`, `k_blocks`, the tables' sizes; `q_size`, `k_size`, those of a block;
    `c0`, `c1`, ...; `heads`, `group`, `sq`, `sk`, `scale`.
    """
    rows = BLOCK + 8
    exponent = f"(({v.scalar}*)st)[i] = tg_exp_below_{v.compute}((({v.scalar}*)st)[i]);"
    count, place = "load_i32(counts, table)", "load_i32(places, table * k_blocks + j)"
    if f.has_full:
        count = f"(tg_list == 0 ? {count} : load_i32(full_counts, table))"
        place = f"(tg_list == 0 ? {place} : load_i32(full_places, table * k_blocks + j))"
    to_base_2 = f"({v.scalar})1.4426950408889634"
    body = f"""\
{_common(v, "q")}
{_QUERY}
{_pointers(v, "q", "k", "v")}
  const long block = q0 / q_size;
  const long table = b * table_b + h * table_h + (block < q_blocks ? block : q_blocks - 1);
  {v.vector} qt[{2 * v.head}], st[{2 * rows}], ot[{2 * v.value_head}];
{_pack(v, "qt", "(q_h + q0 * qss)", "qss", "nq", v.head, " * scale")}
  for (int i = 0; i < {2 * v.value_head}; ++i) ot[i] = {v.splat("0")};
  const {v.vector} none = {v.splat("0")}, least = {v.splat("-INFINITY")};
  {v.vector} m0 = least, m1 = least, l0 = none, l1 = none;
  PLAIN for (int tg_list = 0; tg_list < {2 if f.has_full else 1}; ++tg_list) {{
  const long listed = {count};
  PLAIN for (long j = 0; j < listed; ++j) {{
  const long begin = (long){place} * k_size, end = begin + k_size < sk ? begin + k_size : sk;
  for (long k0 = begin; k0 < end; k0 += {BLOCK}) {{
    const int n = (int)(end - k0 < {BLOCK} ? end - k0 : {BLOCK});
{_rows(v, "key", "(k_h + k0 * kss)", "kss", v.head)}
{_scores(v, "st", "key", "qt", v.head)}
{_changed(v, f)}
    {v.vector} n0 = m0, n1 = m1;
    PLAIN for (int r = 0; r < n; ++r) {{
      n0 = SELECT(st[2 * r] > n0, st[2 * r], n0);
      n1 = SELECT(st[2 * r + 1] > n1, st[2 * r + 1], n1);
    }}
    /* Where all is masked so far the maximum is -infinity, and nothing may be taken from it. */
    const {v.vector} f0 = SELECT(n0 == least, none, n0), f1 = SELECT(n1 == least, none, n1);
    PLAIN for (int r = 0; r < n; ++r) {{
      st[2 * r] -= f0;
      st[2 * r + 1] -= f1;
    }}
    st[2 * n] = m0 - f0;
    st[2 * n + 1] = m1 - f1;
{_each(v, f"(n + 1) * {v.lanes}", exponent)}
    const {v.vector} alpha = st[2 * n], beta = st[2 * n + 1];
    l0 *= alpha;
    l1 *= beta;
    PLAIN for (int r = 0; r < n; ++r) {{
      l0 += st[2 * r];
      l1 += st[2 * r + 1];
    }}
    m0 = n0;
    m1 = n1;
{_rows(v, "val", "(v_h + k0 * vss)", "vss", v.value_head)}
{_gathered(v, "ot", "st", "val", v.value_head, True)}
  }}
  }}
  }}
  st[0] = SELECT(l0 == none, none, 1 / l0);
  st[1] = SELECT(l1 == none, none, 1 / l1);
  PLAIN for (int c = 0; c < {v.value_head}; ++c) {{
    ot[2 * c] *= st[0];
    ot[2 * c + 1] *= st[1];
  }}
  GLOBAL {_storage(v)}* out_at = out + b * outsb + h * outsh + q0 * outss;
{_unpack(v, "out_at", "ot", "outss", "nq", v.value_head)}
  st[0] = l0; st[1] = l1; st[2] = m0; st[3] = m1;
  for (int r = 0; r < nq; ++r) {{
    const {v.scalar} l = (({v.scalar}*)st)[r], most = (({v.scalar}*)st)[{v.lanes} + r];
    const long to = bh * sq + q0 + r;
    store_f32(lse, to, (float)((l == 0 ? ({v.scalar})-INFINITY : most + tg_log_{v.compute}(l)) * {to_base_2}));
    store_f32(largest, to, (float)(most * {to_base_2}));
  }}"""
    full = ", full_counts, full_places" if f.has_full else ""
    captured = "; ".join(f"const {type_}* c{i}" for i, type_ in enumerate(f.captured))
    declarations = (
        f"{_operands(v, 'q k v', 'out')}; f32* lse, largest; const i32* counts, places{full}; "
        f"i64 table_b, table_h, q_blocks, k_blocks, q_size, k_size; {captured}; "
        f"i64 heads, group, sq, sk; {v.compute} scale"
    )
    return Kernel(v.tag("flex"), parameters(declarations), body, helpers=f.helpers, local=(1,))


def _storage(v: Variant) -> str:
    return {"f16": "half", "bf16": "ushort"}.get(v.storage, value_ctype(v.storage))
