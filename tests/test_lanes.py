"""What loops over lanes become where a language has operators for vectors."""

from __future__ import annotations

import pytest

from torchgraft.codegen.lanes import as_vectors, each_lane, fold_lanes

TYPES = dict.fromkeys(("sum", "s", "a"), "float")
FIRST = "const long c = tg_first + tg_j; "


@pytest.mark.parametrize(
    ("statements", "expected"),
    [
        ("tg_sum[tg_j] = (float)(0);", "(*(float16u*)(tg_sum + 32)) = (0);"),
        ("tg_s[tg_j] += tg_s[tg_j + 8];", "(*(float16u*)(tg_s + 32)) += (*(float16u*)(tg_s + 40));"),
        (
            FIRST + "const float x = load_bf16(input, row * size + c); tg_a[tg_j] = x > tg_a[tg_j] ? x : tg_a[tg_j];",
            "const long c = tg_first + 32;  const float16 x = load_bf16x16(input, row * size + c); "
            "(*(float16u*)(tg_a + 32)) = x > (*(float16u*)(tg_a + 32)) ? x : (*(float16u*)(tg_a + 32));",
        ),
        (
            FIRST + "const float m = load_f32(mean, row); tg_a[tg_j] += fabs(load_f32(in, c) - m);",
            "const long c = tg_first + 32;  const float16 m = load_f32(mean, row); "
            "(*(float16u*)(tg_a + 32)) += fabs(load_f32x16(in, c) - m);",
        ),
        (
            FIRST + "const float e = tg_exp_f32(load_f16(x, c) - top); store_f16(out, row * size + c, e);",
            "const long c = tg_first + 32;  const float16 e = tg_exp_f32x16(load_f16x16(x, c) - top); "
            "store_f16x16(out, row * size + c, e);",
        ),
    ],
    ids=["a number", "a tree", "a choice", "one place for all", "exponentials"],
)
def test_what_means_the_same_of_vectors(statements: str, expected: str) -> None:
    assert as_vectors(16, statements, 32, TYPES) == expected


@pytest.mark.parametrize(
    "statements",
    [
        "tg_a[tg_j] += load_f32(in, base + c * stride);",
        "tg_a[tg_j] += load_f32(in, stride * c);",
        "tg_a[tg_j] += load_f32(in, index[c]);",
        "tg_a[tg_j] += load_f64(in, c);",
        "const int i = (int)c; tg_a[tg_j] += load_f32(in, i);",
        "float x = load_f32(in, c); x *= x; tg_a[tg_j] += x;",
        "const float* p = in; tg_a[tg_j] += load_f32(p, c);",
        "tg_a[tg_j] += (double)load_f32(in, c);",
        "tg_a[tg_j] += c;",
        "tg_a[tg_j] += tg_j;",
        "tg_a[tg_j] += load_f32(in, c) != 0;",
        "tg_a[tg_j] += load_f32(in, c) != 0 ? 1 : 0;",
        "tg_a[tg_j] += load_f32(in, c) != 0 ? load_f32(in, c) > 1 : tg_a[tg_j];",
        "tg_a[tg_j] += tg_log_f32(load_f32(in, c));",
        "const float e = load_f32(in, c); store_f32(out, row, e); tg_a[tg_j] += e;",
        "const float e = load_f32(in, c); store_f64(out, c, e); tg_a[tg_j] += e;",
        "if (load_f32(in, c) > tg_a[tg_j]) tg_a[tg_j] = 1;",
        "tg_a[tg_j] = tg_a[tg_j] ? tg_a[tg_j] : load_f32(in, c);",
        "tg_a[tg_j] = (tg_a[tg_j] > 0) + (load_f32(in, c) > 0) > 1 ? tg_a[tg_j] : load_f32(in, c);",
        "const int t = (tg_a[tg_j] > 0) + (load_f32(in, c) > 0); tg_a[tg_j] = t ? tg_a[tg_j] : load_f32(in, c);",
    ],
)
def test_what_may_not_mean_the_same(statements: str) -> None:
    assert as_vectors(16, FIRST + statements, 0, TYPES) is None
    assert "#ifdef" not in each_lane(16, FIRST + statements, types=TYPES)


def test_variables_of_several_types() -> None:
    assert as_vectors(16, "tg_a[tg_j] = 0; tg_i[tg_j] = 0;", 0, {"a": "float", "i": "long"}) is None
    assert as_vectors(16, "tg_a[tg_j] = 0; tg_i[tg_j] = 0;", 0, {"a": "int", "i": "int"}) is None
    assert as_vectors(16, "tg_a[tg_j] = 0; tg_b[tg_j] = 0;", 0, {"a": "float"}) is None


BEST = "tg_best[tg_j] = t ? x : tg_best[tg_j]; tg_at[tg_j] = t ? i : tg_at[tg_j];"


@pytest.mark.parametrize(("scalar", "integer", "storage"), [("float", "int", "f32"), ("double", "long", "f64")])
def test_places_of_extremes(scalar: str, integer: str, storage: str) -> None:
    types = {"best": scalar, "at": integer}
    best, at = f"(*({scalar}4u*)(tg_best + 8))", f"(*({integer}4u*)(tg_at + 8))"
    step = (
        f"{FIRST}const {integer} i = ({integer})c; const {scalar} x = load_{storage}(in, c); "
        f"const int t = !(x <= tg_best[tg_j]) | ((tg_at[tg_j] == INT_MAX) & (x == tg_best[tg_j])); {BEST}"
    )
    assert as_vectors(4, step, 8, types) == (
        f"const long c = tg_first + 8;  const {integer}4 i = ({integer})c + MAKE_{integer}4(0, 1, 2, 3); "
        f"const {scalar}4 x = load_{storage}x4(in, c); "
        f"const {integer}4 t = !(x <= {best}) | (({at} == INT_MAX) & (x == {best})); "
        f"{best} = t ? x : {best}; {at} = t ? i : {at};"
    )


@pytest.mark.parametrize(
    "statements",
    [
        f"const long i = (long)c; const int t = x < tg_best[tg_j]; {BEST}",
        f"const int i = (int)c; const int t = x < tg_best[tg_j]; {BEST} tg_best[tg_j] += t;",
        f"const int i = (int)c; const int t = 3; {BEST}",
        f"const int i = (int)c; const int t = x < tg_at[tg_j]; {BEST}",
        f"const int i = (int)c; const int t = x < tg_best[tg_j]; {BEST} tg_best[tg_j] += i;",
        f"const int i = (int)c; const int t = x < tg_best[tg_j]; {BEST} tg_at[tg_j] += 1;",
        "const int i = (int)c; const int t = x < tg_best[tg_j]; tg_at[tg_j] = t ? i : x;",
        "const int t = x < tg_best[tg_j]; tg_at[tg_j] = t;",
        "tg_at[tg_j] = x;",
    ],
)
def test_integers_that_meet_others(statements: str) -> None:
    assert as_vectors(16, "const float x = load_f32(in, c); " + statements, 0, {"best": "float", "at": "int"}) is None


def test_both_are_in_the_text() -> None:
    text = each_lane(8, "tg_a[tg_j] = 0;", 8, types={"a": "double"})
    assert "#ifdef TG_NO_VECTORS_OF_LOOPS\n{ (*(double8u*)(tg_a + 8)) = 0; }\n#else\n" in text
    assert "for (int tg_i = 0; tg_i < 8; ++tg_i) { const int tg_j = tg_i + 8; tg_a[tg_j] = 0; }" in text


def test_lanes_that_are_combined() -> None:
    def add(to: str, other: str) -> str:
        return f"{to.format('a')} += {other.format('a')};"

    loops = " ".join(
        f"UNROLL for (int tg_j = 0; tg_j < {w}; ++tg_j) {{ {add('tg_a[tg_j]', f'tg_a[tg_j + {w}]')} }}" for w in (2, 1)
    )
    vectors = (
        "const float4 tg_a_of_4 = *(float4u*)tg_a; float2 tg_a_of_2 = tg_a_of_4.lo; { tg_a_of_2 += tg_a_of_4.hi; } "
        "float tg_a_of_1 = tg_a_of_2.lo; { tg_a_of_1 += tg_a_of_2.hi; } tg_a[0] = tg_a_of_1;"
    )
    assert (
        fold_lanes(4, add, {"a": "float"}) == f"\n#ifdef TG_VECTOR_OPERATORS\n{{ {vectors} }}\n#else\n{loops}\n#endif\n"
    )
    assert fold_lanes(4, add, {"a": "int"}) == loops
    assert "#ifdef" not in fold_lanes(
        4, lambda a, b: f"{a.format('a')} += tg_exp_f32({b.format('a')});", {"a": "float"}
    )
