"""What loops over lanes become where a language has operators for vectors."""

from __future__ import annotations

import pytest

from torchgraft.codegen.lanes import as_vectors, each_lane

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
    assert as_vectors(16, statements, 32, "float") == expected


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
    ],
)
def test_what_may_not_mean_the_same(statements: str) -> None:
    assert as_vectors(16, FIRST + statements, 0, "float") is None
    assert "TG_VECTOR_OPERATORS" not in each_lane(16, FIRST + statements, scalar="float")


def test_variables_of_several_types() -> None:
    assert as_vectors(16, "tg_a[tg_j] = 0; tg_i[tg_j] = 0;", 0, "") is None


def test_both_are_in_the_text() -> None:
    text = each_lane(8, "tg_a[tg_j] = 0;", 8, scalar="double")
    assert "#ifdef TG_VECTOR_OPERATORS\n{ (*(double8u*)(tg_a + 8)) = 0; }\n#else\n" in text
    assert "for (int tg_i = 0; tg_i < 8; ++tg_i) { const int tg_j = tg_i + 8; tg_a[tg_j] = 0; }" in text
