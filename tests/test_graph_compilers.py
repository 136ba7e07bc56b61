"""Devices with a compiler of graphs: `torch.compile(model, backend="<name>")`, beside torch's CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Script

HEAD = """
import copy, os, threading, warnings
import torch, torchgraft
import torch.nn.functional as F
from torch import nn
from graph_driver import GraphDriver
from torchgraft.driver import Wish
driver = GraphDriver()
torchgraft.register("npu", [driver])
torch.manual_seed(0)

def close(mine, expected, **tolerance):
    mine, expected = ([x] if isinstance(x, torch.Tensor) else list(x) for x in (mine, expected))
    for a, b in zip(mine, expected, strict=True):
        assert a.device.type == "npu", a.device
        torch.testing.assert_close(a.detach().cpu(), b.detach(), **tolerance)

def graphs():
    return [name for name in driver.log if name.startswith("graph ")]

def compiled(function, **options):
    torch._dynamo.reset()
    driver.log.clear()
    return torch.compile(function, backend="npu", options=options or None)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, 2, padding=1), nn.BatchNorm2d(8)
        self.layer, self.out = nn.LayerNorm(8), nn.Linear(8, 5)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.conv(x))), 2)
        return self.out(self.layer(x.flatten(2).mean(2)))
"""


def check(script: Script, body: str, **environment: str) -> None:
    script(HEAD + body, timeout=300, **{"TORCHGRAFT_CACHE": "0", **environment})


def test_inference_is_one_program(script: Script) -> None:
    check(
        script,
        """
with torchgraft.fallback("error"), torch.no_grad():
    net = Net().eval()
    mine = copy.deepcopy(net).to("npu")
    run = compiled(mine)
    for _ in range(4):
        x = torch.randn(2, 3, 16, 16)
        close(run(x.to("npu")), net(x))
    assert graphs() == ["graph 1"] * 4 == driver.log[-4:], driver.log
    assert driver.compiled == ["graph 1"]
    text = str(torchgraft.compile_report())
    assert "0 outside" in text and "programs: 1" in text, text
    # Inputs that lie otherwise.
    x = torch.randn(2, 16, 16, 3).permute(0, 3, 1, 2)
    close(run(x.to("npu").to(memory_format=torch.channels_last)), net(x))
    close(run(torch.cat([x, x]).to("npu")[1:3]), net(torch.cat([x, x])[1:3]))
""",
    )


def test_training(script: Script) -> None:
    check(
        script,
        """
net, steps = Net().double(), 4
mine = copy.deepcopy(net).to("npu")
run = compiled(mine)
x, y = torch.randn(4, 3, 16, 16, dtype=torch.float64), torch.randint(5, (4,))
optimizers = [torch.optim.SGD(m.parameters(), 0.1, momentum=0.9) for m in (net, mine)]
for _ in range(steps):
    losses = [F.cross_entropy(net(x), y), F.cross_entropy(run(x.to("npu")), y.to("npu"))]
    for optimizer, loss in zip(optimizers, losses):
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.testing.assert_close(losses[1].item(), losses[0].item())
for mine_, theirs in zip(mine.parameters(), net.parameters()):
    close(mine_, theirs)
for mine_, theirs in zip(mine.buffers(), net.buffers()):
    close(mine_, theirs)
report = torchgraft.compile_report()
assert len(report) == 2 and all(len(graph.parts) == 1 for graph in report), str(report)
assert len(graphs()) == 2 * steps
""",
    )


def test_what_is_refused_runs_as_ops(script: Script) -> None:
    check(
        script,
        """
def f(x, y):
    a = (x @ y).relu() + 1
    b = a.softmax(-1) * 2
    return b - a, b.sum()

x, y = torch.randn(6, 7), torch.randn(7, 5)
driver.refuses_nodes = {"aten.relu.default", "aten._softmax.default"}
with torchgraft.fallback("error"):
    run = compiled(f)
    for _ in range(3):
        close(run(x.to("npu"), y.to("npu")), f(x, y))
(graph,) = torchgraft.compile_report()
assert list(graph.refused.values()) == [1, 1] and {op for op, _ in graph.refused} == driver.refuses_nodes, graph.refused
assert all(f"the compiler has no {op}" in why for op, why in graph.refused), graph.refused
assert "outside: aten.relu.default 1 times: " in str(torchgraft.compile_report())
# One of the device's parts each: before relu, between, and behind; ops between them.
assert len(graph.parts) == 3 and sum(part.ops for part in graph.parts) == 5, graph
assert [name.split()[0] for name in driver.log[-5:]] == ["graph", "pointwise", "graph", "softmax", "graph"], driver.log

# A driver that cannot do what it said: op by op, with a warning, and the reason in the report.
driver.refuses_nodes = set()
driver.breaks_graphs = True
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    run = compiled(f)
    close(run(x.to("npu"), y.to("npu")), f(x, y))
assert any("could not prepare graph" in str(w.message) and "the compiler is broken" in str(w.message) for w in seen)
assert "op by op 1 times: the compiler is broken" in str(torchgraft.compile_report())
assert not graphs()
driver.breaks_graphs = False

# Least size, and random numbers, which stay the device's ops. Each op has its reason; views have none and cost nothing.
run = compiled(lambda x, y: f(x.t(), y), least=9)
close(run(x.t().contiguous().to("npu"), y.to("npu")), f(x, y))
assert not graphs()
*_, graph = torchgraft.compile_report()
assert {why for _, why in graph.refused} == {"it is in no part that reads tensors and has 9 ops"}, graph.refused
assert not any("aten.t." in op or "transpose" in op or "permute" in op for op, _ in graph.refused), graph.refused
# What reads no tensor.
driver.refuses_nodes = {"aten.mul.Tensor"}
run = compiled(lambda x: x * torch.full((3,), 2.0, device=x.device).exp())
close(run(x[:, :3].to("npu")), x[:, :3] * torch.full((3,), 2.0).exp())
driver.refuses_nodes = set()
run = compiled(lambda x: F.dropout(x.exp(), 0.5) * 2)
out = run(x.to("npu")).cpu()
scaled = x.exp() * 4
assert all(v == 0 or abs(v - w) < 1e-4 for v, w in zip(out.flatten().tolist(), scaled.flatten().tolist()))
assert any("random" in why for graph in torchgraft.compile_report() for _, why in graph.refused)
""",
    )


def test_sizes_that_change(script: Script) -> None:
    check(
        script,
        """
def f(x):
    return (x.softmax(-1) @ x.t()).reshape(-1) / x.shape[0]

run = compiled(f, sizes=3)
with torchgraft.fallback("error"):
    for n in (4, 5, 6, 7, 4, 5, 8, 6):
        x = torch.randn(n, 3)
        close(run(x.to("npu")), f(x))
made = [part for graph in torchgraft.compile_report() for part in graph.parts]
assert sum(part.programs for part in made) == 1 + 3, made  # Dynamo makes one graph for the first, one for the others
assert any("3 sets of sizes already" in why for part in made for why in part.why_not), made
close(run(torch.randn(0, 3).to("npu")), f(torch.randn(0, 3)))
# What comes from sizes and is no integer is the host's.
def g(x):
    return (x * (x.shape[0] / 3)).sin()

run = compiled(g)
for n in (4, 5, 6):
    x = torch.randn(n, 3)
    close(run(x.to("npu")), g(x))
assert any("no integer" in why for graph in torchgraft.compile_report() for _, why in graph.refused)
# Numbers among the arguments are values of the program.
run = compiled(lambda x, n: x.exp() * n + n)
for n in (2, 3, 4):
    x = torch.randn(3)
    close(run(x.to("npu"), n), x.exp() * n + n)
""",
    )


def test_parameters_as_constants(script: Script) -> None:
    check(
        script,
        """
net = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)).eval()
mine = copy.deepcopy(net).to("npu")
run = compiled(mine, constants=True)
x = torch.randn(3, 4)
with torch.no_grad():
    for _ in range(3):
        close(run(x.to("npu")), net(x))
    assert len(driver.compiled) == 1
    # Another value in a parameter, in place or by a new tensor: made anew, not a wrong result.
    mine[0].weight.add_(1), net[0].weight.add_(1)
    for _ in range(3):
        close(run(x.to("npu")), net(x))
    assert len(driver.compiled) == 2
    for number in range(6):  # and after some of these they are arguments
        for m in (mine, net):
            m[2].bias.mul_(2)
        close(run(x.to("npu")), net(x))
    assert len(driver.compiled) <= 5, driver.compiled
# With gradients they are arguments.
run = compiled(mine, constants=True)
run(x.to("npu")).sum().backward()
net(x).sum().backward()
for a, b in zip(mine.parameters(), net.parameters()):
    close(a.grad, b.grad)
""",
    )


def test_constants_are_in_the_program(script: Script) -> None:
    check(
        script,
        """
class Constants(GraphDriver):
    def program_create(self, device, source):
        if source.format != "operator":
            self.inputs = [tensor.sizes for tensor in source.inputs]
        return super().program_create(device, source)

driver.__class__ = Constants
w = torch.nn.Parameter(torch.randn(4, 5))
mine = torch.nn.Linear(5, 4).to("npu").eval()
with torch.no_grad():
    compiled(mine, constants=True)(torch.randn(2, 5, device="npu"))
    assert driver.inputs == [(2, 5)], driver.inputs
    compiled(mine)(torch.randn(3, 5, device="npu"))
    assert sorted(driver.inputs) == [(3, 5), (4,), (4, 5)], driver.inputs
""",
    )


def test_kept_on_disk(script: Script, tmp_path: Path) -> None:
    cache = {"TORCHGRAFT_CACHE": "1", "TORCHGRAFT_CACHE_DIR": str(tmp_path)}
    body = """
def f(x, y):
    return (x @ y).relu()

x, y = torch.randn(6, 7), torch.randn(7, 5)
close(compiled(f)(x.to("npu"), y.to("npu")), f(x, y))
expected = os.environ["EXPECTED"]
found = "loaded" if driver.loaded else "compiled"
assert found == expected and len(driver.loaded) + len(driver.compiled) == 1, (driver.loaded, driver.compiled)
part = [part for graph in torchgraft.compile_report() for part in graph.parts][0]
assert part.programs == 1
"""
    check(script, body, EXPECTED="compiled", **cache)
    check(script, body, EXPECTED="loaded", **cache)
    # What the driver does not load any more, and what another version of it has made.
    refuses = "def refuse(*_): raise ValueError('no')\nGraphDriver.program_load = refuse\n"
    check(script, refuses + body, EXPECTED="compiled", **cache)
    other = "driver.__class__.device_properties = lambda self, d: __import__('dataclasses').replace("
    other += "super(GraphDriver, self).device_properties(d), driver_version='2')\n"
    check(script, other + body, EXPECTED="compiled", **cache)


def test_capture_recording_and_threads(script: Script) -> None:
    check(
        script,
        """
def f(x):
    return F.gelu(x @ x.t()) + 1

run = compiled(f)
x = torch.randn(5, 5)
mine = x.to("npu")
for _ in range(3):
    close(run(mine), f(x))
assert torchgraft.plans.stats().compiled_replays >= 1, torchgraft.plans.stats()
graph = torch.accelerator.Graph()
graph.capture_begin()
out = run(mine)
graph.capture_end()
mine.copy_(torch.randn(5, 5))
graph.replay()
close(out, f(mine.cpu()))
failures = []
def work(seed):
    try:
        g = torch.Generator().manual_seed(seed)
        for _ in range(20):
            x = torch.randn(5, 5, generator=g)
            close(run(x.to("npu")), f(x))
    except BaseException as error:
        failures.append(error)
threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
for t in threads: t.start()
for t in threads: t.join()
assert not failures, failures
with torch.profiler.profile() as profile:
    run(mine)
    torch.npu.synchronize()
assert any(event.name.startswith("graph ") for event in profile.events()), [e.name for e in profile.events()]
""",
    )


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        ("torch.compile(f, backend='npu', options={'fast': True})(x)", "ValueError", "no option 'fast'"),
        ("torch.compile(f, backend='npu', options={'least': 'x'})(x)", "ValueError", "of type int"),
        ("torch.compile(f, backend='npu', options={'format': 'onnx'})(x)", "ValueError", "compiles pt2, not 'onnx'"),
        ("torch.compile(f, backend='npu', mode='max-autotune')(x)", "ValueError", "has options, and not mode"),
    ],
)
def test_mistakes(script: Script, call: str, error: str, message: str) -> None:
    check(
        script,
        f"""
f, x = (lambda x: x + 1), torch.randn(3, device="npu")
try:
    {call}
except Exception as found:
    text = f"{{type(found).__name__}} {{found}}"
    assert {error!r} in text or isinstance(found, {error}), text
    assert {message!r} in text, text
else:
    raise SystemExit("no error")
""",
    )


def test_languages_of_ones_own(script: Script) -> None:
    check(
        script,
        """
from torchgraft.compiler.graph_compilers import Importer, register_importer
driver.__class__.program_formats = ("mlir",)
f, x = (lambda x: x.relu() + 1), torch.randn(3, device="npu")
try:
    compiled(f)(x)
except Exception as found:
    assert "mlir: torchgraft has no importer" in str(found), found
else:
    raise SystemExit("no error")
from torchgraft.compiler.graph_compilers import exported
written = []
def make():
    theirs = exported.importer()
    def write(gm):
        written.append(str(gm.graph))
        return theirs.write(gm)
    return Importer(lambda op: "" if "relu" in str(op) else "no", write, lambda: "1")
register_importer("mlir", make)
takes_operators = GraphDriver.__mro__[1].program_supports
GraphDriver.program_supports = lambda *a: None if a[2].format == "mlir" else takes_operators(*a)
close(compiled(f)(x), f(x.cpu()))
assert len(written) == 1 and "relu" in written[0] and "add" not in written[0]
""",
    )
