"""Attention without the matrix of scores: softmax(scale q k' + bias) v, block by block, and its gradients.

On a CPU a work-item takes as many queries (for the gradients of keys and values: keys) as two vectors hold, and they
stay in the vectors' lanes throughout: scores are kept transposed, so that maxima, sums and factors of the softmax are
plain vectors, and what is read from memory - keys, values - is read in its own layout, element by element into all
lanes. Two small products do all the work, with their sums in registers: `_scores` (rows of memory times
lanes) and `_gathered` (weights in lanes times rows of memory).

Of few queries, whose lanes would be empty, each key is read for little work. There the elements of a key or value are
the lanes on a CPU; on a GPU a work-group takes one query, and an item one key, then some elements of the values.

On a GPU else each work-item takes one query (key), and a work-group shares blocks of keys and values (queries) in local
memory.

Numbers of elements and strides are arguments; the heads' sizes are literals, since they size arrays.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

from torchgraft.codegen.kernel import Kernel, parameters
from torchgraft.codegen.tuning import Attention
from torchgraft.codegen.types import BY_NAME, value_ctype
from torchgraft.codegen.vectors import lane_sum, shuffle_helpers, transpose_registers, vector_lanes
from torchgraft.codegen.x86 import Way
from torchgraft.kernels import attention_pairs
from torchgraft.kernels.pairs import tiles_begin, tiles_end

FEW = 4
"""Queries that go without the lanes of queries."""


@dataclass(frozen=True)
class Variant:
    """What is fixed in the text.

    Attributes:
        storage: of queries, keys, values and results.
        head, value_head: elements of a query or key, of a value.
        bias: storage type of the bias, "b8" for a mask of what takes part, "" for none.
        causal: a query sees the keys up to its own number.
        dropout: weights are dropped.
        bias_gradient: the gradient of the scores is written out.
        simd_width: float32 elements of the device's vector registers.
        tuning: sizes of blocks.
        pairs: by which instructions products are of pairs of bfloat16 (`attention_pairs`); of the CPU form, with the
            lanes of queries.
    """

    storage: str
    head: int
    value_head: int
    bias: str
    causal: bool
    dropout: bool
    bias_gradient: bool = False
    simd_width: int = 16
    tuning: Attention = field(default_factory=Attention)
    pairs: Way | None = None

    @property
    def block(self) -> int:
        """Keys of a block in the CPU form."""
        return self.tuning.keys

    @property
    def group(self) -> int:
        """Work-items of a group in the GPU form."""
        return self.tuning.gpu_group

    @property
    def shared(self) -> int:
        """Keys of a block in the GPU form, which lie in local memory with their values."""
        return self.tuning.gpu_keys_of((self.head + self.value_head) * (8 if self.scalar == "double" else 4))

    @property
    def compute(self) -> str:
        return BY_NAME[self.storage].compute

    @property
    def scalar(self) -> str:
        return value_ctype(self.storage)

    @property
    def width(self) -> int:
        """Lanes of a vector."""
        lanes = vector_lanes(self.simd_width)
        return max(4, lanes // 2) if self.scalar == "double" else lanes

    @property
    def lanes(self) -> int:
        return 2 * self.width

    @property
    def together(self) -> int:
        """Sums of two vectors that are in registers at once, beside three vectors that are multiplied: of registers of
        64 bytes there are 32, of others 16."""
        return 8 if self.width * (8 if self.scalar == "double" else 4) == 64 else 6

    @property
    def vector(self) -> str:
        return f"{self.scalar}{self.width}"

    def splat(self, value: str) -> str:
        return f"SPLAT_{self.vector}({value})"

    @property
    def pointer(self) -> str:
        return f"const GLOBAL {BY_NAME[self.storage].storage}*"

    @property
    def converted(self) -> bool:
        """Rows are converted before use: their elements are read many times."""
        return self.compute != self.storage

    def tag(self, name: str) -> str:
        return f"attention_{name}_{self.storage}_{self.head}"


# ---- CPU form: pieces ----


def _pack(v: Variant, to: str, base: str, row: str, count: str, size: int, factor: str = "") -> str:
    """The rows of a block of queries (or keys) as columns of `to`: element d of all lanes in two vectors; lanes
    without a row are 0. With pairs the factor is left to the scores.
    """
    if v.pairs:
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
    if v.pairs:
        return attention_pairs.rows(name, base, row, size, v.block)
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
    return attention_pairs.columns(name, size) if v.pairs else ""


def _scores(v: Variant, out: str, rows: str, columns: str, size: int, scaled: bool = False) -> str:
    """out[r] = sum over d of rows[r][d] * columns[d], for n rows; up to 7 rows behind them are overwritten (with
    pairs up to 31, within a block). `scaled` where `_pack` was given the scale.
    """
    if v.pairs:
        return attention_pairs.scores(v.pairs, out, rows, columns, size, scaled)
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
    if v.pairs:
        return attention_pairs.gathered(v.pairs, sums, weights, rows, size, v.block, factor)
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


def _bias_value(v: Variant, index: str) -> str:
    if v.bias == "b8":
        return f"(load_b8(bias, {index}) ? ({v.scalar})0 : ({v.scalar})-INFINITY)"
    return f"({v.scalar})load_{v.bias}(bias, {index})"


def _index_vectors(v: Variant) -> str:
    """The numbers of the lanes, as vectors."""
    kind = f"{'long' if v.scalar == 'double' else 'int'}{v.width}"
    low, high = (", ".join(str(i + k) for i in range(v.width)) for k in (0, v.width))
    return f"  const {kind} lane0 = MAKE_{kind}({low}), lane1 = MAKE_{kind}({high});"


def _limit(v: Variant, row: str, difference: str, beyond: str) -> str:
    """Scores of keys behind the query become -infinity: where `difference` is `beyond` the number of the lane."""
    kind = f"{'long' if v.scalar == 'double' else 'int'}{v.width}"
    return f"""\
      const {kind} d = SPLAT_{kind}((int)({difference}));
      const {v.vector} unseen = {v.splat("-INFINITY")};
      st[2 * {row}] = SELECT(d {beyond} lane0, unseen, st[2 * {row}]);
      st[2 * {row} + 1] = SELECT(d {beyond} lane1, unseen, st[2 * {row} + 1]);"""


def _drop_head(v: Variant) -> str:
    if not v.dropout:
        return ""
    return f"""\
  const uint drop_limit = 1 - drop >= 1 ? 0xffffffffu : (uint)((1 - drop) * 4294967296.0f);
  const {v.scalar} keep = drop < 1 ? 1 / (1 - ({v.scalar})drop) : 0;
  const ulong per_query = (ulong)((sk + 3) / 4);"""


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
        const {v.scalar} same = {_bias_value(v, "bias_at + (k0 + r) * bsk")};
        st[2 * r] += same;
        st[2 * r + 1] += same;
      }}
    }} else {{
{_booleans(v)}
    }}
"""
    elif v.bias:
        same = _bias_value(v, "bias_at + (k0 + r) * bsk")
        own = _bias_value(v, "bias_at + (long)(i < nq ? i : nq - 1) * bsq + (k0 + r) * bsk")
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
{_drop_head(v)}"""


_QUERY = """\
  const long bh = at, b = at / heads, h = at % heads, hk = h / group;
"""


def _pointers(v: Variant, *names: str) -> str:
    """Pointers to a head's rows: q_h, k_h, ..."""
    head = {"q": "h", "k": "hk", "v": "hk", "o": "h", "g": "h"}
    return "\n".join(f"  {v.pointer} {n}_h = {n} + b * {n}sb + {head[n]} * {n}sh;" for n in names)


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


def _forward_cpu(v: Variant) -> str:
    rows = v.block + 8
    bias = "  const long bias_at = b * bsb + h * bsh + q0 * bsq;" if v.bias else ""
    return f"""\
{_common(v, "q")}
{_QUERY}
{_pointers(v, "q", "k", "v")}
{bias}
  {v.vector} qt[{2 * v.head}], st[{2 * rows}], ot[{2 * v.value_head}];
{_pack(v, "qt", "(q_h + q0 * qss)", "qss", "nq", v.head, " * scale")}
{_columns(v, "qt", v.head)}
  for (int i = 0; i < {2 * v.value_head}; ++i) ot[i] = {v.splat("0")};
  const {v.vector} none = {v.splat("0")}, least = {v.splat("-INFINITY")};
  {v.vector} m0 = least, m1 = least, l0 = none, l1 = none;
  const long end = {"sk < q0 + nq ? sk : q0 + nq" if v.causal else "sk"};
  for (long k0 = 0; k0 < end; k0 += {v.block}) {{
    const int n = (int)(end - k0 < {v.block} ? end - k0 : {v.block});
{_rows(v, "key", "(k_h + k0 * kss)", "kss", v.head)}
{_scores(v, "st", "key", "qt", v.head, True)}
{_mask_keys(v)}
{_weigh(v)}
{_drop_keys(v, "st")}
{_rows(v, "val", "(v_h + k0 * vss)", "vss", v.value_head)}
{_gathered(v, "ot", "st", "val", v.value_head, True)}
  }}
{_deliver(v)}
  for (int r = 0; r < nq; ++r) {{
    const {v.scalar} l = (({v.scalar}*)st)[r];
    lse[bh * sq + q0 + r] = l == 0 ? ({v.scalar})INFINITY : (({v.scalar}*)st)[{v.lanes} + r] + tg_log_{v.compute}(l);
  }}"""


def _few_scores(v: Variant, rows: int) -> str:
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


def _few_gathered(v: Variant, rows: int) -> str:
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


def _few_drop(v: Variant) -> str:
    """As `_drop_keys`, for the weights of query i."""
    if not v.dropout:
        return ""
    return f"""\
      for (int r = 0; r < n; ++r) {{
{_drop_gpu(v, "i", "k0 + r")}
        row[r] *= f;
      }}"""


def _few_cpu(v: Variant, rows: int) -> str:
    """A work-item takes a head's queries, of which there are `rows`."""
    size = v.block + 8
    vectors, value_vectors = -(-v.head // v.width), -(-v.value_head // v.width)
    mask = ""
    if v.bias:
        value = _bias_value(v, "bias_at + i * bsq + (k0 + r) * bsk")
        mask += f"      VECTORIZE\n      for (int r = 0; r < n; ++r) row[r] += {value};\n"
    if v.causal:
        mask += f"      for (int r = 0; r < n; ++r) row[r] = k0 + r > i ? ({v.scalar})-INFINITY : row[r];\n"
    return f"""\
  const long at = GROUP_ID(0);
{_drop_head(v)}
{_QUERY}
{_pointers(v, "q", "k", "v")}
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
{_few_scores(v, rows)}
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
{_few_drop(v)}
    }}
{_few_gathered(v, rows)}
  }}
  GLOBAL {BY_NAME[v.storage].storage}* out_at = out + b * outsb + h * outsh;
  for (int i = 0; i < {rows}; ++i) {{
    const {v.scalar} by = l[i] == 0 ? 0 : 1 / l[i];
    for (int c = 0; c < {v.value_head}; ++c)
      store_{v.storage}(out_at, i * outss + c, (({v.scalar}*)ot)[i * {value_vectors * v.width} + c] * by);
    lse[bh * sq + i] = l[i] == 0 ? ({v.scalar})INFINITY : m[i] + tg_log_{v.compute}(l[i]);
  }}"""


def _queries_cpu(v: Variant) -> str:
    """Gradient of the queries, and the product of output and its gradient, which the keys' gradient needs too."""
    rows = v.block + 8
    bias = "  const long bias_at = b * bsb + h * bsh + q0 * bsq;" if v.bias else ""
    gradient = ""
    if v.bias_gradient:
        gradient = f"""\
    for (int i = 0; i < nq; ++i)
      for (int r = 0; r < n; ++r) scores_g[(bh * sq + q0 + i) * sk + k0 + r] = (({v.scalar}*)dp)[r * {v.lanes} + i];
"""
    rest = ""
    if v.bias_gradient and v.causal:
        rest = """\
  for (int i = 0; i < nq; ++i)
    for (long k = end; k < sk; ++k) scores_g[(bh * sq + q0 + i) * sk + k] = 0;"""
    return f"""\
{_common(v, "q")}
{_QUERY}
{_pointers(v, "q", "k", "v", "o", "g")}
{bias}
  {v.vector} qt[{2 * v.head}], gt[{2 * v.value_head}], dqt[{2 * v.head}], st[{2 * rows}], dp[{2 * rows}];
{_pack(v, "qt", "(q_h + q0 * qss)", "qss", "nq", v.head, " * scale")}
{_pack(v, "gt", "(g_h + q0 * gss)", "gss", "nq", v.value_head)}
{_columns(v, "qt", v.head)}
{_columns(v, "gt", v.value_head)}
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
  const {v.vector} lse0 = st[0], lse1 = st[1];
  for (int i = 0; i < {2 * v.head}; ++i) dqt[i] = {v.splat("0")};
  const long end = {"sk < q0 + nq ? sk : q0 + nq" if v.causal else "sk"};
  for (long k0 = 0; k0 < end; k0 += {v.block}) {{
    const int n = (int)(end - k0 < {v.block} ? end - k0 : {v.block});
{_rows(v, "key", "(k_h + k0 * kss)", "kss", v.head)}
{_scores(v, "st", "key", "qt", v.head, True)}
{_mask_keys(v)}
    PLAIN for (int r = 0; r < n; ++r) {{
      st[2 * r] -= lse0;
      st[2 * r + 1] -= lse1;
    }}
{_exponentials(v, "st", "n")}
{_rows(v, "val", "(v_h + k0 * vss)", "vss", v.value_head)}
{_scores(v, "dp", "val", "gt", v.value_head)}
{_drop_keys(v, "dp")}
    PLAIN for (int r = 0; r < n; ++r) {{
      dp[2 * r] = st[2 * r] * (dp[2 * r] - delta0);
      dp[2 * r + 1] = st[2 * r + 1] * (dp[2 * r + 1] - delta1);
    }}
{gradient}
{_gathered(v, "dqt", "dp", "key", v.head)}
  }}
{rest}
  GLOBAL {BY_NAME[v.storage].storage}* out_at = dq + b * dqsb + h * dqsh + q0 * dqss;
{_unpack(v, "out_at", "dqt", "dqss", "nq", v.head, " * scale")}"""


def _keys_cpu(v: Variant) -> str:
    """Gradients of keys and values: keys in the lanes, queries as rows, over all heads that share the keys."""
    rows = v.block + 8
    mask = ""
    if v.bias:
        value = _bias_value(v, "bias_at + (q0 + r) * bsq + (k0 + (i < nk ? i : nk - 1)) * bsk")
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
    weights = "dropped" if v.dropout else "st"
    return f"""\
{_common(v, "k")}
  const long b = at / (heads / group), hk = at % (heads / group);
{_pointers(v, "k", "v")}
  {v.vector} kt[{2 * v.head}], vt[{2 * v.value_head}], dkt[{2 * v.head}], dvt[{2 * v.value_head}];
  {v.vector} st[{2 * rows}], dp[{2 * rows}];
  {f"{v.vector} dropped[{2 * rows}];" if v.dropout else ""}
{_pack(v, "kt", "(k_h + k0 * kss)", "kss", "nk", v.head, " * scale")}
{_pack(v, "vt", "(v_h + k0 * vss)", "vss", "nk", v.value_head)}
{_columns(v, "kt", v.head)}
{_columns(v, "vt", v.value_head)}
  for (int i = 0; i < {2 * v.head}; ++i) dkt[i] = {v.splat("0")};
  for (int i = 0; i < {2 * v.value_head}; ++i) dvt[i] = {v.splat("0")};
  for (long h = hk * group; h < (hk + 1) * group; ++h) {{
    const long bh = b * heads + h;
{_pointers(v, "q", "g")}
    {"const long bias_at = b * bsb + h * bsh;" if v.bias else ""}
    for (long q0 = {f"k0 / {v.block} * {v.block}" if v.causal else "0"}; q0 < sq; q0 += {v.block}) {{
      const int n = (int)(sq - q0 < {v.block} ? sq - q0 : {v.block});
{_rows(v, "qry", "(q_h + q0 * qss)", "qss", v.head)}
{_scores(v, "st", "qry", "kt", v.head, True)}
{mask}
      PLAIN for (int r = 0; r < n; ++r) {{
        const {v.vector} less = lse[bh * sq + q0 + r];
        st[2 * r] -= less;
        st[2 * r + 1] -= less;
      }}
{_exponentials(v, "st", "n")}
{_rows(v, "grd", "(g_h + q0 * gss)", "gss", v.value_head)}
{_scores(v, "dp", "grd", "vt", v.value_head)}
{drop}
{_gathered(v, "dvt", weights, "grd", v.value_head)}
      PLAIN for (int r = 0; r < n; ++r) {{
        const {v.vector} less = delta[bh * sq + q0 + r];
        dp[2 * r] = st[2 * r] * (dp[2 * r] - less);
        dp[2 * r + 1] = st[2 * r + 1] * (dp[2 * r + 1] - less);
      }}
{_gathered(v, "dkt", "dp", "qry", v.head)}
    }}
  }}
  GLOBAL {BY_NAME[v.storage].storage}* dk_at = dk + b * dksb + hk * dksh + k0 * dkss;
  GLOBAL {BY_NAME[v.storage].storage}* dv_at = dv + b * dvsb + hk * dvsh + k0 * dvss;
{_unpack(v, "dk_at", "dkt", "dkss", "nk", v.head, " * scale")}
{_unpack(v, "dv_at", "dvt", "dvss", "nk", v.value_head)}"""


# ---- GPU form ----


def _common_gpu(v: Variant, which: str) -> str:
    return f"""\
  const long blocks = (s{which} + {v.group - 1}) / {v.group};
  const long at = (long)GROUP_ID(0) / blocks;
  const long first = ((long)GROUP_ID(0) % blocks) * {v.group};
  const int me = LOCAL_ID(0);
  const long {which}i = first + me < s{which} ? first + me : s{which} - 1;
  const int mine = first + me < s{which};
"""


def _share(v: Variant, to: str, base: str, row: str, size: int) -> str:
    """A block of rows in local memory."""
    return f"""\
    for (int i = me; i < n * {size}; i += {v.group})
      {to}[i] = load_{v.storage}({base}, (long)(i / {size}) * {row} + i % {size});"""


def _own(v: Variant, to: str, base: str, size: int, factor: str = "") -> str:
    return (
        f"  {v.scalar} {to}[{size}];\n  for (int d = 0; d < {size}; ++d) {to}[d] = load_{v.storage}({base}, d){factor};"
    )


def _score_gpu(v: Variant, query: str, key: str) -> str:
    """Completes the score `s` of a query and a key."""
    text = ""
    if v.bias:
        text += f"      s += {_bias_value(v, f'b * bsb + h * bsh + {query} * bsq + ({key}) * bsk')};\n"
    if v.causal:
        text += f"      s = {key} > {query} ? ({v.scalar})-INFINITY : s;\n"
    return text


def _drop_gpu(v: Variant, query: str, key: str) -> str:
    """The factor `f` of a weight."""
    if not v.dropout:
        return ""
    return f"""\
      const ulong number = (ulong)({key});
      const uint4 drawn = tg_philox(seed, offset + (ulong)(bh * sq + {query}) * per_query + number / 4, 0);
      const uint low = (number & 1) != 0 ? LANE(drawn, 1) : LANE(drawn, 0);
      const uint high = (number & 1) != 0 ? LANE(drawn, 3) : LANE(drawn, 2);
      const uint word = (number & 2) != 0 ? high : low;
      const {v.scalar} f = word < drop_limit ? keep : 0;
"""


def _forward_gpu(v: Variant) -> str:
    return f"""\
{_common_gpu(v, "q")}
{_drop_head(v)}
{_QUERY}
{_pointers(v, "q", "k", "v")}
  LOCAL {v.scalar} ks[{v.shared * v.head}], vs[{v.shared * v.value_head}];
{_own(v, "own", "(q_h + qi * qss)", v.head, " * scale")}
  {v.scalar} o[{v.value_head}];
  for (int c = 0; c < {v.value_head}; ++c) o[c] = 0;
  {v.scalar} m = -INFINITY, l = 0;
  const long end = {f"sk < first + {v.group} ? sk : first + {v.group}" if v.causal else "sk"};
  for (long k0 = 0; k0 < end; k0 += {v.shared}) {{
    const int n = (int)(end - k0 < {v.shared} ? end - k0 : {v.shared});
    BARRIER;
{_share(v, "ks", "(k_h + k0 * kss)", "kss", v.head)}
{_share(v, "vs", "(v_h + k0 * vss)", "vss", v.value_head)}
    BARRIER;
    {v.scalar} scores[{v.shared}], most = m;
    for (int r = 0; r < n; ++r) {{
      {v.scalar} s = 0;
      for (int d = 0; d < {v.head}; ++d) s = fma(own[d], ks[r * {v.head} + d], s);
{_score_gpu(v, "qi", "k0 + r")}
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
{_drop_gpu(v, "qi", "k0 + r")}
      {"weight *= f;" if v.dropout else ""}
      for (int c = 0; c < {v.value_head}; ++c) o[c] = fma(weight, vs[r * {v.value_head} + c], o[c]);
    }}
  }}
  if (mine) {{
    const {v.scalar} by = l == 0 ? 0 : 1 / l;
    for (int c = 0; c < {v.value_head}; ++c) store_{v.storage}(out, b * outsb + h * outsh + qi * outss + c, o[c] * by);
    lse[bh * sq + qi] = l == 0 ? ({v.scalar})INFINITY : m + log(l);
  }}"""


def _few_gpu(v: Variant) -> str:
    """A work-group takes one query, and blocks of as many keys as it has items."""
    own = -(-v.value_head // v.group)
    return f"""\
  const long at = (long)GROUP_ID(0) / sq, qi = (long)GROUP_ID(0) % sq;
  const int me = LOCAL_ID(0);
{_drop_head(v)}
{_QUERY}
{_pointers(v, "q", "k", "v")}
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
{_score_gpu(v, "qi", "k0 + me")}
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
{_drop_gpu(v, "qi", "k0 + me")}
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


def _queries_gpu(v: Variant) -> str:
    gradient = "if (mine) scores_g[(bh * sq + qi) * sk + k0 + r] = w;" if v.bias_gradient else ""
    rest = ""
    if v.bias_gradient and v.causal:
        rest = "    for (long k = end; k < sk; ++k) scores_g[(bh * sq + qi) * sk + k] = 0;"
    return f"""\
{_common_gpu(v, "q")}
{_drop_head(v)}
{_QUERY}
{_pointers(v, "q", "k", "v", "o", "g")}
  LOCAL {v.scalar} ks[{v.shared * v.head}], vs[{v.shared * v.value_head}];
{_own(v, "own", "(q_h + qi * qss)", v.head, " * scale")}
{_own(v, "grad", "(g_h + qi * gss)", v.value_head)}
  {v.scalar} sum[{v.head}], del = 0;
  for (int d = 0; d < {v.head}; ++d) sum[d] = 0;
  for (int c = 0; c < {v.value_head}; ++c) del += grad[c] * load_{v.storage}(o_h, qi * oss + c);
  const {v.scalar} less = lse[bh * sq + qi];
  const long end = {f"sk < first + {v.group} ? sk : first + {v.group}" if v.causal else "sk"};
  for (long k0 = 0; k0 < end; k0 += {v.shared}) {{
    const int n = (int)(end - k0 < {v.shared} ? end - k0 : {v.shared});
    BARRIER;
{_share(v, "ks", "(k_h + k0 * kss)", "kss", v.head)}
{_share(v, "vs", "(v_h + k0 * vss)", "vss", v.value_head)}
    BARRIER;
    for (int r = 0; r < n; ++r) {{
      {v.scalar} s = 0, w = 0;
      for (int d = 0; d < {v.head}; ++d) s = fma(own[d], ks[r * {v.head} + d], s);
{_score_gpu(v, "qi", "k0 + r")}
      for (int c = 0; c < {v.value_head}; ++c) w = fma(grad[c], vs[r * {v.value_head} + c], w);
{_drop_gpu(v, "qi", "k0 + r")}
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


def _keys_gpu(v: Variant) -> str:
    return f"""\
{_common_gpu(v, "k")}
{_drop_head(v)}
  const long b = at / (heads / group), hk = at % (heads / group);
{_pointers(v, "k", "v")}
  LOCAL {v.scalar} qs[{v.shared * v.head}], gs[{v.shared * v.value_head}];
{_own(v, "own_k", "(k_h + ki * kss)", v.head, " * scale")}
{_own(v, "own_v", "(v_h + ki * vss)", v.value_head)}
  {v.scalar} sum_k[{v.head}], sum_v[{v.value_head}];
  for (int d = 0; d < {v.head}; ++d) sum_k[d] = 0;
  for (int c = 0; c < {v.value_head}; ++c) sum_v[c] = 0;
  for (long h = hk * group; h < (hk + 1) * group; ++h) {{
    const long bh = b * heads + h;
{_pointers(v, "q", "g")}
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
{_score_gpu(v, "qi", "ki")}
        for (int c = 0; c < {v.value_head}; ++c) w = fma(own_v[c], gs[r * {v.value_head} + c], w);
        const {v.scalar} weight = exp(s - lse[bh * sq + qi]);
{_drop_gpu(v, "qi", "ki")}
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


# ---- kernels ----


def _operands(v: Variant, read: str, written: str = "") -> str:
    """Declares pointers, each with its strides of batch, head and row: ``q``, ``qsb``, ``qsh``, ``qss``."""
    strides = ", ".join(f"{name}s{part}" for name in (read + " " + written).split() for part in "bhs")
    targets = f"{v.storage}* {', '.join(written.split())}" if written else ""
    return f"const {v.storage}* {', '.join(read.split())}; {targets}; i64 {strides}"


def _sizes(v: Variant) -> str:
    """What all kernels take besides."""
    bias = f"const {v.bias}* bias; i64 bsb, bsh, bsq, bsk" if v.bias else ""
    return f"i64 heads, group, sq, sk; {v.compute} scale; {bias}"


def _kernel(v: Variant, name: str, declarations: str, body: str, form: str) -> Kernel:
    local = (v.group,) if form == "gpu" else (1,)
    helpers = shuffle_helpers(v.width, f"uint{v.width}") if v.bias == "b8" and form != "gpu" else ""
    if v.pairs:
        helpers = attention_pairs.HELPERS
        body = f"  {tiles_begin(v.pairs)}\n{body}\n  {tiles_end(v.pairs)}"
    return Kernel(v.tag(name), parameters(f"{declarations}; {_sizes(v)}"), body, helpers=helpers, local=local)


@functools.cache
def forward(v: Variant, form: str, few: int = 0) -> Kernel:
    """For that number of queries, if one up to FEW is given, with a group for each head (GPU: query); else for any.

    Parameters: `q`, `k`, `v`, `out` with their strides, `lse` [batch, heads, queries], `_sizes`; with dropout also
    `drop`, `seed`, `offset`, and `seed_p` and `offset_p` to keep the latter two.
    """
    declarations = f"{_operands(v, 'q k v', 'out')}; {v.compute}* lse"
    if few:
        body = _few_gpu(v) if form == "gpu" else _few_cpu(v, few)
    else:
        body = _forward_gpu(v) if form == "gpu" else _forward_cpu(v)
    if v.dropout:
        declarations += "; f32 drop; u64 seed, offset; i64* seed_p, offset_p"
        once = "LOCAL_ID(0) == 0 && GROUP_ID(0) == 0" if form == "gpu" else "GROUP_ID(0) == 0"
        body = f"  if ({once}) {{ seed_p[0] = (long)seed; offset_p[0] = (long)offset; }}\n{body}"
    return _kernel(v, "few" if few else "forward", declarations, body, form)


def _drawn(v: Variant) -> tuple[str, str]:
    if not v.dropout:
        return "", ""
    head = "  const ulong seed = (ulong)seed_p[0], offset = (ulong)offset_p[0];\n"
    return "f32 drop; const i64* seed_p, offset_p", head


@functools.cache
def query_gradient(v: Variant, form: str) -> Kernel:
    """Parameters: `q`, `k`, `v`, `o`, `g` (the result's gradient), `dq` with their strides, `lse`, `delta` [batch,
    heads, queries] (written), `_sizes`, `scores_g`, the scores' gradient [batch, heads, queries, keys], if wanted; with
    dropout `drop`, `seed_p`, `offset_p`.
    """
    drawn, head = _drawn(v)
    scores = f"{v.compute}* scores_g" if v.bias_gradient else ""
    declarations = f"{_operands(v, 'q k v o g', 'dq')}; const {v.compute}* lse; {v.compute}* delta; {scores}; {drawn}"
    body = _queries_gpu(v) if form == "gpu" else _queries_cpu(v)
    return _kernel(v, "query_gradient", declarations, head + body, form)


@functools.cache
def key_gradient(v: Variant, form: str) -> Kernel:
    """Parameters: `q`, `k`, `v`, `g`, `dk`, `dv` with their strides, `lse`, `delta`, `_sizes`; with dropout `drop`,
    `seed_p`, `offset_p`."""
    drawn, head = _drawn(v)
    declarations = f"{_operands(v, 'q k v g', 'dk dv')}; const {v.compute}* lse, delta; {drawn}"
    return _kernel(v, "key_gradient", declarations, head + (_keys_gpu(v) if form == "gpu" else _keys_cpu(v)), form)
