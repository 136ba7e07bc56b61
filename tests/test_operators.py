"""A device with operators and no compiler: what its calls become, beside torch's CPU."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest
from conftest import Script

from torchgraft.diagnosis.operators import SAMPLES

ROOT = Path(__file__).parents[1]
HEAD = """
import copy, threading, warnings
import torch, torchgraft
import torch.nn.functional as F
from torch import nn
from operator_driver import OPERATORS, OperatorDriver
from torchgraft.driver import Wish
driver = OperatorDriver()
torchgraft.register("npu", [driver])

def close(mine, expected, **tolerance):
    mine, expected = ([x] if isinstance(x, torch.Tensor) else list(x) for x in (mine, expected))
    for a, b in zip(mine, expected, strict=True):
        assert a.device.type == "npu", a.device
        torch.testing.assert_close(a.cpu(), b, **tolerance)

def both(function, *tensors, **tolerance):
    close(function(*(t.to("npu") for t in tensors)), function(*tensors), **tolerance)

def differentiated(function, *tensors, tolerance=1e-4):
    mine = [t.to("npu").requires_grad_() for t in tensors]
    other = [t.clone().requires_grad_() for t in tensors]
    with torchgraft.fallback("error"):
        result = function(*mine)
        weights = torch.linspace(-1, 1, result.numel(), dtype=result.dtype).view(result.shape)
        (result * weights.to("npu")).sum().backward()
    expected = function(*other)
    (expected * weights).sum().backward()
    close(result.detach(), expected.detach(), rtol=tolerance, atol=tolerance)
    for a, b in zip(mine, other, strict=True):
        close(a.grad, b.grad, rtol=tolerance, atol=tolerance)
"""

CALLS = """
with torchgraft.fallback("error"):
    x, y = torch.randn(5, 7), torch.randn(7, 4)
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        both(torch.mm, x.to(dtype), y.to(dtype))
        both(lambda a, b: b.t() @ a.t(), x.to(dtype), y.to(dtype))
        both(lambda a: a.expand(3, 5, 7) * 2 + a, x.to(dtype))
        both(lambda a: F.softmax(a, 0) + a.log_softmax(-1), x.to(dtype))
    both(lambda a, b: torch.addmm(b[0], a, b, beta=0.5, alpha=2), x, y)
    both(lambda a, b: torch.baddbmm(a.new_ones(3, 5, 4), a.expand(3, 5, 7), b.expand(3, 7, 4)), x, y)
    both(lambda a: (a.mv(a[0]), a[0].dot(a[1])), x)
    both(lambda a: (a > 0, a == a.t().contiguous().t(), torch.where(a > 0, a, -1.0), a.clamp(-1, 1)), x)
    both(lambda a: (a + 1, 2 - a, a * a[0], a / 3, a**2, a.abs().sqrt(), F.gelu(a, approximate="tanh")), x)
    both(lambda a: (a.long() + 1, a.int() * 2.5, a.half() + a, a.bool() | (a > 0)), x * 4)
    both(lambda a: (a.sum(), a.sum(1), a.mean(0, keepdim=True), a.amax(1), a.argmin(0), a.std(), a.var(1), a.norm()), x)
    both(lambda a: (*a.max(1), *a.min(0, keepdim=True), a.max(), (a > 9).any(), a.logsumexp(0), a.prod(1)), x)
    both(lambda a: (a.cumsum(0), *a.sort(1, descending=True), *a.topk(3, 1)), x)
    both(lambda a: (torch.cat([a, a[:2]]), torch.stack([a, a], 1), a.tril(1), a.triu(-1)), x)
    both(lambda a: a.index_select(1, (a[0] * 0).long()), x)
    both(lambda a: (a[::2, 1:].contiguous(), a.t().to(torch.int32), a[:, ::3].clone()), x)
    close(torch.arange(2, 20, 3, device="npu"), torch.arange(2, 20, 3))
    close(torch.arange(0, 1, 0.3, device="npu"), torch.arange(0, 1, 0.3))
    close(torch.full((3, 4), 7.0, device="npu"), torch.full((3, 4), 7.0))
    # In place, with out=, into views.
    a, b = x.to("npu"), x.clone()
    a[1:3].mul_(2).add_(a[0], alpha=3)
    b[1:3].mul_(2).add_(b[0], alpha=3)
    close(a, b)
    out = torch.zeros(4, 5, device="npu").t()
    torch.mm(x.to("npu"), y.to("npu"), out=out)
    close(out, x @ y)
    a[:, 2].fill_(5)
    b[:, 2].fill_(5)
    close(a, b)
used = {name.split()[0] for name in driver.log}
assert {"copy", "pointwise", "matmul", "reduce", "softmax", "sort", "cat", "gather", "range", "triangle"} <= used, used
"""

LAYERS = """
image, weight, bias = torch.randn(2, 4, 9, 8), torch.randn(6, 2, 3, 3), torch.randn(6)
differentiated(lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=1, groups=2), image, weight, bias)
differentiated(lambda x, w: F.conv_transpose2d(x, w, stride=2, output_padding=1), torch.randn(2, 6, 4, 4), weight)
differentiated(lambda x, w: F.conv1d(x, w, dilation=2), torch.randn(2, 3, 12), torch.randn(5, 3, 3))
differentiated(lambda x: F.max_pool2d(x, 3, 2, 1), image)
differentiated(lambda x: F.adaptive_avg_pool2d(x, 3), image)
differentiated(lambda x, w, b: F.layer_norm(x, (8,), w, b), image, torch.randn(8), torch.randn(8))
differentiated(lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), image, torch.randn(4), torch.randn(4))
differentiated(lambda x: F.cross_entropy(x, (torch.arange(6) % 5).to(x.device)), torch.randn(6, 5))
differentiated(lambda x, y: F.mse_loss(x, y), torch.randn(6, 5), torch.randn(6, 5))
differentiated(lambda w: F.embedding((torch.arange(12) % 5).view(3, 4).to(w.device), w), torch.randn(6, 3))
differentiated(lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), torch.randn(2, 3, 5, 4))
"""

ATTENTION = """
attention = F.scaled_dot_product_attention
q, k, v = torch.randn(2, 4, 5, 8), torch.randn(2, 4, 6, 8), torch.randn(2, 4, 6, 3)
seen = torch.rand(5, 6) > 0.4
seen[0] = False  # a query that sees nothing
differentiated(attention, q, k, v)
differentiated(attention, q[0], k[0], v[0])
differentiated(lambda q, k, v: attention(q, k, v, is_causal=True, scale=0.3), q, k, v)
differentiated(lambda q, k, v: attention(q, k, v, enable_gqa=True), q, k[:, :2], v[:, :2])
differentiated(lambda q, k, v: attention(q, k, v, attn_mask=seen.to(q.device)), q, k, v)
differentiated(lambda q, k, v, m: attention(q, k, v, attn_mask=m), q, k, v, torch.randn(4, 1, 6))
differentiated(lambda x: attention(*(t.transpose(1, 2) for t in x.chunk(3, -1))), torch.randn(2, 5, 3, 12))
for dtype, tolerance in ((torch.float64, 1e-7), (torch.float16, 1e-2), (torch.bfloat16, 5e-2)):
    differentiated(attention, q.to(dtype), k.to(dtype), v.to(dtype), tolerance=tolerance)
driver.wishes = {"attention": Wish.CONTIGUOUS, "attention_gradient": Wish.CONTIGUOUS}
differentiated(lambda q, k, v: attention(q.transpose(1, 2), k, v), q.transpose(1, 2).contiguous(), k + 1, v)
assert {"attention", "attention_gradient"} <= set(driver.log), driver.log
assert not {"softmax", "matmul"} & set(driver.log), driver.log

# Twice over in a graph, and compiled.
driver.wishes = {}
still = torch.zeros(2, 4, 6, 8, device="npu")
graph = torch.npu.Graph()
with torch.npu.graph(graph):
    result = attention(still, still, still)
compiled = torch.compile(lambda q, k, v: attention(q, k, v, is_causal=True) * 2, backend="graft")
for _ in range(3):
    x = torch.randn(2, 4, 6, 8)
    still.copy_(x)
    graph.replay()
    close(result, attention(x, x, x))
    close(compiled(q.to("npu"), k.to("npu"), v.to("npu")), attention(q, k, v, is_causal=True) * 2)

# Not the operator's: dropout; what the device has no gradient of; what it has not at all.
driver.log.clear()
attention(q.to("npu"), k.to("npu"), v.to("npu"), dropout_p=0.5)
driver.refuses = {"attention_gradient"}
differentiated(attention, q[:1], k[:1], v[:1])
assert "attention" not in driver.log and "softmax" in driver.log, driver.log
both(attention, q[:, :3], k[:, :3], v[:, :3])
assert "attention" in driver.log, driver.log
driver.refuses = {"attention"}
differentiated(attention, q[:, :1], k[:, :1], v[:, :1])
mine = torch.vmap(attention)(q.to("npu"), k.to("npu"), v.to("npu"))
close(mine, attention(q, k, v))
"""

RECURRENT = """
def trained(make, size=4, **options):
    mine = make(5, size, **options)
    there = copy.deepcopy(mine).to("npu")
    x, gradients = torch.randn(3, 2, 5) if "Cell" not in make.__name__ else torch.randn(3, 5), []
    for network, device in ((there, "npu"), (mine, "cpu")):
        given = x.to(device).requires_grad_()
        result = network(given)
        y, state = result if isinstance(result, tuple) else (result, ())
        parts = (y, *(state if isinstance(state, tuple) else (state,)))
        weights = [torch.linspace(-1, 1, part.numel()).view(part.shape).to(device) for part in parts]
        sum((part * weight).sum() for part, weight in zip(parts, weights)).backward()
        gradients.append([*(part.detach() for part in parts), given.grad, *(p.grad for p in network.parameters())])
    close(*gradients, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        close(there(x.to("npu"))[0], mine(x)[0], rtol=1e-4, atol=1e-5)

with torchgraft.fallback("error"):
    for make in (nn.LSTM, nn.GRU, nn.RNN):
        for options in ({}, {"bidirectional": True, "num_layers": 2}, {"bias": False, "batch_first": True}):
            trained(make, **options)
    trained(nn.RNN, nonlinearity="relu")
    kinds = {name for name in driver.log if name.startswith("recurrent")}
    ways = {f"recurrent{way} {kind}" for way in ("", "_gradient") for kind in ("lstm", "gru", "rnn_tanh", "rnn_relu")}
    assert kinds == ways, kinds
    assert not any(name in ("pointwise sigmoid", "pointwise tanh") for name in driver.log), driver.log
    # In a graph; of a device that has it not they are composed.
    network = nn.LSTM(5, 4)
    there = copy.deepcopy(network).to("npu")
    still = torch.zeros(3, 2, 5, device="npu")
    graph = torch.npu.Graph()
    with torch.npu.graph(graph), torch.no_grad():
        result, _ = there(still)
    for _ in range(2):
        x = torch.randn(3, 2, 5)
        still.copy_(x)
        graph.replay()
        close(result, network(x)[0].detach())
    # Training in a graph.
    optimizers = [torch.optim.SGD(n.parameters(), 0.1, momentum=0.5, fused=True) for n in (there, network)]
    def step(network, optimizer, x):
        optimizer.zero_grad()
        network(x)[0].square().sum().backward()
        optimizer.step()
    step(there, optimizers[0], still), step(network, optimizers[1], x)
    optimizers[0].zero_grad()
    graph = torch.npu.Graph()
    with torch.npu.graph(graph):
        step(there, optimizers[0], still)
    for _ in range(3):
        x = torch.randn(3, 2, 5)
        still.copy_(x)
        graph.replay()
        step(network, optimizers[1], x)
    for a, b in zip(there.parameters(), network.parameters(), strict=True):
        close(a.detach(), b.detach(), rtol=1e-3, atol=1e-4)
    # One that goes one way, and not the other.
    supports, refused = driver.program_supports, []
    def one_way(device, source):
        if source.attributes.get("reverse"):
            refused.append(source.attributes["kind"])
            raise NotImplementedError("the library goes one way")
        return supports(device, source)
    driver.program_supports = one_way
    trained(nn.LSTM, 7, bidirectional=True)
    trained(nn.GRU, 7, bidirectional=True)
    driver.program_supports = supports
    assert set(refused) == {"lstm", "gru"}, refused
    driver.refuses = {"recurrent_gradient"}
    driver.log.clear()
    def first(result):
        return result[0] if isinstance(result, tuple) else result
    for make in (nn.LSTM, nn.GRU, nn.RNN, nn.LSTMCell, nn.GRUCell):
        for options in ({}, {"bias": False}):
            mine = make(5, 3, **options)
            shape = (7, 5) if "Cell" in make.__name__ else (4, 7, 5)
            differentiated(lambda x, m={"cpu": mine, "npu": copy.deepcopy(mine).to("npu")}: first(m[x.device.type](x)),
                           torch.randn(shape))
    assert "recurrent" not in {name.split()[0] for name in driver.log}, driver.log
"""

RANDOM = """
def empty(*shape, **options):
    return torch.empty(*shape, device="npu", **options)

def moments(values, mean, deviation):
    values = values.double().cpu()
    assert abs(values.mean() - mean) < 6 * deviation / len(values) ** 0.5, (values.mean(), mean)
    assert abs(values.std() / deviation - 1) < 0.15, (values.std(), deviation)

torch.manual_seed(0)
with torchgraft.fallback("error"):
    moments(empty(9000).uniform_(-1, 3), 1, 4 / 12**0.5)
    moments(empty(9000).normal_(2, 3), 2, 3)
    moments(empty(9000, dtype=torch.float64).exponential_(2), 0.5, 0.5)
    moments(empty(9000).log_normal_(0, 0.5).log(), 0, 0.5)
    moments(empty(9000).geometric_(0.5), 2, 2**0.5)
    moments(empty(9000, dtype=torch.bool).bernoulli_(0.2), 0.2, 0.4)
    moments(torch.bernoulli(empty(9000).fill_(0.2)), 0.2, 0.4)
    moments(torch.randint(-3, 9, (9000,), device="npu"), 2.5, (143 / 12) ** 0.5)
    moments(torch.normal(empty(9000).fill_(3), 2.0), 3, 2)
    moments(torch._standard_gamma(empty(9000).fill_(4)), 4, 2)
    moments(torch.poisson(empty(9000).fill_(4)), 4, 2)
    moments(torch.binomial(empty(9000).fill_(16), empty(9000).fill_(0.5)), 8, 2)
    assert 0.4 < (empty(9000).cauchy_(1, 2).cpu() < 1).double().mean() < 0.6
    assert torch.equal(torch.randperm(50, device="npu").cpu().sort()[0], torch.arange(50))
    wide = empty(9000, dtype=torch.int64).random_(-(2**63), None).cpu().double()
    assert wide.min() < -(2**62) and wide.max() > 2**62
    turned = torch.zeros(30, 40, device="npu").t()[::2]
    turned.uniform_(1, 2)
    assert turned.cpu().unique().numel() > 500 and turned.min().item() >= 1, turned
    assert {name for name in driver.log if name.startswith("random")} == {
        f"random {kind}" for kind in ("uniform normal exponential log_normal geometric bernoulli integers "
        "gamma poisson binomial cauchy permutation".split())}

    # A seed repeats; without one numbers differ; another number of the distribution is no other program.
    def drawn():
        return torch.rand(64, device="npu").cpu()
    torch.manual_seed(5)
    first, second = drawn(), drawn()
    torch.manual_seed(5)
    assert torch.equal(first, drawn()) and not torch.equal(first, second)
    generator = torch.Generator("npu").manual_seed(5)
    assert torch.equal(first, torch.rand(64, device="npu", generator=generator).cpu())
    prepared = driver.prepared
    for low in (0.1, 0.2, 0.3):
        empty(64).uniform_(low, 1)
    assert driver.prepared == prepared

    # Dropout, and its gradient.
    x = torch.randn(40, 50)
    mine = x.to("npu").requires_grad_()
    result = F.dropout(mine, 0.3)
    result.sum().backward()
    kept = mine.grad.cpu() != 0
    assert 0.6 < kept.double().mean() < 0.8
    torch.testing.assert_close(mine.grad.cpu(), kept / 0.7)
    torch.testing.assert_close(result.detach().cpu(), x * kept / 0.7)
    assert not F.dropout(mine, 1.0).any() and torch.equal(F.dropout(mine, 0.0).cpu(), x)

    # Replays draw anew, from where the generator is; so do compiled functions.
    graph = torch.npu.Graph()
    with torch.npu.graph(graph):
        first = torch.rand(64, device="npu")
        result = F.dropout(first + 1, 0.5)
    def replayed():
        graph.replay()
        return torch.stack([first, result]).cpu()
    torch.manual_seed(5)
    one, two = replayed(), replayed()
    torch.manual_seed(5)
    assert torch.equal(one[0], drawn()) and not torch.equal(one, two) and not torch.equal(*one)
    torch.manual_seed(5)
    assert torch.equal(one, replayed())
    compiled = torch.compile(lambda x: F.dropout(x + torch.rand_like(x), 0.5), backend="graft")
    ones = torch.ones(64, device="npu")
    for _ in range(3):
        torch.manual_seed(5)
        one, two = compiled(ones).cpu(), compiled(ones).cpu()
        torch.manual_seed(5)
        assert torch.equal(one, compiled(ones).cpu()) and not torch.equal(one, two)

    # Of some elements between others, of one, of none; of 16 bits; of all integers but one half.
    some = torch.zeros(9, 4, device="npu")
    some[3:, 1].uniform_(1, 2)
    assert (some.cpu()[3:, 1] >= 1).all() and some.cpu().count_nonzero() == 6, some
    assert 1 <= torch.zeros((), device="npu").uniform_(1, 2).item() < 2 and empty(0, 4).normal_().shape == (0, 4)
    for dtype in (torch.float16, torch.bfloat16):
        moments(empty(9000, dtype=dtype).normal_(1, 2), 1, 2)
    assert (empty(99, dtype=torch.int64).random_().cpu() >= 0).all()
    assert empty(99, dtype=torch.uint8).random_().cpu().unique().numel() > 20
    moments(F.dropout(torch.ones(9000, device="npu").half(), 0.5), 1, 1)
    torch.manual_seed(2**64 - 1)
    assert torch.rand(9, device="npu").cpu().unique().numel() == 9

    for function, text in ((lambda: empty(3).uniform_(2, 1), "from=2"), (lambda: empty(3).normal_(0, -1), "std -1"),
                           (lambda: empty(3).bernoulli_(2.0), "p=2")):
        try:
            function()
            raise AssertionError(text)
        except RuntimeError as error:
            assert text in str(error), error
try:
    torch.bernoulli(empty(3).fill_(2)).cpu()
    raise AssertionError
except Exception as error:
    assert type(error).__name__ == "AcceleratorError", error

# A library without them: the CPU draws.
driver.refuses = {"random"}
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    torch.rand(77, device="npu")
    F.dropout(torch.ones(78, device="npu"), 0.5)
told = " ".join(str(w.message) for w in caught)
assert told.count("the library has no random") == 2, told
"""

OPTIMIZERS = """
network = nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Linear(5, 3))
optim = torch.optim
makes = {
    "adamw": lambda p: optim.AdamW(p, 0.01, fused=True),
    "adam": lambda p: optim.Adam(p, 0.01, maximize=True, fused=True),
    "amsgrad": lambda p: optim.Adam(p, 0.01, weight_decay=0.1, amsgrad=True, fused=True),
    "tensor": lambda p: optim.AdamW(p, torch.tensor(0.01), fused=True),
    "momentum": lambda p: optim.SGD(p, 0.01, momentum=0.9, nesterov=True, fused=True),
    "sgd": lambda p: optim.SGD(p, 0.01, weight_decay=0.2, fused=True),
    "adagrad": lambda p: optim.Adagrad(p, 0.01, lr_decay=0.1, weight_decay=0.1, fused=True),
}
def trained(make, scaled):
    mine, other = copy.deepcopy(network).to("npu"), copy.deepcopy(network)
    optimizers = make(mine.parameters()), make(other.parameters())
    for step in range(5):
        x = torch.randn(4, 6)
        for module, optimizer, device in ((mine, optimizers[0], "npu"), (other, optimizers[1], "cpu")):
            optimizer.zero_grad()
            module(x.to(device)).square().sum().backward()
            if scaled:
                optimizer.grad_scale = torch.tensor(4.0, device=device)
                optimizer.found_inf = torch.tensor(float(step == 3), device=device)
            if not isinstance(optimizer.param_groups[0]["lr"], torch.Tensor):
                optimizer.param_groups[0]["lr"] *= 0.9
            optimizer.step()
        for a, b in zip(mine.parameters(), other.parameters(), strict=True):
            close(a.grad, b.grad, rtol=1e-3, atol=1e-4)
    for (name, a), b in zip(mine.state_dict().items(), other.state_dict().values(), strict=True):
        close(a, b, rtol=1e-3, atol=1e-4)

with torchgraft.fallback("error"):
    for name, make in makes.items():
        for scaled in (False, True):
            driver.log.clear()
            before = driver.prepared
            trained(make, scaled)
            steps = [each for each in driver.log if each.startswith("optimizer_step")]
            assert len(steps) == 5, steps
    # Other learning rates were no other programs.
    before = driver.prepared
    trained(makes["adamw"], False)
    assert driver.prepared == before
    # Tensors that the driver would rather have otherwise, and more of them than a run takes.
    driver.wishes = {"optimizer_step": Wish.CONTIGUOUS}
    params = [torch.randn(3, 4) for _ in range(70)]
    mine, other = ([p.clone().to(d).t().requires_grad_() for p in params] for d in ("npu", "cpu"))
    driver.log.clear()
    for each in (mine, other):
        optimizer = optim.AdamW(each, 0.1, fused=True)
        for _ in range(2):
            for p in each:
                p.grad = (p * p).detach()
            optimizer.step()
    close(torch.stack(mine).detach(), torch.stack(other).detach(), rtol=1e-3, atol=1e-4)
    assert driver.log.count("optimizer_step adamw") == 4, driver.log
driver.refuses = {"optimizer_step"}
torchgraft.fallback.set_mode("silent")
network.append(nn.Linear(3, 2))
trained(makes["adamw"], True)
"""

TRAINING = """
torch.manual_seed(0)
net = nn.Sequential(
    nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.LayerNorm(128), nn.Linear(128, 10),
)
for make in (torch.optim.AdamW, torch.optim.Adam, lambda p, lr: torch.optim.SGD(p, lr, momentum=0.9)):
    mine, other = copy.deepcopy(net).to("npu"), copy.deepcopy(net)
    optimizers = make(mine.parameters(), lr=0.01), make(other.parameters(), lr=0.01)
    for _ in range(4):
        x, y = torch.randn(4, 3, 8, 8), torch.randint(10, (4,))
        losses = []
        with torchgraft.fallback("error"):
            for module, optimizer, device in ((mine, optimizers[0], "npu"), (other, optimizers[1], "cpu")):
                optimizer.zero_grad()
                loss = F.cross_entropy(module(x.to(device)), y.to(device))
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        assert abs(losses[0] - losses[1]) < 1e-3, losses
    for (name, a), b in zip(mine.state_dict().items(), other.state_dict().values(), strict=True):
        close(a, b, rtol=1e-2, atol=1e-3)
before = driver.prepared
mine(torch.randn(4, 3, 8, 8, device="npu"))
mine(torch.randn(4, 3, 8, 8, device="npu"))
assert driver.prepared <= before + 12  # of inference's batch norm; nothing is prepared twice
"""

WISHES = """
seen = []
run = driver.program_run
def watched(device, stream, program, addresses, scratch):
    seen.append(program.source)
    return run(device, stream, program, addresses, scratch)
driver.program_run = watched
driver.wishes = {"matmul": Wish.CONTIGUOUS, "convolution": Wish.CHANNELS_LAST}
x, y = torch.randn(6, 5), torch.randn(4, 5)
both(lambda a, b: a @ b.t(), x, y)
asked = next(source for source in seen if source.name == "matmul")
assert [t.strides for t in (*asked.inputs[:2], *asked.outputs)] == [(5, 1), (4, 1), (4, 1)], asked
both(lambda a, b: F.conv2d(a, b), torch.randn(2, 3, 6, 5), torch.randn(4, 3, 2, 2), rtol=1e-4, atol=1e-5)
asked = next(source for source in seen if source.name == "convolution")
assert asked.inputs[0].strides == (90, 1, 15, 3), asked
out = torch.empty(4, 6, device="npu").t()
torch.mm(x.to("npu"), y.t().contiguous().to("npu"), out=out)
close(out, x @ y.t())
"""

ALIASES = """
# Results that are inputs, of other dtypes, and what is refused whatever the device has.
with torchgraft.fallback("error"):
    x = torch.randn(5, 5)
    for function in (
        lambda a: a.tril_(), lambda a: a.cumsum_(0), lambda a: torch.softmax(a, 0, out=a),
        lambda a: torch.sort(a, 0, out=(a, a.new_empty(5, 5, dtype=torch.int64)))[0],
    ):
        mine, other = x.to("npu"), x.clone()
        function(mine), function(other)
        close(mine, other)
    half, single = x.half(), torch.randn(5, 5)
    close(half.to("npu").add_(single.to("npu")), half.clone().add_(single))
    out = torch.empty(5, 5, dtype=torch.float64)
    close(torch.add(x.to("npu"), x.to("npu"), out=out.to("npu")), torch.add(x, x, out=out))
    both(lambda a: (a.angle(), a.int().angle(), (a * 3).int().float() == 0.1, a.masked_fill(a > 0, 2.0)), x)
    both(lambda a: a.half().t().contiguous().float(), x)
    mine = torch.randn(40, 25).half().requires_grad_()
    there = mine.detach().to("npu").requires_grad_()
    for each in (mine, there):
        (F.mse_loss(each * 100, torch.zeros_like(each)) * 1024).backward()
    close(there.grad, mine.grad, rtol=1e-2, atol=1.0)
    both(lambda a: F.nll_loss(a.log_softmax(1), torch.arange(5, dtype=torch.uint8).to(a.device)), x)
ints = torch.arange(6)
for function in (lambda a: a // 0, lambda a: a % 0, lambda a: a**-1):
    for device in ("npu", "cpu"):
        try:
            function(ints.to(device))
            raise AssertionError((function, device))
        except RuntimeError:
            pass
torchgraft.fallback.set_mode("silent")
both(lambda a: torch.addmm(a, a, a, alpha=1j), torch.randn(3, 3, dtype=torch.complex64))
both(lambda a: a * 2j + torch.tensor(1j), torch.randn(3, dtype=torch.complex64))
weight = torch.randn(3).requires_grad_()
there = weight.detach().to("npu").requires_grad_()
F.logsigmoid(weight).sum().backward(), F.logsigmoid(there).sum().backward()
close(there.grad, weight.grad)
# A copy that the device has not is recorded.
driver.refuses = {"copy"}
still = torch.zeros(4, 6, device="npu")
graph = torch.npu.Graph()
with torch.npu.graph(graph):
    turned = still.t().contiguous()
still.copy_(torch.arange(24.0).view(4, 6))
graph.replay()
close(turned, torch.arange(24.0).view(4, 6).t().contiguous())
"""

REFUSALS = """
x = torch.randn(3, 3)
driver.refuses = {"matmul"}
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    both(torch.mm, x, x)
told = [str(w.message) for w in caught]
assert any("the library has no matmul" in text for text in told), told
try:
    with torchgraft.fallback("error"):
        x.to("npu") @ x.to("npu")
    raise AssertionError
except NotImplementedError as error:
    assert "the library has no matmul" in str(error), error
assert "the library has no matmul" in str(torchgraft.fallback_report())
# Says that it has it, and has not: a warning, and the CPU.
driver.refuses, driver.breaks = set(), {"softmax"}
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    both(lambda a: a.softmax(0), x)
told = [str(w.message) for w in caught if "could not prepare its operator softmax" in str(w.message)]
assert len(told) == 1 and "the library is broken" in told[0], told
# One kind of an operator.
driver.refuses = {"pointwise tanh"}
torchgraft.fallback.set_mode("silent")
both(lambda a: torch.tanh(a) + 1, x)
"""

FAILURES = """
x = torch.randn(4, 3, device="npu")
before = x.cpu()
try:
    F.embedding(torch.tensor([0, 9], device="npu"), x)
    raise AssertionError
except Exception as error:
    assert type(error).__name__ == "AcceleratorError", type(error)
    assert "run program gather of aten::embedding" in str(error) and "index out of range" in str(error), error
assert torch.equal(x.cpu(), before)
close(x + 1, before + 1)
"""

GRAPHS = """
x = torch.randn(4, 5)
static = torch.zeros(4, 5, device="npu")
scale = torch.tensor(3.0)
graph = torch.npu.Graph()
with torch.npu.graph(graph):
    result = (static * 2 + 1).softmax(1) @ static.t()
for _ in range(3):
    x = torch.randn(4, 5)
    static.copy_(x)
    graph.replay()
    close(result, (x * 2 + 1).softmax(1) @ x.t(), rtol=1e-4, atol=1e-5)
assert [node.kind for node in graph.nodes()].count("run") >= 4, graph.nodes()

network = nn.Sequential(nn.Linear(5, 8), nn.GELU(), nn.Linear(8, 3))
compiled = torch.compile(copy.deepcopy(network).to("npu"), backend="graft")
for _ in range(4):
    x = torch.randn(6, 5)
    close(compiled(x.to("npu")).detach(), network(x).detach(), rtol=1e-4, atol=1e-5)
"""

THREADS = """
problems = []
def work(seed):
    try:
        generator = torch.Generator().manual_seed(seed)
        with torch.npu.stream(torch.npu.Stream()):
            for _ in range(20):
                x = torch.randn(6, 6, generator=generator)
                close((x.to("npu") @ x.to("npu") + seed).relu(), (x @ x + seed).relu(), rtol=1e-4, atol=1e-4)
    except BaseException as error:
        problems.append(error)
threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert not problems, problems
"""

NUMBERS = """
# Numbers are given by each run: another value is no other program.
x = torch.randn(5)
mine = x.to("npu")
close(mine * 2.0 + 0.5, x * 2.0 + 0.5)
prepared = driver.prepared
for value in (0.1, -3.0, 7.25):
    close(mine * value + value, x * value + value)
    close(mine.add(mine, alpha=value), x.add(x, alpha=value))
    close(mine * torch.tensor(value), x * torch.tensor(value))
assert driver.prepared <= prepared + 1, (driver.prepared, prepared)  # `add` with alpha
"""

DOCTOR = """
from torchgraft import plans
from torchgraft.diagnosis.operators import SAMPLES, findings, try_operator
there = torch.device("npu:0")
def told():
    answers = {name: try_operator(name, there) for name in SAMPLES}
    return answers, {finding.subject: finding for finding in findings(there, answers)}

answers, found = told()
for name, answer in answers.items():
    assert answer.offered and not answer.refusals and not answer.wrong, (name, answer)
assert {"add", "gelu", "where"} <= set(answers["pointwise"].offered), answers["pointwise"]
assert list(found) == ["offered", "next"] and "torchgraft conformance --device npu" in found["next"].text, found
assert found["offered"].state == "ok" and found["offered"].text == f"36 of 36: {', '.join(SAMPLES)}", found["offered"]

# Refused, wrong, failing, and none of these changes what is said of others.
driver.refuses = {"matmul", "sort", "pointwise gelu", "reduce var", "reduce std_mean"}
driver.breaks = {"softmax"}
plans.programs._kept._programs.clear()
right = OPERATORS["cumulative"]
OPERATORS["cumulative"] = lambda *given, **others: right(*given, **others) + 1e-2
def fails(*given, **others):
    raise OSError("the bus is busy")
OPERATORS["triangle"] = fails
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    answers, found = told()
assert {name for name, answer in answers.items() if answer.wrong} == {"cumulative", "triangle"}, answers
assert {name for name, answer in answers.items() if not answer.offered} == {"matmul", "sort", "softmax"}, answers
wrong = {name for name, finding in found.items() if finding.state == "problem"}
assert wrong == {"cumulative", "triangle"} and "the bus is busy" in found["triangle"].text, found
assert found["cumulative"].text == "2 of 2 results are not what the CPU computes", found
refused = found["refused"].text.splitlines()
assert any(line.startswith("matmul: ") and "the library has no matmul" in line for line in refused), refused
assert any(line.startswith("pointwise (gelu): ") for line in refused), refused
assert any(line.startswith("reduce (var): ") for line in refused), refused
assert any(line.startswith("softmax: ") and "the library is broken" in line for line in refused), refused
assert "33 of 36" in found["offered"].text and "reduce (15 of 17 kinds tried)" in found["offered"].text, found
assert found["next"].text.startswith("give matmul, then softmax "), found["next"]

# What is asked before a call is made is told again and again.
driver.refuses = {"attention_gradient", "recurrent gru"}
for _ in range(2):
    answers = {name: try_operator(name, there) for name in SAMPLES if "attention" in name or "recurrent" in name}
    assert not any(answer.wrong for answer in answers.values()), answers
    assert answers["attention"].offered and not answers["attention_gradient"].offered, answers
    assert answers["attention_gradient"].refusals and list(answers["recurrent"].refusals) == ["gru"], answers

# Of some dtypes only.
driver.refuses, driver.breaks = set(), set()
supports = driver.program_supports
def narrow(device, source):
    if any(t is not None and t.dtype == "float16" for t in [*source.inputs, *source.outputs]):
        raise NotImplementedError("no halves")
    return supports(device, source)
driver.program_supports = narrow
answer = try_operator("copy", there)
assert answer.offered == [""] and len(answer.refusals[""]) == 1 and not answer.wrong, answer
(refused,) = (finding for finding in findings(there, {"copy": answer}) if finding.subject == "refused")
assert refused.text.startswith("copy: NotImplementedError: no halves"), refused
"""

PROFILES = """
from torch.profiler import ProfilerActivity, profile
x = torch.randn(8, 8, device="npu")
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as profiled:
    x @ x
    torch.npu.synchronize()
assert any(event.name == "matmul" for event in profiled.events()), [event.name for event in profiled.events()]
"""

PROGRAMS = {
    name.lower(): text
    for name, text in list(globals().items())
    if name.isupper() and isinstance(text, str) and name != "HEAD"
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_beside_the_cpu(script: Script, program: str) -> None:
    script(HEAD + PROGRAMS[program], TORCHGRAFT_FALLBACK="warn")


@pytest.mark.parametrize("program", ["attention", "graphs", "random", "recurrent", "optimizers"])
def test_with_graphs_of_the_drivers_own(script: Script, program: str) -> None:
    head = HEAD.replace("OperatorDriver", "GraphDriver")
    script(head + PROGRAMS[program], TORCHGRAFT_FALLBACK="warn")


# A device that has a compiler, too; its memory is the host's.
BOTH = """
import copy, os
from cxx_driver import CxxDriver
from dataclasses import replace
from torchgraft.driver import Capability
from torchgraft.plans.device import device_traits, set_tuning
from torchgraft.codegen.tuning import changed

import torch, torchgraft, operator_driver

operator_driver.AWAY = 0

class Both(CxxDriver):
    has_programs = True
    refuses, wishes, breaks, log, prepared = set(), {}, set(), [], 0
    extra = Capability.PROGRAMS
    def device_properties(self, device):
        known = super().device_properties(device)
        return replace(known, capabilities=known.capabilities | self.extra)
    program_supports = operator_driver.OperatorDriver.program_supports
    program_create = operator_driver.OperatorDriver.program_create
    program_run = operator_driver.OperatorDriver.program_run

# Of products and a softmax: the operators that were run, and whether kernels were compiled.
def results(driver, n):
    driver.log.clear()
    before = driver.modules
    x, y = torch.randn(n, n), torch.randn(n, n)
    torch.testing.assert_close((x.to("both") @ y.to("both")).cpu(), x @ y)
    torch.testing.assert_close(torch.addmm(x.to("both"), x.to("both"), y.to("both")).cpu(), x + x @ y)
    torch.testing.assert_close((x.to("both") @ y[0].to("both")).cpu(), x @ y[0])
    torch.testing.assert_close(x.to("both").softmax(1).cpu(), x.softmax(1))
    return [*driver.log], driver.modules > before

def tuned(products):
    set_tuning(0, changed(device_traits(0).tuning, "operators", products=products))
"""

REGISTERED = BOTH + 'torchgraft.register("both", [driver := Both()])\n'


def test_layers_and_their_gradients_are_of_one_maker(script: Script) -> None:
    """What a library's layer keeps, a kernel cannot read, nor the other way round."""
    text = """
for refused in ("recurrent_gradient", "recurrent"):
    driver.refuses = {refused}
    for make, size in ((torch.nn.LSTM, 4), (torch.nn.GRU, 5), (torch.nn.RNN, 6)):
        network, x, gradients = make(3, size), torch.randn(4, 2, 3), []
        for device in ("both", "cpu"):
            mine, given = copy.deepcopy(network).to(device), x.to(device).requires_grad_()
            mine(given)[0].square().sum().backward()
            gradients.append([each.cpu() for each in (given.grad, *(p.grad for p in mine.parameters()))])
        torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)
        assert not [name for name in driver.log if name.startswith("recurrent")], driver.log
driver.refuses = {"recurrent_gradient"}
with torch.no_grad():
    torch.testing.assert_close(mine.to("both")(x.to("both"))[0].cpu(), network(x)[0], rtol=1e-4, atol=1e-5)
assert "recurrent rnn_tanh" in driver.log, driver.log
"""
    script(REGISTERED + text)


def test_preferring_kernels(script: Script) -> None:
    text = """
    x = torch.randn(6, 6)
    torch.testing.assert_close((x.to("both") @ x.to("both")).cpu(), x @ x)
    torch.testing.assert_close(x.to("both").softmax(1).cpu(), x.softmax(1))
    x = x.view(1, 1, 6, 6)
    attention = torch.nn.functional.scaled_dot_product_attention
    torch.testing.assert_close(attention(*[x.to("both")] * 3).cpu(), attention(x, x, x))
    print(*driver.log, driver.modules > 0)
    driver.refuses = {"attention", "random"}
    x = torch.randn(2, 1, 6, 6)
    torch.testing.assert_close(attention(*[x.to("both")] * 3).cpu(), attention(x, x, x))
    attention(*[x.to("both")] * 3, dropout_p=0.5), torch.rand(4, device="both")
    assert driver.log[3:] == [] and driver.modules > 0, driver.log
    """
    text = REGISTERED + textwrap.dedent(text)
    assert script(text, TORCHGRAFT_PREFER="programs").split() == ["matmul", "softmax", "attention", "False"]
    assert script(text, TORCHGRAFT_PREFER="kernels").split() == ["True"]


def test_products_and_preferences(script: Script) -> None:
    text = (
        BOTH
        + """
torchgraft.register("both", [driver := Both()])
print(*results(driver, 6))
"""
    )
    assert script(text, TORCHGRAFT_PREFER="programs").strip() == "['matmul', 'matmul', 'matmul', 'softmax'] False"
    assert script(text, TORCHGRAFT_PREFER="kernels").strip() == "[] True"
    assert "is 'programs' or 'kernels', not 'both'" in script(
        BOTH
        + """
torchgraft.register("both", [Both()])
try:
    torch.ones(2, 2, device="both") @ torch.ones(2, 2, device="both")
except ValueError as error:
    print(error)
""",
        TORCHGRAFT_PREFER="both",
    )


def test_kernels_first(script: Script) -> None:
    """They serve all but the products that were measured, if the user prefers nothing."""
    text = (
        BOTH
        + """
Both.extra |= Capability.KERNELS_FIRST
torchgraft.register("both", [driver := Both()])
assert results(driver, 6) == ([], True)
tuned(20 ** 3)
assert results(driver, 19)[0] == []
assert results(driver, 20)[0] == ["matmul", "matmul"]  # a product with a vector has fewer
tuned(0)
assert results(driver, 20)[0] == ["matmul"] * 3
os.environ["TORCHGRAFT_PREFER"] = "kernels"
tuned(0)
assert results(driver, 20)[0] == []
os.environ["TORCHGRAFT_PREFER"] = "programs"
tuned(1 << 62)
assert results(driver, 20) == (["matmul"] * 3 + ["softmax"], False)
"""
    )
    script(text)


def test_what_the_doctor_says_of_kernels_first(script: Script) -> None:
    text = (
        BOTH
        + """
from torchgraft.diagnosis.operators import not_asked
Both.extra |= Capability.KERNELS_FIRST
torchgraft.register("both", [driver := Both()])
there = torch.device("both", 0)
said = not_asked(there)
assert said.text == "not asked for: kernels come first" and "tune --only operators" in said.advice, said
tuned(1 << 18)
assert not_asked(there).text == "asked for products of matrices of 262,144 multiplications and more"
os.environ["TORCHGRAFT_PREFER"] = "programs"
assert not_asked(there) is None
os.environ["TORCHGRAFT_PREFER"] = "kernels"
assert not_asked(there).text == "not asked for: TORCHGRAFT_PREFER=kernels"
"""
    )
    script(text)


def test_the_page_lists_them() -> None:
    """Each operator that ops become is on the page, and nothing else is."""
    page = (ROOT / "docs/operators.md").read_text().split("## The operators")[1].split("**`pointwise`**")[0]
    listed = {
        name for row in re.findall(r"^\| (`[^|]*) \|", page, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)
    }
    files = [*(ROOT / "torchgraft/ops/operators").glob("*.py"), ROOT / "torchgraft/plans/builder.py"]
    text = "".join(file.read_text() for file in [*files, ROOT / "torchgraft/ops/table.py"])
    used = set(re.findall(r"\"(convolution_\w+_gradient)\"", text)) | set(
        re.findall(r'(?:p\.operator\(\s*|_operator\(p, |plan_operator\(self, )"(\w+)"', text)
    )
    used |= {"softmax", "log_softmax", "softmax_gradient", "log_softmax_gradient"}
    assert listed == used == set(SAMPLES)
