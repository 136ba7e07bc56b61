"""Products of 16-bit floats by a GPU's matrix units: `C[b] = alpha * A[b] @ B[b] + beta * D[b]`, summed in float32.

A work-group has 8 times 32 work-items, in two rows of four, each of which computes a part of a square of C by the words
of `codegen.ptx`. Slices of A and B of `DEPTH` elements lie in local memory with pairs along k, so that fragments are
single words; their rows are `_PITCH` words apart, by which the 32 read from banks of their own. What is read of the
next slice passes through registers meanwhile.
"""

from __future__ import annotations

from functools import cache

from torchgraft.codegen.arithmetic import arithmetic
from torchgraft.codegen.kernel import Kernel
from torchgraft.kernels.products import Addend, Unit, begin_product, finish_scalar, operands

#: Work-items of a group.
GROUP = 256
#: Of the output tiles that there are kernels for.
LEAST_SIDE = 64
STORAGES = ("f16", "bf16")
# Of a slice: elements along k, words that hold them, and words from one row's to the next one's.
_DEPTH, _WORDS, _PITCH = 32, 16, 20


def _element(name: str, outer: str, limit: str, place: str, k: str) -> str:
    """The bits of an element, zero outside."""
    return f"({outer} < {limit} && {k} < K ? (uint){name}_bits[{place}] : 0u)"


def _interleave(name: str, lane: int) -> str:
    """Pairs along k of two elements beside each other, which vectors `u` and `v` of two k have in a lane."""
    low, high = f"LANE(u, {lane})", f"LANE(v, {lane})"
    first = f"next_{name}[{2 * lane}] = {low} & 0xffffu | {high} << 16;"
    return f"{first} next_{name}[{2 * lane + 1}] = {low} >> 16 | {high} & 0xffff0000u;"


def _read(name: str, unit: Unit, side: int, begin: str) -> str:
    """The work-item's words of a slice: whole vectors where the matrix lies so that there are any."""
    outer, limit = ("m", "M") if name == "a" else ("n", "N")
    along, across = ("a_cs", "a_rs") if name == "a" else ("b_rs", "b_cs")
    words = side * _WORDS // GROUP

    def single(outer: str, k: str) -> str:
        return _element(name, outer, limit, f"({outer}) * {across} + ({k}) * {along}", k)

    if unit == "outer":
        lanes = words // 2
        parts = " ".join(_interleave(name, lane) for lane in range(lanes))
        return f"""{{
    const int {outer} = {outer}0 + item / {_WORDS} * {words}, k = {begin} + item % {_WORDS} * 2;
    if (whole_{name} && {outer} + {words} <= {limit} && k + 2 <= K) {{
      GLOBAL const ushort* p = {name}_bits + k * {along} + {outer};
      const uint{lanes} u = *(GLOBAL const uint{lanes}*)p, v = *(GLOBAL const uint{lanes}*)(p + {along});
      {parts}
    }} else {{
      UNROLL for (int e = 0; e < {words}; ++e)
        next_{name}[e] = {single(f"{outer} + e", "k")} | {single(f"{outer} + e", "k + 1")} << 16;
    }}
  }}"""
    each = _WORDS // words
    loads = "".join(
        f"{{ const uint4 u = ((GLOBAL const uint4*)p)[{v}];"
        + "".join(f" next_{name}[{4 * v + w}] = LANE(u, {w});" for w in range(4))
        + " }"
        for v in range(words // 4)
    )
    vectors = f"whole_{name} && {outer} < {limit} && k + {2 * words} <= K" if unit == "k" else "false"
    return f"""{{
    const int {outer} = {outer}0 + item / {each}, k = {begin} + item % {each} * {2 * words};
    if ({vectors}) {{
      GLOBAL const ushort* p = {name}_bits + {outer} * {across} + k;
      {loads}
    }} else {{
      UNROLL for (int e = 0; e < {words}; ++e)
        next_{name}[e] = {single(outer, "k + 2 * e")} | {single(outer, "k + 2 * e + 1")} << 16;
    }}
  }}"""


def _keep(name: str, unit: Unit, side: int) -> str:
    """Puts what was read into local memory."""
    words = side * _WORDS // GROUP
    if unit == "outer":
        place = f"(item / {_WORDS} * {words} + e) * {_PITCH} + item % {_WORDS}"
        return f"UNROLL for (int e = 0; e < {words}; ++e) tile_{name}[{place}] = next_{name}[e];"
    each = _WORDS // words
    base = f"tile_{name} + item / {each} * {_PITCH} + item % {each} * {words}"
    return " ".join(
        f"((LOCAL uint4*)({base}))[{v}] = MAKE_uint4({', '.join(f'next_{name}[{4 * v + w}]' for w in range(4))});"
        for v in range(words // 4)
    )


@cache
def fragment_kernel(storage: str, result: str, unit_a: Unit, unit_b: Unit, addend: Addend, side: int) -> Kernel:
    """The product of squares of `side`; groups as `tile_groups` has them."""
    math, target = arithmetic(storage), arithmetic(result)
    each = side // 32  # fragments of a work-item, in both directions
    words = side * _WORDS // GROUP
    # The stride that vectors are apart, and that of their elements, by the direction in which these lie.
    strides = {"a": {"k": "a_rs", "outer": "a_cs"}, "b": {"k": "b_cs", "outer": "b_rs"}}
    units = {"a": unit_a, "b": unit_b}
    heads = " ".join(
        f"GLOBAL const ushort* {name}_bits = (GLOBAL const ushort*){name.upper()};"
        + (
            f" const int whole_{name} = (ulong){name}_bits % 16 == 0 && {strides[name][unit]} % 8 == 0;"
            if unit != "none"
            else ""
        )
        for name, unit in units.items()
    )
    body = f"""{begin_product(addend, 2)}
{heads}
LOCAL uint tile_a[{side * _PITCH}] ALIGN(16), tile_b[{side * _PITCH}] ALIGN(16);
FRAGMENTS_BEGIN({GROUP});
const int item = LOCAL_ID(0), g = item % 32 / 4, t = item % 4;
const int m0 = GROUP_ID(1) * {side}, n0 = GROUP_ID(0) * {side};
const int below = item / 128 * {side // 2}, right = item / 32 % 4 * {side // 4};
uint next_a[{words}], next_b[{words}];
float sums[{each}][{each}][4];
UNROLL for (int i = 0; i < {each}; ++i)
  UNROLL for (int j = 0; j < {each}; ++j)
    UNROLL for (int e = 0; e < 4; ++e) sums[i][j][e] = 0;
{_read("a", unit_a, side, "0")}
{_read("b", unit_b, side, "0")}
for (int kb = 0; kb < K; kb += {_DEPTH}) {{
  BARRIER;
  {_keep("a", unit_a, side)}
  {_keep("b", unit_b, side)}
  BARRIER;
  {_read("a", unit_a, side, f"kb + {_DEPTH}")}
  {_read("b", unit_b, side, f"kb + {_DEPTH}")}
  UNROLL for (int step = 0; step < {_WORDS}; step += 8) {{
    uint a[{each}][4], b[{each}][2];
    UNROLL for (int i = 0; i < {each}; ++i) {{
      LOCAL const uint* p = tile_a + (below + i * 16 + g) * {_PITCH} + step + t;
      a[i][0] = p[0]; a[i][1] = p[{8 * _PITCH}]; a[i][2] = p[4]; a[i][3] = p[{8 * _PITCH + 4}];
    }}
    UNROLL for (int j = 0; j < {each}; ++j) {{
      LOCAL const uint* p = tile_b + (right + j * 8 + g) * {_PITCH} + step + t;
      b[j][0] = p[0]; b[j][1] = p[4];
    }}
    UNROLL for (int i = 0; i < {each}; ++i)
      UNROLL for (int j = 0; j < {each}; ++j) FRAGMENTS_MULTIPLY_{storage}(sums[i][j], a[i], b[j]);
  }}
}}
UNROLL for (int i = 0; i < {each}; ++i)
  UNROLL for (int j = 0; j < {each}; ++j)
    UNROLL for (int e = 0; e < 4; ++e) {{
      const int m = m0 + below + i * 16 + g + e / 2 * 8, n = n0 + right + j * 8 + t * 2 + e % 2;
      if (m < M && n < N) {{
        {target.pointer} c = C + m * c_rs + n * c_cs;
        {"" if addend == "none" else f"{math.const_pointer} d = D + m * d_rs + n * d_cs;"}
        {finish_scalar(target, addend, "sums[i][j][e]", "0", "0")}
      }}
    }}"""
    return Kernel("matmul_fragments", operands(math, result, addend), body, local=(GROUP, 1, 1))
