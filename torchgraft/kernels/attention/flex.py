"""Attention whose scores are changed and masked by functions that a user has given, for CPUs.

As `lanes` does it: a work-item takes as many queries as two vectors hold, and goes over keys block by block.
Here the blocks are those that a table lists for the queries: of some the functions say which keys count, of others all
do. Blocks in neither list are not looked at.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from torchgraft.codegen.kernel import Kernel, parameters
from torchgraft.kernels.attention.lanes import Parts, forward_body, key_gradient_body, query_gradient_body
from torchgraft.kernels.attention.variant import Variant

__all__ = ["Functions", "forward", "key_gradient", "query_gradient"]


@dataclass(frozen=True)
class Functions:
    """What becomes of a score, in the kernel language.

    Attributes:
        score: statements that set `tg_s`, the score, from itself and its place: `tg_b`, `tg_h`, `tg_m`, `tg_n`.
        mask: statements that set `tg_kept`, which is true, to false where it does not count.
        captured: element types of the tensors `c0`, `c1`, ... that they read.
        helpers: definitions of functions that they call.
        has_full: whether there are blocks in which all scores count.
        gradient: statements that set `tg_g`, the gradient of what `score` gives, to that of what it takes.
    """

    score: str
    mask: str
    captured: tuple[str, ...]
    helpers: str
    has_full: bool
    gradient: str = ""


def _over_scores(v: Variant, side: str, statements: str) -> str:
    """Statements for each score of a block: lanes are queries ("q") and rows keys, or the other way round ("k")."""
    row, lane = ("n", "m") if side == "q" else ("m", "n")
    other = "k" if side == "q" else "q"
    return f"""\
    PLAIN for (int tg_r = 0; tg_r < n; ++tg_r) {{
      const int tg_b = (int)b, tg_h = (int)h, tg_{row} = (int){other}0 + tg_r;
      const int tg_first = (int){side}0, tg_last = (int){side}0 + n{side} - 1;
      VECTORIZE
      for (int tg_i = 0; tg_i < {v.lanes}; ++tg_i) {{
        const int tg_{lane} = min(tg_first + tg_i, tg_last), tg_at = tg_r * {v.lanes} + tg_i;
{statements}
      }}
    }}
"""


def _changed(v: Variant, f: Functions, side: str) -> str:
    """Applies the functions to the scores of a block."""
    score = f"{{ {f.score} }}" if f.score else ""
    mask = f"bool tg_kept = true; {{ {f.mask} }} tg_s = tg_kept ? tg_s : ({v.scalar})-INFINITY;" if f.mask else ""

    def each(*parts: str) -> str:
        scores = f"(({v.scalar}*)st)[tg_at]"
        statements = "\n".join((f"        {v.scalar} tg_s = {scores};", *parts, f"        {scores} = tg_s;"))
        return _over_scores(v, side, statements) if any(parts) else ""

    if not f.has_full or not f.mask:
        return each(score, mask)
    return f"    if (tg_list == 0) {{\n{each(score, mask)}    }} else {{\n{each(score)}    }}\n"


def _derived(v: Variant, f: Functions, side: str) -> str:
    """Makes gradients of what the function gives those of what it takes, which is kept in `rt`."""
    if not f.gradient:
        return ""
    statements = f"""\
        const {v.scalar} tg_s = (({v.scalar}*)rt)[tg_at], tg_weight = (({v.scalar}*)st)[tg_at];
        {v.scalar} tg_g = (({v.scalar}*)dp)[tg_at];
        {{ {f.gradient} }}
        (({v.scalar}*)dp)[tg_at] = tg_weight == 0 ? ({v.scalar})0 : tg_g;"""
    return _over_scores(v, side, statements)


def _kept(v: Variant, f: Functions) -> str:
    return "    PLAIN for (int r = 0; r < 2 * n; ++r) rt[r] = st[r];\n" if f.gradient else ""


def _listed(f: Functions, tables: tuple[str, str], width: str, size: str, most: str) -> tuple[str, str]:
    """Loops over the blocks that the tables list, and their ends: `begin` and `end` of each."""
    counts, places = tables
    count, place = f"load_i32({counts}, table)", f"load_i32({places}, table * {width} + j)"
    if f.has_full:
        count = f"(tg_list == 0 ? {count} : load_i32(full_{counts}, table))"
        place = f"(tg_list == 0 ? {place} : load_i32(full_{places}, table * {width} + j))"
    return (
        f"""\
  PLAIN for (int tg_list = 0; tg_list < {2 if f.has_full else 1}; ++tg_list) {{
  const long listed = {count};
  PLAIN for (long j = 0; j < listed; ++j) {{
  const long begin = (long){place} * {size}, end = begin + {size} < {most} ? begin + {size} : {most};""",
        "  }\n  }",
    )


def _of_blocks(v: Variant, f: Functions, side: str, **parts: str) -> Parts:
    """Of a kernel that goes over the blocks that are listed; `side` is in the lanes."""
    arrays = f"{v.vector} rt[{2 * (v.block + 8)}];" if f.gradient else ""
    scores = f"{_kept(v, f)}\n{_changed(v, f, side)}"
    return Parts(first="begin", arrays=arrays, scores=scores, gradients=_derived(v, f, side), **parts)


def _over_keys(v: Variant, f: Functions, *names: str) -> Parts:
    begin = f"""\
{v.pointers(*names)}
  const long block = q0 / q_size;
  const long table = b * table_b + h * table_h + (block < q_blocks ? block : q_blocks - 1);"""
    loops, ends = _listed(f, ("counts", "places"), "k_blocks", "k_size", "sk")
    return _of_blocks(v, f, "q", begin=begin, rows=loops, close=ends)


@functools.cache
def forward(v: Variant, f: Functions) -> Kernel:
    """Parameters: `q`, `k`, `v`, `out` with their strides; `lse` and `largest` [batch, heads, queries], to base 2;
    `counts` [.., .., blocks of queries] and `places` [.., .., blocks of queries, blocks of keys] of the blocks with a
    mask, `full_counts` and `full_places` of those without, if there are; `table_b`, `table_h`, how far apart tables of
    a batch and a head are, in rows; `q_blocks`, `k_blocks`, the tables' sizes; `q_size`, `k_size`, those of a block;
    `c0`, `c1`, ...; `heads`, `group`, `sq`, `sk`, `scale`.
    """
    to_base_2 = f"({v.scalar})1.4426950408889634"
    body = f"""\
{forward_body(v, _over_keys(v, f, "q", "k", "v"))}
  for (int r = 0; r < nq; ++r) {{
    const {v.scalar} l = (({v.scalar}*)st)[r], most = (({v.scalar}*)st)[{v.lanes} + r];
    const long to = bh * sq + q0 + r;
    store_f32(lse, to, (float)((l == 0 ? ({v.scalar})-INFINITY : most + tg_log_{v.compute}(l)) * {to_base_2}));
    store_f32(largest, to, (float)(most * {to_base_2}));
  }}"""
    declarations = f"{v.operands('q k v', 'out')}; f32* lse, largest; {_tables(f, 'counts', 'places')}"
    return _kernel(v, f, "flex", declarations, body)


def _tables(f: Functions, counts: str, places: str) -> str:
    full = f", full_{counts}, full_{places}" if f.has_full else ""
    return f"const i32* {counts}, {places}{full}; i64 table_b, table_h, q_blocks, k_blocks, q_size, k_size"


def _kernel(v: Variant, f: Functions, name: str, declarations: str, body: str) -> Kernel:
    captured = "; ".join(f"const {type_}* c{i}" for i, type_ in enumerate(f.captured))
    rest = f"{captured}; i64 heads, group, sq, sk; {v.compute} scale"
    return Kernel(v.tag(name), parameters(f"{declarations}; {rest}"), body, helpers=f.helpers, local=(1,))


_LN_2 = "0.6931471805599453"


def _weight_of_rows(v: Variant) -> str:
    """Names what is taken from the scores of row `at`, so that they become weights: nothing is left of an empty one."""
    return f"""\
      const {v.scalar} stored = load_f32(lse, at);
      const {v.scalar} sum = stored == ({v.scalar})-INFINITY ? ({v.scalar})INFINITY : stored * ({v.scalar}){_LN_2};"""


@functools.cache
def query_gradient(v: Variant, f: Functions) -> Kernel:
    """Parameters: `q`, `k`, `v`, `g` (the result's gradient), `dq` with their strides; `lse` as `forward` gives it, and
    `delta`, what is taken from the gradient of each weight, [batch, heads, queries]; the tables and the rest as for
    `forward`.
    """
    sums = f"""\
  for (int r = 0; r < {v.lanes}; ++r) {{
    const long at = bh * sq + q0 + (r < nq ? r : nq - 1);
{_weight_of_rows(v)}
    (({v.scalar}*)st)[r] = sum;
    (({v.scalar}*)dp)[r] = load_f32(delta, at);
  }}
  const {v.vector} lse0 = st[0], lse1 = st[1], delta0 = dp[0], delta1 = dp[1];"""
    body = query_gradient_body(v, replace(_over_keys(v, f, "q", "k", "v", "g"), sums=sums))
    declarations = f"{v.operands('q k v g', 'dq')}; const f32* lse, delta; {_tables(f, 'counts', 'places')}"
    return _kernel(v, f, "flex_query_gradient", declarations, body)


@functools.cache
def key_gradient(v: Variant, f: Functions) -> Kernel:
    """Parameters: `q`, `k`, `v`, `g`, `dk`, `dv` with their strides; `lse` and `delta`; `q_counts` and `q_places`, the
    tables of the blocks of queries for each of keys, [.., .., blocks of keys] and [.., .., blocks of keys, blocks of
    queries], and `full_q_counts`, `full_q_places`; the rest as for `query_gradient`.
    """
    loops, ends = _listed(f, ("q_counts", "q_places"), "q_blocks", "q_size", "sq")
    parts = _of_blocks(
        v,
        f,
        "k",
        begin="  const long block = k0 / k_size;",
        rows=f"""\
  if (block < k_blocks) for (long h = hk * group; h < (hk + 1) * group; ++h) {{
  const long bh = b * heads + h, table = b * table_b + h * table_h + block;
{v.pointers("q", "g")}
{loops}""",
        close=f"{ends}\n  }}",
        sum_of_row=f"""\
      const long at = bh * sq + q0 + r;
{_weight_of_rows(v)}
      const {v.vector} less = {v.splat("sum")};""",
        delta_of_row=f"""\
      const {v.scalar} taken = load_f32(delta, bh * sq + q0 + r);
      const {v.vector} less = {v.splat("taken")};""",
    )
    body = key_gradient_body(v, parts)
    declarations = f"{v.operands('q k v g', 'dk dv')}; const f32* lse, delta; {_tables(f, 'q_counts', 'q_places')}"
    return _kernel(v, f, "flex_key_gradient", declarations, body)
