"""examples/onnxruntime_device: a device with a compiler of graphs, which is ONNX Runtime. Beside torch's CPU."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Script

EXAMPLES = Path(__file__).parents[1] / "examples"
EXAMPLE = EXAMPLES / "onnxruntime_device"
MISSING = [name for name in ("onnx", "onnxruntime", "onnxscript") if importlib.util.find_spec(name) is None]

pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"not installed: pip install {' '.join(MISSING)}")

HEAD = f"""
import copy, os, sys, threading, warnings
sys.path[:0] = [{str(EXAMPLES)!r}, {str(EXAMPLE)!r}]
import torch, torchgraft
import torch.nn.functional as F
from torch import nn
from networks import networks
from onnxruntime_device.driver import OnnxRuntimeDriver
warnings.simplefilter("ignore", FutureWarning)  # of torch's own exporter

created, loaded, runs = [], [], []

def watch(name, note):
    method = getattr(OnnxRuntimeDriver, name)
    def watched(self, *arguments):
        result = method(self, *arguments)
        note(*arguments)
        return result
    setattr(OnnxRuntimeDriver, name, watched)

watch("program_create", lambda device, source: source.format == "onnx" and created.append(source))
watch("program_load", lambda device, source, binary: loaded.append(source))
watch("program_run", lambda d, s, program, *_: program.name.startswith("graph") and runs.append(program.name))
torchgraft.fallback.set_mode("silent")
torch.manual_seed(int(os.environ["TORCHGRAFT_TEST_SEED"]))

def close(mine, expected, **tolerance):
    mine, expected = ([x] if isinstance(x, torch.Tensor) else list(x) for x in (mine, expected))
    for a, b in zip(mine, expected, strict=True):
        assert a.device.type == "onnxruntime", a.device
        torch.testing.assert_close(a.detach().cpu(), b.detach(), **tolerance)

def compiled(function, **options):
    torch._dynamo.reset()
    return torch.compile(function, backend="onnxruntime", options=options or None)

def parts():
    return [part for graph in torchgraft.compile_report() for part in graph.parts]

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, 2, padding=1), nn.BatchNorm2d(8)
        self.deep, self.layer, self.out = nn.Conv2d(8, 8, 3, groups=4), nn.LayerNorm(8), nn.Linear(8, 5)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.conv(x))), 3, 2, 1)
        return self.out(self.layer(self.deep(x).flatten(2).mean(2)))

def trained(net, run, device, batches):
    # Gradients of all steps, and what becomes of the buffers.
    for x in batches:
        run(x.to(device)).square().sum().backward()
    return [p.grad for p in net.parameters()] + list(net.buffers())
"""


def check(script: Script, body: str, **environment: str) -> None:
    script(HEAD + body, timeout=400, **{"TORCHGRAFT_CACHE": "0", **environment})


def _environment() -> dict[str, str]:
    path = os.pathsep.join([str(EXAMPLE), *filter(None, sys.path)])
    return {**os.environ, "PYTHONPATH": path, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}


def test_its_own_tests() -> None:
    """The rules of drivers and devices, and programs by the driver alone."""
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", "tests"]
    done = subprocess.run(command, cwd=EXAMPLE, capture_output=True, text=True, env=_environment())
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.quick(network="bert")
@pytest.mark.parametrize("network", ["resnet", "gpt", "bert"])
def test_networks(network: str) -> None:
    command = [sys.executable, EXAMPLE / "infer_and_train.py", "--network", network]
    done = subprocess.run(command, capture_output=True, text=True, env=_environment())
    assert done.returncode == 0, done.stdout + done.stderr
    # One program for inference, one for forward and one for backward; ops of the loss and the optimiser are named.
    assert done.stdout.count("programs: 1,") == done.stdout.count(" in 1 parts, ") == 3, done.stdout
    assert "op by op" not in done.stdout
    assert "aten::nll_loss_forward" in done.stdout


def test_forward_and_backward(script: Script) -> None:
    check(
        script,
        """
net = Net()
mine = copy.deepcopy(net).to("onnxruntime")
batches = [torch.randn(4, 3, 20, 18) for _ in range(3)]
close(trained(mine, compiled(mine), "onnxruntime", batches), trained(net, net, "cpu", batches), rtol=1e-3, atol=1e-4)
assert [part.programs for part in parts()] == [1, 1] and len(runs) == 6, torchgraft.compile_report()
with torch.no_grad():
    net.eval(), mine.eval()
    x = torch.randn(4, 3, 20, 18)
    close(compiled(mine)(x.to("onnxruntime")), net(x))
""",
    )


def test_sizes_that_change(script: Script) -> None:
    check(
        script,
        """
net = Net()
mine = copy.deepcopy(net).to("onnxruntime")
batches = [torch.randn(n, 3, 20, width) for n, width in ((2, 18), (3, 18), (4, 18), (5, 18), (3, 18))]
found = trained(mine, compiled(mine, sizes=2), "onnxruntime", batches)
close(found, trained(net, net, "cpu", batches), rtol=1e-3, atol=1e-4)
assert any("2 sets of sizes already" in why for part in parts() for why in part.why_not), torchgraft.compile_report()
assert max(part.programs for part in parts()) == 2
""",
    )


def test_parameters_are_constants_of_inference(script: Script) -> None:
    check(
        script,
        """
net = Net().eval()
mine = copy.deepcopy(net).to("onnxruntime")
run = compiled(mine)
x = torch.randn(4, 3, 20, 18)
with torch.no_grad():
    for _ in range(3):
        close(run(x.to("onnxruntime")), net(x))
    (source,) = created
    assert [tensor.sizes for tensor in source.inputs] == [(4, 3, 20, 18)], source.inputs
    for m in (mine, net):
        m.out.bias.add_(1)
    close(run(x.to("onnxruntime")), net(x))
    assert len(created) == 2
""",
    )


def test_kept_on_disk(script: Script, tmp_path: Path) -> None:
    cache = {"TORCHGRAFT_CACHE": "1", "TORCHGRAFT_CACHE_DIR": str(tmp_path)}
    body = """
torch.manual_seed(5)  # parameters are constants
net = Net().eval()
mine = copy.deepcopy(net).to("onnxruntime")
x = torch.randn(2, 3, 20, 18)
with torch.no_grad():
    close(compiled(mine)(x.to("onnxruntime")), net(x))
assert (len(created), len(loaded)) == eval(os.environ["EXPECTED"]), (created, loaded)
assert [part.programs for part in parts()] == [1]
"""
    check(script, body, EXPECTED="1, 0", **cache)
    check(script, body, EXPECTED="0, 1", **cache)
    refuses = "def refuse(*_): raise ValueError('no')\nOnnxRuntimeDriver.program_load = refuse\n"
    check(script, refuses + body, EXPECTED="1, 0", **cache)


def test_streams_and_threads(script: Script) -> None:
    check(
        script,
        """
def f(x):
    return F.gelu(x @ x.t()).softmax(-1) + 1

run = compiled(f)
close(run(torch.zeros(6, 6, device="onnxruntime")), f(torch.zeros(6, 6)))
problems = []
def work(seed):
    try:
        generator = torch.Generator().manual_seed(seed)
        with torch.onnxruntime.stream(torch.onnxruntime.Stream()):
            for _ in range(20):
                x = torch.randn(6, 6, generator=generator)
                close(run(x.to("onnxruntime")), f(x))
    except BaseException as error:
        problems.append(error)
threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert not problems, problems
assert sum(part.programs for part in parts()) == 1 and len(runs) == 81

# A stream that waits for another's program, and a graph that is replayed.
side, x = torch.onnxruntime.Stream(), torch.randn(6, 6)
y = run(x.to("onnxruntime"))
with torch.onnxruntime.stream(side):
    side.wait_stream(torch.onnxruntime.default_stream())
    z = run(y)
side.synchronize()
close(z, f(f(x)))
still = torch.zeros(6, 6, device="onnxruntime")
graph = torch.onnxruntime.Graph()
with torch.onnxruntime.graph(graph):
    out = run(still)
for _ in range(3):
    x = torch.randn(6, 6)
    still.copy_(x)
    graph.replay()
    close(out, f(x))
""",
    )


def test_errors(script: Script) -> None:
    check(
        script,
        """
# A failure after the call that submitted it: told by the next wait, once, with the program's name.
run = compiled(lambda table, indices: F.embedding(indices, table) * 2)
table = torch.randn(4, 3)
run(table.to("onnxruntime"), torch.tensor([1, 9], device="onnxruntime"))
try:
    torch.onnxruntime.synchronize()
except torch.AcceleratorError as error:
    assert "program graph 1: " in str(error) and "out of data bounds" in str(error), error
else:
    raise SystemExit("no error")
torch.onnxruntime.synchronize()
indices = torch.tensor([1, 3])
close(run(table.to("onnxruntime"), indices.to("onnxruntime")), F.embedding(indices, table) * 2)

# What ONNX Runtime or ONNX has not is named, and runs as an op.
def f(x):
    return torch.fft.fft(x.sin()).real + torch.special.bessel_j0(x).cos()

x = torch.rand(5, dtype=torch.float64)
close(compiled(f)(x.to("onnxruntime")), f(x))
refused = {op: why for graph in torchgraft.compile_report() for op, why in graph.refused}
assert "ONNX has nothing for it" in refused["aten.special_bessel_j0.default"], refused
assert any("complex" in why for why in refused.values()), refused
assert all(refused.values()), refused
""",
    )


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int64", "int32", "bool"])
def test_the_driver_keeps_its_word(script: Script, dtype: str) -> None:
    """What it takes of a dtype ONNX Runtime has: nothing is refused once the graph is given."""
    check(
        script,
        f"""
dtype = torch.{dtype}
"""
        + """
x, y, image = (torch.randint(1, 5, sizes).to(dtype) for sizes in ((4, 6), (4, 6), (2, 4, 8, 8)))
indices = torch.randint(4, (4, 6))

def results(x, y, image, indices):
    # Of a dtype that an op has on the CPU.
    made = [x.t() * 1, torch.cat([x, y]), x[1:, ::2] == y[1:, ::2], x.gather(0, indices), x[indices[0]], x.float(),
            x.long(), x.bool(), torch.where(x == y, indices, 0), x.reshape(3, 8) != 0, F.pad(x, (1, 2)), x.flip(0)]
    if dtype == torch.bool:
        return [*made, x & y, x | y, x ^ y, ~x, x.any(1), x.all(), x.sum(1)]
    if dtype != torch.float16:  # of which torch.onnx leaves these results in float32
        made += [x.abs(), x.sum(1), x.amax(1), x.cumsum(1)]
    made += [x + y, x - y, x * y, x / y, -x, x > y, x <= y, torch.maximum(x, y), x.clamp(1, 3),
             x.argmax(1), x.max(1)[0], x.topk(2)[0], x.sort(1)[0], x.sign(),
             x @ y.t(), x.tril(), torch.where(x > y, x, y), x.masked_fill(x > y, 2), x.scatter_add(0, indices, y),
             x * 2 + 1]
    if dtype.is_floating_point:
        made += [x.relu(), x.exp(), x.log(), x.sqrt(), x.tanh(), x.sigmoid(), x.sin(), x.mean(1), x.var(1),
                 x.softmax(1), F.gelu(x), F.silu(x), F.layer_norm(x, (6,)), F.avg_pool2d(image, 2),
                 F.max_pool2d(image, 2), F.conv2d(image, image[:, :, :3, :3]), torch.erf(x), x.pow(1.5), x.floor(),
                 F.batch_norm(image, None, None, training=True)]
    return made

with warnings.catch_warnings():
    warnings.simplefilter("error", RuntimeWarning)  # "could not prepare"
    found = compiled(results)(*(each.to("onnxruntime") for each in (x, y, image, indices)))
tolerance = {"rtol": 1e-2, "atol": 1e-2} if dtype == torch.float16 else {}
close(found, results(x, y, image, indices), **tolerance)
assert sum(part.programs for part in parts()) and not any(part.why_not for part in parts()), torchgraft.compile_report()
""",
    )


def test_what_torch_writes_wrong(script: Script) -> None:
    """torch.onnx writes batch norms as if they did not train, and of losses and others not what gradients need."""
    check(
        script,
        """
net = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 4), nn.BatchNorm1d(4, affine=False, track_running_stats=False))
mine = copy.deepcopy(net).to("onnxruntime")
run = compiled(mine)
for n in (8, 8, 8, 5, 6):
    x = torch.randn(n, 4) * 3 + 1
    close(run(x.to("onnxruntime")), net(x), rtol=1e-4, atol=1e-5)
close(mine.buffers(), net.buffers())
assert sum(part.programs for part in parts()) == 3 and not any(part.why_not for part in parts()), parts()

weight = torch.rand(3)
indices, target = torch.tensor([[0, 1, 1], [4, 2, 0]]), torch.tensor([1, 2, 0, 0, 2])
for function in (
    lambda x: F.cross_entropy(x, target.to(x.device), weight=weight.to(x.device), ignore_index=0, label_smoothing=0.1),
    lambda x: F.nll_loss(x, target.to(x.device), reduction="sum"),
    lambda x: F.embedding_bag(indices.to(x.device), x, mode="mean"),
    lambda x: torch.linalg.det(x[:2, :2]),
    lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]),
):
    x = torch.randn(5, 3)
    a, b = x.clone().requires_grad_(), x.to("onnxruntime").requires_grad_()
    expected, found = function(a), compiled(function)(b)
    grad = torch.randn_like(expected)
    expected.backward(grad), found.backward(grad.to("onnxruntime"))
    close([found, b.grad], [expected, a.grad])
""",
    )
