"""The sizes that kernels are made with and chosen by, as data: a table with a row for each class of devices.

They decide how fast a kernel is and nothing else. `torchgraft tune` measures others on a device and keeps what was the
best there (`torchgraft.tuning`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

from torchgraft.codegen.vectors import vector_lanes
from torchgraft.codegen.x86 import Way

#: Bytes of local memory that every device has: the least that OpenCL promises.
LOCAL_BYTES = 32768

Form = Literal["cpu", "gpu"]


#: More multiplications than any product has.
NEVER = 1 << 62


def size(usual: float, *candidates: float, form: Form | None = "cpu") -> Any:
    """A field of a family of sizes.

    Args:
        usual: for devices of which the table knows nothing else.
        candidates: what `torchgraft tune` tries in its place; half and double if none are given.
        form: of the kernels that have the size; None for both.
    """
    return field(default=usual, metadata={"candidates": candidates, "form": form})


def _candidates(family: object) -> dict[str, tuple[float, ...]]:
    """By name, of each size of a family."""
    usual = {each.name: getattr(family, each.name) for each in fields(family)}  # type: ignore[arg-type]
    return {
        each.name: each.metadata["candidates"]
        or tuple(type(usual[each.name])(usual[each.name] * by) for by in (0.5, 1, 2))
        for each in fields(family)  # type: ignore[arg-type]
    }


@dataclass(frozen=True)
class Blocks:
    """The CPU form of matrix products and convolutions.

    Attributes:
        rows, vectors: accumulators in registers, `rows` times so many vectors; products have one vector more where
            there are registers for it.
        depth: products that are summed before the partial sum is stored; so many rows has a panel.
        row_tiles: a work-item's block has at most so many times `rows` rows.
        column_bytes: of a row of the block, at most.
        taller: products have blocks of so many times as many rows, which share the panels that are copied for them.
        wider: and of so many times as many rows and columns again: what is copied for a block is used more often, and
            its sums and panels take as many times wider squared of the second-level cache.
        sums_bytes: of a block, at most: they are on the stack of the thread that has it.
        work: bytes of the elements that a core multiplies, at least, one after the other; less is not shared out.
        part: the fewest products of a sum that is divided; shorter ones cost more to add up than they gain.
        storing: products that take as long as to store their sum.
        transposing: rows of A whose products take as long as to copy a B that lies along k.
        rows_in_place: rows of A up to which copying B would cost more than it saves.
        rows_of_lines: the same where the vectors of B are lines of the cache.
    """

    rows: int = size(8, 4, 6, 8, 10, 12, 14)
    vectors: int = size(2, 1, 2, 3, 4)
    depth: int = size(256, 128, 192, 256, 384, 512)
    row_tiles: int = size(16, 8, 16, 32)
    column_bytes: int = size(1024, 512, 1024, 2048)
    taller: int = size(2, 1, 2, 4)
    wider: int = size(1, 1, 2)
    sums_bytes: int = size(2 << 20, 1 << 20, 2 << 20)
    work: int = size(2_000_000)
    part: int = size(1024)
    storing: int = size(24)
    transposing: int = size(16)
    rows_in_place: int = size(64)
    rows_of_lines: int = size(640)


@dataclass(frozen=True)
class Small:
    """Products of few columns or short sums, the CPU form.

    Attributes:
        depth: the longest sums whose B is copied, into a panel that stays in the first-level cache.
        narrow_depth: the same where half a vector has all of the columns.
        depth_in_place: the longest sums whose B is read where it lies.
        converted_depth: sums up to which a tile of A stays near once it is converted.
        tiles_in_place: tiles of rows for which copying B would cost more than it saves.
        short_sums: whatever the columns, to copy B costs more for sums that are so short.
        shortest_sums: where B has to be copied, those with more than four vectors of columns are shorter still.
        many_rows: where B has to be copied, short sums pay for so many rows.
        short_sums_bytes: a larger result of short sums is better written in longer rows than panels have.
        few_rows: they need no panel where columns are few.
        longest_sums: of few rows; longer ones are divided.
        rows_in_place: so few rows need no panel either while B stays in the second-level cache.
        panels_in_place: into which B is cut then, at most.
        bytes_in_place: of such a B.
        rows_of_many_columns: the most rows of products with more than two vectors of columns.
    """

    depth: int = size(256)
    narrow_depth: int = size(1024)
    depth_in_place: int = size(1024)
    converted_depth: int = size(256)
    tiles_in_place: int = size(2)
    short_sums: int = size(24)
    shortest_sums: int = size(5, 3, 5, 8)
    many_rows: int = size(128)
    short_sums_bytes: int = size(4 << 20)
    few_rows: int = size(16)
    longest_sums: int = size(8192)
    rows_in_place: int = size(6, 4, 6, 8)
    panels_in_place: int = size(10)
    bytes_in_place: int = size(1 << 19)
    rows_of_many_columns: int = size(64)


@dataclass(frozen=True)
class Tiny:
    """Products that are written out, the CPU form.

    Attributes:
        longest: rows, columns and sums, at most.
        products: multiplications of one, at most.
        batch: fewer matrices are not worth a kernel of their own.
        row: the longest rows of a matrix that are products of their own.
    """

    longest: int = size(8, 4, 8)
    products: int = size(64)
    batch: int = size(64)
    row: int = size(4, 2, 4)


@dataclass(frozen=True)
class FewRows:
    """Products of few rows, which read B once and straight.

    Attributes:
        lanes_summed: cycles of a sum across the lanes of a vector.
        part: the shortest part of a divided sum of B's rows; what is read of B takes the time.
        part_elements: of B in it, at least.
        gpu_rows: the most rows.
        gpu_part: the shortest part of a divided sum.
    """

    lanes_summed: int = size(16)
    part: int = size(512)
    part_elements: int = size(65536)
    gpu_rows: int = size(8, 4, 8, form="gpu")
    gpu_part: int = size(256, form="gpu")


@dataclass(frozen=True)
class Tiles:
    """The GPU form of matrix products and convolutions.

    Attributes:
        side: rows and columns that a work-group computes.
        depth: of the slices in local memory.
        item: rows and columns of a work-item.
        local_bytes: of a group's local memory, at most.
        part: the fewest products of a sum that is divided.
        launch: multiplications of a compute unit that take as long as another launch.
        element: the same, as to write and read an element once.
        alone: of a compute unit's speed, what it does with a single group.
    """

    side: int = size(128, 32, 64, 128, form="gpu")
    depth: int = size(16, form="gpu")
    item: int = size(8, 2, 4, 8, form="gpu")
    local_bytes: int = size(LOCAL_BYTES, LOCAL_BYTES, 2 * LOCAL_BYTES, form="gpu")
    part: int = size(64, form="gpu")
    launch: int = size(400_000, form="gpu")
    element: int = size(60, form="gpu")
    alone: float = size(0.7, 0.5, 0.7, 1.0, form="gpu")

    @property
    def group(self) -> int:
        """A work-group has so many rows of so many work-items."""
        return self.side // self.item

    def depth_of(self, size: int) -> int:
        """The depth for elements of so many bytes: slices of both operands fit into the local memory."""
        depth = self.depth
        while depth > 1 and 2 * depth * self.pitch * size > self.local_bytes:
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
class MatrixUnits:
    """Products of 16-bit floats by a GPU's matrix units.

    Attributes:
        side: rows and columns that a work-group computes, at most.
        speed: how many times as quick as plain multiplications of float32 they are.
        least_sums: shorter ones are left to plain multiplications.
        least_filters, least_taps, least_pixels: convolutions of fewer leave most of a square empty.
        patches_bytes: patches of more are not written: memory is dearer than time then.
    """

    side: int = size(128, 64, 128, form="gpu")
    speed: int = size(5, 3, 5, 8, form="gpu")
    least_sums: int = size(16, form="gpu")
    least_filters: int = size(16, form="gpu")
    least_taps: int = size(32, form="gpu")
    least_pixels: int = size(96, form="gpu")
    patches_bytes: int = size(1 << 30, form="gpu")


@dataclass(frozen=True)
class Planes:
    """Depthwise convolutions, and those of few channels, the CPU form.

    Attributes:
        rows: of the target at once, at most.
        band: elements of the image that are copied with their surroundings.
        taps: of filters that are written out.
        long_taps: of others, a column at a time, at most.
        weight_taps: of which the weight's gradient keeps the sums side by side, at most.
    """

    rows: int = size(8, 4, 6, 8)
    band: int = size(8192)
    taps: int = size(49, 25, 49)
    long_taps: int = size(4096)
    weight_taps: int = size(1024)


@dataclass(frozen=True)
class Boxes:
    """Convolutions by halo tiles, the CPU form.

    Attributes:
        work: multiplications worth some microseconds: less is not worth a core's waking up.
        channels: of a slice, at most: where there are few taps, longer lines rather than more of them.
    """

    work: int = size(250_000)
    channels: int = size(128)


@dataclass(frozen=True)
class Lanes:
    """Convolutions whose channels lie in the lanes of vectors, the CPU form. Costs are cycles in which a vector is
    multiplied.

    Attributes:
        copy: to copy an element of the source.
        transpose: to transpose an element of the filters; a pair of them.
        transpose_in_place: a pair of filters that are read as they are.
        boxes: what halo tiles cost with their copies, of what they cost without.
        longer: what shorter lines must cost of what longer ones do.
        used: so many of the lanes of packed bfloat16 must have channels.
    """

    copy: float = size(1.2)
    transpose: float = size(0.3)
    transpose_in_place: float = size(1.2)
    boxes: float = size(1.08, 1.0, 1.08, 1.2)
    longer: float = size(0.9, 0.8, 0.9, 1.0)
    used: float = size(0.75, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class Im2col:
    """Convolutions as matrix products, the CPU form.

    Attributes:
        channels, pixels: a product of fewer rows or sums, or of fewer columns, does not pay.
        packed_channels: fewer fill less than half of a block of packed bfloat16.
        line: patches whose lines are so long are copied one after the other; others by their elements.
        filters: so many pay for the copy by elements.
        patches_bytes: more are not written.
        kept_bytes: so many stay in a core's own cache; the one that cores share may be others', too.
    """

    channels: int = size(8)
    pixels: int = size(32)
    packed_channels: int = size(12, 6, 12, 24)
    line: int = size(8)
    filters: int = size(192)
    patches_bytes: int = size(64 << 20)
    kept_bytes: int = size(1 << 20)


@dataclass(frozen=True)
class SmallImages:
    """Convolutions of small images, which do not fill vectors of their own: where a product with the patches of all
    images pays.

    Attributes:
        read: pixels of a result, at most, of a convolution with a stride of one.
        kept: the same where the patches stay in caches.
        strided: the same with another stride.
        made: pixels of a result whose image is made.
        channels: at least: to copy the patches of fewer takes as long as it saves.
    """

    read: int = size(9)
    kept: int = size(256)
    strided: int = size(100)
    made: int = size(256)
    channels: int = size(96)


@dataclass(frozen=True)
class GpuImages:
    """Convolutions in the GPU form.

    Attributes:
        pixels: of smaller images other kernels than a product have all pixels of a batch side by side.
        part: pixels of a work-group that sums an element of a weight's gradient, at least.
        strided_rows: of a square that a stride leaves mostly empty, at most.
    """

    pixels: int = size(128, form="gpu")
    part: int = size(2048, form="gpu")
    strided_rows: int = size(8, form="gpu")


@dataclass(frozen=True)
class Attention:
    """
    Attributes:
        keys: of a block in the CPU form.
        gpu_group: work-items of a group.
        gpu_keys: of a block in the GPU form.
        gpu_local_bytes: of a group's local memory, at most.
        gpu_products: multiplications from which matrix products pay: they take some launches more, and fewer are done
            in less time than these.
        gpu_scores: bytes of the scores that products have in memory at a time: a head of 8192 queries and keys in
            float32. A head that has more is left to the kernel that needs no memory, lest long sequences take all.
    """

    keys: int = size(64, 64, 128)
    gpu_group: int = size(64, form="gpu")
    gpu_keys: int = size(16, form="gpu")
    gpu_local_bytes: int = size(LOCAL_BYTES, LOCAL_BYTES, 2 * LOCAL_BYTES, form="gpu")
    gpu_products: int = size(5_000_000, form="gpu")
    gpu_scores: int = size(256 << 20, form="gpu")

    def gpu_keys_of(self, row_bytes: int) -> int:
        """The block for a key and a value of so many bytes together: it fits into the local memory."""
        return max(1, min(self.gpu_keys, self.gpu_local_bytes // row_bytes))


@dataclass(frozen=True)
class Rows:
    """Contiguous rows: softmax, norms, scans.

    Attributes:
        many: so many rows that are shorter than a vector are worth a kernel for the number of their elements.
        some: so few of them are not worth going along them side by side, as columns.
        vectors: of a row up to which one sum after the other takes no longer than it takes to add sums to each other.
        gpu_short: rows up to this length are columns on GPUs, whose groups have that many members or more.
        gpu_long: rows of so many elements keep a large group busy.
    """

    many: int = size(1024)
    some: int = size(16)
    vectors: int = size(4)
    gpu_short: int = size(64, form="gpu")
    gpu_long: int = size(4096, form="gpu")


@dataclass(frozen=True)
class Reductions:
    """
    Attributes:
        single: fewer elements are reduced by one thread.
        part: elements of a part of a long row, at least.
        columns: fewer neighbours are no columns, unless several elements of each may be taken at once.
        short: rows shorter than this are reduced side by side, as columns.
        short_of_one: the same of reductions with a single accumulator, which fill the widest register by then.
        column_bytes: of the accumulators of a block of columns.
        low, cached: columns of at most `low` elements are shared out rather than parts of them, which would have to be
            added up, if there are at most `cached` in all.
        column_part: elements of a part of columns, unless there is less for each core.
        gpu_part, gpu_column_part: elements of a part of a long row, and of a column, at least.
        gpu_parts: so many of a result are added up by a group.
    """

    single: int = size(32768)
    part: int = size(16384)
    columns: int = size(16)
    short: int = size(32)
    short_of_one: int = size(16)
    column_bytes: int = size(32768)
    low: int = size(512)
    cached: int = size(1 << 20)
    column_part: int = size(32768)
    gpu_part: int = size(4096, form="gpu")
    gpu_column_part: int = size(64, form="gpu")
    gpu_parts: int = size(32, form="gpu")


@dataclass(frozen=True)
class Sorting:
    """
    Attributes:
        long: rows from this length on are sorted by several cores, if there are few of them.
        few: the first so many are found by insertion.
        gpu_long: rows from this length on are sorted by several work-items.
        gpu_part: elements of each, which it goes through one after the other. A part has as many counts as there are
            digits.
    """

    long: int = size(1 << 14)
    few: int = size(64)
    gpu_long: int = size(4096, form="gpu")
    gpu_part: int = size(128, form="gpu")


@dataclass(frozen=True)
class Places:
    """What indices tell the places of, as `index_add` and the gradients of embeddings.

    Attributes:
        columns: of a work-item, a multiple of this.
        slice: elements of a part of a row that is collected, at least.
        wide_slice: and at most, unless the places of a part are then no more than `near`.
        near: elements that a processor keeps near it.
        apart: sums of so many elements are worth memory for each work-item.
        apart_parts: of which there are no more.
        row_part: elements of a part of a row of an embedding's gradient.
        groups: fewer do not fill two threads evenly.
        table: elements of an embedding whose rows are cut; of larger ones most of the work is to zero them.
        few_indices: for each of so many all before it are looked at, whether they are the same.
        gpu_rows: so many are added one after the other by each work-item.
    """

    columns: int = size(16)
    slice: int = size(32)
    wide_slice: int = size(256)
    near: int = size(1 << 18)
    apart: int = size(1 << 17)
    apart_parts: int = size(8)
    row_part: int = size(128)
    groups: int = size(16)
    table: int = size(1 << 18)
    few_indices: int = size(8192)
    gpu_rows: int = size(64, form="gpu")


@dataclass(frozen=True)
class Transforms:
    """Fourier transforms.

    Attributes:
        whole: up to this length the scratch of a CPU's work-item stays in its cache.
        two_steps: from this length on two steps fill the lanes that a few lines leave empty.
        groups: a core.
        gpu_groups: a unit.
    """

    whole: int = size(2048)
    two_steps: int = size(256)
    groups: int = size(4)
    gpu_groups: int = size(16, form="gpu")


@dataclass(frozen=True)
class Partition:
    """How elements are partitioned into work-groups.

    Attributes:
        single: up to so many elements are one group on a CPU, since waking a second thread costs more than it gains.
        chunk: of a group on a CPU beyond that, so that threads even out.
        groups_per_unit: no more of them than so many a core.
        cycles: for which it pays to begin a work-item.
        gpu_elements: of a work-item on a GPU.
    """

    single: int = size(16384, 8192, 16384, 32768, 65536)
    chunk: int = size(4096, 2048, 4096, 8192, 16384)
    groups_per_unit: int = size(32, 4, 8, 16, 32)
    cycles: int = size(25_000)
    gpu_elements: int = size(4, 1, 2, 4, 8, form="gpu")


@dataclass(frozen=True)
class Operators:
    """What the library of a device computes of what its kernels do, where those come first.

    Attributes:
        products: multiplications from which a product of matrices is the library's; kernels compute those of fewer.
    """

    products: int = size(NEVER, 0, 1 << 18, 1 << 21, 1 << 24, 1 << 27, 1 << 30, NEVER, form=None)


@dataclass(frozen=True)
class Tuning:
    """All of them."""

    blocks: Blocks = field(default_factory=Blocks)
    small: Small = field(default_factory=Small)
    tiny: Tiny = field(default_factory=Tiny)
    few_rows: FewRows = field(default_factory=FewRows)
    tiles: Tiles = field(default_factory=Tiles)
    matrix_units: MatrixUnits = field(default_factory=MatrixUnits)
    planes: Planes = field(default_factory=Planes)
    boxes: Boxes = field(default_factory=Boxes)
    lanes: Lanes = field(default_factory=Lanes)
    im2col: Im2col = field(default_factory=Im2col)
    small_images: SmallImages = field(default_factory=SmallImages)
    packed_images: SmallImages = field(default_factory=lambda: SmallImages(read=256, strided=256, made=64))
    gpu_images: GpuImages = field(default_factory=GpuImages)
    attention: Attention = field(default_factory=Attention)
    rows: Rows = field(default_factory=Rows)
    reductions: Reductions = field(default_factory=Reductions)
    sorting: Sorting = field(default_factory=Sorting)
    places: Places = field(default_factory=Places)
    transforms: Transforms = field(default_factory=Transforms)
    partition: Partition = field(default_factory=Partition)
    operators: Operators = field(default_factory=Operators)


@dataclass(frozen=True)
class Target:
    """What a kernel is made for.

    Attributes:
        form: "cpu" or "gpu".
        units: the device's compute units.
        simd_width: float32 elements of its vector registers.
        tuning: the sizes to make it with.
        bfloat16: whose words kernels may use to multiply bfloat16, if any.
        matrix_units: whether they may use those for a GPU's.
        work_group: work-items of a work-group, at most.
        outer_vectors: whether its compiler makes vectors of a loop around one that is written out.
        operators: whether it has a library to measure beside its kernels.
    """

    form: str
    units: int
    simd_width: int
    tuning: Tuning
    bfloat16: Way | None = None
    matrix_units: bool = False
    work_group: int = 256
    outer_vectors: bool = False
    operators: bool = False

    @property
    def registers(self) -> int:
        """Of a CPU's vectors."""
        return 32 if vector_lanes(self.simd_width) == 16 else 16

    @property
    def matrix_tiles(self) -> Tiles:
        """Of the matrix units, for groups of 256 work-items."""
        side = self.tuning.matrix_units.side
        return replace(self.tuning.tiles, side=side, depth=32, item=side // 16)


@dataclass(frozen=True)
class DeviceClass:
    """A row of the table.

    Attributes:
        name: as `torchgraft tune --show` prints it.
        measured: on what its sizes were the best.
        kind: "cpu" or "gpu".
        lanes: float32 elements of the vectors of a CPU's kernels.
        matrix_units: whether kernels may use a GPU's.
        sizes: what differs from the usual.
    """

    name: str
    measured: str
    kind: Form
    lanes: int = 16
    matrix_units: bool = False
    sizes: Tuning = field(default_factory=Tuning)


#: Of 32 registers of 64 bytes 16 hold sums (24 in products); of 32 bytes and less there are 16, and 12 of them do.
DEVICE_CLASSES = (
    DeviceClass("cpu64", "two cores with AVX-512 and AMX", "cpu", 16, sizes=Tuning(Blocks(wider=2))),
    DeviceClass("cpu32", "two cores with AVX2", "cpu", 8, sizes=Tuning(Blocks(rows=6, taller=4))),
    DeviceClass("cpu16", "as registers of 32 bytes", "cpu", 4, sizes=Tuning(Blocks(rows=6, taller=4))),
    DeviceClass("gpu-matrix", "a GPU of 132 units", "gpu", matrix_units=True),
    DeviceClass("gpu", "the same without its matrix units", "gpu"),
)


def device_class(kind: str, simd_width: int, matrix_units: bool) -> DeviceClass:
    """The row of a device."""
    lanes = vector_lanes(simd_width)
    return next(
        row
        for row in DEVICE_CLASSES
        if row.kind == kind and (row.lanes == lanes if kind == "cpu" else row.matrix_units == matrix_units)
    )


#: By family and name, what `torchgraft tune` tries, and all that a tuning on disk may hold.
CANDIDATES: Mapping[str, Mapping[str, tuple[float, ...]]] = {
    family.name: _candidates(getattr(Tuning(), family.name)) for family in fields(Tuning)
}


def families(on: Target) -> dict[str, tuple[str, ...]]:
    """The families that kernels have that are made for a device, with the names of their sizes."""
    unused = {
        "matrix_units": not on.matrix_units,
        "packed_images": on.bfloat16 is None,
        "lanes": on.registers < 32,
        "operators": not on.operators,
    }
    found = {
        family.name: tuple(
            each.name for each in fields(getattr(Tuning(), family.name)) if each.metadata["form"] in (on.form, None)
        )
        for family in fields(Tuning)
    }
    return {family: names for family, names in found.items() if names and not unused.get(family)}


@dataclass(frozen=True)
class Room:
    """What a device has for a work-group: work-items, and bytes of local memory."""

    items: int = 256
    local_bytes: int = LOCAL_BYTES

    @staticmethod
    def of(properties: Mapping[str, Any]) -> Room:
        """Of a device's properties; one that does not tell has as much local memory as all."""
        local = int(properties.get("local_memory", 0))
        return Room(int(properties["max_work_group_size"]), local or LOCAL_BYTES)


# Vectors that sums, a row of B and an element of A take, at most: beyond the 32 registers everything is in memory.
_REGISTERS = 32


def is_possible(tuning: Tuning, room: Room) -> bool:
    """Whether kernels of these sizes can run where there is so much room. What is usual can wherever there is as much
    as all devices have."""
    blocks, tiles = tuning.blocks, tuning.tiles
    local_bytes = max(tiles.local_bytes, tuning.attention.gpu_local_bytes)
    return (
        blocks.rows * blocks.vectors + blocks.vectors + 1 <= _REGISTERS
        and tiles.item < tiles.side
        and tiles.group**2 <= room.items
        and all(size.are_even for size in tiles.sizes)
        and tuning.attention.gpu_group <= room.items
        and local_bytes <= max(room.local_bytes, LOCAL_BYTES)
    )


def changed(tuning: Tuning, family: str, **sizes: float) -> Tuning:
    """With other sizes in one of its parts."""
    return replace(tuning, **{family: replace(getattr(tuning, family), **sizes)})


def as_json(tuning: Tuning) -> dict[str, dict[str, float]]:
    """The sizes by part and name."""
    return asdict(tuning)


def from_json(read: object, room: Room) -> Tuning:
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
            if type(size) is not type(usual[name]) or size not in {usual[name], *CANDIDATES[family][name]}:
                raise ValueError(f"{family}.{name} cannot be {size!r}")
        tuning = changed(tuning, family, **sizes)
    if not is_possible(tuning, room):
        raise ValueError("the device cannot have these sizes")
    return tuning
