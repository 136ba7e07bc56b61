"""Products of matrices by CLBlast, on a CPU's OpenCL, beside torch's CPU."""

from __future__ import annotations

import ctypes
import os
import random
import shutil
from pathlib import Path

import pytest
from driver_table import INVALID, LIBRARY, Driver, DriverError, run_program

from torchgraft.driver import Capability, DeviceKind

MODELS = ["svm", "coarse", "buffer"]


def why_not() -> str:
    try:
        ctypes.CDLL("libclblast.so.1")
    except OSError:
        return "CLBlast is not installed (Debian: apt-get install libclblast1)"
    named = os.environ.get("TORCHGRAFT_OPENCL_LIBRARY")
    return f"CLBlast calls the loader's OpenCL, and not {named}" if named else ""


needs_clblast = pytest.mark.skipif(bool(why_not()), reason=why_not())

HEAD = """
import random, threading, warnings
import torch, torchgraft
import torch.nn.functional as F
from torchgraft import plans
from torchgraft.plans.operators import operators_asked

torchgraft.fallback.set_mode("error")
random.seed(SEED)
torch.manual_seed(SEED)
TOLERANCES = {torch.float32: (1e-4, 1e-3), torch.float64: (1e-10, 1e-10), torch.float16: (1e-2, 5e-2),
              torch.bfloat16: (2e-2, 0.1)}

def close(mine, expected):
    rtol, atol = TOLERANCES.get(expected.dtype, (0, 0))
    torch.testing.assert_close(mine.cpu(), expected, rtol=rtol, atol=atol)

# The function of tensors of the device is that of the CPU's, and CLBlast's; or is refused with these words.
def same(function, *tensors, refusal=""):
    mine = [t.detach().to("ocl").as_strided(t.shape, t.stride()) if t.is_contiguous() else moved(t) for t in tensors]
    plans.clear()
    with operators_asked() as asked:
        result = function(*mine)
    assert result.device.type == "ocl"
    asked = [each.refusal for each in asked if each.name == "matmul"]
    assert asked and all((refusal in each) if refusal else each == "" for each in asked), asked
    close(result, function(*tensors))

# A tensor of the device that lies as this one does within all of its memory.
def moved(t):
    storage = torch.empty(0, dtype=t.dtype).set_(t.untyped_storage())
    return storage.to("ocl").as_strided(t.shape, t.stride(), t.storage_offset())

# Random sizes and strides: within a larger tensor, transposed or not.
def matrix(*shape, dtype=torch.float32):
    turned = random.random() < 0.5
    *batch, rows, columns = shape
    inner = (columns, rows) if turned else (rows, columns)
    room = [b + random.choice((0, 0, 2)) for b in batch] + [n + random.choice((0, 0, 3, 40)) for n in inner]
    whole = torch.randn(room, dtype=dtype)
    places = [random.randint(0, size - wanted) for size, wanted in zip(room, (*batch, *inner))]
    part = whole[tuple(slice(p, p + wanted) for p, wanted in zip(places, (*batch, *inner)))]
    return part.transpose(-1, -2) if turned else part
"""

FORMS = """
for dtype in (torch.float32, torch.float64):
    for m, n, k in [(1, 1, 1), (1, 40, 7), (40, 1, 7), (33, 17, 65), (5, 6, 1)]:
        a, b, c = matrix(m, k, dtype=dtype), matrix(k, n, dtype=dtype), matrix(m, n, dtype=dtype)
        same(torch.mm, a, b)
        same(torch.mv, a, matrix(n, k, dtype=dtype)[0])
        same(torch.dot, a[0], a[-1])
        same(lambda c, a, b: torch.addmm(c, a, b, beta=-0.5, alpha=2), c, a, b)
        same(lambda c, a, b: torch.addmm(c, a, b, beta=0, alpha=2), torch.full((m, n), float("nan"), dtype=dtype), a, b)
        same(lambda c, a, b: torch.addmm(c, a, b, alpha=0), c, a, b)
        same(torch.addmm, torch.randn(n, dtype=dtype), a, b)
        same(torch.addmm, torch.randn(m, 1, dtype=dtype), a, b)
        same(F.linear, a, b.t(), torch.randn(n, dtype=dtype))
        same(lambda c, a, b: c.clone().addmm_(a, b, beta=3), c, a, b)
    for m, n, k, batch in [(3, 4, 5, 1), (3, 4, 5, 6), (70, 66, 80, 3)]:
        a, b, c = (matrix(batch, *s, dtype=dtype) for s in ((m, k), (k, n), (m, n)))
        same(torch.bmm, a, b)
        same(lambda c, a, b: torch.baddbmm(c, a, b, beta=0.5, alpha=-1), c, a, b)
        same(torch.baddbmm, torch.randn(1, n, dtype=dtype), a, b)
        same(torch.matmul, a, matrix(k, n, dtype=dtype))
        same(torch.bmm, a, matrix(k, n, dtype=dtype).expand(batch, k, n))  # one matrix for all
        same(lambda a, b: torch.einsum("bik,bkj->ijb", a, b), a, b)

# Results where they are wanted, over what was no number; parts of the same memory as the factors'.
for _ in range(20):
    m, n, k = (random.randint(1, 90) for _ in range(3))
    a, b = matrix(m, k), matrix(k, n)
    for out in (torch.full((m, n), float("nan")), torch.full((n, m + 3), float("nan"))[:, 2 : m + 2].t()):
        plans.clear()
        with operators_asked() as asked:
            mine = torch.mm(moved(a), moved(b), out=moved(out))
        assert [each.refusal for each in asked] == [""], asked
        close(mine, a @ b)
    whole = torch.randn(m, k + n)
    mine, expected = whole.to("ocl"), whole.clone()
    torch.mm(mine[:, :k], moved(b), out=mine[:, k:])
    torch.mm(whole[:, :k], b, out=expected[:, k:])
    close(mine, expected)

# Gradients.
a, b = torch.randn(20, 30), torch.randn(30, 8)
mine = [t.to("ocl").requires_grad_() for t in (a, b)]
theirs = [t.clone().requires_grad_() for t in (a, b)]
for x, y in (mine, theirs):
    (x @ y).square().sum().backward()
for x, y in zip(mine, theirs):
    close(x.grad, y.grad)
"""

FUZZ = """
for _ in range(60):
    largest = random.choice((8, 70, 300))
    m, n, k = (random.randint(1, largest) for _ in range(3))
    batch = [] if random.random() < 0.5 else [random.randint(1, 5)]
    dtype = random.choice((torch.float32, torch.float64))
    a, b, c = (matrix(*batch, *s, dtype=dtype) for s in ((m, k), (k, n), (m, n)))
    alpha, beta = random.choice((1, -0.5, 0)), random.choice((1, 2.5, 0))
    add = torch.baddbmm if batch else torch.addmm
    same(lambda c, a, b: add(c, a, b, alpha=alpha, beta=beta), c, a, b)
    same(torch.matmul, a, b)
a, b = torch.randn(600, 520), torch.randn(520, 1030)
same(torch.mm, a, b)
same(lambda a, b: b.t() @ a.t(), a, b)
"""

# From this size on CLBlast copies matrices on PoCL, but for those which lie as its kernels would have them.
LARGE = """
n = 1024
other = torch.randn(2, n, n)
batches = {
    "packed": torch.randn(2, n, n),
    "gaps between": torch.randn(2, n + 88, n)[:, :n],
    "one for all": torch.randn(n, n).expand(2, n, n),
    "further in": torch.randn(2 * n * n + 8)[8:].view(2, n, n),
}
for name, batch in batches.items():
    plans.clear()
    print(name)
    close(torch.bmm(moved(other), moved(batch)), other @ batch)
nothing = torch.full((n, n), float("nan"))
a, b = torch.randn(n, n + 4), torch.randn(n + 4, n)
for out in (nothing, nothing.t(), torch.full((n, n + 1), float("nan"))[:, 1:]):
    plans.clear()
    close(torch.mm(moved(a), moved(b), out=moved(out)), a @ b)
close(torch.baddbmm(nothing.to("ocl"), other.to("ocl"), other.to("ocl"), beta=0), other @ other)
assert "run matmul" in plans.show("baddbmm")
"""

# What CLBlast has not is refused with the reason, and kernels serve it.
REFUSALS = """
for dtype in (torch.float16, torch.bfloat16):
    same(torch.mm, torch.randn(9, 7).to(dtype), torch.randn(7, 5).to(dtype), refusal="16-bit floats in 16 bits")
same(torch.mm, torch.randn(9, 14)[:, ::2], torch.randn(7, 5), refusal="A has neither its rows nor its columns")
same(torch.mm, torch.randn(9, 7), torch.randn(21, 10)[::3, ::2], refusal="B has neither its rows nor its columns")
a, b = torch.randint(-9, 9, (6, 5)), torch.randint(-9, 9, (5, 4))
same(torch.mm, a, b, refusal="it multiplies floats alone")
for left, right in ((torch.randn(4, 0), torch.randn(0, 3)), (torch.randn(0, 4), torch.randn(4, 3))):
    close(left.to("ocl") @ right.to("ocl"), left @ right)
a, b = torch.randn(4, 5, dtype=torch.complex64), torch.randn(5, 3, dtype=torch.complex64)
torch.testing.assert_close((a.to("ocl") @ b.to("ocl")).cpu(), a @ b)
x = torch.randn(4, 6)
torch.testing.assert_close(x.to("ocl").softmax(1).cpu(), x.softmax(1))
"""

GRAPHS = """
a, b, c, batch = torch.randn(40, 30), torch.randn(30, 50), torch.randn(50), torch.randn(3, 50, 40)
mine = [t.to("ocl") for t in (a, b, c, batch)]

def function(a, b, c, batch):
    return torch.bmm(batch, torch.addmm(c, a, b).relu().expand(3, 40, 50))

function(*mine)
graph = torch.ocl.Graph()
with torch.ocl.graph(graph):
    result = function(*mine)
for _ in range(3):
    new = [torch.randn_like(t) for t in (a, b, c, batch)]
    for t, value in zip(mine, new):
        t.copy_(value)
    with operators_asked() as asked:
        graph.replay()
    assert asked == []
    close(result, function(*new))

compiled = torch.compile(function, backend="graft")
for _ in range(4):
    new = [torch.randn_like(t) for t in (a, b, c, batch)]
    close(compiled(*(t.to("ocl") for t in new)), function(*new))

from torch.profiler import ProfilerActivity, profile
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as profiled:
    function(*mine)
    torch.ocl.synchronize()
times = [event.device_time for event in profiled.events() if event.name == "matmul" and event.device_time]
assert len(times) == 2 and min(times) > 0, [(event.name, event.device_time) for event in profiled.events()]
"""

THREADS = """
failures = []

def work(seed):
    generator = torch.Generator().manual_seed(seed)
    try:
        with torch.ocl.stream(torch.ocl.Stream()):
            for i in range(25):
                dtype = (torch.float32, torch.float64)[(i + seed) % 2]
                m, n, k = (int(torch.randint(1, 200, (), generator=generator)) for _ in range(3))
                a = torch.randn(m, k, generator=generator, dtype=dtype)
                b = torch.randn(k, n, generator=generator, dtype=dtype)
                close(torch.addmm(b[0].to("ocl"), a.to("ocl"), b.to("ocl")), torch.addmm(b[0], a, b))
                close(torch.bmm(a.expand(2, m, k).to("ocl"), b.expand(2, k, n).to("ocl")), torch.stack([a @ b] * 2))
    except BaseException as error:
        failures.append(error)

with operators_asked() as asked:
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
assert failures == [], failures
assert {(each.name, each.refusal) for each in asked} == {("matmul", "")}, asked
"""

TEXTS = {"forms": FORMS, "fuzz": FUZZ, "refusals": REFUSALS, "graphs": GRAPHS, "threads": THREADS}


def run(program: str, **environment: str) -> None:
    seed = f"SEED = {random.randrange(1 << 31)}"
    print(seed)
    run_program(seed + HEAD + program, **environment)


@needs_clblast
def test_large_matrices() -> None:
    run(LARGE, TORCHGRAFT_OPENCL_CLBLAST="always", TORCHGRAFT_OPENCL_MEMORY="buffer")


@needs_clblast
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("program", TEXTS)
def test_beside_the_cpu(program: str, model: str) -> None:
    run(TEXTS[program], TORCHGRAFT_OPENCL_CLBLAST="always", TORCHGRAFT_OPENCL_MEMORY=model)


# A part of a buffer, of which there are no parts again.
PART = """
import numpy, pyopencl, pyopencl.array
from torchgraft_opencl import interop

whole = pyopencl.Buffer(interop.context(), pyopencl.mem_flags.READ_WRITE, 1 << 16)
part = whole.get_sub_region(1 << 12, 1 << 14)
array = pyopencl.array.Array(interop.queue(), (40, 50), numpy.float32, data=part)
mine = interop.tensor(array)
values = torch.randn(40, 50)
mine.copy_(values)
with operators_asked() as asked:
    for a, b in ((mine, values), (mine[7:], values[7:]), (mine[:, 6:50].t(), values[:, 6:50].t())):
        w = torch.randn(a.shape[1], 20)
        close(a @ w.to("ocl"), b @ w)
assert [each.refusal for each in asked] == [""] * 3, asked
"""


@needs_clblast
def test_a_part_of_a_buffer() -> None:
    pytest.importorskip("pyopencl")
    run(PART, TORCHGRAFT_OPENCL_CLBLAST="always", TORCHGRAFT_OPENCL_MEMORY="buffer")


TUNED = """
from torchgraft.codegen.tuning import NEVER, changed
from torchgraft.plans.device import device_traits, set_tuning
from torchgraft.tuning.search import Child

def asked(n):
    a, b = torch.randn(n, n), torch.randn(n, n)
    with operators_asked() as asked:
        close(a.to("ocl") @ b.to("ocl"), a @ b)
        close(a.to("ocl").softmax(1), a.softmax(1))
    return [each.name for each in asked]

usual = device_traits(0).tuning
assert usual.operators.products == NEVER and asked(64) == asked(65) == []
set_tuning(0, changed(usual, "operators", products=64 ** 3))
assert asked(63) == [] and asked(64) == ["matmul"]

with Child(0, "ocl", []) as child:
    assert child.families["operators"] == ["products"]
    for products in (0, NEVER):  # both are right, or this raises
        times = child.times("operators", changed(usual, "operators", products=products))
        assert all(seconds > 0 for seconds in times.values()) and len(times) > 3, times
"""


@needs_clblast
def test_products_are_its_from_a_measured_size_on() -> None:
    run(TUNED, TORCHGRAFT_OPENCL_CLBLAST="tuned", TORCHGRAFT_OPENCL_MEMORY="buffer", TORCHGRAFT_TUNED="0")


FAULTS = """
torchgraft.fallback.set_mode("error")
a, b = torch.randn(20, 30), torch.randn(30, 40)
mine = a.to("ocl"), b.to("ocl")
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    close(mine[0] @ mine[1], a @ b)
assert any("matmul" in str(each.message) and "program_create: fails" in str(each.message) for each in caught), caught
plans.clear()
try:
    torch.mm(*mine)
except RuntimeError as error:
    assert "ocl:0" in str(error) and "matmul" in str(error) and "program_run: fails" in str(error), error
else:
    raise AssertionError("the run should have failed")
close(torch.mm(*mine), a @ b)
"""


@needs_clblast
def test_what_fails_is_told_and_the_next_call_works() -> None:
    """Kernels serve where no program can be made, with a warning; a run that fails is an exception."""
    wanted = {"TORCHGRAFT_OPENCL_CLBLAST": "always", "TORCHGRAFT_OPENCL_MEMORY": "buffer"}
    run(FAULTS, TORCHGRAFT_OPENCL_FAIL="program_create:1,program_run:1", **wanted)


# ---- where there is none ----


def told(driver: Driver) -> tuple[Capability, str]:
    """What the first device can, and what the doctor says of it."""
    journal = driver.library.torchgraft_opencl_journal
    journal.restype = ctypes.c_char_p
    devices = [line for line in journal().decode().splitlines() if line.startswith("device\t")]
    if not devices:
        pytest.skip(driver.count_message)
    return Capability(driver.capabilities), devices[0].split("\t")[-1]


def test_not_for_cpus_unless_it_is_asked_for(tmp_path: Path) -> None:
    for wish in ("", "off"):
        driver = Driver(tmp_path, TORCHGRAFT_OPENCL_CLBLAST=wish, TORCHGRAFT_OPENCL_MEMORY="buffer")
        can, text = told(driver)
        if driver.properties().kind == DeviceKind.CPU or wish:
            assert Capability.PROGRAMS not in can
            assert "CLBlast" not in text


@needs_clblast
def test_where_it_is_asked_for(tmp_path: Path) -> None:
    for wish, first in (("tuned", True), ("always", False)):
        can, text = told(Driver(tmp_path, TORCHGRAFT_OPENCL_CLBLAST=wish, TORCHGRAFT_OPENCL_MEMORY="buffer"))
        assert Capability.PROGRAMS in can
        assert (Capability.KERNELS_FIRST in can) == first
        assert text.endswith("tuned products by CLBlast" if first else ", products by CLBlast")


def test_a_wish_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(DriverError, match="CLBLAST is 'yes': it may be off, tuned or always") as caught:
        Driver(tmp_path, TORCHGRAFT_OPENCL_CLBLAST="yes")
    assert caught.value.status == INVALID


@needs_clblast
def test_memory_of_the_host_is_no_buffers(tmp_path: Path) -> None:
    driver = Driver(tmp_path, TORCHGRAFT_OPENCL_CLBLAST="always", TORCHGRAFT_OPENCL_MEMORY="host")
    can, text = told(driver)
    if driver.properties().kind != DeviceKind.CPU:
        pytest.skip("needs a CPU device")
    assert Capability.PROGRAMS not in can
    assert "no CLBlast (it needs TORCHGRAFT_OPENCL_MEMORY=svm, coarse or buffer here)" in text


@needs_clblast
def test_of_another_opencl(tmp_path: Path) -> None:
    """The implementation without the loader that CLBlast calls."""
    named = Path("/etc/OpenCL/vendors/pocl.icd")
    if not named.exists():
        pytest.skip("needs Debian's PoCL")
    wishes = {"TORCHGRAFT_OPENCL_LIBRARY": named.read_text().strip(), "TORCHGRAFT_OPENCL_MEMORY": "buffer"}
    can, text = told(Driver(tmp_path, TORCHGRAFT_OPENCL_CLBLAST="always", **wishes))
    assert Capability.PROGRAMS not in can
    assert "no CLBlast (it uses another OpenCL library than the device)" in text


@pytest.mark.parametrize("broken", ["no library", "another library"])
def test_a_library_that_is_broken(broken: str, tmp_path: Path) -> None:
    """The reason is told, and kernels serve."""
    library = tmp_path / "libclblast.so.1"
    if broken == "no library":
        library.write_bytes(b"\x7fELF")
    else:
        shutil.copy(LIBRARY, library)
    program = """
    import torch, torchgraft
    from torchgraft_opencl.diagnosis import diagnose
    x = torch.randn(7, 9)
    torch.testing.assert_close((x.to("ocl") @ x.t().to("ocl")).cpu(), x @ x.t())
    texts = [finding.text for finding in diagnose() if finding.subject.startswith("device ")]
    assert "no CLBlast (" in texts[0] and "libclblast.so.1" in texts[0], texts
    """
    wanted = {"TORCHGRAFT_OPENCL_CLBLAST": "always", "TORCHGRAFT_OPENCL_MEMORY": "buffer"}
    run_program(program, LD_LIBRARY_PATH=str(tmp_path), **wanted)
