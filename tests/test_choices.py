"""Which kernels serve the benchmarks' calls and the layers of known networks, on six classes of devices, is as it was:
tests/choices has a line for each. None of those devices is needed. What has changed on purpose is written down by
`python tests/choices.py`.
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Any

import pytest
from choices import STORED, WITHOUT_VALUES, choices, families, stored
from conftest import Script
from harness.case import Case
from workloads import all_cases

from torchgraft.cli import explain, main
from torchgraft.kernels.choice import Way
from torchgraft.kernels.matmul.choose import WAYS
from torchgraft.ops.attention.choose import BACKWARD, FORWARD
from torchgraft.ops.choices import CLASSES
from torchgraft.ops.convolution.choose import IMAGES, WEIGHTS
from torchgraft.ops.fft.choose import WAYS as TRANSFORMS
from torchgraft.ops.moves import COLLECT
from torchgraft.ops.sorting.choose import SELECTION, SORT, TOP
from torchgraft.plans.reduction import REDUCTIONS
from torchgraft.plans.rows import ROWS


@pytest.fixture(scope="module", name="cases")
def _cases() -> dict[Path, list[Case]]:
    return {stored(family): cases for family, cases in families().items()}


@pytest.mark.parametrize("file", sorted(STORED.iterdir()), ids=lambda file: file.stem)
def test_they_are_as_stored(cases: dict[Path, list[Case]], file: Path) -> None:
    lines = list(choices(cases[file]))
    before = file.read_text().splitlines()
    changed = list(difflib.unified_diff(before, lines, "stored", "now", lineterm="", n=1))
    assert not changed, "\n".join([*changed, "If that is as it should be: python tests/choices.py"])


def test_every_family_is_stored(cases: dict[Path, list[Case]]) -> None:
    assert set(STORED.iterdir()) == set(cases)


def test_every_case_of_the_benchmarks_is_there(cases: dict[Path, list[Case]]) -> None:
    known = {case.name for family in cases.values() for case in family}
    missing = {case.name for case in all_cases()} - known
    assert {name for name in missing if not name.startswith("recurrent/")} == WITHOUT_VALUES


def test_classes_differ() -> None:
    """Each has kernels that no other one has for some call."""
    lines = [line.strip() for file in STORED.iterdir() for line in file.read_text().splitlines()]
    for name in CLASSES:
        assert any(line.startswith(f"{name}:") for line in lines), name


def explained(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    assert main(["explain", *arguments]) == status
    printed = capsys.readouterr()
    return printed.err if status else printed.out


class TestExplain:
    def test_every_way_is_named_with_why_it_is_not_taken(self, capsys: pytest.CaptureFixture[str]) -> None:
        text = explained(capsys, "mm", "64x300x64", "--dtype", "bfloat16", "--target", "cpu64-tiles")
        head, problem, *ways, kernels = text.splitlines()
        assert head == "mm(bf16[64x300], bf16[300x64])"
        assert problem.strip() == "matmul: 64x300 by 300x64 of bf16, A along k, B along outer"
        assert [line.split()[0] for line in ways] == [way.name for way in WAYS]
        reasons = dict(line.strip().split(maxsplit=1) for line in ways)
        assert reasons["packed-bfloat16"] == "<- taken"
        assert reasons["block"] == "would do; packed-bfloat16 comes first"
        assert reasons["tile"] == "for GPUs"
        assert kernels.strip() == "kernels: matmul_bfloat16_tiles"

    def test_a_function_with_names_and_several_kernels(self, capsys: pytest.CaptureFixture[str]) -> None:
        arguments = ("conv2d", "4x64x56x56", "256x64x3x3", "padding=1", "--dtype", "bfloat16", "--target", "gpu-matrix")
        text = explained(capsys, *arguments)
        assert text.startswith("convolution(bf16[4x64x56x56], bf16[256x64x3x3], None, 1, 1, 1, 1,")
        assert "matrix-units     <- taken" in text
        assert text.endswith("kernels: convolution_patches_forward, matmul_fragments\n")

    def test_an_op_that_the_device_leaves_whole(self, capsys: pytest.CaptureFixture[str]) -> None:
        call = ("scaled_dot_product_attention", *["2x8x128x64"] * 3, "is_causal=True", "--dtype", "bfloat16")
        head, problem, *ways, kernels = explained(capsys, *call, "--target", "cpu64-pairs").splitlines()
        assert head.startswith("_scaled_dot_product_fused_attention_overrideable(bf16[2x8x128x64], ")
        asked = "2 times 8 heads, 128 queries and 128 keys of 64 of bf16, causal"
        assert problem.strip() == f"attention: {asked}"
        assert [line.split()[0] for line in ways] == [way.name for way in FORWARD]
        reasons = dict(line.strip().split(maxsplit=1) for line in ways)
        assert reasons["products"] == "for GPUs"
        assert reasons["few-queries"] == "for at most 4 queries"
        assert reasons["packed-bfloat16"] == "<- taken"
        assert reasons["lanes"] == "would do; packed-bfloat16 comes first"
        assert kernels.strip() == "kernels: attention_forward_bf16_64"
        assert "packed-bfloat16  for devices with instructions for it" in explained(capsys, *call, "--target", "cpu64")
        assert "products         <- taken" in explained(capsys, *call, "--target", "gpu")

    def test_each_table_that_transforms_go_through(self, capsys: pytest.CaptureFixture[str]) -> None:
        text = explained(capsys, "fft.rfft", "64x5000", "--target", "gpu")
        assert re.findall("^  fft: (.*)", text, re.MULTILINE) == [
            "64 times 5000 of f32, real to complex, strides 1 and 1",
            "6400 times 50 of f32, real to complex, strides 100 and 100",
            "3200 times 100 of f32, complex to complex, strides 1 and 50",
        ]
        assert re.findall(r"(\S+) +<- taken", text) == ["four-step", "local", "local"]
        assert text == explained(capsys, "fft_rfft", "64x5000", "--target", "gpu")
        text = explained(capsys, "fft.rfft2", "64x100x100", "--target", "cpu32")
        assert re.findall(r"(\S+) +<- taken", text) == ["rows", "columns"]

    def test_a_way_that_sorts_has_that_choice_told_too(self, capsys: pytest.CaptureFixture[str]) -> None:
        text = explained(capsys, "topk", "4x100000", "k=5", "--target", "gpu")
        assert "topk: the first 5 of each of 4 rows of 100000 of f32" in text
        assert "insertion        for CPUs, and rows of less than 4096 elements" in text
        assert "  sort: 4 rows of 100000 of f32\n" in text and "gpu-radix        <- taken" in text
        text = explained(capsys, "median", "100x1000", "1", "--target", "cpu64")
        assert "selection: the median of each of 100 rows of 1000 of f32" in text
        assert "network          for rows of at most 8 elements" in text and "radix-select     <- taken" in text
        assert "sort             would do; radix-select comes first" in text and text.endswith("kernels: select_one\n")

    def test_elements_that_meet(self, capsys: pytest.CaptureFixture[str]) -> None:
        arguments = ("scatter_add", "10x4", "0", "1000x4", "1000x4", "--dtype", "int64", "--target")
        text = explained(capsys, *arguments, "gpu")
        assert "collect: 1000 rows of 4 to 10 places of i64, combined by a + b" in text
        assert "atomics          <- taken" in text and "kernels: add_at_once" in text
        text = explained(capsys, *arguments, "cpu32")
        assert "atomics          for GPUs, more than 64 rows" in text and "in-order         <- taken" in text

    @pytest.mark.parametrize(
        ("target", "shape", "dim", "way"),
        [
            ("cpu64", "2000x7", "1", "unrolled"),
            ("cpu32", "1000x16", "1", "few-vectors"),
            ("cpu64", "1000x1000", "1", "rows"),
            ("cpu64", "4x1000000", "1", "split-rows"),
            ("cpu64", "100x1000", "0", "columns"),
            ("gpu", "1000000x64", "0", "split-columns"),
            ("gpu", "4x5x6x7x8", "[0,2,4]", "copied"),
        ],
    )
    def test_reductions(self, capsys: pytest.CaptureFixture[str], target: str, shape: str, dim: str, way: str) -> None:
        text = explained(capsys, "sum", shape, f"dim={dim}", "--target", target)
        assert re.search(rf"  reduction: sum_f32 of f32\[{shape}\] along .*\n(    .*\n)*?    {way} +<- taken", text)

    @pytest.mark.parametrize(
        ("call", "target", "way"),
        [
            (("softmax", "2000x7", "dim=1"), "cpu64", "unrolled"),
            (("softmax", "4x100x64", "dim=1"), "cpu64", "columns"),
            (("softmax", "100x40", "dim=1"), "gpu", "columns"),
            (("layer_norm", "100x40", "[40]"), "gpu", "rows"),
            (("layer_norm", "100x40", "[40]"), "cpu64", "few-vectors"),
            (("softmax", "100x100000", "dim=1"), "gpu", "large-groups"),
            (("cumsum", "100x1000", "dim=1"), "cpu32", "rows"),
        ],
    )
    def test_rows(self, capsys: pytest.CaptureFixture[str], call: tuple[str, ...], target: str, way: str) -> None:
        text = explained(capsys, *call, "--target", target)
        assert re.search(rf"  rows: \d+ rows of \d+.*\n(    .*\n)*?    {way} +<- taken", text)

    def test_parts_may_be_left_out(self, script: Script) -> None:
        text = """
            from torchgraft.cli import main
            main(["explain", "sum", "4x1000000", "dim=1", "--target", "gpu", "--without", "split-rows"])
        """
        assert script(text).endswith("kernels: sum_f32_f32\n")

    def test_the_device_that_is_here(self, device: str, capsys: pytest.CaptureFixture[str]) -> None:
        names = re.findall(r"kernels: (\w+)", explained(capsys, "aten::add.Tensor", "3x4", "3x4"))
        assert len(names) == 1

    def test_each_class_of_devices_may_be_asked_for(self) -> None:
        assert ("here", *CLASSES) == explain.TARGETS

    def test_the_form_that_is_forced(self, script: Script) -> None:
        text = 'from torchgraft.cli import main; main(["explain", "mm", "64x64x64"])'
        for form, kernel in (("cpu", "matmul_block"), ("gpu", "matmul_tile")):
            printed = script(text, autoload=True, TORCHGRAFT_BACKEND="ocl", TORCHGRAFT_KERNEL_FORM=form)
            assert printed.endswith(f"kernels: {kernel}\n")

    def test_mistakes(self, capsys: pytest.CaptureFixture[str]) -> None:
        for arguments in (("no_such_op", "3"), ("mm", "3x4"), ("mm", "3x4x5", "--dtype", "float31"), ("sum", "a b")):
            text = explained(capsys, *arguments, "--target", "cpu32", status=1)
            assert text.startswith("torchgraft explain: ") and text.count("\n") == 1

    def test_a_way_may_be_left_out(self, script: Script) -> None:
        text = """
            from torchgraft.cli import main
            assert main(["explain", "mm", "3000x31x7", "--target", "cpu32", "--without", "{}"]) == {}
        """
        printed = script(text.format("matmul.small", 0))
        assert "small            left out" in printed and printed.endswith("kernels: matmul_block\n")
        assert "no table of this call has a way smal\n" in script(text.format("smal", 1))
        printed = script(text.format("small,block", 1))
        assert "kernels: none: TORCHGRAFT_WITHOUT_WAYS leaves no way to do this: 3000x31 by 31x7" in printed


TABLES = {
    "products": (WAYS, 9),
    "images": (IMAGES, 13),
    "weights": (WEIGHTS, 9),
    "attention": (FORWARD, 5),
    "attention's gradients": (BACKWARD, 4),
    "transforms": (TRANSFORMS, 9),
    "sorting": (SORT, 5),
    "top": (TOP, 2),
    "selection": (SELECTION, 3),
    "collecting": (COLLECT, 3),
    "reductions": (REDUCTIONS, 7),
    "rows": (ROWS, 5),
}


@pytest.mark.parametrize(("ways", "most"), TABLES.values(), ids=TABLES)
def test_a_table_has_one_way_of_each_name(ways: tuple[Way[Any, Any], ...], most: int) -> None:
    """And few ways: one more has to be worth a tenth of what its family does, or another goes."""
    assert len({way.name for way in ways}) == len(ways) <= most
