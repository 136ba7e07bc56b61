"""Attention of few queries, whose lanes would be empty, so that each key is read for little work. On a CPU a work-item
takes a head, and the elements of a key or value are the lanes; on a GPU a work-group takes one query, and an item one
key, then some elements of the values."""

from __future__ import annotations

import functools

from torchgraft.codegen.kernel import Kernel
from torchgraft.codegen.types import BY_NAME
from torchgraft.codegen.vectors import lane_sum
from torchgraft.kernels.attention.variant import QUERY, Variant

MOST = 4
"""Queries."""


def _scores(v: Variant, rows: int) -> str:
    """st[i][r] = product of query i and key r, for n keys; up to 7 behind them are overwritten."""
    together = 8 if rows == 1 else 4
    whole, vectors = v.head // v.width * v.width, -(-v.head // v.width)
    pairs = [(i, j) for i in range(rows) for j in range(together)]
    pointers = " ".join(f"{v.pointer} m{j} = keys + (r + {j} < n ? r + {j} : n - 1) * kss;" for j in range(together))
    queries = " ".join(f"const {v.vector} q{i} = own[{i * vectors} + d / {v.width}];" for i in range(rows))
    products = "\n".join(
        f"        {{ const {v.vector} x = load_{v.storage}x{v.width}(m{j}, d); "
        + " ".join(f"s{i}_{j} = fma(q{i}, x, s{i}_{j});" for i in range(rows))
        + " }"
        for j in range(together)
    )
    rest = "\n".join(
        f"        {{ const {v.scalar} x = load_{v.storage}(m{j}, d); "
        + " ".join(
            f"s{i}_{j}_sum = fma((({v.scalar}*)own)[{i * vectors * v.width} + d], x, s{i}_{j}_sum);"
            for i in range(rows)
        )
        + " }"
        for j in range(together)
    )
    stores = " ".join(f"st[{i * (v.block + 8)} + r + {j}] = s{i}_{j}_sum;" for i, j in pairs)
    return f"""\
    PLAIN for (int r = 0; r < n; r += {together}) {{
      {pointers}
      {v.vector} {", ".join(f"s{i}_{j} = {v.splat('0')}" for i, j in pairs)};
      PLAIN for (int d = 0; d < {whole}; d += {v.width}) {{
        {queries}
{products}
      }}
      {" ".join(lane_sum(v.scalar, v.width, f"s{i}_{j}") for i, j in pairs)}
      PLAIN for (int d = {whole}; d < {v.head}; ++d) {{
{rest}
      }}
      {stores}
    }}"""


def _gathered(v: Variant, rows: int) -> str:
    """ot[i] = ot[i] * alpha[i] + the sum over n keys of st[i][r] * the value of key r."""
    vectors, width = -(-v.value_head // v.width), v.width
    whole = v.value_head // width

    def tile(count: int, kind: str, load: str, sums: str, row: int) -> str:
        def spread(value: str) -> str:
            return value if kind == v.scalar else v.splat(value)

        pairs = [(i, c) for i in range(rows) for c in range(count)]
        begin = " ".join(f"{kind} a{i}_{c} = {sums}[{i * row} + c + {c}] * {spread(f'alpha[{i}]')};" for i, c in pairs)
        weights = " ".join(f"const {kind} w{i} = {spread(f'st[{i * (v.block + 8)} + r]')};" for i in range(rows))
        products = " ".join(
            f"{{ const {kind} x = {load.format(c)}; "
            + " ".join(f"a{i}_{c} = fma(w{i}, x, a{i}_{c});" for i in range(rows))
            + " }"
            for c in range(count)
        )
        ends = " ".join(f"{sums}[{i * row} + c + {c}] = a{i}_{c};" for i, c in pairs)
        return f"""\
      {begin}
      {v.pointer} m = values;
      PLAIN for (int r = 0; r < n; ++r, m += vss) {{
        {weights}
        {products}
      }}
      {ends}"""

    together = max(1, 8 // rows)
    load = f"load_{v.storage}x{width}(m, (c + {{}}) * {width})"
    text = ""
    if whole >= together:
        body = tile(together, v.vector, load, "ot", vectors)
        text += f"    PLAIN for (int c = 0; c + {together} <= {whole}; c += {together}) {{\n{body}\n    }}\n"
    if whole % together:
        body = tile(whole % together, v.vector, load, "ot", vectors)
        text += f"    {{\n      const int c = {whole // together * together};\n{body}\n    }}\n"
    if v.value_head % width:
        body = tile(1, v.scalar, f"load_{v.storage}(m, c)", f"(({v.scalar}*)ot)", vectors * width)
        text += f"    PLAIN for (int c = {whole * width}; c < {v.value_head}; ++c) {{\n{body}\n    }}"
    return text


def _dropped(v: Variant) -> str:
    """Drops some of the weights of query i."""
    if not v.dropout:
        return ""
    return f"""\
      for (int r = 0; r < n; ++r) {{
{v.drop_one("i", "k0 + r")}
        row[r] *= f;
      }}"""


def _on_cpu(v: Variant, rows: int) -> str:
    """A work-item takes a head's queries, of which there are `rows`."""
    size = v.block + 8
    vectors, value_vectors = -(-v.head // v.width), -(-v.value_head // v.width)
    mask = ""
    if v.bias:
        value = v.bias_value("bias_at + i * bsq + (k0 + r) * bsk")
        mask += f"      VECTORIZE\n      for (int r = 0; r < n; ++r) row[r] += {value};\n"
    if v.causal:
        mask += f"      for (int r = 0; r < n; ++r) row[r] = k0 + r > i ? ({v.scalar})-INFINITY : row[r];\n"
    return f"""\
  const long at = GROUP_ID(0);
{v.drop_head()}
{QUERY}
{v.pointers("q", "k", "v")}
  {"const long bias_at = b * bsb + h * bsh;" if v.bias else ""}
  {v.vector} own[{rows * vectors}], ot[{rows * value_vectors}], many[{size * rows // v.width + 1}];
  {v.scalar}* st = ({v.scalar}*)many;
  {v.scalar} m[{rows}], l[{rows}], alpha[{rows}];
  for (int i = 0; i < {rows}; ++i) {{
    for (int d = 0; d < {v.head}; ++d)
      (({v.scalar}*)own)[i * {vectors * v.width} + d] = load_{v.storage}(q_h, i * qss + d) * scale;
    m[i] = -INFINITY;
    l[i] = 0;
  }}
  for (int i = 0; i < {rows * value_vectors}; ++i) ot[i] = {v.splat("0")};
  const long end = {f"sk < {rows} ? sk : {rows}" if v.causal else "sk"};
  for (long k0 = 0; k0 < end; k0 += {v.block}) {{
    const int n = (int)(end - k0 < {v.block} ? end - k0 : {v.block});
    {v.pointer} keys = k_h + k0 * kss;
    {v.pointer} values = v_h + k0 * vss;
{_scores(v, rows)}
    for (int i = 0; i < {rows}; ++i) {{
      {v.scalar}* row = st + i * {size};
{mask}
      {v.scalar} most[8];
      for (int r = n; r < (n + 7) / 8 * 8; ++r) row[r] = -INFINITY;
      for (int p = 0; p < 8; ++p) most[p] = m[i];
      for (int r = 0; r < n; r += 8) {{
        VECTORIZE
        for (int p = 0; p < 8; ++p) most[p] = row[r + p] > most[p] ? row[r + p] : most[p];
      }}
      for (int p = 1; p < 8; ++p) most[0] = most[p] > most[0] ? most[p] : most[0];
      /* Where all is masked so far the maximum is -infinity, and nothing may be taken from it. */
      const {v.scalar} from = most[0] == -INFINITY ? 0 : most[0];
      VECTORIZE
      for (int r = 0; r < n; ++r) row[r] = tg_exp_below_{v.compute}(row[r] - from);
      alpha[i] = tg_exp_below_{v.compute}(m[i] - from);
      m[i] = most[0];
      for (int r = n; r < (n + 7) / 8 * 8; ++r) row[r] = 0;
      {v.scalar} sums[8];
      for (int p = 0; p < 8; ++p) sums[p] = 0;
      for (int r = 0; r < n; r += 8) {{
        VECTORIZE
        for (int p = 0; p < 8; ++p) sums[p] += row[r + p];
      }}
      l[i] *= alpha[i];
      for (int p = 0; p < 8; ++p) l[i] += sums[p];
{_dropped(v)}
    }}
{_gathered(v, rows)}
  }}
  GLOBAL {BY_NAME[v.storage].storage}* out_at = out + b * outsb + h * outsh;
  for (int i = 0; i < {rows}; ++i) {{
    const {v.scalar} by = l[i] == 0 ? 0 : 1 / l[i];
    for (int c = 0; c < {v.value_head}; ++c)
      store_{v.storage}(out_at, i * outss + c, (({v.scalar}*)ot)[i * {value_vectors * v.width} + c] * by);
    lse[bh * sq + i] = l[i] == 0 ? ({v.scalar})INFINITY : m[i] + tg_log_{v.compute}(l[i]);
  }}"""


def _on_gpu(v: Variant) -> str:
    """A work-group takes one query, and blocks of as many keys as it has items."""
    own = -(-v.value_head // v.group)
    return f"""\
  const long at = (long)GROUP_ID(0) / sq, qi = (long)GROUP_ID(0) % sq;
  const int me = LOCAL_ID(0);
{v.drop_head()}
{QUERY}
{v.pointers("q", "k", "v")}
  LOCAL {v.scalar} query[{v.head}], scores[{v.group}], weights[{v.group}];
  for (int d = me; d < {v.head}; d += {v.group}) query[d] = load_{v.storage}(q_h, qi * qss + d) * scale;
  {v.scalar} o[{own}], m = -INFINITY, l = 0;
  for (int c = 0; c < {own}; ++c) o[c] = 0;
  const long end = {"sk < qi + 1 ? sk : qi + 1" if v.causal else "sk"};
  for (long k0 = 0; k0 < end; k0 += {v.group}) {{
    const int n = (int)(end - k0 < {v.group} ? end - k0 : {v.group});
    BARRIER;
    {v.scalar} s = -INFINITY;
    if (me < n) {{
      s = 0;
      for (int d = 0; d < {v.head}; ++d) s = fma(query[d], load_{v.storage}(k_h, (k0 + me) * kss + d), s);
{v.finish_score("qi", "k0 + me")}
    }}
    scores[me] = s;
    BARRIER;
    {v.scalar} most = m;
    for (int r = 0; r < n; ++r) most = scores[r] > most ? scores[r] : most;
    const {v.scalar} from = most == -INFINITY ? 0 : most;
    const {v.scalar} alpha = exp(m - from);
    m = most;
    weights[me] = exp(s - from);
    BARRIER;
    l *= alpha;
    for (int r = 0; r < n; ++r) l += weights[r];
    {v.scalar} weight = weights[me];
    {{
{v.drop_one("qi", "k0 + me")}
      {"weight *= f;" if v.dropout else ""}
    }}
    scores[me] = weight;
    BARRIER;
    for (int c = 0; c < {own}; ++c) o[c] *= alpha;
    for (int r = 0; r < n; ++r)
      for (int c = 0; c < {own}; ++c) {{
        const int at_c = c * {v.group} + me;
        if (at_c < {v.value_head}) o[c] = fma(scores[r], load_{v.storage}(v_h, (k0 + r) * vss + at_c), o[c]);
      }}
  }}
  const {v.scalar} by = l == 0 ? 0 : 1 / l;
  for (int c = 0; c < {own}; ++c)
    if (c * {v.group} + me < {v.value_head})
      store_{v.storage}(out, b * outsb + h * outsh + qi * outss + c * {v.group} + me, o[c] * by);
  if (me == 0) lse[bh * sq + qi] = l == 0 ? ({v.scalar})INFINITY : m + log(l);"""


@functools.cache
def forward(v: Variant, queries: int) -> Kernel:
    """Launched with a group for each head, in the GPU form for each query."""
    return v.forward_kernel("few", _on_gpu(v) if v.form == "gpu" else _on_cpu(v, queries))
