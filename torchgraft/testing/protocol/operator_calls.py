"""Calls of each operator of docs/operators.md, and what comes out.

Where a device has another floating type it is computed in float64: so each dtype is compared with numbers that are more
exact than its own.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

from torchgraft.testing.operator_reference import compute

__all__ = ["CALLS", "DTYPES", "Call", "Draw", "Number", "calls", "dtype_name", "expected", "long_sums"]

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
ALL = (*FLOATS, *INTEGERS, torch.bool)
aten = torch.ops.aten


@dataclass(frozen=True)
class Number:
    """A number that each run gives anew."""

    value: int | float

    @property
    def dtype(self) -> torch.dtype:
        return torch.int64 if isinstance(self.value, int) else torch.float64


Input = torch.Tensor | Number | None
Attribute = int | float | str | tuple[int, ...]
Attributes = dict[str, Attribute]


@dataclass
class Call:
    """What a device is asked to do.

    Attributes:
        operator: its name.
        inputs: tensors with values, of the strides that the device gets; None for one that is not given.
        attributes: as of `ProgramSource`.
        dtype: of results that are floating.
        outputs: of which sizes and dtypes count, where the inputs do not tell them; None for one that is not wanted.
        without: the numbers of outputs that are not wanted, where the inputs tell the others.
        over: which input an output lies over, where the operator allows that.
        name: what tells it from others of the operator.
        redrawn: the same call with values of another seed.
        format, data: of a graph in another language, and `function`, what it computes.
        results: of `expected`, once it has been asked.
    """

    operator: str
    inputs: list[Input]
    attributes: Attributes
    dtype: torch.dtype
    outputs: Sequence[torch.Tensor | None] = ()
    without: Sequence[int] = ()
    over: dict[int, int] = field(default_factory=dict)
    name: str = ""
    redrawn: Callable[[int], Call] | None = None
    format: str = "operator"
    data: bytes = b""
    function: Callable[..., Sequence[torch.Tensor]] | None = None
    results: list[torch.Tensor | None] | None = field(default=None, init=False)  # `replace` begins anew


class Draw:
    """Random tensors of one dtype.

    Args:
        dtype: theirs.
        kind: "ordinary"; "one element", where all sizes are 1; "not finite", with infinities and NaN among the values.
        seed: the same one gives the same values.
    """

    def __init__(self, dtype: torch.dtype, kind: str = "ordinary", seed: int = 0) -> None:
        self.dtype, self.kind = dtype, kind
        self.one = kind == "one element"
        self.generator = torch.Generator().manual_seed(seed)

    def sizes(self, given: Sequence[int]) -> list[int]:
        return [1] * len(given) if self.one else list(given)

    def room(self, *sizes: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """What an output is to be like."""
        return torch.empty(self.sizes(sizes), dtype=dtype or self.dtype)

    def __call__(self, *sizes: int) -> torch.Tensor:
        shape = self.sizes(sizes)
        if self.dtype is torch.bool:
            return self.truths(*shape)
        if not self.dtype.is_floating_point:
            low = 0 if self.dtype is torch.uint8 else -9
            return torch.randint(low, 10, shape, generator=self.generator).to(self.dtype)
        values = torch.randn(shape, generator=self.generator)
        if self.kind == "not finite":
            odd = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0])
            place = torch.randint(0, 5, shape, generator=self.generator)
            values = torch.where(torch.rand(shape, generator=self.generator) < 0.3, odd[place], values)
        return values.to(self.dtype)

    def small(self, *sizes: int) -> torch.Tensor:
        """Of which products stay in an integer's range."""
        made = self(*sizes)
        return made if self.dtype.is_floating_point else made.clamp(-2, 2)

    def positive(self, *sizes: int) -> torch.Tensor:
        shape = self.sizes(sizes)
        if self.dtype.is_floating_point:
            return (torch.rand(shape, generator=self.generator) + 0.5).to(self.dtype)
        return torch.randint(1, 4, shape, generator=self.generator).to(self.dtype)

    def distinct(self, *sizes: int) -> torch.Tensor:
        """No two of them are the same, in any dtype: there are at most 256."""
        shape = self.sizes(sizes)
        count = math.prod(shape)
        values = torch.randperm(count, generator=self.generator).view(shape)
        return (values if self.dtype is torch.uint8 else values - count // 2).to(self.dtype)

    def truths(self, *sizes: int) -> torch.Tensor:
        return torch.randint(0, 2, self.sizes(sizes), generator=self.generator).bool()

    def places(self, below: int, *sizes: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        """Indices."""
        return torch.randint(0, below, self.sizes(sizes), generator=self.generator).to(dtype)


Builder = Callable[[Draw], Iterator[Call]]
#: What makes an operator's calls.
CALLS: dict[str, Builder] = {}
#: The dtypes that an operator is asked for.
DTYPES: dict[str, tuple[torch.dtype, ...]] = {}
#: Operators that may be given what is not finite, and what they make of it is known.
_NOT_FINITE: set[str] = set()


def operator(
    name: str, dtypes: tuple[torch.dtype, ...] = FLOATS, not_finite: bool = False
) -> Callable[[Builder], Builder]:
    def declare(builder: Builder) -> Builder:
        CALLS[name], DTYPES[name] = builder, dtypes
        if not_finite:
            _NOT_FINITE.add(name)
        return builder

    return declare


@functools.cache
def calls(name: str, dtype: torch.dtype, kind: str = "ordinary", seed: int = 0) -> list[Call]:
    """An operator's calls; those of two seeds differ in values alone. They are kept, and not to be written."""
    if kind == "not finite" and not (name in _NOT_FINITE and dtype.is_floating_point):
        return []
    made = list(CALLS[name](Draw(dtype, kind, seed)))
    for number, call in enumerate(made):
        call.redrawn = lambda seed, number=number: calls(name, dtype, kind, seed)[number]
    return made


def expected(call: Call) -> list[torch.Tensor | None]:
    """What comes out."""
    if call.results is None:
        with torch.no_grad():
            call.results = _results(call)
    return list(call.results)


def _results(call: Call) -> list[torch.Tensor | None]:
    inputs = [_wide(call, each) for each in call.inputs]
    if call.function is not None:
        made = list(call.function(*inputs))
    else:
        made = compute(call.operator, inputs, call.attributes, [_wide(call, each) for each in call.outputs])
    if call.outputs:
        return [_rounded(value, room) for value, room in zip(made, call.outputs, strict=False)]
    known = [None if number in call.without else value for number, value in enumerate(made)]
    return [value.to(call.dtype) if value is not None and value.is_floating_point() else value for value in known]


def _rounded(value: Any, room: torch.Tensor | None) -> torch.Tensor | None:
    """What is floating stays in float64 until it is rounded, once."""
    if value is None or room is None:
        return None
    return torch.full_like(room, value) if not isinstance(value, torch.Tensor) else value.to(room.dtype)


def _wide(call: Call, given: Input) -> Any:
    if isinstance(given, Number):  # counts as converted to the tensors' dtype
        if not call.dtype.is_floating_point or isinstance(given.value, int):
            return given.value
        return torch.tensor(given.value, dtype=call.dtype).double().item()
    return given.double() if given is not None and given.is_floating_point() else given


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# ---- copies, new values ----


@operator("copy", ALL, not_finite=True)
def _copy(draw: Draw) -> Iterator[Call]:
    for target in ALL:
        x = draw(3, 4, 5)
        if draw.dtype.is_floating_point and not (target.is_floating_point or target is torch.bool):
            if draw.kind == "not finite":
                continue  # no integer is
            x = x * 7
        x = x.abs() if target is torch.uint8 and draw.dtype not in (torch.uint8, torch.bool) else x
        yield Call("copy", [x], {}, target, [x.to(target)], name=f"to {dtype_name(target)}")


@operator("fill", ALL)
def _fill(draw: Draw) -> Iterator[Call]:
    values: list[int | float] = [0, 1] if draw.dtype is torch.bool else [0, 7]
    if draw.dtype.is_floating_point:
        values = [0.0, -2.5, math.inf, math.nan]
    for value in values:
        yield Call("fill", [], {"value": value}, draw.dtype, [draw.room(3, 4, 5)], name=str(value))


@operator("range", (*FLOATS, torch.int64, torch.int32))
def _range(draw: Draw) -> Iterator[Call]:
    for start, step in ((0, 1), (20, -3)) if not draw.dtype.is_floating_point else ((0.0, 1.0), (1.5, -0.25)):
        attributes: Attributes = {"start": start, "step": step}
        yield Call("range", [], attributes, draw.dtype, [draw.room(9)], name=f"from {start} by {step}")


@operator("triangle", ALL, not_finite=True)
def _triangle(draw: Draw) -> Iterator[Call]:
    for kind in ("tril", "triu"):
        for diagonal in (-1, 0, 2):
            attributes: Attributes = {"kind": kind, "diagonal": diagonal}
            yield Call("triangle", [draw(2, 4, 5)], attributes, draw.dtype, name=f"{kind} {diagonal}")


# ---- pointwise ----

#: Kinds with the names of their arguments, each x for a tensor, p for one that is positive, m for a mask, or a number;
#: what has a colon is an attribute.
_REAL = """
exp self=x; log self=p; sqrt self=p; rsqrt self=p; reciprocal self=p; tanh self=x; sigmoid self=x; sin self=x
cos self=x; erf self=x; silu self=x; floor self=x; ceil self=x; gelu self=x approximate:tanh; div self=x other=p
leaky_relu self=x negative_slope=0.25; lerp self=x end=x weight=0.25; addcmul self=x tensor1=x tensor2=x value=0.5
addcdiv self=x tensor1=x tensor2=p value=0.5; threshold_backward grad_output=x self=x threshold=0.0
tanh_backward grad_output=x output=x; sigmoid_backward grad_output=x output=x; silu_backward grad_output=x self=x
gelu_backward grad_output=x self=x approximate:none
add self=x other=0.1 alpha=2; sub self=0.1 other=x alpha=1; mul self=x other=0.1; gt self=x other=0.1
"""
_NUMBERS = """
neg self=x; abs self=x; sign self=x; relu self=x; add self=x other=x alpha=3; sub self=x other=x alpha=1
mul self=x other=x; maximum self=x other=x; minimum self=x other=x; pow self=p exponent=2; clamp self=x min=-1 max=2
"""
_INTEGERS = """
add self=x other=2 alpha=2; sub self=2 other=x alpha=1; mul self=x other=2; gt self=x other=2
"""
_ANY = """
eq self=x other=x; ne self=x other=x; lt self=x other=x; ge self=x other=x; where condition=m self=x other=x
logical_and self=x other=x; logical_not self=x; masked_fill self=x mask=m value=1
"""
_BITS = """
bitwise_and self=x other=x; bitwise_or self=x other=x; bitwise_xor self=x other=x; bitwise_not self=x
"""


@operator("pointwise", ALL, not_finite=True)
def _pointwise(draw: Draw) -> Iterator[Call]:
    real = draw.dtype.is_floating_point
    kinds = _ANY + (_REAL if real else _BITS)
    if draw.dtype is not torch.bool:
        kinds += _NUMBERS + ("" if real else _INTEGERS)
    for line in filter(None, kinds.replace("\n", ";").split(";")):
        yield _elementwise(draw, line.strip())
    if real:
        call = _elementwise(draw, "eq self=x other=0.1")
        assert isinstance(call.inputs[0], torch.Tensor)
        call.inputs[0].view(-1)[:2] = 0.1
        yield call
    if draw.dtype is not torch.bool:
        call = _elementwise(draw, "add self=x other=x alpha=3")
        call.over, call.name = {0: 0}, f"{call.name}, in place"
        yield call


def _elementwise(draw: Draw, line: str) -> Call:
    kind, *words = line.split()
    made: dict[str, Callable[..., torch.Tensor]] = {"x": draw, "p": draw.positive, "m": draw.truths}
    arguments = dict(each.split("=") for each in words if "=" in each)
    inputs: list[Input] = [
        made[each](3, 4, 5) if each in made else Number(float(each) if "." in each else int(each))
        for each in arguments.values()
    ]
    others = dict(each.split(":") for each in words if ":" in each)
    return Call("pointwise", inputs, {"kind": kind, "names": " ".join(arguments), **others}, draw.dtype, name=line)


# ---- products ----


@operator("matmul", (*FLOATS, torch.int64, torch.int32), not_finite=True)
def _matmul(draw: Draw) -> Iterator[Call]:
    half = 0.5 if draw.dtype.is_floating_point else 2.0
    row = draw(4).expand(draw.sizes((5, 4)))
    given: dict[str, tuple[list[Input], float, float]] = {
        "matrices": ([draw(5, 7), draw(7, 4), None], 1.0, 0.0),
        "and a matrix": ([draw(5, 7), draw(7, 4), draw(5, 4)], half, 3.0),
        "and a row": ([draw(5, 7), draw(7, 4), row], 1.0, 1.0),
        "batches": ([draw(3, 5, 7), draw(3, 7, 4), None], 1.0, 0.0),
        "batches and a matrix": ([draw(3, 5, 7), draw(3, 7, 4), draw(3, 5, 4)], half, 1.0),
        "a column": ([draw(5, 7), draw(7, 1), None], 1.0, 0.0),
        "one element": ([draw(1, 7), draw(7, 1), None], 1.0, 0.0),
    }
    for name, (inputs, alpha, beta) in given.items():
        yield Call("matmul", inputs, {"alpha": alpha, "beta": beta}, draw.dtype, name=name)


@dataclass
class _Convolution:
    image: tuple[int, ...]
    weight: tuple[int, ...]
    bias: int = 0  # channels; 0: without
    stride: int = 1
    padding: int = 0
    dilation: int = 1
    transposed: bool = False
    output_padding: int = 0
    groups: int = 1

    @property
    def attributes(self) -> Attributes:
        dims = len(self.image) - 2
        names = ("stride", "padding", "dilation", "output_padding")
        sizes = {name: (getattr(self, name),) * dims for name in names}
        return {"transposed": int(self.transposed), "groups": self.groups, **sizes}


def _convolutions(draw: Draw) -> dict[str, _Convolution]:
    if draw.one:
        return {"one element": _Convolution((1, 1, 1, 1), (1, 1, 1, 1), bias=1)}
    return {
        "images": _Convolution((2, 4, 9, 8), (6, 4, 3, 3), padding=1),
        "groups": _Convolution((2, 4, 9, 8), (6, 2, 3, 3), bias=6, stride=2, padding=1, groups=2),
        "depthwise": _Convolution((2, 4, 6, 6), (4, 1, 3, 3), groups=4),
        "one by one": _Convolution((2, 4, 5, 5), (6, 4, 1, 1), bias=6),
        "lines": _Convolution((2, 3, 12), (5, 3, 3), dilation=2),
        "volumes": _Convolution((1, 2, 4, 5, 4), (3, 2, 2, 2, 2), bias=3),
        "transposed": _Convolution((2, 6, 4, 4), (6, 2, 3, 3), bias=2, stride=2, transposed=True, output_padding=1),
    }


@operator("convolution")
def _convolution(draw: Draw) -> Iterator[Call]:
    for name, each in _convolutions(draw).items():
        bias = draw(each.bias) if each.bias else None
        inputs: list[Input] = [draw(*each.image), draw(*each.weight), bias]
        yield Call("convolution", inputs, each.attributes, draw.dtype, name=name)


def _convolution_gradients(name: str, of: int) -> None:
    @operator(name)
    def gradients(draw: Draw) -> Iterator[Call]:
        for label, each in _convolutions(draw).items():
            given = draw(*each.image), draw(*each.weight)
            y = compute("convolution", [*(t.double() for t in given), None], each.attributes, [])[0]
            inputs: list[Input] = [draw(*y.shape), given[1 - of]]
            yield Call(name, inputs, each.attributes, draw.dtype, [given[of]], name=label)


_convolution_gradients("convolution_input_gradient", 0)
_convolution_gradients("convolution_weight_gradient", 1)


# ---- pooling ----

_POOLS = {  # sizes of windows, strides, paddings, dilations, ceil_mode
    "windows that touch": (2, 2, 0, 1, 0),
    "windows that overlap": (3, 2, 1, 1, 0),
    "beyond the edge": (3, 2, 0, 1, 1),
    "dilated": (2, 1, 0, 2, 0),
}


def _pools(draw: Draw) -> Iterator[tuple[str, Attributes]]:
    names = ("kernel_size", "stride", "padding", "dilation")
    for name, (*sizes, ceil_mode) in {"one element": (1, 1, 0, 1, 0)}.items() if draw.one else _POOLS.items():
        windows: Attributes = {each: (size, size) for each, size in zip(names, sizes, strict=True)}
        yield name, {**windows, "ceil_mode": ceil_mode}


@operator("max_pool")
def _max_pool(draw: Draw) -> Iterator[Call]:
    for shape in ((2, 2, 7, 6), (3, 8, 7)):
        for name, attributes in _pools(draw):
            inputs: list[Input] = [draw.distinct(*shape)]
            yield Call("max_pool", inputs, attributes, draw.dtype, name=f"{name}, {len(shape)} dimensions")


@operator("max_pool_gradient")
def _max_pool_gradient(draw: Draw) -> Iterator[Call]:
    for name, attributes in _pools(draw):
        x = draw.distinct(2, 2, 7, 6)
        places = compute("max_pool", [x.float()], attributes, [])[1]
        yield Call("max_pool_gradient", [draw(*places.shape), places], {}, draw.dtype, [x], name=name)


@operator("adaptive_average_pool")
def _adaptive_pool(draw: Draw) -> Iterator[Call]:
    for to in ((4, 3), (1, 1), (9, 8)):
        yield Call("adaptive_average_pool", [draw(2, 3, 9, 8)], {}, draw.dtype, [draw.room(2, 3, *to)], name=str(to))


@operator("adaptive_average_pool_gradient")
def _adaptive_pool_gradient(draw: Draw) -> Iterator[Call]:
    for to in ((4, 3), (1, 1)):
        room = draw.room(2, 3, 9, 8)
        yield Call("adaptive_average_pool_gradient", [draw(2, 3, *to)], {}, draw.dtype, [room], name=str(to))


# ---- reductions ----


@operator("reduce", ALL, not_finite=True)
def _reduce(draw: Draw) -> Iterator[Call]:
    real, truth = draw.dtype.is_floating_point, draw.dtype is torch.bool
    adds = real or draw.dtype is torch.int64
    for kind in ["amax", "amin", *(["sum"] if adds else []), *(["mean", "logsumexp"] if real else [])]:
        for dims in ((1,), (2,), (0, 2), (0, 1, 2)):
            yield _reduced(kind, dims, draw(3, 4, 5))
    for dims in ((2,), (0, 1, 2)):
        for kind in ("any", "all"):
            yield _reduced(kind, dims, draw(3, 4, 5))
        if adds:
            yield _reduced("prod", dims, draw.small(3, 4, 5))
        for kind in () if truth else ("argmax", "argmin", "max", "min"):
            yield _reduced(kind, dims, draw.distinct(3, 4, 5))
    if real:
        for dims in ((1,), (0, 1, 2)):
            for order in (2.0, 1.0, math.inf):
                yield _reduced("norm", dims, draw(3, 4, 5), ord=order)
            for kind in () if draw.one else ("var", "std", "var_mean", "std_mean"):  # one element has none
                yield _reduced(kind, dims, draw(3, 4, 5), correction=1.0)
        yield _reduced("var", (2,), draw(3, 4, 5), correction=0.0)


def _reduced(kind: str, dims: tuple[int, ...], x: torch.Tensor, **others: Attribute) -> Call:
    return Call("reduce", [x], {"kind": kind, "dims": dims, **others}, x.dtype, name=f"{kind} over {dims}")


# ---- along a dimension ----


def _softmaxes(name: str) -> None:
    @operator(name, not_finite=True)
    def values(draw: Draw) -> Iterator[Call]:
        for dim in range(3):
            yield Call(name, [draw(3, 4, 5)], {"dim": dim}, draw.dtype, name=f"along {dim}")

    @operator(f"{name}_gradient")
    def gradients(draw: Draw) -> Iterator[Call]:
        for dim in range(3):
            y = compute(name, [draw(3, 4, 5).double()], {"dim": dim}, [])[0].to(draw.dtype)
            yield Call(f"{name}_gradient", [draw(3, 4, 5), y], {"dim": dim}, draw.dtype, name=f"along {dim}")


_softmaxes("softmax")
_softmaxes("log_softmax")


@operator("cumulative", (*FLOATS, torch.int64))
def _cumulative(draw: Draw) -> Iterator[Call]:
    for kind in ("cumsum", "cumprod"):
        for dim in range(3):
            x = (draw if kind == "cumsum" else draw.small)(3, 4, 5)
            yield Call("cumulative", [x], {"kind": kind, "dim": dim}, draw.dtype, name=f"{kind} along {dim}")


@operator("sort", ALL, not_finite=True)
def _sort(draw: Draw) -> Iterator[Call]:
    for dim in range(3):
        for descending in (0, 1):
            x = draw(3, 4, 5)
            if draw.dtype.is_floating_point:
                x = (x * 2).round()  # many are the same, and keep their order
            attributes: Attributes = {"dim": dim, "descending": descending}
            yield Call("sort", [x], attributes, draw.dtype, name=f"along {dim}, descending {descending}")


@operator("topk", (*FLOATS, *INTEGERS))
def _top(draw: Draw) -> Iterator[Call]:
    for dim, found in ((0, (2, 4, 5)), (2, (3, 4, 2))):
        rooms = [draw.room(*found), draw.room(*found, dtype=torch.int64)]
        for largest in (1, 0):
            attributes: Attributes = {"dim": dim, "largest": largest}
            name = f"along {dim}, largest {largest}"
            yield Call("topk", [draw.distinct(3, 4, 5)], attributes, draw.dtype, rooms, name=name)


# ---- normalisation ----


@operator("layer_norm")
def _layer_norm(draw: Draw) -> Iterator[Call]:
    for dims in (1, 2):
        for given in ((True, True), (True, False), (False, False)):
            weight, bias = (draw(*(3, 4, 5)[-dims:]) if each else None for each in given)
            name = f"{dims} dimensions, weight and bias {given}"
            yield Call("layer_norm", [draw(3, 4, 5), weight, bias], {"dims": dims, "eps": 1e-3}, draw.dtype, name=name)


def _moments(x: torch.Tensor, dims: list[int], keepdim: bool) -> list[torch.Tensor]:
    """The mean and 1 / deviation."""
    var, mean = torch.var_mean(x.double(), dims, correction=0, keepdim=keepdim)
    return [mean.to(x.dtype), (var + 1e-3).rsqrt().to(x.dtype)]


@operator("layer_norm_gradient")
def _layer_norm_gradient(draw: Draw) -> Iterator[Call]:
    for dims, weighted in ((1, True), (2, True), (1, False)):
        x = draw(3, 4, 5)
        w = draw(*(3, 4, 5)[-dims:]) if weighted else None
        inputs: list[Input] = [draw(3, 4, 5), x, *_moments(x, list(range(3 - dims, 3)), True), w]
        name = f"{dims} dimensions, weight {weighted}"
        yield Call("layer_norm_gradient", inputs, {"dims": dims}, draw.dtype, [x, w, w], name=name)


@operator("batch_norm")
def _batch_norm(draw: Draw) -> Iterator[Call]:
    for shape in ((3, 4, 5, 2), (6, 4)):
        for training, weighted, running in ((1, True, True), (1, False, False), (0, True, True), (0, False, True)):
            if training and draw.one:
                continue  # one element has no variance
            weight, bias = (draw(4) if weighted else None for _ in range(2))
            mean, var = (draw(4), draw.positive(4)) if running else (None, None)
            yield Call(
                "batch_norm",
                [draw(*shape), weight, bias, mean, var],
                {"training": training, "momentum": 0.25, "eps": 1e-3},
                draw.dtype,
                without=() if training else (1, 2, 3, 4),
                over={3: 3, 4: 4} if training and running else {},
                name=f"{len(shape)} dimensions, training {training}, weight {weighted}, running statistics {running}",
            )


@operator("batch_norm_gradient")
def _batch_norm_gradient(draw: Draw) -> Iterator[Call]:
    for weighted in (True, False):
        x, w = draw(3, 4, 5, 2), draw(4) if weighted else None
        inputs: list[Input] = [draw(3, 4, 5, 2), x, w, *_moments(x, [0, 2, 3], False)]
        yield Call("batch_norm_gradient", inputs, {}, draw.dtype, [x, w, w], name=f"weight {weighted}")


# ---- indices ----


@operator("gather", ALL, not_finite=True)
def _gather(draw: Draw) -> Iterator[Call]:
    for dim, shape, dtype in ((0, (4,), torch.int64), (0, (2, 3), torch.int64), (1, (4,), torch.int32)):
        x = draw(6, 5)
        places = draw.places(x.shape[dim], *shape, dtype=dtype)
        yield Call("gather", [x, places], {"dim": dim}, draw.dtype, name=f"along {dim}, {dtype}, {shape}")


@operator("scatter_add")
def _scatter_add(draw: Draw) -> Iterator[Call]:
    room = draw.room(6, 3)
    for left_out, dtype in ((-1, torch.int64), (2, torch.int64), (-1, torch.int32)):
        inputs: list[Input] = [draw(2, 4, 3), draw.places(len(room), 2, 4, dtype=dtype)]
        name = f"{left_out}, {dtype}"
        yield Call("scatter_add", inputs, {"left_out": left_out}, draw.dtype, [room], name=name)


@operator("cat", ALL, not_finite=True)
def _cat(draw: Draw) -> Iterator[Call]:
    parts: dict[int, list[tuple[int, ...]]] = {
        0: [(2, 4), (1, 4)],
        1: [(3, 2), (3, 4), (3, 1)],
        2: [(2, 3, 2), (2, 3, 3)],
    }
    for dim, shapes in parts.items():
        yield Call("cat", [draw(*shape) for shape in shapes], {"dim": dim}, draw.dtype, name=f"along {dim}")
    yield Call("cat", [draw(3, 4)], {"dim": 0}, draw.dtype, name="one part")


# ---- losses ----


def _losses(draw: Draw) -> Iterator[tuple[Attributes, torch.Tensor, torch.Tensor, torch.Tensor | None]]:
    """Attributes of a loss, logarithms, classes and weights."""
    for reduction in ("mean", "sum", "none"):
        for weighted in (False, True):
            x = F.log_softmax(draw(6, 5).double(), 1).to(draw.dtype)
            classes = draw.places(x.shape[1], 6)
            if not draw.one:
                classes[1] = -100
            yield {"reduction": reduction, "ignored": -100}, x, classes, draw.positive(5) if weighted else None


@operator("nll_loss")
def _nll_loss(draw: Draw) -> Iterator[Call]:
    for attributes, x, classes, weight in _losses(draw):
        name = f"{attributes['reduction']}, weight {weight is not None}"
        yield Call("nll_loss", [x, classes, weight], attributes, draw.dtype, name=name)


@operator("nll_loss_gradient")
def _nll_loss_gradient(draw: Draw) -> Iterator[Call]:
    for attributes, x, classes, weight in _losses(draw):
        wide = [x.double(), classes, None if weight is None else weight.double()]
        loss, total = compute("nll_loss", wide, attributes, [])
        inputs: list[Input] = [draw(*loss.shape), classes, weight, total.to(draw.dtype)]
        name = f"{attributes['reduction']}, weight {weight is not None}"
        yield Call("nll_loss_gradient", inputs, attributes, draw.dtype, [x], name=name)


# ---- sums of 16-bit floats ----


def long_sums(name: str, dtype: torch.dtype) -> list[Call]:
    """Calls of an operator that sum up so many ones that a 16-bit float would stop counting them; none, where an
    operator does not sum up."""
    ones = functools.partial(torch.ones, dtype=dtype)
    near_one = (1 + torch.randn(2, 4096, generator=torch.Generator().manual_seed(0)) / 8).to(dtype)
    images = _Convolution((1, 64, 8, 8), (1, 64, 8, 8)).attributes
    row = ones(2, 4096)
    training: Attributes = {"training": 1, "momentum": 0.25, "eps": 1e-3}
    made: dict[str, list[tuple[list[Input], Attributes, list[torch.Tensor]]]] = {
        "matmul": [([row, ones(4096, 3), None], {"alpha": 1.0, "beta": 0.0}, [])],
        "convolution": [([ones(1, 64, 8, 8), ones(1, 64, 8, 8), None], images, [])],
        "convolution_input_gradient": [([ones(1, 4096, 1, 1), ones(4096, 1, 1, 1)], images, [ones(1, 1, 1, 1)])],
        "convolution_weight_gradient": [([ones(1, 1, 64, 64), ones(1, 1, 64, 64)], images, [ones(1, 1, 1, 1)])],
        "adaptive_average_pool": [([ones(1, 1, 64, 64)], {}, [ones(1, 1, 1, 1)])],
        "reduce": [
            ([row], {"kind": "sum", "dims": (1,)}, []),
            ([row], {"kind": "mean", "dims": (1,)}, []),
            ([row], {"kind": "norm", "dims": (0, 1), "ord": 2.0}, []),
        ],
        "softmax": [([row], {"dim": 1}, [])],
        "log_softmax": [([row], {"dim": 1}, [])],
        "cumulative": [([row], {"kind": "cumsum", "dim": 1}, [])],
        "layer_norm": [([near_one, None, None], {"dims": 1, "eps": 1e-3}, [])],
        "batch_norm": [([near_one.view(4096, 2), None, None, None, None], training, [])],
    }
    return [Call(name, inputs, given, dtype, rooms) for inputs, given, rooms in made.get(name, [])]
