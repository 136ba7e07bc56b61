"""What a device claims, tried: each probe does a little work on it and compares with the CPU.

A probe returns what it saw, raises `NotThere` where the device does not claim the ability, and raises anything else
where it fails. Whether the device has done the work itself, and not the CPU, is for whoever calls it to find out.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import torch

from torchgraft import distributed
from torchgraft._core import _C
from torchgraft.codegen.dialects import dialect
from torchgraft.codegen.kernel import Kernel, Pointer
from torchgraft.diagnosis import triton_samples
from torchgraft.diagnosis.families import FAMILIES, Family, differences
from torchgraft.driver import Capability

__all__ = ["PROBES", "NotThere", "Probe"]

Properties = dict[str, Any]
Probe = Callable[[torch.device, Properties], str]

_MIB = 1 << 20


class NotThere(Exception):
    """The device does not claim what a probe would try; the text says what that means."""


#: By their subjects, in the order in which they are made.
PROBES: dict[str, Probe] = {}


def _probe(subject: str) -> Callable[[Probe], Probe]:
    def add(probe: Probe) -> Probe:
        PROBES[subject] = probe
        return probe

    return add


def claims(properties: Properties, capability: Capability) -> bool:
    """Whether a device has one of these capabilities, as it says."""
    return bool(properties["capabilities"] & capability)


def _same(device_result: torch.Tensor, expected: torch.Tensor) -> None:
    found = device_result.cpu()
    if found.dtype != expected.dtype or not torch.equal(found, expected):
        wrong = int((found != expected).sum()) if found.shape == expected.shape else found.numel()
        raise AssertionError(f"{wrong} of {expected.numel()} elements are not what the CPU computes")


@_probe("memory")
def _memory(device: torch.device, properties: Properties) -> str:
    values = torch.full((_MIB,), 7, dtype=torch.int32, device=device)
    _same(values, torch.full((_MIB,), 7, dtype=torch.int32))
    free, total = _C.memory_info(device.index)
    largest = properties["max_allocation"] or total
    large = torch.empty(min(256 * _MIB, largest, free // 4), dtype=torch.uint8, device=device)
    large[-1] = 9
    if large[-1].item() != 9:
        raise AssertionError(f"the last byte of {large.numel()} cannot be written")
    model = "shared with the host" if properties["unified_memory"] else "of its own"
    if claims(properties, Capability.BASE_OFFSET_POINTERS):
        model += ", kernels get allocations and offsets"
    return f"{model}; {free / _MIB:.0f} of {total / _MIB:.0f} MiB free, {largest / _MIB:.0f} MiB in one allocation"


@_probe("limit of memory")
def _limit(device: torch.device, properties: Properties) -> str:
    asked = 2 * max(properties["total_memory"], _C.memory_info(device.index)[1])
    try:
        torch.empty(asked, dtype=torch.uint8, device=device)
    except torch.OutOfMemoryError:
        _same(torch.ones(10, device=device), torch.ones(10))
        return "asking for too much raises torch.OutOfMemoryError, and the device goes on working"
    raise AssertionError(f"{asked // _MIB} MiB were given, twice the device's memory")


@_probe("copy to and from the device")
def _copy(device: torch.device, properties: Properties) -> str:
    host = torch.randint(256, (16 * _MIB,), dtype=torch.uint8)
    host.to(device)  # the first one allocates
    start = time.perf_counter()
    there = host.to(device)
    _C.synchronize(device.index)
    middle = time.perf_counter()
    back = there.cpu()
    end = time.perf_counter()
    if not torch.equal(back, host):
        raise AssertionError("what comes back is not what was sent")
    _same(there.reshape(4096, -1).t()[::3].contiguous(), host.reshape(4096, -1).t()[::3].contiguous())
    gigabytes = host.numel() / 1e9
    return f"{gigabytes / (middle - start):.1f} GB/s there, {gigabytes / (end - middle):.1f} GB/s back"


@_probe("compiler")
def _compile(device: torch.device, properties: Properties) -> str:
    if not properties["has_compiler"]:
        serves = claims(properties, Capability.PROGRAMS)
        raise NotThere(f"none: {'what has no operator' if serves else 'every op'} runs on the CPU")
    language = dialect(properties["dialect"])
    # A name of its own, so that no cache of the compiler's answers.
    kernel = Kernel(f"doctor_{time.time_ns()}", (Pointer("out", "i32"),), "  out[0] = 42;")
    source = language.render(kernel, claims(properties, Capability.BASE_OFFSET_POINTERS))
    start = time.perf_counter()
    module, log = _C.compile_module(device.index, source, language.options)
    if module is None:
        raise AssertionError(f"refuses a kernel of one line: {log.strip()}")
    _C.make_kernel(module, kernel.name, source, [1])
    return f"{properties['dialect']}; a small kernel in {(time.perf_counter() - start) * 1e3:.0f} ms"


@_probe("launch")
def _launch(device: torch.device, properties: Properties) -> str:
    numbers = torch.arange(100_000, dtype=torch.int32)
    there = numbers.to(device)
    _same(there * 3 + 1, numbers * 3 + 1)
    _C.synchronize(device.index)
    start = time.perf_counter()
    for _ in range(20):
        there.add_(1)
    _C.synchronize(device.index)
    return f"right; {(time.perf_counter() - start) / 20 * 1e6:.0f} µs for an op on 100 000 elements"


@_probe("groups and local memory")
def _groups(device: torch.device, properties: Properties) -> str:
    numbers = torch.arange(1_000_003)
    _same(numbers.to(device).sum(), numbers.sum())
    columns = torch.arange(64 * 300, dtype=torch.int32).reshape(64, 300)
    _same(columns.to(device).amax(0), columns.amax(0))
    return (
        f"{properties['compute_units']} compute units, groups of up to {properties['max_work_group_size']}, "
        f"{properties['local_memory'] // 1024} KiB of local memory; sums are right"
    )


@_probe("atomics")
def _atomics(device: torch.device, properties: Properties) -> str:
    index, ones = torch.arange(20_000) % 5, torch.ones(20_000)
    there = torch.zeros(5, device=device).index_add_(0, index.to(device), ones.to(device))
    _same(there, torch.full((5,), 4000.0))
    wide = "claims" if claims(properties, Capability.ATOMIC_INT64) else "does not claim"
    return f"20 000 additions to 5 numbers are all there; the device {wide} 64-bit ones"


def _arithmetic(device: torch.device, dtype: torch.dtype) -> None:
    # Exact in every type, and not once computed in a wider one and rounded twice.
    numbers = torch.arange(-100, 100).to(dtype) / 8
    _same(numbers.to(device) * 2 + 1, numbers * 2 + 1)


@_probe("float64")
def _float64(device: torch.device, properties: Properties) -> str:
    if not properties["has_float64"]:
        raise NotThere("none: ops in float64 run on the CPU, or raise where TORCHGRAFT_FALLBACK=error")
    _arithmetic(device, torch.float64)
    thirds = torch.arange(1, 1000, dtype=torch.float64)
    _same(1 / thirds.to(device), 1 / thirds)
    return "native; right to the last bit"


@_probe("float16")
def _float16(device: torch.device, properties: Properties) -> str:
    _arithmetic(device, torch.float16)
    return f"stored; computed in {'float16 or ' if properties['has_float16'] else ''}float32"


@_probe("bfloat16")
def _bfloat16(device: torch.device, properties: Properties) -> str:
    _arithmetic(device, torch.bfloat16)
    _products_of_bfloat16(device)
    own = Capability.BFLOAT16_TILES | Capability.BFLOAT16_VECTORS | Capability.FRAGMENTS
    by = "by instructions of its own" if claims(properties, own) else "in float32"
    return f"stored; computed in float32, and multiplied {by}"


def _products_of_bfloat16(device: torch.device) -> None:
    """Kernels' own assembly saves registers on the stack: a compiler that does not let it shows here. Sums of small
    integers are exact, so that results are the CPU's to the last bit."""
    numbers = torch.Generator().manual_seed(5)

    def integers(*shape: int) -> torch.Tensor:
        return torch.randint(-4, 5, shape, generator=numbers).to(torch.bfloat16)

    for rows, inner, columns in ((96, 64, 80), (5, 200, 33)):
        a, b = integers(rows, inner), integers(inner, columns)
        _same(a.to(device) @ b.to(device), (a.float() @ b.float()).bfloat16())
    image, weight = integers(2, 32, 9, 9), integers(64, 32, 3, 3)
    expected = torch.nn.functional.conv2d(image.float(), weight.float(), padding=1).bfloat16()
    _same(torch.nn.functional.conv2d(image.to(device), weight.to(device), padding=1), expected)


@_probe("int64")
def _int64(device: torch.device, properties: Properties) -> str:
    numbers = torch.arange(-5, 5) * (1 << 40)
    _same(numbers.to(device) * 3, numbers * 3)
    return "right"


@_probe("streams")
def _streams(device: torch.device, properties: Properties) -> str:
    values = torch.zeros(_MIB, device=device)
    stream, event = torch.Stream(device), torch.Event(device)
    event.record(torch.accelerator.current_stream(device))
    with stream:
        stream.wait_event(event)
        values += 1
    torch.accelerator.current_stream(device).wait_stream(stream)
    _same(values + 1, torch.full((_MIB,), 2.0))
    return "a second stream waits for the first and is waited for"


@_probe("event timing")
def _timing(device: torch.device, properties: Properties) -> str:
    if not claims(properties, Capability.EVENT_TIMING):
        raise NotThere("none: events cannot measure time")
    start, end = torch.Event(device, enable_timing=True), torch.Event(device, enable_timing=True)
    before = time.perf_counter()
    start.record()
    torch.ones(4 * _MIB, device=device).add_(1)
    end.record()
    end.synchronize()
    waited = (time.perf_counter() - before) * 1e3
    measured = start.elapsed_time(end)
    if not 0 <= measured <= waited:
        raise AssertionError(f"{measured:.3f} ms were measured while {waited:.3f} ms passed")
    return f"{measured:.2f} ms for work that took {waited:.2f} ms with waiting"


@_probe("collectives")
def _collectives(device: torch.device, properties: Properties) -> str:
    if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
        raise NotThere("none: torch was built without them")
    group = distributed.alone()  # which also finds the network's interface
    before, x = distributed.traffic()["copies"], torch.full((_MIB,), 3.0, device=device)
    group.allreduce([x]).wait()
    _same(x, torch.full((_MIB,), 3.0))
    copies = distributed.traffic()["copies"] - before
    way = f"{copies} copies to and from the host's memory" if copies else "without copies"
    return f"a group of one reduces {x.nbytes >> 20} MB {way}"


@_probe("errors of kernels")
def _errors(device: torch.device, properties: Properties) -> str:
    if not properties["has_compiler"]:
        raise NotThere("no kernels")
    rows = torch.ones(4, 2, device=device)
    try:
        torch.embedding(rows, torch.tensor([99], device=device)).cpu()
    except IndexError:
        _same(rows + 1, torch.full((4, 2), 2.0))
        return "an index out of range raises IndexError, and the device goes on working"
    raise AssertionError("an index out of range was not noticed")


@_probe("Triton")
def _triton(device: torch.device, properties: Properties) -> str:
    if not properties["has_compiler"]:
        raise NotThere("no kernels of its either")
    if reason := triton_samples.absent():
        raise NotThere(f"none: {reason}")
    with triton_samples.active():
        triton_samples.SAMPLES["softmax"][0](device, torch.float32)
    uses = "launches on it" if triton_samples.is_active() else "launches on it after triton.runtime.driver.set_active"
    return f"{version('triton')} {uses}; a softmax is right"


def _family_probe(family: Family) -> Probe:
    def probe(device: torch.device, properties: Properties) -> str:
        if not claims(properties, Capability.COMPILER | Capability.PROGRAMS):
            raise NotThere("none: they are the CPU's")
        wrong, results = differences(family, device)
        if wrong:
            raise AssertionError(f"{wrong} of {results} results are not what the CPU computes")
        return "right"

    return probe


for _name, _family in FAMILIES.items():
    PROBES[f"kernels: {_name}"] = _family_probe(_family)
