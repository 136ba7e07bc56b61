"""The sizes of kernels: whatever they are the results are right, and `torchgraft tune` keeps the best it finds."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import pkgutil
import re
import stat
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import Script

import torchgraft
from torchgraft.cli import main
from torchgraft.codegen import tuned, tuning
from torchgraft.codegen.cache import KernelCache
from torchgraft.codegen.tuning import (
    CANDIDATES,
    DEVICE_CLASSES,
    DeviceClass,
    Form,
    Room,
    Target,
    Tuning,
    as_json,
    changed,
    device_class,
    families,
    from_json,
    is_possible,
)
from torchgraft.plans.device import device_traits
from torchgraft.tuning import search as searching
from torchgraft.tuning.search import Child, ChildError, Found, search
from torchgraft.tuning.workloads import WORKLOADS

PROPERTIES: dict[str, object] = {
    "name": "a device",
    "vendor": "nobody",
    "driver_version": "1",
    "kind": "cpu",
    "dialect": "opencl-c",
    "simd_width": 16,
    "compute_units": 2,
    "max_work_group_size": 256,
}


def close(got: torch.Tensor, wanted: torch.Tensor, tolerance: float = 1e-4) -> None:
    torch.testing.assert_close(got.cpu().double(), wanted.double(), rtol=tolerance, atol=tolerance * wanted.abs().max())


BLOCK_SIZES = ("rows", "vectors", "depth", "row_tiles", "column_bytes", "taller", "wider")
BLOCKS = [
    (4, 1, 128, 8, 512, 1, 1),
    (14, 2, 512, 32, 2048, 2, 1),
    (6, 4, 192, 16, 1024, 4, 1),
    (8, 3, 384, 8, 512, 1, 2),
    (10, 2, 256, 16, 512, 2, 2),
]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("blocks", "dtype"),
    [
        *((blocks, torch.float32) for blocks in BLOCKS),
        (BLOCKS[0], torch.int64),
        (BLOCKS[1], torch.bfloat16),
        (BLOCKS[2], torch.complex64),
        (BLOCKS[3], torch.float64),
    ],
    ids=str,
)
def test_products_with_other_blocks(
    device: str, tune: Callable[..., None], blocks: tuple[int, ...], dtype: torch.dtype
) -> None:
    tune("blocks", **dict(zip(BLOCK_SIZES, blocks, strict=True)))
    tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-4
    exact = torch.complex128 if dtype.is_complex else torch.float64 if dtype.is_floating_point else dtype
    for m, k, n in ((37, 300, 61), (5, 700, 17), (130, 257, 300)):
        a, b = (torch.randn(shape) * 3 for shape in ((m, k), (k, n)))
        if dtype.is_complex:
            a, b = (torch.complex(x, torch.randn_like(x)) for x in (a, b))
        a, b = a.to(dtype), b.to(dtype)
        for left, right in ((a, b), (a.T.contiguous().T, b), (a, b.T.contiguous().T)):
            got, wanted = left.to(device) @ right.to(device), left.to(exact) @ right.to(exact)
            if dtype.is_complex:
                got, wanted = torch.view_as_real(got.cpu()), torch.view_as_real(wanted)
            close(got, wanted, tolerance)


def convolve(device: str, groups: int, stride: int, taps: int = 3) -> None:
    """Forward and both gradients, compared with float64 on the CPU."""
    channels = 24
    x, w = torch.randn(2, channels, 19, 23), torch.randn(channels, channels // groups, taps, taps)

    def outcome(*operands: torch.Tensor) -> list[torch.Tensor]:
        inputs = [operand.requires_grad_() for operand in operands]
        y = F.conv2d(inputs[0], inputs[1], stride=stride, padding=taps // 2, groups=groups)
        return [y.detach(), *torch.autograd.grad(y.square().sum(), inputs)]

    for got, wanted in zip(outcome(x.to(device), w.to(device)), outcome(x.double(), w.double()), strict=True):
        close(got, wanted)


@pytest.mark.thorough
@pytest.mark.parametrize("blocks", BLOCKS, ids=str)
@pytest.mark.parametrize("stride", [1, 2])
def test_convolutions_with_other_blocks(
    device: str, tune: Callable[..., None], blocks: tuple[int, ...], stride: int
) -> None:
    tune("blocks", **dict(zip(BLOCK_SIZES, blocks, strict=True)))
    convolve(device, 1, stride)


@pytest.mark.thorough
@pytest.mark.parametrize(("rows", "band"), [(2, 4096), (6, 16384)])
def test_depthwise_convolutions_with_other_planes(device: str, tune: Callable[..., None], rows: int, band: int) -> None:
    tune("planes", rows=rows, band=band)
    convolve(device, 24, 1, 5)


@pytest.mark.parametrize("form", ["gpu"], indirect=True)
@pytest.mark.thorough
@pytest.mark.parametrize("tiles", [(32, 2, 8), (32, 4, 32), (128, 8, 16), (64, 8, 32)], ids=str)
def test_products_and_convolutions_with_other_tiles(
    device: str, form: str, tune: Callable[..., None], tiles: tuple[int, int, int]
) -> None:
    side, item, depth = tiles
    tune("tiles", side=side, item=item, depth=depth)
    a, b = torch.randn(70, 150), torch.randn(150, 90)
    close(a.to(device) @ b.to(device), a.double() @ b.double())
    c = torch.complex(a.double(), a.double().flip(0))
    got = c.to(device) @ b.to(c).to(device)
    close(torch.view_as_real(got.cpu()), torch.view_as_real(c @ b.to(c)))
    convolve(device, 1, 2)


@pytest.mark.parametrize("form", ["gpu"], indirect=True)
@pytest.mark.thorough
@pytest.mark.parametrize(("group", "keys", "head"), [(32, 8, 16), (128, 32, 40), (64, 32, 256), (32, 16, 5)])
def test_attention_with_other_groups(
    device: str, form: str, tune: Callable[..., None], group: int, keys: int, head: int
) -> None:
    tune("attention", gpu_group=group, gpu_keys=keys)
    attend(device, head)


@pytest.mark.thorough
@pytest.mark.parametrize("keys", CANDIDATES["attention"]["keys"])
def test_attention_with_other_blocks_of_keys(device: str, tune: Callable[..., None], keys: int) -> None:
    tune("attention", keys=keys)
    attend(device, 24)


def attend(device: str, head: int) -> None:
    """All gradients too, with all that there is of masks."""
    q, k, v = (torch.randn(2, 3, length, head) for length in (150, 141, 141))
    mask = torch.rand(2, 1, 150, 141) > 0.3
    for kwargs in ({}, {"is_causal": True}, {"attn_mask": mask}, {"attn_mask": torch.randn(150, 141)}):
        outcomes = []
        for to in ({"device": device}, {"dtype": torch.float64}):
            operands = [x.to(**to).requires_grad_() for x in (q, k, v)]
            given: dict[str, Any] = dict(kwargs)
            if "attn_mask" in given:
                here = given["attn_mask"]
                given["attn_mask"] = here if here.dtype == torch.bool and "dtype" in to else here.to(**to)
            y = F.scaled_dot_product_attention(*operands, **given)
            outcomes.append([y.detach(), *torch.autograd.grad(y.square().sum(), operands)])
        for got, wanted in zip(*outcomes, strict=True):
            close(got, wanted)


@pytest.mark.parametrize("size", [1, 300, 20_000, 300_000])
def test_all_elements_are_dealt_out(device: str, form: str, tune: Callable[..., None], size: int) -> None:
    x = torch.randn(size)
    for name, sizes in CANDIDATES["partition"].items():
        for value in (sizes[0], sizes[-1]):
            tune("partition", **{name: value})
            close(x.to(device) * 2 + 1, x.double() * 2 + 1, 1e-6)


@pytest.mark.parametrize("size", [4, 8, 16])
@pytest.mark.parametrize(("side", "depth"), [(128, 32), (64, 16), (64, 32)])
def test_slices_fit_into_local_memory(size: int, side: int, depth: int) -> None:
    tiles = tuning.Tiles(side, depth, 4)
    assert 2 * tiles.depth_of(size) * (side + 1) * size <= tiles.local_bytes
    assert tiles.depth_of(size) >= 4


@pytest.mark.thorough
@pytest.mark.parametrize("family", CANDIDATES)
def test_results_are_right_with_the_ends_of_what_is_tried(
    device: str, form: Form, family: str, tune: Callable[..., None]
) -> None:
    """All least and all largest candidates, by the workloads that measure them."""
    traits = device_traits(torch.device(device).index or 0)
    names = families(traits.target(form)).get(family, ())
    for end in (0, -1):
        sizes = {name: CANDIDATES[family][name][end] for name in names}
        if not is_possible(changed(traits.tuning, family, **sizes), Room(traits.max_work_group_size)):
            continue
        tune(family, **sizes)
        for workload in WORKLOADS[family].values():
            operands = workload.operands()
            results = workload.run(*(x.to(device) for x in operands))
            for got, right in zip(results, workload.run(*operands), strict=True):
                close(got, right, workload.tolerance)


# --- The table, and what is kept.


@pytest.mark.parametrize("row", DEVICE_CLASSES, ids=lambda row: row.name)
def test_what_the_table_has_may_be_kept(row: DeviceClass) -> None:
    assert from_json(json.loads(json.dumps(as_json(row.sizes))), Room()) == row.sizes


@pytest.mark.parametrize("matrix_units", [False, True])
@pytest.mark.parametrize("simd_width", [1, 2, 4, 8, 16, 32])
@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_every_device_has_a_row(kind: str, simd_width: int, matrix_units: bool) -> None:
    row = device_class(kind, simd_width, matrix_units)
    assert row.kind == kind
    assert kind == "cpu" or row.matrix_units == matrix_units


def test_every_row_says_where_it_was_measured() -> None:
    assert all(row.measured for row in DEVICE_CLASSES)
    assert len({row.name for row in DEVICE_CLASSES}) == len(DEVICE_CLASSES)


def _numbers(module: ModuleType) -> list[str]:
    """The constants at the head of a module that are numbers, or several of them."""

    def is_number(value: object) -> bool:
        return type(value) in (int, float) or (type(value) is tuple and len(value) > 0 and all(map(is_number, value)))

    assigned = re.findall(r"^(_?[A-Z][A-Z_0-9]*(?:, _?[A-Z][A-Z_0-9]*)*)(?:: \w+)? = ", inspect.getsource(module), re.M)
    names = [name for line in assigned for name in line.split(", ")]
    return [f"{module.__name__}.{name}" for name in names if is_number(getattr(module, name))]


def test_sizes_are_in_the_table() -> None:
    """What is left at the heads of modules is what a text is written for (rooms of its arrays, its team's members), the
    limits of types, torch's enumerations and what ops cost: a new size is one of the table's, with its candidates."""
    parts = (torchgraft.kernels, torchgraft.ops, torchgraft.plans)
    names = [each.name for part in parts for each in pkgutil.walk_packages(part.__path__, f"{part.__name__}.")]
    found = [number for name in names for number in _numbers(importlib.import_module(name))]
    assert len(found) <= 113, "\n".join(found)


def test_every_family_has_workloads() -> None:
    assert WORKLOADS.keys() == CANDIDATES.keys()


def able(form: Form) -> Target:
    """A device that has all that kernels may use."""
    return Target(form, 2, 16, Tuning(), bfloat16="vectors", matrix_units=True, operators=True)


def test_what_a_device_lacks_is_not_tuned() -> None:
    plain = {*families(Target("cpu", 2, 8, Tuning())), *families(Target("gpu", 2, 8, Tuning()))}
    able_ones = {*families(able("cpu")), *families(able("gpu"))}
    assert able_ones - plain == {"matrix_units", "packed_images", "lanes", "operators"}


def test_no_more_local_memory_than_there_is() -> None:
    """Of slices that are half as deep, work-items would copy unequal parts."""
    large = changed(Tuning(), "tiles", side=128, item=4, local_bytes=65536)
    assert is_possible(large, Room(1024, 65536))
    for room in (Room(1024), Room(1024, 49152), Room.of({"max_work_group_size": 1024, "local_memory": 0})):
        assert not is_possible(large, room)
    assert is_possible(Tuning(), Room(256, 16384))


def test_every_size_is_tried_and_belongs_to_a_form() -> None:
    sought = {
        (family, name) for form in ("cpu", "gpu") for family, names in families(able(form)).items() for name in names
    }
    assert sought == {(family, name) for family, sizes in CANDIDATES.items() for name in sizes}
    for family, sizes in CANDIDATES.items():
        for name, values in sizes.items():
            usual = getattr(getattr(Tuning(), family), name)
            assert len(set(values)) > 1 and usual in values and {type(value) for value in values} == {type(usual)}


@pytest.mark.parametrize(
    ("family", "sizes"),
    [("tiles", {"side": 64, "item": 2}), ("attention", {"gpu_group": 512}), ("blocks", {"rows": 14, "vectors": 3})],
)
def test_what_a_device_cannot_have(family: str, sizes: dict[str, int]) -> None:
    assert not is_possible(changed(Tuning(), family, **sizes), Room())


def test_what_is_kept_is_read(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path / "kernels")
    assert tuned.read(PROPERTIES, cache) is None
    sizes = changed(Tuning(), "blocks", rows=12, depth=512)
    file = tuned.write(PROPERTIES, sizes, {}, cache)
    assert tuned.read(PROPERTIES, cache) == sizes
    assert tuned.read({**PROPERTIES, "driver_version": "2"}, cache) is None
    assert tuned.read({**PROPERTIES, "compute_units": 3}, cache) is None
    assert cache.clear().kernels == 0
    assert file.exists()
    assert tuned.forget(PROPERTIES, cache)
    assert not tuned.forget(PROPERTIES, cache)
    assert tuned.read(PROPERTIES, cache) is None


def test_another_version_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = KernelCache(tmp_path / "kernels")
    tuned.write(PROPERTIES, changed(Tuning(), "blocks", rows=12), {}, cache)
    monkeypatch.setattr(tuned, "__version__", "0.0.0")
    assert tuned.read(PROPERTIES, cache) is None


def test_it_can_be_left_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = KernelCache(tmp_path / "kernels")
    tuned.write(PROPERTIES, changed(Tuning(), "blocks", rows=12), {}, cache)
    monkeypatch.setenv("TORCHGRAFT_TUNED", "0")
    assert tuned.read(PROPERTIES, cache) is None


def spoilt(change: Callable[[dict[str, Any]], object]) -> Callable[[str], str]:
    def spoil(text: str) -> str:
        content = json.loads(text)
        change(content)
        return json.dumps(content)

    return spoil


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "[]",
        spoilt(lambda content: content["tuning"]["blocks"].update(rows="8")),
        spoilt(lambda content: content["tuning"]["blocks"].update(rows=1 << 40)),
        spoilt(lambda content: content["tuning"]["blocks"].update(rows=True)),
        spoilt(lambda content: content["tuning"]["blocks"].pop("rows")),
        spoilt(lambda content: content["tuning"].pop("tiles")),
        spoilt(lambda content: content["tuning"]["tiles"].update(side=128, item=2)),
    ],
)
def test_what_cannot_be_used_is_told(tmp_path: Path, spoil: Callable[[str], str]) -> None:
    cache = KernelCache(tmp_path / "kernels")
    file = tuned.write(PROPERTIES, Tuning(), {}, cache)
    file.write_text(spoil(file.read_text()))
    with pytest.warns(UserWarning, match="torchgraft tune --forget"):
        assert tuned.read(PROPERTIES, cache) is None


def test_what_others_can_write_is_not_read(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path / "kernels")
    tuned.write(PROPERTIES, changed(Tuning(), "blocks", rows=12), {}, cache)
    os.chmod(tmp_path / "kernels", stat.S_IRWXU | stat.S_IWOTH)
    assert tuned.read(PROPERTIES, KernelCache(tmp_path / "kernels")) is None


# --- The search.


class Imagined:
    """Times by a formula, and what was asked for."""

    def __init__(self, seconds: Callable[[Tuning], float], clock: list[float] | None = None) -> None:
        self.seconds, self.clock, self.asked = seconds, clock if clock is not None else [0.0], list[Tuning]()

    def times(self, family: str, sizes: Tuning) -> dict[str, float]:
        self.asked.append(sizes)
        self.clock[0] += 1
        return {"one": self.seconds(sizes), "two": 2 * self.seconds(sizes)}


def sought(bench: Imagined, seconds: float = 1e9, **families: tuple[str, ...]) -> list[Found]:
    return list(search(bench, families, Tuning(), Room(), seconds, lambda: bench.clock[0]))


def test_the_best_is_found() -> None:
    def seconds(sizes: Tuning) -> float:
        blocks = sizes.blocks
        return 1 + abs(blocks.rows * blocks.vectors - 28) + abs(blocks.depth - 384) / 100

    (found,) = sought(Imagined(seconds), blocks=("rows", "vectors", "depth"))
    assert found.sizes == {"rows": 14, "depth": 384}
    assert found.complete
    assert found.gain == pytest.approx(seconds(Tuning()) / 1)
    assert found.failures == ()


def test_what_gains_little_is_left() -> None:
    (found,) = sought(Imagined(lambda sizes: 1 - sizes.planes.rows / 1000), planes=("rows", "band"))
    assert found.sizes == {}
    assert found.tried == 4


def test_what_one_workload_pays_for_is_left() -> None:
    class Unequal(Imagined):
        def times(self, family: str, sizes: Tuning) -> dict[str, float]:
            return (
                {"one": 1.2, "two": 0.1, "three": 0.1} if sizes.planes.rows == 6 else {"one": 1, "two": 1, "three": 1}
            )

    (found,) = sought(Unequal(lambda sizes: 1.0), planes=("rows",))
    assert found.sizes == {}


def test_a_gain_that_does_not_come_again_is_left() -> None:
    bench = Imagined(lambda sizes: 0.5 if sizes.planes.rows == 6 and len(bench.asked) < 5 else 1.0)
    (found,) = sought(bench, planes=("rows",))
    assert found.sizes == {}


def test_what_fails_is_told_and_left() -> None:
    class Failing(Imagined):
        def times(self, family: str, sizes: Tuning) -> dict[str, float]:
            if sizes.attention.keys == 128:
                raise ChildError("the compiler is beaten")
            return super().times(family, sizes)

    (found,) = sought(Failing(lambda sizes: 1.0), attention=("keys",))
    assert found.sizes == {}
    assert len(found.failures) == 1
    assert "the compiler is beaten" in found.failures[0]


def test_the_time_is_kept() -> None:
    bench = Imagined(lambda sizes: 1 / sizes.blocks.rows)
    blocks, small = sought(bench, 40, blocks=("rows", "vectors", "depth"), small=tuple(CANDIDATES["small"]))
    assert not blocks.complete
    assert blocks.tried < 24
    assert small.tried > 0
    assert bench.clock[0] <= 40 + 2 * searching._ROUNDS * 2


def test_only_what_the_device_can_have_is_tried() -> None:
    bench = Imagined(lambda sizes: 1.0)
    sought(bench, tiles=("side", "item", "depth"), attention=("gpu_group",))
    assert all(is_possible(sizes, Room()) for sizes in bench.asked)


# --- The command.


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHGRAFT_CACHE_DIR", str(tmp_path / "kernels"))
    return tmp_path / "kernels"


@pytest.mark.thorough
def test_the_command(kernels: Path, capfd: pytest.CaptureFixture[str], script: Script) -> None:
    assert main(["tune", "--only", "partition", "--seconds", "6", "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert [found["family"] for found in told["found"]] == ["partition"]
    assert told["found"][0]["tried"] > 0
    assert told["found"][0]["failures"] == []
    with Child(0, None, []) as child:
        file = tuned.write(child.properties, changed(child.tuning, "blocks", depth=512), {}, KernelCache())
        with pytest.raises(ChildError, match="table of sizes"):
            child._ask(json.dumps({"family": "blocks", "tuning": {"blocks": {}}, "seconds": 0.01}))
    assert main(["tune", "--show"]) == 0
    shown = capfd.readouterr().out
    assert str(file) in shown
    assert "512  (else 256)" in shown
    depth = (
        "import torch\nfrom torchgraft.plans.device import device_traits\nprint(device_traits(0).tuning.blocks.depth)"
    )
    assert script(depth, autoload=True).strip() == "512"
    assert script(depth, autoload=True, TORCHGRAFT_TUNED="0").strip() == "256"
    assert main(["tune", "--forget"]) == 0
    assert main(["tune", "--forget"]) == 0
    assert "there was nothing to remove" in capfd.readouterr().out
    assert script(depth, autoload=True).strip() == "256"


@pytest.mark.thorough
def test_a_child_that_ends_is_replaced(kernels: Path) -> None:
    with Child(0, None, []) as child:
        assert child._process is not None
        child._process.kill()
        child._process.wait()
        with pytest.raises(ChildError, match="ended with status"):
            child.times("planes", child.tuning)
        assert set(child.times("planes", child.tuning)) == set(WORKLOADS["planes"])


@pytest.mark.thorough
def test_no_such_device(kernels: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "--device", "99", "--seconds", "1"]) == 1
    assert "torchgraft tune: " in capfd.readouterr().err


def test_nothing_for_this_form(kernels: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "--only", "tiles"]) == 1
    assert "cpu form" in capfd.readouterr().err
