"""The sizes that kernels are made with, as data: a table with a row for each class of devices.

They decide how fast a kernel is and nothing else. `torchgraft tune` measures others on a device and keeps what was the
best there (`torchgraft.tuning`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace

from torchgraft.codegen.vectors import vector_lanes
from torchgraft.codegen.x86 import Way

#: Bytes of local memory that every device has: the least that OpenCL promises.
LOCAL_BYTES = 32768


@dataclass(frozen=True)
class Blocks:
    """The CPU form of matrix products and convolutions.

    Attributes:
        rows, vectors: accumulators in registers, `rows` times so many vectors; products have one vector more where
            there are registers for it.
        depth: products that are summed before the sum is put aside; so many rows has a panel.
        row_tiles: a work-item's block has at most so many times `rows` rows.
        column_bytes: of a row of the block, at most.
        taller: products have blocks of so many times as many rows, which share the panels that are copied for them.
        wider: and of so many times as many rows and columns again: what is copied for a block is used more often, and
            its sums and panels take as many times wider squared of the second-level cache.
    """

    rows: int = 8
    vectors: int = 2
    depth: int = 256
    row_tiles: int = 16
    column_bytes: int = 1024
    taller: int = 2
    wider: int = 1


@dataclass(frozen=True)
class Tiles:
    """The GPU form of matrix products and convolutions.

    Attributes:
        side: rows and columns that a work-group computes.
        depth: of the slices in local memory.
        item: rows and columns of a work-item.
    """

    side: int = 128
    depth: int = 16
    item: int = 8

    @property
    def group(self) -> int:
        """A work-group has so many rows of so many work-items."""
        return self.side // self.item

    def depth_of(self, size: int) -> int:
        """The depth for elements of so many bytes: slices of both operands fit into the local memory."""
        depth = self.depth
        while depth > 1 and 2 * depth * self.pitch * size > LOCAL_BYTES:
            depth //= 2
        return depth

    @property
    def pitch(self) -> int:
        """Elements from one row of a slice to the next one's, so that columns are spread over the memory's banks."""
        return self.side + 4

    @property
    def are_even(self) -> bool:
        """Whether each work-item copies as many elements of a slice, whatever their size, which it can tell of from its
        number."""
        items = self.group**2
        depths = {self.depth_of(size) for size in (4, 8, 16)}
        return items % self.side == 0 and all(
            depth % (items // self.side) == 0 and items % depth == 0 and self.side % (items // depth) == 0
            for depth in depths
        )

    @property
    def sizes(self) -> list[Tiles]:
        """Those with the same work-groups: these, and smaller ones of half the side each, down to pairs."""
        smaller = [replace(self, side=self.side // 2, item=self.item // 2)] if self.item > 2 else []
        return [self, *(size for tiles in smaller for size in tiles.sizes)]


@dataclass(frozen=True)
class Planes:
    """Depthwise convolutions in the CPU form: rows of the target at once at most, and elements of the image that are
    copied with their surroundings."""

    rows: int = 8
    band: int = 8192


@dataclass(frozen=True)
class Attention:
    """Keys of a block in the CPU form; work-items of a group and keys of a block in the GPU form."""

    keys: int = 64
    gpu_group: int = 64
    gpu_keys: int = 16

    def gpu_keys_of(self, row_bytes: int) -> int:
        """The block for a key and a value of so many bytes together: it fits into the local memory."""
        return max(1, min(self.gpu_keys, LOCAL_BYTES // row_bytes))


@dataclass(frozen=True)
class Dealing:
    """How elements are dealt out to work-groups.

    Attributes:
        single: up to so many elements are one group on a CPU, since waking a second thread costs more than it gains.
        chunk: of a group on a CPU beyond that, so that threads even out.
        groups_per_unit: no more of them than so many a core.
        gpu_elements: of a work-item on a GPU.
    """

    single: int = 16384
    chunk: int = 4096
    groups_per_unit: int = 32
    gpu_elements: int = 4


@dataclass(frozen=True)
class Tuning:
    """All of them."""

    blocks: Blocks = field(default_factory=Blocks)
    tiles: Tiles = field(default_factory=Tiles)
    planes: Planes = field(default_factory=Planes)
    attention: Attention = field(default_factory=Attention)
    dealing: Dealing = field(default_factory=Dealing)


@dataclass(frozen=True)
class Target:
    """What a kernel is made for.

    Attributes:
        form: "cpu" or "gpu".
        units: the device's compute units.
        simd_width: float32 elements of its vector registers.
        tuning: the sizes to make it with.
        bfloat16: whose words kernels may use to multiply bfloat16, if any.
        fragments: whether they may use those for a GPU's matrix units.
        work_group: work-items of a work-group, at most.
        outer_vectors: whether its compiler makes vectors of a loop around one that is written out.
    """

    form: str
    units: int
    simd_width: int
    tuning: Tuning
    bfloat16: Way | None = None
    fragments: bool = False
    work_group: int = 256
    outer_vectors: bool = False


# By float32 elements of a vector register: there are 32 registers of 64 bytes, of which 16 hold sums (24 in products);
# of 32 bytes and less there are 16, and 12 of them do.
_TABLE = {
    16: Tuning(Blocks(rows=8, vectors=2, wider=2)),
    8: Tuning(Blocks(rows=6, vectors=2, taller=4)),
    4: Tuning(Blocks(rows=6, vectors=2, taller=4)),
}


def default_tuning(simd_width: int) -> Tuning:
    """What the table has for a device, by its vector registers; the GPU form's sizes are the same in all rows."""
    return _TABLE[vector_lanes(simd_width)]


# What `torchgraft tune` tries, and all that a tuning on disk may hold.
CANDIDATES: Mapping[str, Mapping[str, tuple[int, ...]]] = {
    "blocks": {
        "rows": (4, 6, 8, 10, 12, 14),
        "vectors": (1, 2, 3, 4),
        "depth": (128, 192, 256, 384, 512),
        "row_tiles": (8, 16, 32),
        "column_bytes": (512, 1024, 2048),
        "taller": (1, 2, 4),
        "wider": (1, 2),
    },
    "tiles": {"side": (32, 64, 128), "item": (2, 4, 8), "depth": (8, 16, 32)},
    "planes": {"rows": (4, 6, 8), "band": (4096, 8192, 16384)},
    "attention": {"keys": (64, 128), "gpu_group": (32, 64, 128), "gpu_keys": (8, 16, 32)},
    "dealing": {
        "single": (8192, 16384, 32768, 65536),
        "chunk": (2048, 4096, 8192, 16384),
        "groups_per_unit": (4, 8, 16, 32),
        "gpu_elements": (1, 2, 4, 8),
    },
}

# Vectors that sums, a row of B and an element of A take, at most: beyond the 32 registers everything is in memory.
_REGISTERS = 32


def is_possible(tuning: Tuning, work_group: int) -> bool:
    """Whether kernels of these sizes can run on a device that has work-groups of `work_group` work-items."""
    blocks, tiles = tuning.blocks, tuning.tiles
    return (
        blocks.rows * blocks.vectors + blocks.vectors + 1 <= _REGISTERS
        and tiles.item < tiles.side
        and tiles.group**2 <= work_group
        and all(size.are_even for size in tiles.sizes)
        and tuning.attention.gpu_group <= work_group
    )


def changed(tuning: Tuning, family: str, **sizes: int) -> Tuning:
    """With other sizes in one of its parts."""
    return replace(tuning, **{family: replace(getattr(tuning, family), **sizes)})


def as_json(tuning: Tuning) -> dict[str, dict[str, int]]:
    """The sizes by part and name."""
    return asdict(tuning)


def from_json(read: object, work_group: int) -> Tuning:
    """The opposite of `as_json`.

    Raises:
        ValueError: it is no tuning, or none that can be used on the device.
    """
    if not isinstance(read, dict) or read.keys() != {part.name for part in fields(Tuning)}:
        raise ValueError("it is no table of sizes")
    tuning = Tuning()
    for family, sizes in read.items():
        usual = asdict(getattr(tuning, family))
        if not isinstance(sizes, dict) or sizes.keys() != usual.keys():
            raise ValueError(f"it has not the sizes of {family}")
        for name, size in sizes.items():
            if type(size) is not int or size not in {usual[name], *CANDIDATES[family][name]}:
                raise ValueError(f"{family}.{name} cannot be {size!r}")
        tuning = changed(tuning, family, **sizes)
    if not is_possible(tuning, work_group):
        raise ValueError("the device cannot have these sizes")
    return tuning
