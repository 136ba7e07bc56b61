"""What the library of a device has of the operators that torchgraft asks for, and whether they are right.

Each is asked for as programs ask: by calls of PyTorch's, whose results are compared with the CPU's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F

from torchgraft._core import _C
from torchgraft.codegen.tuning import NEVER
from torchgraft.diagnosis import Finding
from torchgraft.fallback import fallback
from torchgraft.ops.operators.attention import has_attention
from torchgraft.ops.operators.recurrent import has_layer
from torchgraft.plans.device import device_traits
from torchgraft.plans.operators import operators_asked

__all__ = ["SAMPLES", "Answer", "findings", "not_asked", "try_operator"]

Tensors = tuple[torch.Tensor, ...]
Make = Callable[..., torch.Tensor]


def _gradients(result: torch.Tensor, *inputs: torch.Tensor) -> Tensors:
    weights = torch.linspace(-1, 1, result.numel()).view(result.shape)
    return torch.autograd.grad((result * weights.to(result.device)).sum(), inputs)


def _places(x: torch.Tensor) -> torch.Tensor:
    return (torch.arange(x.shape[0]) * 3 % 5).to(x.device)


def _pointwise(x: Make) -> Tensors:
    a, b = x(4, 6), x(4, 6)
    compared = torch.where(a > 0, a, b), a == b, a.clamp(-1, 1)
    units = a.relu(), F.gelu(a), a.sigmoid(), a.tanh(), F.silu(a)
    return (a + b, a - 2, a * b, a / 3, a**2, -a, a.exp(), a.abs().sqrt(), a.abs().log1p(), *compared, *units)


def _reduce(x: Make) -> Tensors:
    a = x(4, 6)
    moments = *torch.var_mean(a, 1), *torch.std_mean(a, 0), a.var(1), a.std(0)
    places = *a.max(1), *a.min(1), a.argmax(1), a.argmin(1), (a > 0).any(1), (a > 0).all(1)
    return a.sum(1), a.mean(0), a.amax(1), a.amin(0), a.prod(1), a.logsumexp(1), a.norm(dim=1), *moments, *places


def _convolved(x: Make) -> Tensors:
    image, weight, bias = x(2, 3, 8, 8), x(4, 3, 3, 3), x(4)
    return F.conv2d(image, weight, bias, padding=1), image, weight


def _batch(x: Make) -> Tensors:
    image, weight, bias = x(2, 3, 4, 4), x(3), x(3)
    return F.batch_norm(image, torch.zeros_like(bias), torch.ones_like(bias), weight, bias, True), image, weight, bias


def _layer(x: Make) -> Tensors:
    rows, weight, bias = x(4, 6), x(6), x(6)
    return F.layer_norm(rows, (6,), weight, bias), rows, weight, bias


def _of(function: Callable[[torch.Tensor], torch.Tensor], *shape: int) -> Callable[[Make], Tensors]:
    def pair(x: Make) -> Tensors:
        given = x(*shape)
        return function(given), given

    return pair


def _filled(x: Make) -> Tensors:
    given = x(4, 6).detach()
    given[:, 1].fill_(2.5)
    return (given,)


def _attended(x: Make) -> Tensors:
    query, key, value = x(2, 2, 4, 6), x(2, 2, 5, 6), x(2, 2, 5, 3)
    return F.scaled_dot_product_attention(query, key, value), query, key, value


def _attended_alone(x: Make) -> Tensors:
    with torch.no_grad():
        return _attended(x)[:1]


def _layers(x: Make) -> Iterator[Tensors]:
    """Of recurrent networks: what each gives, and of what."""
    for name, gates in (("lstm", 4), ("gru", 3), ("rnn_tanh", 1), ("rnn_relu", 1)):
        given, states = x(3, 2, 5), [x(1, 2, 4) for _ in range(1 + (name == "lstm"))]
        weights = [x(4 * gates, 5), x(4 * gates, 4), x(4 * gates), x(4 * gates)]
        state = states if name == "lstm" else states[0]
        result = getattr(torch, name)(given, state, weights, True, 1, 0.0, False, False, False)[0]
        yield result, given, *states, *weights


def _layers_alone(x: Make) -> Tensors:
    with torch.no_grad():
        return tuple(result for result, *_ in _layers(x))


def _drawn(x: Make) -> Tensors:
    """Numbers of which there is but one."""
    ones = torch.ones_like(x(9)).detach()
    generator = torch.Generator(ones.device)

    def of(name: str, *numbers: float) -> torch.Tensor:
        result: torch.Tensor = getattr(torch.empty_like(ones), name)(*numbers, generator=generator)
        return result

    certain = of("uniform_", 2, 2), of("normal_", 1.5, 0), of("bernoulli_", 1), of("exponential_", 1e30)
    integers = torch.randint(3, 4, (9,), device=ones.device, generator=generator)
    places = torch.randperm(9, device=ones.device, generator=generator)
    return *certain, of("log_normal_", 0.5, 1e-30), of("cauchy_", 1, 1e-30), integers, places.cpu().sort()[0]


def _stepped(x: Make) -> Tensors:
    parameters = []
    for make in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad):
        parameter = torch.nn.Parameter(x(4, 6).detach())
        parameter.grad = x(4, 6).detach()
        make([parameter], lr=0.1, fused=True).step()
        parameters.append(parameter)
    return tuple(parameters)


_softmaxed, _log_softmaxed = _of(lambda x: x.softmax(1), 4, 6), _of(lambda x: x.log_softmax(1), 4, 6)
_max_pooled = _of(lambda x: F.max_pool2d(x, 2), 2, 3, 8, 8)
_averaged = _of(lambda x: F.adaptive_avg_pool2d(x, 3), 2, 3, 8, 8)
_lost = _of(lambda x: F.nll_loss(x, _places(x)), 4, 6)
_looked_up = _of(lambda x: F.embedding(_places(x), x), 6, 3)

#: Calls that become an operator, by its name, which are given what makes a tensor that wants gradients. In the order in
#: which a library had best be given them: what most programs need first.
SAMPLES: dict[str, Callable[[Make], Tensors]] = {
    "copy": lambda x: (x(4, 6).t().contiguous(), x(4, 6).half(), (8 * x(4, 6).detach()).int()),
    "matmul": lambda x: (x(4, 6) @ x(6, 5), torch.baddbmm(x(3, 4, 5), x(3, 4, 6), x(3, 6, 5), beta=0.5, alpha=2)),
    "pointwise": _pointwise,
    "fill": _filled,
    "reduce": _reduce,
    "softmax": lambda x: _softmaxed(x)[:1],
    "softmax_gradient": lambda x: _gradients(*_softmaxed(x)),
    "log_softmax": lambda x: _log_softmaxed(x)[:1],
    "log_softmax_gradient": lambda x: _gradients(*_log_softmaxed(x)),
    "nll_loss": lambda x: _lost(x)[:1],
    "nll_loss_gradient": lambda x: _gradients(*_lost(x)),
    "layer_norm": lambda x: _layer(x)[:1],
    "layer_norm_gradient": lambda x: _gradients(*_layer(x)),
    "gather": lambda x: _looked_up(x)[:1],
    "scatter_add": lambda x: _gradients(*_looked_up(x)),
    "attention": _attended_alone,
    "attention_gradient": lambda x: _gradients(*_attended(x)),
    "random": _drawn,
    "optimizer_step": _stepped,
    "convolution": lambda x: _convolved(x)[:1],
    "convolution_input_gradient": lambda x: _gradients(*_convolved(x)[:2]),
    "convolution_weight_gradient": lambda x: _gradients(*_convolved(x)[::2]),
    "batch_norm": lambda x: _batch(x)[:1],
    "batch_norm_gradient": lambda x: _gradients(*_batch(x)),
    "max_pool": lambda x: _max_pooled(x)[:1],
    "max_pool_gradient": lambda x: _gradients(*_max_pooled(x)),
    "adaptive_average_pool": lambda x: _averaged(x)[:1],
    "adaptive_average_pool_gradient": lambda x: _gradients(*_averaged(x)),
    "cat": lambda x: (torch.cat([x(4, 6), x(2, 6)]),),
    "range": lambda x: (torch.arange(0, 5, 0.5, device=x(1).device), torch.arange(3, 20, 4, device=x(1).device)),
    "cumulative": lambda x: (x(4, 6).cumsum(1), x(4, 6).cumprod(0)),
    "sort": lambda x: x(4, 6).sort(1),
    "topk": lambda x: x(4, 6).topk(3, 1),
    "triangle": lambda x: (x(4, 6).tril(), x(4, 6).triu(1)),
    "recurrent": _layers_alone,
    "recurrent_gradient": lambda x: tuple(each for layer in _layers(x) for each in _gradients(*layer)),
}


@dataclass
class Answer:
    """What became of an operator's sample.

    Attributes:
        refusals: why it was refused, each reason once, by its kinds; empty where it never was.
        offered: the kinds that the library has for some tensors at least.
        wrong: what is wrong with its results; "" if nothing is.
    """

    refusals: dict[str, list[str]] = field(default_factory=dict)
    offered: list[str] = field(default_factory=list)
    wrong: str = ""


def try_operator(name: str, device: torch.device) -> Answer:
    """Calls an operator's sample on a device and on the CPU, and asks what of it was the device's."""
    answer = Answer()
    _C.clear_plans()  # or nothing is asked for calls that there have been
    has_attention.cache_clear()
    has_layer.cache_clear()
    with fallback("silent"), operators_asked() as asked:
        try:
            answer.wrong = _difference(_results(name, device), _results(name, torch.device("cpu")))
        except Exception as error:
            answer.wrong = f"fails: {type(error).__name__}: {error}"
    for each in asked:
        if each.name != name:
            continue
        if not each.refusal and each.kind not in answer.offered:
            answer.offered.append(each.kind)
        reasons = answer.refusals.setdefault(each.kind, []) if each.refusal else []
        if each.refusal and each.refusal not in reasons:
            reasons.append(each.refusal)
    return answer


def _results(name: str, device: torch.device) -> list[torch.Tensor]:
    numbers = torch.Generator().manual_seed(11)

    def make(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=numbers).to(device).requires_grad_()

    return [result.detach().cpu() for result in SAMPLES[name](make)]


def _difference(found: list[torch.Tensor], expected: list[torch.Tensor]) -> str:
    same = [
        a.shape == b.shape and a.dtype == b.dtype and torch.allclose(a.double(), b.double(), rtol=1e-3, atol=1e-4)
        for a, b in zip(found, expected, strict=True)
    ]
    return "" if all(same) else f"{same.count(False)} of {len(same)} results are not what the CPU computes"


def not_asked(device: torch.device) -> Finding | None:
    """Says so where operators are not asked for as a matter of course."""
    traits, preferred = device_traits(device.index), os.environ.get("TORCHGRAFT_PREFER") or ""
    if not traits.has_compiler:
        return None
    if preferred == "kernels":
        return Finding("operators", "note", "not asked for: TORCHGRAFT_PREFER=kernels")
    if preferred or not traits.kernels_first:
        return None
    products = traits.tuning.operators.products
    if products < NEVER:
        return Finding("operators", "ok", f"asked for products of matrices of {products:,} multiplications and more")
    advice = "`torchgraft tune --only operators` measures from which size on products are quicker by them"
    return Finding("operators", "note", "not asked for: kernels come first", advice)


def findings(device: torch.device, answers: Mapping[str, Answer]) -> Iterator[Finding]:
    """What is there, what is refused and why, what is wrong, and what had best be given next."""
    traits = device_traits(device.index)
    for name, answer in answers.items():
        if answer.wrong:
            yield Finding(name, "problem", answer.wrong, "docs/operators.md says what it is")
    has = [_with_kinds(name, answer) for name, answer in answers.items() if answer.offered]
    yield Finding("offered", "ok" if has else "note", f"{len(has)} of {len(answers)}: {', '.join(has)}".rstrip(": "))
    lacks = _by_reason(answers)
    if lacks:
        lines = [f"{', '.join(names)}: {reason}" for reason, names in lacks.items()]
        yield Finding("refused", "note", "\n".join(lines))
    if traits.program_formats:
        yield Finding("graphs", "ok", f"whole ones, in {', '.join(traits.program_formats)}")
    missing = [name for name, answer in answers.items() if not answer.offered and not traits.has_compiler]
    conformance = f"`torchgraft conformance --device {device.type}` compares all ops with the CPU"
    yield Finding("next", "note", f"give {', then '.join(missing[:2])} (docs/operators.md)" if missing else conformance)


def _with_kinds(name: str, answer: Answer) -> str:
    """An operator, with how many of its kinds are there where not all are."""
    kinds = {*answer.offered, *answer.refusals}
    return name if len(answer.offered) == len(kinds) else f"{name} ({len(answer.offered)} of {len(kinds)} kinds tried)"


def _by_reason(answers: Mapping[str, Answer]) -> dict[str, list[str]]:
    """Operators by why they were refused, with the kinds that were."""
    found: dict[str, dict[str, list[str]]] = {}
    for name, answer in answers.items():
        for kind, reasons in answer.refusals.items():
            for reason in reasons:
                found.setdefault(reason.strip(), {}).setdefault(name, []).append(kind)
    return {
        reason: [name if kinds == [""] else f"{name} ({', '.join(kinds)})" for name, kinds in names.items()]
        for reason, names in found.items()
    }
