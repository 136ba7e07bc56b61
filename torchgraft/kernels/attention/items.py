"""Attention in the GPU form: a work-item takes one query (for the gradients of keys and values: key), and a work-group
shares blocks of keys and values (queries) in local memory."""

from __future__ import annotations

import functools

from torchgraft.codegen.kernel import Kernel
from torchgraft.kernels.attention.variant import QUERY, Variant


def _common(v: Variant, which: str) -> str:
    return f"""\
  const long blocks = (s{which} + {v.group - 1}) / {v.group};
  const long at = (long)GROUP_ID(0) / blocks;
  const long first = ((long)GROUP_ID(0) % blocks) * {v.group};
  const int me = LOCAL_ID(0);
  const long {which}i = first + me < s{which} ? first + me : s{which} - 1;
  const int mine = first + me < s{which};
{v.drop_head()}"""


def _share(v: Variant, to: str, base: str, row: str, size: int) -> str:
    """A block of rows in local memory."""
    return f"""\
    for (int i = me; i < n * {size}; i += {v.group})
      {to}[i] = load_{v.storage}({base}, (long)(i / {size}) * {row} + i % {size});"""


def _blocks_of_keys(v: Variant) -> str:
    """Begins the loop over those that the group's queries see."""
    return f"""\
  const long end = {f"sk < first + {v.group} ? sk : first + {v.group}" if v.causal else "sk"};
  for (long k0 = 0; k0 < end; k0 += {v.shared}) {{
    const int n = (int)(end - k0 < {v.shared} ? end - k0 : {v.shared});
    BARRIER;
{_share(v, "ks", "(k_h + k0 * kss)", "kss", v.head)}
{_share(v, "vs", "(v_h + k0 * vss)", "vss", v.value_head)}
    BARRIER;"""


def _own(v: Variant, to: str, base: str, size: int, factor: str = "") -> str:
    return (
        f"  {v.scalar} {to}[{size}];\n  for (int d = 0; d < {size}; ++d) {to}[d] = load_{v.storage}({base}, d){factor};"
    )


@functools.cache
def forward(v: Variant) -> Kernel:
    body = f"""\
{_common(v, "q")}
{QUERY}
{v.pointers("q", "k", "v")}
  LOCAL {v.scalar} ks[{v.shared * v.head}], vs[{v.shared * v.value_head}];
{_own(v, "own", "(q_h + qi * qss)", v.head, " * scale")}
  {v.scalar} o[{v.value_head}];
  for (int c = 0; c < {v.value_head}; ++c) o[c] = 0;
  {v.scalar} m = -INFINITY, l = 0;
{_blocks_of_keys(v)}
    {v.scalar} scores[{v.shared}], most = m;
    for (int r = 0; r < n; ++r) {{
      {v.scalar} s = 0;
      for (int d = 0; d < {v.head}; ++d) s = fma(own[d], ks[r * {v.head} + d], s);
{v.finish_score("qi", "k0 + r")}
      scores[r] = s;
      most = s > most ? s : most;
    }}
    const {v.scalar} from = most == -INFINITY ? 0 : most;
    const {v.scalar} alpha = exp(m - from);
    m = most;
    l *= alpha;
    for (int c = 0; c < {v.value_head}; ++c) o[c] *= alpha;
    for (int r = 0; r < n; ++r) {{
      {v.scalar} weight = exp(scores[r] - from);
      l += weight;
{v.drop_one("qi", "k0 + r")}
      {"weight *= f;" if v.dropout else ""}
      for (int c = 0; c < {v.value_head}; ++c) o[c] = fma(weight, vs[r * {v.value_head} + c], o[c]);
    }}
  }}
  if (mine) {{
    const {v.scalar} by = l == 0 ? 0 : 1 / l;
    for (int c = 0; c < {v.value_head}; ++c) store_{v.storage}(out, b * outsb + h * outsh + qi * outss + c, o[c] * by);
    lse[bh * sq + qi] = l == 0 ? ({v.scalar})INFINITY : m + log(l);
  }}"""
    return v.forward_kernel("forward", body)


@functools.cache
def query_gradient(v: Variant) -> Kernel:
    gradient = "if (mine) scores_g[(bh * sq + qi) * sk + k0 + r] = w;" if v.bias_gradient else ""
    rest = ""
    if v.bias_gradient and v.causal:
        rest = "    for (long k = end; k < sk; ++k) scores_g[(bh * sq + qi) * sk + k] = 0;"
    body = f"""\
{_common(v, "q")}
{QUERY}
{v.pointers("q", "k", "v", "o", "g")}
  LOCAL {v.scalar} ks[{v.shared * v.head}], vs[{v.shared * v.value_head}];
{_own(v, "own", "(q_h + qi * qss)", v.head, " * scale")}
{_own(v, "grad", "(g_h + qi * gss)", v.value_head)}
  {v.scalar} sum[{v.head}], del = 0;
  for (int d = 0; d < {v.head}; ++d) sum[d] = 0;
  for (int c = 0; c < {v.value_head}; ++c) del += grad[c] * load_{v.storage}(o_h, qi * oss + c);
  const {v.scalar} less = lse[bh * sq + qi];
{_blocks_of_keys(v)}
    for (int r = 0; r < n; ++r) {{
      {v.scalar} s = 0, w = 0;
      for (int d = 0; d < {v.head}; ++d) s = fma(own[d], ks[r * {v.head} + d], s);
{v.finish_score("qi", "k0 + r")}
      for (int c = 0; c < {v.value_head}; ++c) w = fma(grad[c], vs[r * {v.value_head} + c], w);
{v.drop_one("qi", "k0 + r")}
      {"w *= f;" if v.dropout else ""}
      w = exp(s - less) * (w - del);
      {gradient}
      for (int d = 0; d < {v.head}; ++d) sum[d] = fma(w, ks[r * {v.head} + d], sum[d]);
    }}
  }}
  if (mine) {{
    delta[bh * sq + qi] = del;
{rest}
    for (int d = 0; d < {v.head}; ++d) store_{v.storage}(dq, b * dqsb + h * dqsh + qi * dqss + d, sum[d] * scale);
  }}"""
    return v.query_gradient_kernel(body)


@functools.cache
def key_gradient(v: Variant) -> Kernel:
    body = f"""\
{_common(v, "k")}
  const long b = at / (heads / group), hk = at % (heads / group);
{v.pointers("k", "v")}
  LOCAL {v.scalar} qs[{v.shared * v.head}], gs[{v.shared * v.value_head}];
{_own(v, "own_k", "(k_h + ki * kss)", v.head, " * scale")}
{_own(v, "own_v", "(v_h + ki * vss)", v.value_head)}
  {v.scalar} sum_k[{v.head}], sum_v[{v.value_head}];
  for (int d = 0; d < {v.head}; ++d) sum_k[d] = 0;
  for (int c = 0; c < {v.value_head}; ++c) sum_v[c] = 0;
  for (long h = hk * group; h < (hk + 1) * group; ++h) {{
    const long bh = b * heads + h;
{v.pointers("q", "g")}
    for (long q0 = {f"first / {v.shared} * {v.shared}" if v.causal else "0"}; q0 < sq; q0 += {v.shared}) {{
      const int n = (int)(sq - q0 < {v.shared} ? sq - q0 : {v.shared});
      BARRIER;
{_share(v, "qs", "(q_h + q0 * qss)", "qss", v.head)}
{_share(v, "gs", "(g_h + q0 * gss)", "gss", v.value_head)}
      BARRIER;
      for (int r = 0; r < n; ++r) {{
        const long qi = q0 + r;
        {v.scalar} s = 0, w = 0;
        for (int d = 0; d < {v.head}; ++d) s = fma(own_k[d], qs[r * {v.head} + d], s);
{v.finish_score("qi", "ki")}
        for (int c = 0; c < {v.value_head}; ++c) w = fma(own_v[c], gs[r * {v.value_head} + c], w);
        const {v.scalar} weight = exp(s - lse[bh * sq + qi]);
{v.drop_one("qi", "ki")}
        {f"w *= f; const {v.scalar} dropped = weight * f;" if v.dropout else f"const {v.scalar} dropped = weight;"}
        for (int c = 0; c < {v.value_head}; ++c) sum_v[c] = fma(dropped, gs[r * {v.value_head} + c], sum_v[c]);
        w = weight * (w - delta[bh * sq + qi]);
        for (int d = 0; d < {v.head}; ++d) sum_k[d] = fma(w, qs[r * {v.head} + d], sum_k[d]);
      }}
    }}
  }}
  if (mine) {{
    for (int d = 0; d < {v.head}; ++d) store_{v.storage}(dk, b * dksb + hk * dksh + ki * dkss + d, sum_k[d] * scale);
    for (int c = 0; c < {v.value_head}; ++c) store_{v.storage}(dv, b * dvsb + hk * dvsh + ki * dvss + c, sum_v[c]);
  }}"""
    return v.key_gradient_kernel(body)
