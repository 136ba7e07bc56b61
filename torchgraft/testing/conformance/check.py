"""One case run on a device beside the CPU: values, in-place, out=, layouts, gradients and what is refused."""

from __future__ import annotations

import contextlib
import functools
import itertools
import unittest.mock
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch.testing._internal.opinfo.core import UnaryUfuncInfo
from torch.utils._pytree import tree_map

from torchgraft.testing.conformance.cases import Case
from torchgraft.testing.conformance.compare import dense, difference
from torchgraft.testing.conformance.freedom import FREEDOMS, Defined
from torchgraft.testing.conformance.layout import Sample, each_tensor, on_device
from torchgraft.testing.conformance.ways import CPU, KERNELS, OPERATORS, dispatched, farthest, way

__all__ = ["CHECKS", "CaseResult", "CheckResult", "run_case"]

WIDE = {torch.float16: torch.float64, torch.bfloat16: torch.float64, torch.float32: torch.float64}
WIDE |= {torch.complex32: torch.complex128, torch.complex64: torch.complex128}


@dataclass
class CheckResult:
    """What a check found.

    Attributes:
        samples: how many the CPU could do, and the device was asked to.
        failed: on how many of them the device was wrong.
        refused: of those failures the ones that were a NotImplementedError.
        fallbacks: how often an op went to the CPU; None where nobody counts.
        message: of the first failure.
        by: how many right results were computed by what, of `ways.MEANS`; empty where nobody counts.
    """

    samples: int = 0
    failed: int = 0
    refused: int = 0
    fallbacks: int | None = 0
    message: str = ""
    by: dict[str, int] = field(default_factory=dict)

    def passed(self, means: str) -> None:
        """Notes what has computed a result that is right; "" where nobody knows."""
        if means:
            self.by[means] = self.by.get(means, 0) + 1

    def fail(self, message: str, error: Exception | None = None) -> None:
        """Notes a failure, and whether it was the device's refusal."""
        self.failed += 1
        self.refused += isinstance(error, NotImplementedError)
        self.message = self.message or message[:500]


@dataclass
class CaseResult:
    """What was found of a case.

    Attributes:
        case: its name.
        way: of `ways.WAYS`, the functional form's, as far as ops tell it that are not counted as fallbacks.
        checks: by name, only those that had samples.
        fell_back: aten overloads that ran on the CPU, with how often.
    """

    case: str
    way: str = ""
    checks: dict[str, CheckResult] = field(default_factory=dict)
    fell_back: dict[str, int] = field(default_factory=dict)

    @property
    def correct(self) -> bool:
        return not any(check.failed for check in self.checks.values())


class Counters:
    """Reads torchgraft's counters; where another toolkit made the device there are none."""

    def __init__(self, device: torch.device) -> None:
        from torchgraft.registration.register import registered_name

        self.counted = registered_name() == device.type

    def fallbacks(self) -> dict[str, int]:
        """Calls that went to the CPU so far, by overload."""
        if not self.counted:
            return {}
        from torchgraft._core import _C

        return {entry[0]: entry[1] for entry in _C.fallback_report()}

    def operators(self) -> int:
        """Runs of operators of the device's own so far."""
        if not self.counted:
            return 0
        from torchgraft._core import _C

        return _C.program_runs()


class Run:
    """The state of running one case."""

    def __init__(self, case: Case, device: torch.device, limit: int | None, phase: Callable[[str], None]) -> None:
        self.case, self.device, self.limit, self.phase = case, device, limit, phase
        self.info = case.info
        self.counters = Counters(device)
        self.freedom = FREEDOMS.get(case.op)
        self.result = CaseResult(str(case))
        self.random = False

    def samples(self, requires_grad: bool = False, most: int | None = None) -> Iterator[Sample]:
        """The database's samples, thinned evenly to the limit, or to `most` if that is less."""
        seed_all(zlib.crc32(str(self.case).encode()))
        made = [
            Sample(s.input, s.args, s.kwargs, s.output_process_fn_grad)
            for s in self.info.sample_inputs("cpu", self.case.dtype, requires_grad=requires_grad)
        ]
        limit = min(self.limit or len(made), most or len(made))
        if len(made) > limit:
            step = len(made) / limit
            made = [made[int(i * step)] for i in range(limit)]
        return iter(made)

    def differentiable_samples(self) -> Iterator[Sample]:
        """Samples whose tensors want gradients; none where the CPU has none for the case."""
        if self.info.supports_autograd and self.case.dtype in self.info.supported_backward_dtypes("cpu"):
            yield from self.samples(requires_grad=True)

    def compare(
        self,
        check: CheckResult,
        sample: Sample,
        op: Callable[[Sample], Any],
        *,
        defined: Defined | None = None,
        reference: Callable[[Sample], Any] | None = None,
        normwise: bool = False,
        refusals: bool = False,
    ) -> None:
        """Runs one sample on both, if the CPU can; what it writes into its arguments is compared too.

        Args:
            check: where the outcome is noted.
            sample: on the CPU.
            op: runs it.
            defined: what of the results is to be compared; all by default.
            reference: the exact results where there is no wider type to compute them in.
            normwise: see `difference`.
            refusals: what the CPU cannot run, the device must refuse; by default it is not asked.
        """
        on_cpu, expected = self.ask_cpu(sample, op)
        if isinstance(expected, Exception):
            if refusals:
                self.compare_refusal(check, sample, op, expected)
            return
        mine, actual, means = self.ask_device(check, sample, op)
        if isinstance(actual, Exception):
            check.fail(f"{describe(sample)}: {type(actual).__name__}: {actual}", actual)
            return
        found = (actual, each_tensor(mine.arguments()))
        wanted = (expected, each_tensor(on_cpu.arguments()))
        message = difference(found, wanted, None, values=False)
        if not message and not self.random:
            message = self.values_differ(sample, op, found, wanted, defined, reference, normwise)
        if message:
            check.fail(f"{describe(sample)}: {message}")
        else:
            check.passed(means)

    def compare_refusal(
        self, check: CheckResult, sample: Sample, op: Callable[[Sample], Any], expected: Exception
    ) -> None:
        """Runs on the device what the CPU refuses with an exception: it must be of the same type, or a derived one."""
        _, actual, _ = self.ask_device(check, sample, op)
        wanted = type(expected).__name__
        if not isinstance(actual, Exception):
            check.fail(f"{describe(sample)}: accepted, but the CPU raises {wanted}: {expected}")
        elif not isinstance(actual, type(expected)):
            check.fail(f"{describe(sample)}: {type(actual).__name__} instead of {wanted}: {actual}", actual)

    def ask_cpu(self, sample: Sample, op: Callable[[Sample], Any]) -> tuple[Sample, Any]:
        """The CPU's result or exception, and the sample as it is after the call."""
        on_cpu = copied(sample)
        self.phase("cpu")
        expected = attempt(op, on_cpu)
        self.phase("")
        return on_cpu, expected

    def ask_device(self, check: CheckResult, sample: Sample, op: Callable[[Sample], Any]) -> tuple[Sample, Any, str]:
        """The same of the device, and what has computed it; the check counts the sample, and what fell back."""
        mine = on_device(sample, self.device)
        check.samples += 1
        self.phase("device")
        before, operators = self.counters.fallbacks(), self.counters.operators()
        actual = attempt(op, mine, self.device)
        fell_back = self.count(check, before)
        self.phase("")
        means = CPU if fell_back else OPERATORS if self.counters.operators() > operators else KERNELS
        return mine, actual, means if self.counters.counted else ""

    def values_differ(
        self,
        sample: Sample,
        op: Callable[[Sample], Any],
        found: tuple[Any, list[torch.Tensor]],
        wanted: tuple[Any, list[torch.Tensor]],
        defined: Defined | None,
        reference: Callable[[Sample], Any] | None,
        normwise: bool,
    ) -> str:
        """What is wrong with the values that are defined, or ""; "" too if the CPU itself gives different ones with
        other random numbers."""

        def fixed(sample: Sample, results: tuple[Any, list[torch.Tensor]]) -> Any:
            if defined is None:
                return results
            on_cpu = tree_map(lambda x: dense(x) if isinstance(x, torch.Tensor) else x, results[0])
            return defined(sample, on_cpu), results[1]

        def exactly() -> Any:
            integers = not any(x.dtype in WIDE for x in each_tensor(sample.arguments()))
            if integers and reference is not None:
                exact = copied(sample)
                with contextlib.suppress(TypeError):  # there may be none for the sample
                    return fixed(exact, (reference(exact), each_tensor(exact.arguments())))
            # Floats that are made of integers are exact in float64, too.
            wide = copied(sample).map_leaves(widen_integer if integers else widen)
            return fixed(wide, (op(wide), each_tensor(wide.arguments())))

        expected = fixed(sample, wanted)
        try:
            actual = fixed(sample, found)
        except (RuntimeError, IndexError) as error:
            return f"the results do not belong together: {error}"
        message = difference(actual, expected, exactly, normwise=normwise)
        if not message:
            return ""
        for seed in (1, 2, 3):
            again = copied(sample)
            with seeding_shifted(seed):
                torch.manual_seed(0)
                other = attempt(op, again)
            if not isinstance(other, Exception):
                other = fixed(sample, (other, each_tensor(again.arguments())))
                if difference(other, expected, None):
                    return ""
        return message

    def reference(self, sample: Sample) -> torch.Tensor:
        """The exact result in double precision, by the database's reference (NumPy's or SciPy's function).

        Raises:
            TypeError: there is none for this op or sample.
        """
        function = getattr(self.info, "ref", None)
        if function is None or not isinstance(self.info, UnaryUfuncInfo) or sample.args or sample.kwargs:
            raise TypeError("no reference")
        result = function(sample.input.detach().contiguous().numpy())
        return torch.as_tensor(result, dtype=sample.input.dtype).reshape(sample.input.shape)

    @property
    def functional(self) -> dict[str, Any]:
        """How results of the functional and the out= form are compared: arguments of `compare`."""
        return {"defined": self.freedom.results if self.freedom else None, "reference": self.reference}

    @property
    def gradients(self) -> dict[str, Any]:
        """How gradients are compared. One may be zero by symmetry: then it is the rounding of terms that cancel."""
        return {"defined": self.freedom.gradients if self.freedom else None, "normwise": True}

    def watch(self) -> None:
        """Notes the way of the case: of a few samples the one farthest from a kernel of its own."""
        ways = []
        for sample in itertools.islice(self.samples(), 4):
            if isinstance(attempt(lambda s: s.call(self.info.op), copied(sample)), Exception):
                continue
            mine = on_device(sample, self.device)
            self.phase("device")
            seen = attempt(lambda s: dispatched(lambda: s.call(self.info.op), self.device), mine, self.device)
            self.phase("")
            if not isinstance(seen, Exception):  # which the check of values has noted
                ways.append(way(seen, self.device))
        self.result.way = farthest(ways)

    def count(self, check: CheckResult, before: dict[str, int]) -> int:
        """Adds what fell back since `before`, and returns how much that is."""
        if not self.counters.counted:
            check.fallbacks = None
            return 0
        in_all = 0
        for name, calls in self.counters.fallbacks().items():
            if (new := calls - before.get(name, 0)) > 0:
                self.result.fell_back[name] = self.result.fell_back.get(name, 0) + new
                in_all += new
        check.fallbacks = (check.fallbacks or 0) + in_all
        return in_all


def run_case(
    case: Case,
    device: torch.device | str,
    *,
    samples: int | None = None,
    phase: Callable[[str], None] = lambda _: None,
    checks: Mapping[str, Check] | None = None,
) -> CaseResult:
    """Runs all checks of a case.

    Args:
        case: which.
        device: a PrivateUse1 device.
        samples: how many of the database's samples at most for each check; all by default.
        phase: told "cpu" or "device" before each computes, so that a crash can be laid at the right door.
        checks: which, by name; `CHECKS` by default.
    """
    run = Run(case, torch.device(device), samples, phase)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run.random = is_random(run)
        for name, check in (CHECKS if checks is None else checks).items():
            check(run, found := CheckResult())
            if found.samples:
                run.result.checks[name] = found
        run.watch()
    return run.result


# ---- the checks ----


def check_values(run: Run, check: CheckResult) -> None:
    """The functional form on the database's samples."""
    for sample in run.samples():
        run.compare(check, sample, lambda s: s.call(run.info.op), **run.functional)


def check_inplace(run: Run, check: CheckResult) -> None:
    """The in-place form; it must return its first argument."""
    inplace = run.info.inplace_variant
    if inplace is None:
        return

    def call(sample: Sample) -> Any:
        result = sample.call(inplace)
        if isinstance(sample.input, torch.Tensor) and result is not sample.input:
            raise AssertionError("the in-place form did not return its argument")
        return result

    for sample in run.samples():
        run.compare(check, sample, call, reference=lambda s: s.input.copy_(run.reference(s)))


def check_out(run: Run, check: CheckResult) -> None:
    """`out=` into memory of the right shape, into a strided view, and into an empty tensor that must be resized."""
    if not run.info.supports_out:
        return
    for sample in run.samples():
        for make in OUT_MEMORIES:
            run.compare(check, sample, functools.partial(call_out, run, make, sample), **run.functional)


def check_out_dtypes(run: Run, check: CheckResult) -> None:
    """`out=` of another dtype: the result is converted, or the call refused, as on the CPU.

    One result of a call at a time; from sample to sample each dtype gets another of the memories of `check_out`.
    """
    if not run.info.supports_out:
        return
    for number, sample in enumerate(run.samples(most=OUT_SAMPLES)):
        _, results = run.ask_cpu(sample, lambda s: s.call(run.info.op))
        if isinstance(results, Exception):
            continue
        for turn, outs in enumerate(outs_of_other_dtypes(results)):
            make = OUT_MEMORIES[(number + turn) % len(OUT_MEMORIES)]
            out = tree_map(make, outs)
            given = Sample(sample.input, sample.args, {**sample.kwargs, "out": out})
            call = functools.partial(call_converting, run, results)
            run.compare(check, given, call, refusals=True, **run.functional)


def check_layouts(run: Run, check: CheckResult) -> None:
    """The same values in other memory: not contiguous, at an offset, and shrunk to nothing and to zero dimensions."""
    for sample in run.samples():
        for change in (noncontiguous, at_offset):
            run.compare(check, sample.map(change), lambda s: s.call(run.info.op), **run.functional)
    for sample in itertools.islice(run.samples(), 8):
        for shrunk in (emptied(sample), zero_dim(sample)):
            if shrunk is not None:
                run.compare(check, shrunk, lambda s: s.call(run.info.op), **run.functional)


def check_backward(run: Run, check: CheckResult) -> None:
    """Gradients for all arguments that can have one, from the same gradients of the results."""
    for sample in run.differentiable_samples():
        run.compare(check, sample, functools.partial(gradients_of, op=run.info.op), **run.gradients)


def check_errors(run: Run, check: CheckResult) -> None:
    """What the CPU refuses is refused with the same type of exception."""
    if run.info.error_inputs_func is None or run.case.dtype is not torch.float32:
        return

    def call(sample: Sample) -> Any:
        return sample.call(run.info.op)

    for error in run.info.error_inputs("cpu"):
        given = error.sample_input
        sample = Sample(given.input, given.args, given.kwargs)
        _, expected = run.ask_cpu(sample, call)
        if isinstance(expected, Exception):  # otherwise it is another device's error
            run.compare_refusal(check, sample, call, expected)


Check: TypeAlias = Callable[[Run, CheckResult], None]

CHECKS: dict[str, Check] = {
    "values": check_values,
    "in-place": check_inplace,
    "out=": check_out,
    "out= dtype": check_out_dtypes,
    "layouts": check_layouts,
    "backward": check_backward,
    "errors": check_errors,
}


# ---- parts ----


def gradients_of(sample: Sample, op: Any) -> Any:
    """The gradients of all arguments that want one; NotImplementedError if there are none."""
    leaves = [t for t in each_tensor(sample.arguments()) if t.requires_grad]
    # Some entries take from the results what has a gradient that is defined: not the sign of a singular vector.
    defined = sample.process(sample.call(op))
    results = [t for t in each_tensor(defined) if t.requires_grad]
    if not leaves or not results:
        raise NotImplementedError("nothing to differentiate")
    return torch.autograd.grad(results, leaves, [cotangent(t) for t in results], allow_unused=True)


def seed_all(seed: int) -> None:
    """Seeds torch, NumPy and Python, which the database's samples draw from."""
    import random

    import numpy

    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)


def is_random(run: Run) -> bool:
    """Whether the CPU itself gives two answers: random numbers, or memory that is not initialised."""
    for sample in itertools.islice(run.samples(), 3):
        answers = []
        for seed in (1, 2):
            # Some entries seed before each call, which would hide that they are random.
            with seeding_shifted(seed):
                torch.manual_seed(0)
                answers.append(attempt(lambda s: s.call(run.info.op), copied(sample)))
        first, second = answers
        if isinstance(first, Exception) or isinstance(second, Exception):
            continue
        if difference(first, second, None):
            return True
    return run.case.op in UNINITIALISED


@contextlib.contextmanager
def seeding_shifted(by: int) -> Iterator[None]:
    """Lets `torch.manual_seed` seed with another number."""
    seed = torch.manual_seed
    with unittest.mock.patch.object(torch, "manual_seed", lambda number: seed(number + by)):
        yield


#: Their results hold whatever the memory held.
UNINITIALISED = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}


def attempt(op: Callable[[Sample], Any], sample: Sample, device: torch.device | None = None) -> Any:
    """The result, or the exception; of a device also one that its kernels report later."""
    try:
        result = op(sample)
        if device is not None:
            torch.accelerator.synchronize(device)
        return result
    except Exception as error:
        return error


def copied(sample: Sample) -> Sample:
    """A sample of its own for a call that may write; aliasing within it is kept."""
    return on_device(sample, torch.device("cpu"))


def widen(x: Any) -> Any:
    """Tensors and dtypes in double precision."""
    if isinstance(x, torch.Tensor):
        wide = x.detach().to(WIDE.get(x.dtype, x.dtype))
        return wide.requires_grad_(x.requires_grad)
    return WIDE.get(x, x) if isinstance(x, torch.dtype) else x


def widen_integer(x: Any) -> Any:
    """Integers and booleans as float64."""
    if isinstance(x, torch.Tensor) and not (x.is_floating_point() or x.is_complex()):
        return x.detach().double()
    return x


def call_out(run: Run, make: Callable[[torch.Tensor], torch.Tensor], on_cpu: Sample, sample: Sample) -> Any:
    """Calls with `out=`, for which `make` is given what the functional form returns.

    The two must agree: where the CPU's do not, it is no judge of this sample.
    """
    expected = sample.call(run.info.op)
    several = isinstance(expected, (tuple, list))
    out = tuple(make(t) for t in expected) if several else make(expected)
    returned = sample.call(run.info.op, out=out)
    kept: Iterable[tuple[Any, Any]] = zip(returned, out, strict=True) if several else [(returned, out)]
    if any(r is not o for r, o in kept):
        raise AssertionError("the out= form did not return its out")
    by_out, by_value = (tree_map(torch.Tensor.cpu, tuple(r) if several else r) for r in (returned, expected))
    if run.freedom:
        by_out, by_value = (run.freedom.results(on_cpu, results) for results in (by_out, by_value))
    if message := difference(by_out, by_value, None, values=not run.random):
        raise AssertionError(f"the out= form differs from the functional one: {message}")
    return returned


def spoilt(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, with what no result is. Memory that was freed may else hold the result that is asked for."""
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        return tensor.fill_(torch.nan)
    return tensor.fill_(113)


def spoilt_like(tensor: torch.Tensor) -> torch.Tensor:
    """Memory of the same shape."""
    return spoilt(torch.empty_like(tensor))


def strided_like(tensor: torch.Tensor) -> torch.Tensor:
    """Memory of the same shape with a gap after each element."""
    return spoilt(tensor.new_empty((*tensor.shape, 2)))[..., 1] if tensor.dim() else spoilt_like(tensor)


#: Of the right shape, with gaps, and empty, so that it must grow.
OUT_MEMORIES: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    spoilt_like,
    strided_like,
    lambda tensor: tensor.new_empty(0),
)

#: How many samples see `out=` of other dtypes at most: each dtype is a kernel of its own.
OUT_SAMPLES = 6

#: Other dtypes of the same kind, for the `out=` of a result.
SAME_KIND = {
    torch.bool: (torch.uint8,),
    torch.uint8: (torch.int8, torch.int64),
    torch.int32: (torch.int64, torch.uint8),
    torch.int64: (torch.int32, torch.uint8),
    torch.float16: (torch.float32, torch.bfloat16),
    torch.bfloat16: (torch.float32, torch.float16),
    torch.float32: (torch.float64, torch.float16),
    torch.float64: (torch.float32, torch.float16),
    torch.complex64: (torch.complex128,),
    torch.complex128: (torch.complex64,),
}
OTHER_KINDS = (torch.bool, torch.int64, torch.float32, torch.complex64)


def outs_of_other_dtypes(results: Any) -> Iterator[Any]:
    """Specs of `out=` for a call's results, of which one has another dtype: some of the same kind, one of each other
    kind."""
    several = isinstance(results, (tuple, list))
    made = list(results) if several else [results]
    if not all(isinstance(result, torch.Tensor) and result.layout == torch.strided for result in made):
        return
    for i, result in enumerate(made):
        others = [dtype for dtype in OTHER_KINDS if kind(dtype) != kind(result.dtype)]
        for dtype in (*SAME_KIND.get(result.dtype, ()), *others):
            outs = [torch.empty_like(t, dtype=dtype if i == j else t.dtype) for j, t in enumerate(made)]
            yield tuple(outs) if several else outs[0]


def kind(dtype: torch.dtype) -> str:
    """As promotion has them."""
    if dtype == torch.bool:
        return "bool"
    return "complex" if dtype.is_complex else "float" if dtype.is_floating_point else "integer"


def call_converting(run: Run, results: Any, sample: Sample) -> Any:
    """Calls with the sample's `out=`, and returns what was written in no finer a dtype than the functional results'."""
    out = sample.kwargs.pop("out")  # which is compared as the result, and not once more as an argument
    returned = sample.call(run.info.op, out=out)
    pairs = list(zip(returned, out, results, strict=True)) if isinstance(out, tuple) else [(returned, out, results)]
    if any(r is not o for r, o, _ in pairs):
        raise AssertionError("the out= form did not return its out")
    written = [no_finer(r.cpu(), result.dtype) for r, _, result in pairs]
    return tuple(written) if isinstance(out, tuple) else written[0]


def no_finer(out: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What was converted to an `out=`'s dtype, with the precision that it had before."""
    if out.is_complex() and not dtype.is_complex and not out.imag.any():
        out = out.real
    rounded = dtype.is_floating_point or dtype.is_complex
    finer = kind(out.dtype) == kind(dtype) and torch.promote_types(out.dtype, dtype) == out.dtype
    return out.to(dtype) if rounded and finer else out


def noncontiguous(tensor: torch.Tensor) -> torch.Tensor:
    """The same values with a gap after each element."""
    if tensor.layout != torch.strided or tensor.numel() < 2 or tensor.is_quantized:
        return tensor
    spread = tensor.detach().new_zeros((*tensor.shape, 2))
    spread[..., 0] = tensor.detach()
    return spread[..., 0].requires_grad_(tensor.requires_grad)


def at_offset(tensor: torch.Tensor) -> torch.Tensor:
    """The same values a few elements behind the start of their memory."""
    if tensor.layout != torch.strided or tensor.is_quantized:
        return tensor
    longer = tensor.detach().new_zeros(tensor.numel() + 3)
    moved = longer[3:].view(tensor.shape)
    moved.copy_(tensor.detach())
    return moved.requires_grad_(tensor.requires_grad)


def emptied(sample: Sample) -> Sample | None:
    """All tensors that are as long as the first, without an element along that dimension."""
    if not isinstance(sample.input, torch.Tensor) or sample.input.dim() == 0 or sample.input.layout != torch.strided:
        return None
    if sample.kwargs.get("unsafe"):  # the call says that nothing needs to be checked, so torch's CPU would read beyond
        return None
    length = sample.input.shape[0]
    return sample.map(lambda t: t[:0] if t.dim() and t.layout == torch.strided and t.shape[0] == length else t)


def zero_dim(sample: Sample) -> Sample | None:
    """All tensors of the first one's shape with one element and no dimension."""
    if not isinstance(sample.input, torch.Tensor) or not sample.input.numel() or sample.input.layout != torch.strided:
        return None
    shape = sample.input.shape
    return sample.map(lambda t: t.reshape(-1)[0] if t.shape == shape and t.layout == torch.strided else t)


def cotangent(result: torch.Tensor) -> torch.Tensor:
    """A gradient for a result: the same numbers on every device."""
    values = torch.linspace(0.5, 1.5, max(result.numel(), 1), dtype=torch.float64)[: result.numel()]
    return values.reshape(result.shape).to(result.dtype).to(result.device)


def describe(sample: Sample) -> str:
    """The arguments in short, for a message."""

    def short(x: Any) -> str:
        if isinstance(x, torch.Tensor):
            strides = "" if x.layout != torch.strided or x.is_contiguous() else f" strides {tuple(x.stride())}"
            return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}{strides}"
        if isinstance(x, (list, tuple)):
            return "[" + ", ".join(map(short, x)) + "]"
        return repr(x)

    parts = [short(sample.input), *map(short, sample.args)]
    parts += [f"{name}={short(value)}" for name, value in sample.kwargs.items()]
    return f"({', '.join(parts)})"[:300]
