"""What is fixed in the text of kernels of attention, and what all of them have: their parameters, and pieces."""

from __future__ import annotations

from dataclasses import dataclass, field

from torchgraft.codegen.kernel import Kernel, parameters
from torchgraft.codegen.tuning import Attention
from torchgraft.codegen.types import BY_NAME, value_ctype
from torchgraft.codegen.vectors import shuffle_helpers, vector_lanes
from torchgraft.codegen.x86 import Way as Instructions
from torchgraft.kernels.attention import packed_bfloat16
from torchgraft.kernels.pairs import tiles_begin, tiles_end

#: Where a group has one head's queries: which head of which batch, and of which keys.
QUERY = """\
  const long bh = at, b = at / heads, h = at % heads, hk = h / group;
"""


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
        form: "cpu" or "gpu".
        packed: by which instructions products are of packed bfloat16, in the CPU form (`packed_bfloat16`).
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
    form: str = "cpu"
    packed: Instructions | None = None

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
    def rows(self) -> int:
        """Queries, or keys, of a group."""
        return self.group if self.form == "gpu" else self.lanes

    @property
    def together(self) -> int:
        """Sums of two vectors that are in registers at once, beside three vectors that are multiplied: of registers of
        64 bytes there are 32, of others 16."""
        return 8 if self.width * (8 if self.scalar == "double" else 4) == 64 else 6

    @property
    def vector(self) -> str:
        return f"{self.scalar}{self.width}"

    @property
    def index(self) -> str:
        """A vector of numbers of elements, one for each lane."""
        return f"{'long' if self.scalar == 'double' else 'int'}{self.width}"

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

    def bias_value(self, index: str) -> str:
        if self.bias == "b8":
            return f"(load_b8(bias, {index}) ? ({self.scalar})0 : ({self.scalar})-INFINITY)"
        return f"({self.scalar})load_{self.bias}(bias, {index})"

    def finish_score(self, query: str, key: str) -> str:
        """Completes the score `s` of a query and a key."""
        text = ""
        if self.bias:
            text += f"      s += {self.bias_value(f'b * bsb + h * bsh + {query} * bsq + ({key}) * bsk')};\n"
        if self.causal:
            text += f"      s = {key} > {query} ? ({self.scalar})-INFINITY : s;\n"
        return text

    def drop_head(self) -> str:
        if not self.dropout:
            return ""
        return f"""\
  const uint drop_limit = 1 - drop >= 1 ? 0xffffffffu : (uint)((1 - drop) * 4294967296.0f);
  const {self.scalar} keep = drop < 1 ? 1 / (1 - ({self.scalar})drop) : 0;
  const ulong per_query = (ulong)((sk + 3) / 4);"""

    def pointers(self, *names: str) -> str:
        """Pointers to a head's rows: q_h, k_h, ..."""
        head = {"q": "h", "k": "hk", "v": "hk", "o": "h", "g": "h"}
        return "\n".join(f"  {self.pointer} {n}_h = {n} + b * {n}sb + {head[n]} * {n}sh;" for n in names)

    def drop_one(self, query: str, key: str) -> str:
        """The factor `f` of a weight."""
        if not self.dropout:
            return ""
        return f"""\
      const ulong number = (ulong)({key});
      const uint4 drawn = tg_philox(seed, offset + (ulong)(bh * sq + {query}) * per_query + number / 4, 0);
      const uint low = (number & 1) != 0 ? LANE(drawn, 1) : LANE(drawn, 0);
      const uint high = (number & 1) != 0 ? LANE(drawn, 3) : LANE(drawn, 2);
      const uint word = (number & 2) != 0 ? high : low;
      const {self.scalar} f = word < drop_limit ? keep : 0;
"""

    def operands(self, read: str, written: str = "") -> str:
        """Declares pointers, each with its strides of batch, head and row: ``q``, ``qsb``, ``qsh``, ``qss``."""
        strides = ", ".join(f"{name}s{part}" for name in (read + " " + written).split() for part in "bhs")
        targets = f"{self.storage}* {', '.join(written.split())}" if written else ""
        return f"const {self.storage}* {', '.join(read.split())}; {targets}; i64 {strides}"

    def _sizes(self) -> str:
        """What all kernels take besides."""
        bias = f"const {self.bias}* bias; i64 bsb, bsh, bsq, bsk" if self.bias else ""
        return f"i64 heads, group, sq, sk; {self.compute} scale; {bias}"

    def _kernel(self, name: str, declarations: str, body: str) -> Kernel:
        local = (self.group,) if self.form == "gpu" else (1,)
        helpers = shuffle_helpers(self.width, f"uint{self.width}") if self.bias == "b8" and self.form != "gpu" else ""
        if self.packed:
            helpers = packed_bfloat16.HELPERS
            body = f"  {tiles_begin(self.packed)}\n{body}\n  {tiles_end(self.packed)}"
        return Kernel(
            self.tag(name), parameters(f"{declarations}; {self._sizes()}"), body, helpers=helpers, local=local
        )

    def forward_kernel(self, name: str, body: str) -> Kernel:
        """Parameters: `q`, `k`, `v`, `out` with their strides, `lse` [batch, heads, queries], `_sizes`; with dropout
        also `drop`, `seed`, `offset`, and `seed_p` and `offset_p` to keep the latter two."""
        declarations = f"{self.operands('q k v', 'out')}; {self.compute}* lse"
        if self.dropout:
            declarations += "; f32 drop; u64 seed, offset; i64* seed_p, offset_p"
            once = "LOCAL_ID(0) == 0 && GROUP_ID(0) == 0" if self.form == "gpu" else "GROUP_ID(0) == 0"
            body = f"  if ({once}) {{ seed_p[0] = (long)seed; offset_p[0] = (long)offset; }}\n{body}"
        return self._kernel(name, declarations, body)

    def query_gradient_kernel(self, body: str) -> Kernel:
        """Parameters: `q`, `k`, `v`, `o`, `g` (the result's gradient), `dq` with their strides, `lse`, `delta` [batch,
        heads, queries] (written), `_sizes`, `scores_g`, the scores' gradient [batch, heads, queries, keys], if wanted;
        with dropout `drop`, `seed_p`, `offset_p`."""
        scores = f"{self.compute}* scores_g" if self.bias_gradient else ""
        declarations = f"{self.operands('q k v o g', 'dq')}; const {self.compute}* lse; {self.compute}* delta; {scores}"
        return self._gradient_kernel("query_gradient", declarations, body)

    def key_gradient_kernel(self, body: str) -> Kernel:
        """Parameters: `q`, `k`, `v`, `g`, `dk`, `dv` with their strides, `lse`, `delta`, `_sizes`; with dropout `drop`,
        `seed_p`, `offset_p`."""
        declarations = f"{self.operands('q k v g', 'dk dv')}; const {self.compute}* lse, delta"
        return self._gradient_kernel("key_gradient", declarations, body)

    def _gradient_kernel(self, name: str, declarations: str, body: str) -> Kernel:
        if self.dropout:
            declarations += "; f32 drop; const i64* seed_p, offset_p"
            body = f"  const ulong seed = (ulong)seed_p[0], offset = (ulong)offset_p[0];\n{body}"
        return self._kernel(name, declarations, body)
