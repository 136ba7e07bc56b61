"""Attention in the CPU form: a work-item takes as many queries (for the gradients of keys and values: keys) as two
vectors hold.

They stay in the vectors' lanes throughout: scores are kept transposed, so that maxima, sums and factors of the softmax
are plain vectors, and what is read from memory - keys, values - is read in its own layout, element by element into all
lanes. Two small products do all the work, with their sums in registers: `_scores` (rows of memory times lanes) and
`_gathered` (weights in lanes times rows of memory); of packed bfloat16, both are those of `packed_bfloat16`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from torchgraft.codegen.kernel import Kernel
from torchgraft.codegen.types import BY_NAME
from torchgraft.codegen.vectors import transpose_registers
from torchgraft.kernels.attention import packed_bfloat16
from torchgraft.kernels.attention.variant import QUERY, Variant


def _pack(v: Variant, to: str, base: str, row: str, count: str, size: int, factor: str = "") -> str:
    """The rows of a block of queries (or keys) as columns of `to`: element d of all lanes in two vectors; lanes
    without a row are 0. With pairs the factor is left to the scores.
    """
    if v.packed:
        factor = ""
    value = f"load_{v.storage}({base}, (long)(r < {count} ? r : 0) * {row} + d)"
    return f"""\
  PLAIN for (int d = 0; d < {size}; ++d) {{
    VECTORIZE
    for (int r = 0; r < {v.lanes}; ++r) {{
      {v.scalar} x = {value}{factor};
      (({v.scalar}*){to})[d * {v.lanes} + r] = r < {count} ? x : 0;
    }}
  }}"""


def _unpack(v: Variant, to: str, by: str, row: str, count: str, size: int, factor: str = "") -> str:
    """The opposite of `_pack`."""
    return f"""\
  for (int r = 0; r < {count}; ++r)
    for (int d = 0; d < {size}; ++d)
      store_{v.storage}({to}, (long)r * {row} + d, (({v.scalar}*){by})[d * {v.lanes} + r]{factor});"""


def _rows(v: Variant, name: str, base: str, row: str, size: int) -> str:
    """Names the rows of a block: `name`_m and their stride `name`_s, in private memory if they have to be converted."""
    if v.packed:
        return packed_bfloat16.rows(name, base, row, size, v.block)
    if not v.converted:
        return f"    {v.pointer} {name}_m = {base};\n    const long {name}_s = {row};"
    return f"""\
    {v.scalar} {name}_m[{v.block * size}];
    for (int r = 0; r < n; ++r) {{
      VECTORIZE
      for (int d = 0; d < {size}; ++d) {name}_m[r * {size} + d] = load_{v.storage}({base}, (long)r * {row} + d);
    }}
    const long {name}_s = {size};"""


def _accumulators(count: int) -> list[tuple[str, str]]:
    return [(f"a{i}", f"b{i}") for i in range(count)]


def _columns(v: Variant, name: str, size: int) -> str:
    """Makes of what `_pack` has packed what `_scores` takes."""
    return packed_bfloat16.columns(name, size) if v.packed else ""


def _scores(v: Variant, out: str, rows: str, columns: str, size: int, scaled: bool = False) -> str:
    """out[r] = sum over d of rows[r][d] * columns[d], for n rows; up to 7 rows behind them are overwritten (with
    pairs up to 31, within a block). `scaled` where `_pack` was given the scale.
    """
    if v.packed:
        return packed_bfloat16.scores(v.packed, out, rows, columns, size, scaled)
    pairs = _accumulators(v.together)
    kind = f"const {v.scalar}*" if v.converted else v.pointer
    pointers = "\n".join(
        f"      {kind} m{i} = {rows}_m + (r + {i} < n ? r + {i} : n - 1) * {rows}_s;" for i in range(v.together)
    )
    products = "\n".join(
        f"        {{ const {v.vector} s = {v.splat(f'm{i}[d]')}; {a} = fma(x, s, {a}); {b} = fma(y, s, {b}); }}"
        for i, (a, b) in enumerate(pairs)
    )
    stores = " ".join(f"{out}[2 * (r + {i})] = {a}; {out}[2 * (r + {i}) + 1] = {b};" for i, (a, b) in enumerate(pairs))
    return f"""\
    PLAIN for (int r = 0; r < n; r += {v.together}) {{
{pointers}
      {v.vector} {", ".join(f"{a} = {v.splat('0')}, {b} = {v.splat('0')}" for a, b in pairs)};
      PLAIN for (int d = 0; d < {size}; ++d) {{
        const {v.vector} x = {columns}[2 * d], y = {columns}[2 * d + 1];
{products}
      }}
      {stores}
    }}"""


def _gathered(v: Variant, sums: str, weights: str, rows: str, size: int, factor: bool = False) -> str:
    """sums[c] = sums[c] * (alpha, beta) + the sum over n rows of weights[r] * rows[r][c]."""
    if v.packed:
        return packed_bfloat16.gathered(v.packed, sums, weights, rows, size, v.block, factor)
    kind = f"const {v.scalar}*" if v.converted else v.pointer

    def tile(first: str, count: int) -> str:
        pairs = _accumulators(count)
        loads = " ".join(
            f"{v.vector} {a} = {sums}[2 * ({first} + {i})]{' * alpha' if factor else ''}, "
            f"{b} = {sums}[2 * ({first} + {i}) + 1]{' * beta' if factor else ''};"
            for i, (a, b) in enumerate(pairs)
        )
        products = "\n".join(
            f"        {{ const {v.vector} s = {v.splat(f'm[{i}]')}; {a} = fma(x, s, {a}); {b} = fma(y, s, {b}); }}"
            for i, (a, b) in enumerate(pairs)
        )
        stores = " ".join(
            f"{sums}[2 * ({first} + {i})] = {a}; {sums}[2 * ({first} + {i}) + 1] = {b};"
            for i, (a, b) in enumerate(pairs)
        )
        return f"""\
      {loads}
      {kind} m = {rows}_m + {first};
      PLAIN for (int r = 0; r < n; ++r, m += {rows}_s) {{
        const {v.vector} x = {weights}[2 * r], y = {weights}[2 * r + 1];
{products}
      }}
      {stores}"""

    text, most = "", v.together
    if size >= most:
        text = f"    PLAIN for (int c = 0; c + {most} <= {size}; c += {most}) {{\n{tile('c', most)}\n    }}\n"
    if size % most:
        text += f"    {{\n{tile(str(size // most * most), size % most)}\n    }}"
    return text


def _each(v: Variant, count: str, statement: str) -> str:
    """A statement for each of a number of elements `i`, in vectors."""
    return f"    VECTORIZE\n    for (int i = 0; i < {count}; ++i) {{ {statement} }}"


def _index_vectors(v: Variant) -> str:
    """The numbers of the lanes, as vectors."""
    kind = v.index
    low, high = (", ".join(str(i + k) for i in range(v.width)) for k in (0, v.width))
    return f"  const {kind} lane0 = MAKE_{kind}({low}), lane1 = MAKE_{kind}({high});"


def _limit(v: Variant, row: str, difference: str, beyond: str) -> str:
    """Scores of keys behind the query become -infinity: where `difference` is `beyond` the number of the lane."""
    kind = v.index
    return f"""\
      const {kind} d = SPLAT_{kind}((int)({difference}));
      const {v.vector} unseen = {v.splat("-INFINITY")};
      st[2 * {row}] = SELECT(d {beyond} lane0, unseen, st[2 * {row}]);
      st[2 * {row} + 1] = SELECT(d {beyond} lane1, unseen, st[2 * {row} + 1]);"""


def _booleans(v: Variant) -> str:
    """Adds a mask of booleans whose rows differ. What the lanes need lies far apart in memory, so the rows of a block
    are read as words of four keys, and transposed in registers.
    """
    words, parts = f"uint{v.width}", v.block // (4 * v.width)
    loads = " ".join(f"{words} r{i} = bytes[(side * {v.width} + {i}) * {parts} + part];" for i in range(v.width))
    stores = " ".join(f"turned[(part * {v.width} + {i}) * 2 + side] = r{i};" for i in range(v.width))

    def seen(half: int, byte: int) -> str:
        bits = f"(turned[{half} + r / 2] & SPLAT_{words}(0x{0xFF << 8 * byte:x}u))"
        if v.scalar == "double":
            return f"CONVERT_long{v.width}({bits}) != SPLAT_long{v.width}(0)"
        return f"{bits} != SPLAT_{words}(0)"

    sums = "\n".join(
        f"          st[2 * (r + {p}) + {half}] += SELECT({seen(half, p)}, seen, unseen);"
        for p in range(4)
        for half in (0, 1)
    )
    return f"""\
        {words} bytes[{v.lanes * parts}], turned[{v.block // 2}];
        const {v.vector} seen = {v.splat("0")}, unseen = {v.splat("-INFINITY")};
        for (int i = 0; i < {v.lanes}; ++i) {{
          const GLOBAL uchar* row = bias + bias_at + (long)(i < nq ? i : nq - 1) * bsq + k0 * bsk;
          uchar* to = (uchar*)bytes + i * {v.block};
          if (bsk == 1 && n == {v.block}) {{
            VECTORIZE
            for (int r = 0; r < {v.block}; ++r) to[r] = row[r];
          }} else {{
            PLAIN for (int r = 0; r < n; ++r) to[r] = row[r * bsk];
          }}
        }}
        PLAIN for (int side = 0; side < 2; ++side)
          PLAIN for (int part = 0; part < {parts}; ++part) {{
            {loads}
{transpose_registers(v.width, words)}
            {stores}
          }}
        PLAIN for (int r = 0; r < n; r += 4) {{
{sums}
        }}
"""


# Bias and causal limit for scores in blocks of keys (rows) by queries (lanes).
def _mask_keys(v: Variant) -> str:
    text = ""
    if v.bias == "b8":
        text += f"""\
    if (bsq == 0) {{
      for (int r = 0; r < n; ++r) {{
        const {v.scalar} same = {v.bias_value("bias_at + (k0 + r) * bsk")};
        st[2 * r] += same;
        st[2 * r + 1] += same;
      }}
    }} else {{
{_booleans(v)}
    }}
"""
    elif v.bias:
        same = v.bias_value("bias_at + (k0 + r) * bsk")
        own = v.bias_value("bias_at + (long)(i < nq ? i : nq - 1) * bsq + (k0 + r) * bsk")
        text += f"""\
    for (int r = 0; r < n; ++r) {{
      if (bsq == 0) {{
        const {v.scalar} same = {same};
        st[2 * r] += same;
        st[2 * r + 1] += same;
      }} else {{
    {_each(v, str(v.lanes), f"(({v.scalar}*)st)[r * {v.lanes} + i] += {own};")}
      }}
    }}
"""
    if v.causal:
        text += f"""\
    if (k0 + n - 1 > q0) for (int r = 0; r < n; ++r) {{
{_limit(v, "r", "k0 + r - q0", ">")}
    }}
"""
    return text


def _drop_keys(v: Variant, name: str) -> str:
    if not v.dropout:
        return ""
    return f"""\
    for (int r = 0; r < n; r += 4) {{
      uint words[{4 * v.lanes}];
      const ulong counter = offset + (ulong)(bh * sq + q0) * per_query + (ulong)((k0 + r) / 4);
      tg_philox_lanes(words, seed, counter, per_query, {v.lanes});
  {_each(v, str(4 * v.lanes), f"(({v.scalar}*){name})[r * {v.lanes} + i] *= words[i] < drop_limit ? keep : 0;")}
    }}
"""


def _common(v: Variant, which: str) -> str:
    """What group is where: batch b, head h, its keys' head; `which` is the side that groups take blocks of, "q" or
    "k".
    """
    return f"""\
  const long blocks = (s{which} + {v.lanes - 1}) / {v.lanes};
  const long at = (long)GROUP_ID(0) / blocks;
  const long {which}0 = ((long)GROUP_ID(0) % blocks) * {v.lanes};
  const int n{which} = (int)(s{which} - {which}0 < {v.lanes} ? s{which} - {which}0 : {v.lanes});
{_index_vectors(v)}
{v.drop_head()}"""


def _exponentials(v: Variant, name: str, rows: str) -> str:
    """Takes the exponentials of so many rows of an array, from which a maximum has been taken."""
    value = f"(({v.scalar}*){name})[i]"
    return _each(v, f"{rows} * {v.lanes}", f"{value} = tg_exp_below_{v.compute}({value});")


def _weigh(v: Variant) -> str:
    """Makes weights of a block's scores, relative to the largest so far, and keeps that and the weights' sum."""
    score, weight_sum = f"(({v.scalar}*)st)[r * {v.lanes} + i]", f"(({v.scalar}*)sums)[i]"
    weight = f"""\
const {v.scalar} weight = tg_exp_below_{v.compute}({score} - ((const {v.scalar}*)from)[i]);
      {score} = weight;
      {weight_sum} += weight;"""
    return f"""\
    {v.vector} n0 = m0, n1 = m1;
    PLAIN for (int r = 0; r < n; ++r) {{
      n0 = SELECT(st[2 * r] > n0, st[2 * r], n0);
      n1 = SELECT(st[2 * r + 1] > n1, st[2 * r + 1], n1);
    }}
    /* Where all is masked so far the maximum is -infinity, and nothing may be taken from it. */
    const {v.vector} from[2] = {{SELECT(n0 == least, none, n0), SELECT(n1 == least, none, n1)}};
    {v.vector} sums[2] = {{none, none}}, kept[2] = {{m0 - from[0], m1 - from[1]}};
    PLAIN for (int r = 0; r < n; ++r) {{
  {_each(v, str(v.lanes), weight)}
    }}
{_exponentials(v, "kept", "1")}
    const {v.vector} alpha = kept[0], beta = kept[1];
    l0 = fma(l0, alpha, sums[0]);
    l1 = fma(l1, beta, sums[1]);
    m0 = n0;
    m1 = n1;"""


def _deliver(v: Variant) -> str:
    """Stores the results, and leaves sums and largest scores in `st`."""
    return f"""\
  st[0] = SELECT(l0 == none, none, 1 / l0);
  st[1] = SELECT(l1 == none, none, 1 / l1);
  PLAIN for (int c = 0; c < {v.value_head}; ++c) {{
    ot[2 * c] *= st[0];
    ot[2 * c + 1] *= st[1];
  }}
  GLOBAL {BY_NAME[v.storage].storage}* out_at = out + b * outsb + h * outsh + q0 * outss;
{_unpack(v, "out_at", "ot", "outss", "nq", v.value_head)}
  st[0] = l0; st[1] = l1; st[2] = m0; st[3] = m1;"""


# ---- kernels ----


@dataclass(frozen=True)
class Parts:
    """Statements by which kernels differ that are alike otherwise, each at its place."""

    begin: str  # point to rows, before they are loaded
    rows: str  # begin loops, in which `end` is known, around that over blocks of rows
    close: str = ""  # end them
    first: str = "0"  # the rows that the lanes meet: an expression
    end: str = "end"
    arrays: str = ""  # declare what is kept besides, of a block
    scores: str = ""  # change a block's scores, `st`
    weights: str = ""  # drop some of a block's weights, `st`, or in gradients of theirs, `dp`
    gradients: str = ""  # change or keep the gradients of a block's scores, `dp`
    sums: str = ""  # set `lse0`, `lse1`, `delta0`, `delta1`, taken from scores and gradients of the lanes' queries
    sum_of_row: str = ""  # set `less` to the same of the query whose row it is: what scores lose
    delta_of_row: str = ""  # and what gradients lose


def _rows_of_block(v: Variant) -> int:
    return v.block + 8


def forward_body(v: Variant, parts: Parts) -> str:
    """Leaves sums and largest scores in `st`."""
    return f"""\
{_common(v, "q")}
{QUERY}
{parts.begin}
  {v.vector} qt[{2 * v.head}], st[{2 * _rows_of_block(v)}], ot[{2 * v.value_head}];
{_pack(v, "qt", "(q_h + q0 * qss)", "qss", "nq", v.head, " * scale")}
{_columns(v, "qt", v.head)}
  for (int i = 0; i < {2 * v.value_head}; ++i) ot[i] = {v.splat("0")};
  const {v.vector} none = {v.splat("0")}, least = {v.splat("-INFINITY")};
  {v.vector} m0 = least, m1 = least, l0 = none, l1 = none;
{parts.rows}
  for (long k0 = {parts.first}; k0 < {parts.end}; k0 += {v.block}) {{
    const int n = (int)({parts.end} - k0 < {v.block} ? {parts.end} - k0 : {v.block});
{_rows(v, "key", "(k_h + k0 * kss)", "kss", v.head)}
{_scores(v, "st", "key", "qt", v.head, True)}
{parts.scores}
{_weigh(v)}
{parts.weights}
{_rows(v, "val", "(v_h + k0 * vss)", "vss", v.value_head)}
{_gathered(v, "ot", "st", "val", v.value_head, True)}
  }}
{parts.close}
{_deliver(v)}"""


def query_gradient_body(v: Variant, parts: Parts) -> str:
    rows = _rows_of_block(v)
    return f"""\
{_common(v, "q")}
{QUERY}
{parts.begin}
  {v.vector} qt[{2 * v.head}], gt[{2 * v.value_head}], dqt[{2 * v.head}], st[{2 * rows}], dp[{2 * rows}];
  {parts.arrays}
{_pack(v, "qt", "(q_h + q0 * qss)", "qss", "nq", v.head, " * scale")}
{_pack(v, "gt", "(g_h + q0 * gss)", "gss", "nq", v.value_head)}
{_columns(v, "qt", v.head)}
{_columns(v, "gt", v.value_head)}
{parts.sums}
  for (int i = 0; i < {2 * v.head}; ++i) dqt[i] = {v.splat("0")};
{parts.rows}
  for (long k0 = {parts.first}; k0 < {parts.end}; k0 += {v.block}) {{
    const int n = (int)({parts.end} - k0 < {v.block} ? {parts.end} - k0 : {v.block});
{_rows(v, "key", "(k_h + k0 * kss)", "kss", v.head)}
{_scores(v, "st", "key", "qt", v.head, True)}
{parts.scores}
    PLAIN for (int r = 0; r < n; ++r) {{
      st[2 * r] -= lse0;
      st[2 * r + 1] -= lse1;
    }}
{_exponentials(v, "st", "n")}
{_rows(v, "val", "(v_h + k0 * vss)", "vss", v.value_head)}
{_scores(v, "dp", "val", "gt", v.value_head)}
{parts.weights}
    PLAIN for (int r = 0; r < n; ++r) {{
      dp[2 * r] = st[2 * r] * (dp[2 * r] - delta0);
      dp[2 * r + 1] = st[2 * r + 1] * (dp[2 * r + 1] - delta1);
    }}
{parts.gradients}
{_gathered(v, "dqt", "dp", "key", v.head)}
  }}
{parts.close}
  GLOBAL {BY_NAME[v.storage].storage}* out_at = dq + b * dqsb + h * dqsh + q0 * dqss;
{_unpack(v, "out_at", "dqt", "dqss", "nq", v.head, " * scale")}"""


def key_gradient_body(v: Variant, parts: Parts) -> str:
    """Gradients of keys and values: keys in the lanes, queries as rows, over all heads that share the keys; so the
    loops over these are among the parts."""
    rows = _rows_of_block(v)
    return f"""\
{_common(v, "k")}
  const long b = at / (heads / group), hk = at % (heads / group);
{v.pointers("k", "v")}
{parts.begin}
  {v.vector} kt[{2 * v.head}], vt[{2 * v.value_head}], dkt[{2 * v.head}], dvt[{2 * v.value_head}];
  {v.vector} st[{2 * rows}], dp[{2 * rows}];
  {parts.arrays}
{_pack(v, "kt", "(k_h + k0 * kss)", "kss", "nk", v.head, " * scale")}
{_pack(v, "vt", "(v_h + k0 * vss)", "vss", "nk", v.value_head)}
{_columns(v, "kt", v.head)}
{_columns(v, "vt", v.value_head)}
  for (int i = 0; i < {2 * v.head}; ++i) dkt[i] = {v.splat("0")};
  for (int i = 0; i < {2 * v.value_head}; ++i) dvt[i] = {v.splat("0")};
{parts.rows}
    for (long q0 = {parts.first}; q0 < {parts.end}; q0 += {v.block}) {{
      const int n = (int)({parts.end} - q0 < {v.block} ? {parts.end} - q0 : {v.block});
{_rows(v, "qry", "(q_h + q0 * qss)", "qss", v.head)}
{_scores(v, "st", "qry", "kt", v.head, True)}
{parts.scores}
      PLAIN for (int r = 0; r < n; ++r) {{
{parts.sum_of_row}
        st[2 * r] -= less;
        st[2 * r + 1] -= less;
      }}
{_exponentials(v, "st", "n")}
{_rows(v, "grd", "(g_h + q0 * gss)", "gss", v.value_head)}
{_scores(v, "dp", "grd", "vt", v.value_head)}
{parts.weights}
{_gathered(v, "dvt", "dropped" if v.dropout else "st", "grd", v.value_head)}
      PLAIN for (int r = 0; r < n; ++r) {{
{parts.delta_of_row}
        dp[2 * r] = st[2 * r] * (dp[2 * r] - less);
        dp[2 * r + 1] = st[2 * r + 1] * (dp[2 * r + 1] - less);
      }}
{parts.gradients}
{_gathered(v, "dkt", "dp", "qry", v.head)}
    }}
{parts.close}
  GLOBAL {BY_NAME[v.storage].storage}* dk_at = dk + b * dksb + hk * dksh + k0 * dkss;
  GLOBAL {BY_NAME[v.storage].storage}* dv_at = dv + b * dvsb + hk * dvsh + k0 * dvss;
{_unpack(v, "dk_at", "dkt", "dkss", "nk", v.head, " * scale")}
{_unpack(v, "dv_at", "dvt", "dvss", "nk", v.value_head)}"""


def _over_keys(v: Variant, *names: str, **parts: str) -> Parts:
    """Of a kernel that goes over the keys which its queries see."""
    begin = v.pointers(*names)
    if v.bias:
        begin += "\n  const long bias_at = b * bsb + h * bsh + q0 * bsq;"
    end = "sk < q0 + nq ? sk : q0 + nq" if v.causal else "sk"
    return Parts(begin, f"  const long end = {end};", scores=_mask_keys(v), **parts)


@functools.cache
def forward(v: Variant) -> Kernel:
    body = f"""\
{forward_body(v, _over_keys(v, "q", "k", "v", weights=_drop_keys(v, "st")))}
  for (int r = 0; r < nq; ++r) {{
    const {v.scalar} l = (({v.scalar}*)st)[r];
    lse[bh * sq + q0 + r] = l == 0 ? ({v.scalar})INFINITY : (({v.scalar}*)st)[{v.lanes} + r] + tg_log_{v.compute}(l);
  }}"""
    return v.forward_kernel("forward", body)


@functools.cache
def query_gradient(v: Variant) -> Kernel:
    """Also gives the product of output and its gradient, which the keys' gradient needs too."""
    gradient, rest = "", ""
    if v.bias_gradient:
        gradient = f"""\
    for (int i = 0; i < nq; ++i)
      for (int r = 0; r < n; ++r) scores_g[(bh * sq + q0 + i) * sk + k0 + r] = (({v.scalar}*)dp)[r * {v.lanes} + i];
"""
    if v.bias_gradient and v.causal:
        rest = """\
  for (int i = 0; i < nq; ++i)
    for (long k = end; k < sk; ++k) scores_g[(bh * sq + q0 + i) * sk + k] = 0;"""
    sums = f"""\
  {v.vector} delta0 = {v.splat("0")}, delta1 = {v.splat("0")};
  {{
    {v.vector} ot[{2 * v.value_head}];
{_pack(v, "ot", "(o_h + q0 * oss)", "oss", "nq", v.value_head)}
    for (int c = 0; c < {v.value_head}; ++c) {{
      delta0 += ot[2 * c] * gt[2 * c];
      delta1 += ot[2 * c + 1] * gt[2 * c + 1];
    }}
  }}
  st[0] = delta0; st[1] = delta1;
  for (int r = 0; r < nq; ++r) delta[bh * sq + q0 + r] = (({v.scalar}*)st)[r];
  for (int r = 0; r < {v.lanes}; ++r) (({v.scalar}*)st)[r] = lse[bh * sq + q0 + (r < nq ? r : nq - 1)];
  const {v.vector} lse0 = st[0], lse1 = st[1];"""
    dropped = _drop_keys(v, "dp")
    parts = _over_keys(v, "q", "k", "v", "o", "g", sums=sums, weights=dropped, gradients=gradient, close=rest)
    return v.query_gradient_kernel(query_gradient_body(v, parts))


@functools.cache
def key_gradient(v: Variant) -> Kernel:
    mask = ""
    if v.bias:
        value = v.bias_value("bias_at + (q0 + r) * bsq + (k0 + (i < nk ? i : nk - 1)) * bsk")
        mask += f"""\
      for (int r = 0; r < n; ++r) {{
    {_each(v, str(v.lanes), f"(({v.scalar}*)st)[r * {v.lanes} + i] += {value};")}
      }}
"""
    if v.causal:
        mask += f"""\
      if (k0 + nk - 1 > q0) for (int r = 0; r < n; ++r) {{
{_limit(v, "r", "q0 + r - k0", "<")}
      }}
"""
    drop = ""
    if v.dropout:
        each = f"const {v.scalar} f = words[i] < drop_limit ? keep : 0;"
        each += f" (({v.scalar}*)dropped)[i] = (({v.scalar}*)st)[i] * f; (({v.scalar}*)dp)[i] *= f;"
        drop = f"""\
      uint words[{v.block * v.lanes}];
      const ulong counter = offset + (ulong)(bh * sq + q0) * per_query + (ulong)(k0 / 4);
      tg_philox_rows(words, seed, counter, per_query, {v.lanes // 4}, n);
  {_each(v, f"n * {v.lanes}", each)}
"""
    parts = Parts(
        begin="",
        arrays=f"{v.vector} dropped[{2 * _rows_of_block(v)}];" if v.dropout else "",
        rows=f"""\
  for (long h = hk * group; h < (hk + 1) * group; ++h) {{
    const long bh = b * heads + h;
{v.pointers("q", "g")}
    {"const long bias_at = b * bsb + h * bsh;" if v.bias else ""}""",
        first=f"k0 / {v.block} * {v.block}" if v.causal else "0",
        end="sq",
        close="  }",
        scores=mask,
        weights=drop,
        sum_of_row=f"        const {v.vector} less = lse[bh * sq + q0 + r];",
        delta_of_row=f"        const {v.vector} less = delta[bh * sq + q0 + r];",
    )
    return v.key_gradient_kernel(key_gradient_body(v, parts))
