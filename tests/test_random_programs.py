"""Programs that nobody thought of: chains of views, in-place writes, reductions, products, indexing and conversions
over tensors that share memory, on the device beside torch's CPU.

After each step the result is compared, then all tensors of the program; where rounding differs the device goes on with
the CPU's values. Hypothesis draws the programs and makes what fails short. With CI set they are always the same;
otherwise they differ in every run, and TORCHGRAFT_TEST_SEED repeats them. TORCHGRAFT_TEST_PROGRAMS is how many there
are, and with TORCHGRAFT_TEST_SECONDS (`make test-all`) there are more until that time is over, half of them with room
for two plans of an op only.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import hypothesis
import pytest
import torch
from conftest import SEED, random_examples
from hypothesis import strategies as st
from torch.utils._pytree import tree_leaves

from torchgraft import _C
from torchgraft.testing.conformance.check import attempt, widen
from torchgraft.testing.conformance.compare import dense, difference
from torchgraft.testing.conformance.layout import Sample, each_tensor, on_device

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]
DTYPES = [torch.float32, *FLOATS, *INTEGERS, torch.bool, torch.complex64]
NUMBERS = [0, 1, 2, -1, 3, 0.5, -1.5, True, 100, 300]
STEPS = 8
LARGEST = 4096  # elements of a result

pytestmark = pytest.mark.filterwarnings("ignore")  # of what the CPU warns of too

Pool = list[torch.Tensor]
Draw = Callable[[st.SearchStrategy[Any]], Any]


@dataclass(frozen=True)
class Step:
    """One line of a program: what it does with the program's tensors, and how that reads."""

    text: str
    run: Callable[[Pool], Any]


def values(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Small numbers, some of them equal."""
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    if dtype in INTEGERS:
        return torch.randint(0 if dtype == torch.uint8 else -4, 8, shape, generator=generator).to(dtype)
    numbers = torch.randn((*shape, 2), dtype=torch.float64, generator=generator)
    if seed % 2:
        numbers = (numbers * 8).round() / 4
    return (torch.view_as_complex(numbers) if dtype.is_complex else numbers[..., 0].contiguous()).to(dtype)


SHAPES = st.lists(st.sampled_from([2, 3, 1, 4, 5, 8, 17, 0]), max_size=3).map(tuple)


def new(draw: Draw) -> Step:
    shape, dtype, seed = draw(SHAPES), draw(st.sampled_from(DTYPES)), draw(st.integers(0, 999))
    return Step(f"values({shape}, {dtype}, {seed})", lambda pool: values(shape, dtype, seed).to(pool[0].device))


# ---- kinds of steps; each gets the tensors as they are on the CPU, to draw what mostly fits ----


def one(draw: Draw, pool: Pool) -> tuple[int, torch.Tensor]:
    i = draw(st.integers(0, len(pool) - 1))
    return i, pool[i]


def a_dim(draw: Draw, x: torch.Tensor) -> int:
    return int(draw(st.integers(-x.dim(), max(x.dim() - 1, 0)))) if x.dim() else 0


def a_view(draw: Draw, pool: Pool) -> Step:
    i, x = one(draw, pool)
    d, e = a_dim(draw, x), a_dim(draw, x)
    size = x.size(d) if x.dim() else 0
    start, step = draw(st.integers(0, size)), draw(st.integers(1, 3))
    order = draw(st.permutations(range(x.dim())))
    grown = (2, *(3 if n == 1 else n for n in x.shape))
    cut = slice(start, None, step)
    index: tuple[Any, ...] = (..., cut, *[slice(None)] * (-d - 1 if d < 0 else max(x.dim() - d - 1, 0)))
    choices: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        f"transpose({d}, {e})": lambda t: t.transpose(d, e),
        f"permute({order})": lambda t: t.permute(order),
        f"[{index}]": lambda t: t[index],
        f"select({d}, {start})": lambda t: t.select(d, start),
        f"unsqueeze({d})": lambda t: t.unsqueeze(d),
        "squeeze()": lambda t: t.squeeze(),
        f"expand({grown})": lambda t: t.expand(grown),
        "reshape(-1)": lambda t: t.reshape(-1),
        f"flatten({d})": lambda t: t.flatten(d),
        f"diagonal(0, {d}, {e})": lambda t: t.diagonal(0, d, e),
        f"unfold({d}, 2, {step})": lambda t: t.unfold(d, 2, step),
        "view(uint8)": lambda t: t.view(torch.uint8),
        "conj()": lambda t: t.conj(),
        "real": lambda t: t.real,
        "detach()": lambda t: t.detach(),
        "narrow": lambda t: t.narrow(d, start, max(size - start - 1, 0)),
    }
    name = draw(st.sampled_from(sorted(choices)))
    return Step(f"x{i}.{name}", lambda pool: choices[name](pool[i]))


UNARY = (
    "abs neg sign square sqrt rsqrt exp log log1p expm1 sin cos tanh sigmoid erf reciprocal floor ceil round trunc "
    "relu isnan isinf isfinite logical_not bitwise_not signbit clone contiguous"
).split()
UNARY_FUNCTIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    **{name: functools.partial(lambda name, t: getattr(t, name)(), name) for name in UNARY},
    "gelu": torch.nn.functional.gelu,
    "silu": torch.nn.functional.silu,
    "softplus": torch.nn.functional.softplus,
    "leaky_relu": torch.nn.functional.leaky_relu,
    "hardtanh": torch.nn.functional.hardtanh,
    "nan_to_num": torch.nan_to_num,
    "zeros_like": torch.zeros_like,
    "tril": torch.tril,
    "triu": torch.triu,
    "flip": lambda t: t.flip(0) if t.dim() else t.flip(()),
    "roll": lambda t: t.roll(1),
    "repeat": lambda t: t.repeat(*(2 for _ in range(t.dim()))),
    "nonzero": lambda t: t.nonzero(),
    "unique": lambda t: t.unique(),
    "count_nonzero": lambda t: t.count_nonzero(),
}


#: Of complex numbers far to the left the CPU makes NaN.
OVERFLOWING = {"sigmoid", "sigmoid_", "silu"}


def chosen(draw: Draw, names: Iterable[str], x: torch.Tensor) -> str:
    return str(draw(st.sampled_from(sorted(name for name in names if not (x.is_complex() and name in OVERFLOWING)))))


def a_function(draw: Draw, pool: Pool) -> Step:
    i, x = one(draw, pool)
    name = chosen(draw, UNARY_FUNCTIONS, x)
    return Step(f"{name}(x{i})", lambda pool: UNARY_FUNCTIONS[name](pool[i]))


IN_PLACE = (
    "abs_ neg_ sign_ square_ sqrt_ exp_ sin_ cos_ tanh_ sigmoid_ relu_ floor_ ceil_ round_ trunc_ reciprocal_ zero_ "
    "logical_not_ bitwise_not_ tril_ triu_ nan_to_num_ t_ squeeze_"
).split()


#: The CPU writes only what becomes zero. Where elements share memory, which no other function in place allows, that is
#: another result than that of writing all of them.
TRIANGLES = {"tril_", "triu_"}


def shares_memory(x: torch.Tensor) -> bool:
    """Whether two elements lie in the same place."""
    last = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True)) if x.numel() else 0
    return torch.arange(last + 1).as_strided(x.shape, x.stride()).unique().numel() < x.numel()


def an_in_place_function(draw: Draw, pool: Pool) -> Step:
    i, x = one(draw, pool)
    name = chosen(draw, [name for name in IN_PLACE if not (name in TRIANGLES and shares_memory(x))], x)
    return Step(f"x{i}.{name}()", lambda pool: getattr(pool[i], name)())


BINARY = (
    "add sub mul div maximum minimum eq ne lt le gt ge logical_and logical_or logical_xor atan2 hypot fmax fmin "
    "bitwise_and bitwise_or bitwise_xor nextafter heaviside floor_divide remainder fmod pow"
).split()
# copysign and xlogy are left out: torch's meta functions of the two order the dimensions of a result otherwise.
#: In 16 bits and of quotients rounded to whole numbers the last place decides.
JUMPING = {"floor_divide", "remainder", "fmod"}
WITH_NUMBERS = "add sub mul div eq ne lt le gt ge remainder fmod pow floor_divide bitwise_and xlogy copysign".split()
IN_PLACE_BINARY = "add_ sub_ mul_ div_ eq_ lt_ pow_ copy_ fmod_ remainder_ bitwise_xor_ logical_and_ atan2_".split()


def jumps(name: str, *operands: Any) -> bool:
    small = (torch.float16, torch.bfloat16)
    return name.rstrip("_") in JUMPING and any(isinstance(x, torch.Tensor) and x.dtype in small for x in operands)


def a_pair(draw: Draw, pool: Pool) -> Step:
    (i, x), (j, y) = one(draw, pool), one(draw, pool)
    name = draw(st.sampled_from([name for name in BINARY if not jumps(name, x, y)]))
    return Step(f"torch.{name}(x{i}, x{j})", lambda pool: getattr(torch, name)(pool[i], pool[j]))


def a_number(draw: Draw, pool: Pool) -> Step:
    i, x = one(draw, pool)
    number = draw(st.sampled_from(NUMBERS))
    name = draw(st.sampled_from([name for name in WITH_NUMBERS if not jumps(name, x)]))
    return Step(f"torch.{name}(x{i}, {number})", lambda pool: getattr(torch, name)(pool[i], number))


def an_in_place_pair(draw: Draw, pool: Pool) -> Step:
    (i, x), (j, y) = one(draw, pool), one(draw, pool)
    name = draw(st.sampled_from([name for name in IN_PLACE_BINARY if not jumps(name, x, y)]))
    if draw(st.booleans()):
        number = draw(st.sampled_from(NUMBERS))
        return Step(f"x{i}.{name}({number})", lambda pool: getattr(pool[i], name)(torch.as_tensor(number)))
    return Step(f"x{i}.{name}(x{j})", lambda pool: getattr(pool[i], name)(pool[j]))


def into_out(draw: Draw, pool: Pool) -> Step:
    """Not into what is read: where that is resized, too, the CPU reads what it was not given."""
    (i, x), (j, y) = one(draw, pool), one(draw, pool)
    read = {t.untyped_storage()._cdata for t in (x, y)}
    apart = [k for k, t in enumerate(pool) if t.untyped_storage()._cdata not in read]
    if not apart:
        return new(draw)
    k, d = draw(st.sampled_from(apart)), a_dim(draw, x)
    choices: dict[str, Callable[[Pool], Any]] = {
        f"add(x{i}, x{j})": lambda p: torch.add(p[i], p[j], out=p[k]),
        f"mul(x{i}, x{j})": lambda p: torch.mul(p[i], p[j], out=p[k]),
        f"sin(x{i})": lambda p: torch.sin(p[i], out=p[k]),
        f"sum(x{i}, {d})": lambda p: torch.sum(p[i], d, out=p[k]),
        f"cat(x{i}, x{j})": lambda p: torch.cat([p[i], p[j]], out=p[k]),
        f"cumsum(x{i}, {d})": lambda p: torch.cumsum(p[i], d, out=p[k]),
        f"clamp(x{i})": lambda p: torch.clamp(p[i], 0, 2, out=p[k]),
        f"le(x{i}, x{j})": lambda p: torch.le(p[i], p[j], out=p[k]),
    }
    name = draw(st.sampled_from(sorted(choices)))
    return Step(f"{name}, out=x{k}", choices[name])


def a_reduction(draw: Draw, pool: Pool) -> Step:
    i, x = one(draw, pool)
    d, keep = a_dim(draw, x), draw(st.booleans())
    choices: dict[str, Callable[[torch.Tensor], Any]] = {
        "sum()": lambda t: t.sum(),
        f"sum({d}, {keep})": lambda t: t.sum(d, keep),
        f"mean({d}, {keep})": lambda t: t.mean(d, keep),
        f"prod({d}, {keep})": lambda t: t.prod(d, keep),
        f"amax({d}, {keep})": lambda t: t.amax(d, keep),
        f"amin({d}, {keep})": lambda t: t.amin(d, keep),
        f"max({d}, {keep})": lambda t: t.max(d, keep).values,
        f"argmax({d}, {keep})": lambda t: t.argmax(d, keep),
        f"all({d}, {keep})": lambda t: t.all(d, keep),
        "any()": lambda t: t.any(),
        f"var({d})": lambda t: t.var(d),
        f"logsumexp({d})": lambda t: t.logsumexp(d),
        f"norm(2, {d})": lambda t: t.norm(2, d),
        f"cumsum({d})": lambda t: t.cumsum(d),
        f"cumprod({d})": lambda t: t.cumprod(d),
        f"cummax({d})": lambda t: t.cummax(d).values,
        f"sort({d})": lambda t: t.sort(d, stable=True),
        f"topk(1, {d})": lambda t: t.topk(1, d).values,
        f"softmax({d})": lambda t: t.softmax(d),
        f"log_softmax({d})": lambda t: t.log_softmax(d),
        f"median({d})": lambda t: t.median(d).values,
    }
    name = draw(st.sampled_from(sorted(choices)))
    return Step(f"x{i}.{name}", lambda pool: choices[name](pool[i]))


def a_product(draw: Draw, pool: Pool) -> Step:
    (i, _), (j, _), (k, _) = one(draw, pool), one(draw, pool), one(draw, pool)
    choices: dict[str, Callable[[Pool], Any]] = {
        f"x{i} @ x{j}": lambda p: p[i] @ p[j],
        f"x{i} @ x{i}.mT": lambda p: p[i] @ p[i].mT,
        f"outer(x{i}, x{j})": lambda p: torch.outer(p[i].flatten(), p[j].flatten()),
        f"x{k}.addmm(x{i}, x{i}.mT)": lambda p: p[k].addmm(p[i], p[i].mT, alpha=2),
        f"einsum(x{i}, x{j})": lambda p: torch.einsum("...a,...a->...", p[i], p[j].to(p[i].dtype)),
        f"linear(x{i}, x{j})": lambda p: torch.nn.functional.linear(p[i], p[j]),
    }
    name = draw(st.sampled_from(sorted(choices)))
    return Step(name, choices[name])


def a_join(draw: Draw, pool: Pool) -> Step:
    (i, x), (j, _) = one(draw, pool), one(draw, pool)
    d = a_dim(draw, x)
    choices: dict[str, Callable[[Pool], Any]] = {
        f"cat(x{i}, x{j}, {d})": lambda p: torch.cat([p[i], p[j]], d),
        f"stack(x{i}, x{i}, {d})": lambda p: torch.stack([p[i], p[i]], d),
        f"x{i}.split(2, {d})": lambda p: p[i].split(2, d)[-1],
        f"x{i}.chunk(2, {d})": lambda p: p[i].chunk(2, d)[0],
        f"where(x{i}, x{j})": lambda p: torch.where(p[i] > 0, p[j], 1),
        f"lerp(x{i}, x{j})": lambda p: torch.lerp(p[i], p[j], 0.25),
        f"addcmul(x{i}, x{j}, x{i})": lambda p: torch.addcmul(p[i], p[j], p[i], value=2),
        f"x{i}.clamp(-1, x{j})": lambda p: p[i].clamp(max=p[j]),
    }
    name = draw(st.sampled_from(sorted(choices)))
    return Step(name, choices[name])


def an_index(draw: Draw, pool: Pool) -> Step:
    """By places, of which one in a few programs is out of range, or by a mask; read or written."""
    i, x = one(draw, pool)
    d = a_dim(draw, x)
    size = x.size(d) if x.dim() else 1
    low, high = -size, size - 1 + (draw(st.integers(0, 7)) == 0)
    # Of a tensor without elements the CPU's refusals are of many types, and an empty index into one without dimensions
    # it does not survive.
    count = draw(st.integers(0 if x.dim() else 1, 4)) if x.numel() else 0
    places = [draw(st.integers(low, high)) for _ in range(count)]
    number = draw(st.sampled_from(NUMBERS))

    def at(t: torch.Tensor) -> torch.Tensor:
        return torch.tensor(places, dtype=torch.int64, device=t.device)

    def wrapped(t: torch.Tensor) -> torch.Tensor:
        return at(t) % max(size, 1) if high < size else at(t)

    choices: dict[str, Callable[[torch.Tensor], Any]] = {
        f"[{places}]": lambda t: t[at(t)],
        f"index_select({d}, {places})": lambda t: t.index_select(d, wrapped(t)),
        f"[{places}] = {number}": lambda t: t.index_put_((at(t),), torch.tensor(number, device=t.device).to(t.dtype)),
        f"index_fill_({d}, {places}, {number})": lambda t: t.index_fill_(d, wrapped(t), number),
        f"index_add_({d}, {places})": lambda t: t.index_add_(d, wrapped(t), t.index_select(d, wrapped(t)).clone()),
        "[x > 0]": lambda t: t[t > 0],
        f"[x > 0] = {number}": lambda t: t.masked_fill_(t > 0, number),
        "masked_select": lambda t: t.masked_select(t != 0),
        f"gather({d})": lambda t: t.gather(d, torch.zeros(t.shape, dtype=torch.int64, device=t.device)),
        f"scatter_({d})": lambda t: t.scatter_(d, torch.zeros_like(t, dtype=torch.int64)[:1], number),
        f"take({places})": lambda t: t.take(at(t)),
    }
    name = draw(st.sampled_from(sorted(choices)))
    return Step(f"x{i}.{name}", lambda pool: choices[name](pool[i]))


def a_conversion(draw: Draw, pool: Pool) -> Step:
    i, _ = one(draw, pool)
    dtype = draw(st.sampled_from(DTYPES))
    return Step(f"x{i}.to({dtype})", lambda pool: pool[i].to(dtype))


def a_layer(draw: Draw, pool: Pool) -> Step:
    i, _ = one(draw, pool)
    f = torch.nn.functional
    choices: dict[str, Callable[[torch.Tensor], Any]] = {
        "layer_norm": lambda t: f.layer_norm(t, t.shape[-1:]),
        "max_pool1d": lambda t: f.max_pool1d(t.reshape(1, 1, -1), 2),
        "avg_pool1d": lambda t: f.avg_pool1d(t.reshape(1, 1, -1), 2),
        "conv1d": lambda t: f.conv1d(t.reshape(1, 1, -1), torch.ones(2, 1, 2, dtype=t.dtype, device=t.device)),
        "mse_loss": lambda t: f.mse_loss(t, torch.zeros_like(t)),
        "huber_loss": lambda t: f.huber_loss(t, torch.ones_like(t)),
        "pad": lambda t: f.pad(t, (1, 2)),
        "one_hot": lambda t: f.one_hot(t.long().clamp(0, 3), 4),
        "interpolate": lambda t: f.interpolate(t.reshape(1, 1, -1), scale_factor=2),
    }
    name = draw(st.sampled_from(sorted(choices)))
    return Step(f"{name}(x{i})", lambda pool: choices[name](pool[i]))


KINDS: list[Callable[[Draw, Pool], Step]] = [
    *(a_view, a_view, a_view, a_function, an_in_place_function, a_pair, a_number, an_in_place_pair, into_out),
    *(a_reduction, a_reduction, a_product, a_join, an_index, an_index, a_conversion, a_layer),
]


# ---- running a program on both ----


def strides(t: torch.Tensor) -> list[int]:
    """Those that mean something."""
    return [s for s, n in zip(t.stride(), t.shape, strict=True) if n > 1] if t.numel() else []


def equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(*(torch.nan_to_num(dense(t)) for t in (a, b)))


def adopt(device: list[torch.Tensor], cpu: list[torch.Tensor]) -> None:
    """The device goes on with the CPU's values, which differ by rounding."""
    for mine, theirs in zip(device, cpu, strict=True):
        if theirs.numel() and not overlaps(theirs):
            mine.copy_(theirs)


def overlaps(t: torch.Tensor) -> bool:
    return any(s == 0 or s in strides(t)[:k] for k, s in enumerate(strides(t)))


def take(step: Step, cpu: Pool, device: Pool) -> None:
    """Makes a step on both, compares, and appends what is new.

    Raises:
        AssertionError: the two differ.
    """
    here = torch.device("cpu")
    kept = on_device(Sample(None, tuple(cpu), {}), here)
    expected = attempt(lambda _: step.run(cpu), kept)
    if isinstance(expected, NotImplementedError):  # the CPU lacks the op for the dtype, and is no judge
        cpu[:] = kept.args  # it may have resized an out=
        return
    actual = attempt(lambda _: step.run(device), kept, device[0].device)
    nothing = not isinstance(expected, Exception) and not any(t.numel() for t in each_tensor(expected))
    if nothing and isinstance(actual, RuntimeError):  # of no elements the CPU computes what it has no kernel for
        cpu[:] = kept.args
        return
    if isinstance(expected, Exception):
        # By the dimension torch's CPU says of a place that is not there a RuntimeError or an IndexError.
        kind = IndexError if "INDICES element is out" in str(expected) else type(expected)
        assert isinstance(actual, kind), f"{actual!r} instead of {expected!r}"
    else:
        assert not isinstance(actual, Exception), f"{actual!r}; the CPU gives a result"

        def exactly() -> Any:
            return step.run([widen(t) for t in kept.args])

        wrong = difference(actual, expected, exactly, normwise=True)
        assert not wrong, wrong
        adopt(each_tensor(actual), each_tensor(expected))
    if isinstance(actual, IndexError) or "ZeroDivisionError" in str(expected):
        adopt(device, cpu)  # what was written before it was found is a matter of order
    for i, (mine, theirs) in enumerate(zip(device, cpu, strict=True)):
        assert mine.shape == theirs.shape, f"x{i} has changed its shape"
        assert strides(mine) == strides(theirs), f"x{i} has changed its strides"
        assert equal(mine, theirs), f"x{i} differs"
    if isinstance(expected, Exception):
        return
    for mine, theirs in zip(tree_leaves(actual), tree_leaves(expected), strict=True):
        if isinstance(theirs, torch.Tensor) and theirs.numel() <= LARGEST and all(t is not theirs for t in cpu):
            cpu.append(theirs)
            device.append(mine)


def run_program(draw: Draw, device: torch.device) -> None:
    first = new(draw)
    hypothesis.note(f"x0 = {first.text}")
    cpu = [first.run([torch.empty(0)])]
    mine = list(on_device(Sample(None, tuple(cpu), {}), device).args)
    for _ in range(STEPS):
        kind = draw(st.sampled_from([None, *KINDS]))
        step = new(draw) if kind is None else kind(draw, cpu)
        hypothesis.note(f"x{len(cpu)} = {step.text}")
        take(step, cpu, mine)


def program_test(device: torch.device, seed: int, count: int) -> Callable[[], None]:
    """So many programs, the same for the same seed; with CI set always the same."""

    @random_examples(count, seed)
    @hypothesis.given(data=st.data())
    def programs(data: st.DataObject) -> None:
        run_program(data.draw, device)

    return programs


@contextlib.contextmanager
def room_for(count: int | None) -> Iterator[None]:
    """How many plans of an op are kept."""
    if count is not None:
        _C.set_plan_capacity(count)
    try:
        yield
    finally:
        _C.set_plan_capacity(4096)


@pytest.mark.quick(room=2)
@pytest.mark.parametrize("room", [None, 2])
def test_any_program(device: str, room: int | None) -> None:
    with room_for(room):
        program_test(torch.device(device), SEED, int(os.environ.get("TORCHGRAFT_TEST_PROGRAMS", "60")))()


@pytest.mark.thorough
@pytest.mark.skipif("TORCHGRAFT_TEST_SECONDS" not in os.environ, reason="TORCHGRAFT_TEST_SECONDS says how long")
@pytest.mark.parametrize("room", [None, 2])
def test_more_programs(device: str, room: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)  # others each time
    seconds = float(os.environ["TORCHGRAFT_TEST_SECONDS"]) / 2
    end, seed, made = time.monotonic() + seconds, SEED, 0
    with room_for(room):
        while time.monotonic() < end:
            seed += 1
            program_test(torch.device(device), seed, 100)()
            made += 100
    print(f"{made} programs")
    assert made > 0
