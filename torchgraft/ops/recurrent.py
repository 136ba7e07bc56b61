"""Recurrent networks: a layer over a whole sequence as one op, by one launch where the device runs the CPU form, or by
an operator of its library.

torch composes `nn.LSTM`, `nn.GRU` and `nn.RNN` of cells (`torchgraft.ops.rnn`), for each step of each layer a product
and a cell, which costs more than the arithmetic where batches and states are small. What is said here takes the place
of that composition for sequences of one length (aten::lstm.input, gru.input, rnn_tanh.input, rnn_relu.input), by
kernels in float32 and float64; all else is composed as torch has it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from torchgraft.codegen import ceil_div, element_type
from torchgraft.codegen.kernel import Kernel
from torchgraft.kernels import recurrent as kernels
from torchgraft.kernels.recurrent import CELLS, ROWS
from torchgraft.ops.operators.recurrent import has_layer, plan_layer, plan_layer_gradient
from torchgraft.plans import PlanBuilder, planner, recomposed
from torchgraft.plans.device import device_traits, kernel_form

torch.library.define(
    "torchgraft::recurrent",
    "(Tensor gates, Tensor hx, Tensor? cx, Tensor weight, Tensor? bias, str cell, bool reverse, bool keep) "
    "-> (Tensor output, Tensor cy, Tensor kept)",
)
torch.library.define(
    "torchgraft::recurrent_backward",
    "(Tensor grad, Tensor? grad_cy, Tensor hx, Tensor? cx, Tensor weight, Tensor output, Tensor kept, str cell, "
    "bool reverse) -> (Tensor grad_gates, Tensor grad_hidden, Tensor grad_hx, Tensor grad_cx)",
)

Optional = torch.Tensor | None
Results = tuple[torch.Tensor, ...]

# Multiplications of one step, above which a step is worth launches of its own: products of matrices share the weights
# among all rows, and among all cores where there are few rows.
_LARGE_STEP = 1 << 25


# ---- what is planned ----


def _rows(p: PlanBuilder, batch: int) -> tuple[int, int]:
    """Rows of a group, one for each core, and of a tile, of which it has whole ones."""
    each = ceil_div(batch, p.device.compute_units)
    tile = next((tile for tile in ROWS if tile >= each), ROWS[-1])
    return ceil_div(each, tile) * tile, tile


def _packed(p: PlanBuilder, matrix: torch.Tensor) -> torch.Tensor:
    """[depth, columns] in panels; what is behind the last column is not set."""
    width = kernels.panel_width(element_type(matrix.dtype).name, p.device.simd_width)
    depth, columns = matrix.shape
    whole, rest = divmod(columns, width)
    panels = p.empty((ceil_div(columns, width), depth, width), matrix.dtype)
    if whole:
        p.copy(panels[:whole], matrix[:, : whole * width].unflatten(1, (whole, width)).transpose(0, 1))
    if rest:
        p.copy(panels[whole, :, :rest], matrix[:, whole * width :])
    return panels


def _launch(
    p: PlanBuilder,
    kernel: Callable[[int], Kernel],
    weight: torch.Tensor,
    output: torch.Tensor,
    reverse: bool,
    **given: Any,
) -> None:
    """One group for each block of rows, by the kernel for tiles of so many."""
    steps, batch, size = output.shape
    block, tile = _rows(p, batch)
    panels = _packed(p, weight)
    groups, pitch = ceil_div(batch, block), panels.size(0) * panels.size(2)
    room = block * pitch
    scratch = p.empty((groups * room,), output.dtype)
    sizes = {"steps": steps, "batch": batch, "size": size, "pitch": pitch, "block": block, "room": room}
    p.launch(kernel(tile), (groups,), weight=panels, scratch=scratch, reverse=int(reverse), **sizes, **given)


def _meta(
    gates: torch.Tensor, hx: torch.Tensor, cx: Optional, weight: torch.Tensor, bias: Optional, cell: str, reverse: bool,
    keep: bool,
) -> Results:  # fmt: skip
    steps, batch, _ = gates.shape
    size = hx.size(1)
    return (
        gates.new_empty((steps, batch, size)),
        gates.new_empty((batch, size) if CELLS[cell].has_c else (0,)),
        gates.new_empty((steps, batch, len(CELLS[cell].keep) * size) if keep else (0,)),
    )


@planner("torchgraft::recurrent", contiguous=True, meta=_meta)
def _recurrent(
    p: PlanBuilder,
    out: Results,
    gates: torch.Tensor,
    hx: torch.Tensor,
    cx: Optional,
    weight: torch.Tensor,
    bias: Optional,
    cell: str,
    reverse: bool,
    keep: bool,
) -> None:
    if plan_layer(p, out, gates, hx, cx, weight, bias, cell, reverse, keep):
        return
    output, cy, kept = out
    storage = element_type(output.dtype).name

    def kernel(tile: int) -> Kernel:
        return kernels.forward_kernel(cell, storage, bias is not None, keep, tile, p.device.simd_width)

    given: dict[str, Any] = {"gates": gates, "hx": hx, "out": output}
    given |= {"cx": cx, "cy": cy} if CELLS[cell].has_c else {}
    given |= {"bias": bias} if bias is not None else {}
    given |= {"kept": kept} if keep else {}
    _launch(p, kernel, weight.t(), output, reverse, **given)


def _backward_meta(
    grad: torch.Tensor, grad_cy: Optional, hx: torch.Tensor, cx: Optional, weight: torch.Tensor, output: torch.Tensor,
    kept: torch.Tensor, cell: str, reverse: bool,
) -> Results:  # fmt: skip
    shape = (*output.shape[:2], weight.size(0))
    new = grad.new_empty
    return (
        new(shape),
        new(shape if CELLS[cell].hidden_gradients else (0,)),
        new(hx.shape),
        new(hx.shape if CELLS[cell].has_c else (0,)),
    )


@planner("torchgraft::recurrent_backward", contiguous=True, meta=_backward_meta)
def _recurrent_backward(
    p: PlanBuilder,
    out: Results,
    grad: torch.Tensor,
    grad_cy: Optional,
    hx: torch.Tensor,
    cx: Optional,
    weight: torch.Tensor,
    output: torch.Tensor,
    kept: torch.Tensor,
    cell: str,
    reverse: bool,
) -> None:
    if plan_layer_gradient(p, out, grad, grad_cy, hx, cx, weight, output, kept, cell, reverse):
        return
    grad_gates, grad_hidden, grad_hx, grad_cx = out
    about = CELLS[cell]
    storage = element_type(output.dtype).name

    def kernel(tile: int) -> Kernel:
        return kernels.backward_kernel(cell, storage, tile, p.device.simd_width)

    given: dict[str, Any] = {"grad": grad, "kept": kept, "grad_gates": grad_gates, "grad_hx": grad_hx}
    given |= {"cx": cx} if about.has_c else {}
    given |= {"grad_hidden": grad_hidden} if about.hidden_gradients else {}
    given |= {"hx": hx, "out": output} if "before" in about.backward else {}
    if about.carry:
        given["carry"] = carry = grad_cx if about.has_c else p.empty(hx.shape, hx.dtype)
        if grad_cy is not None and about.has_c:
            p.copy(carry, grad_cy)
        else:
            p.fill(carry, 0)
    _launch(p, kernel, weight, output, reverse, **given)


# ---- gradients ----


def _save(ctx: Any, inputs: tuple[Any, ...], output: Results) -> None:
    *tensors, ctx.cell, ctx.reverse, _ = inputs
    ctx.set_materialize_grads(False)  # what is kept would have one
    ctx.save_for_backward(*tensors, output[0], output[2])


def _gradients(ctx: Any, grad: Optional, grad_cy: Optional, _: Optional) -> tuple[Any, ...]:
    *inputs, output, kept = ctx.saved_tensors
    if grad is None and grad_cy is None:
        return (None,) * 8
    if grad is None:
        grad = torch.zeros_like(output)
    if torch.is_grad_enabled():  # for derivatives of the derivative
        return (*_differentiable_gradients(ctx, inputs, grad, grad_cy), None, None, None)
    _, hx, cx, weight, bias = inputs
    grad_gates, grad_hidden, grad_hx, grad_cx = torch.ops.torchgraft.recurrent_backward(
        grad, grad_cy, hx, cx, weight, output, kept, ctx.cell, ctx.reverse
    )
    hidden = grad_hidden if CELLS[ctx.cell].hidden_gradients else grad_gates
    grad_weight = _weight_gradient(hidden, hx, output, ctx.reverse) if ctx.needs_input_grad[3] else None
    grad_bias = hidden.sum((0, 1)) if bias is not None and ctx.needs_input_grad[4] else None
    return grad_gates, grad_hx, grad_cx if cx is not None else None, grad_weight, grad_bias, None, None, None


def _weight_gradient(hidden: torch.Tensor, hx: torch.Tensor, output: torch.Tensor, reverse: bool) -> torch.Tensor:
    """The sum over steps of the products of gates' gradients and the state before."""
    first, rest, before = (hidden[-1], hidden[:-1], output[1:]) if reverse else (hidden[0], hidden[1:], output[:-1])
    start = first.t() @ hx
    return start.addmm_(rest.flatten(0, 1).t(), before.flatten(0, 1)) if len(rest) else start


def _differentiable_gradients(ctx: Any, inputs: Sequence[Optional], grad: torch.Tensor, grad_cy: Optional) -> list[Any]:
    """The same by torch's ops, step by step."""
    needed = ctx.needs_input_grad[: len(inputs)]
    with torch.enable_grad():
        own = [None if x is None else x.view_as(x) for x in inputs]
        output, cy = _composed(*own, ctx.cell, ctx.reverse)  # type: ignore[arg-type, call-arg]
        results = [(output, grad)] + ([(cy, grad_cy)] if cy is not None and grad_cy is not None else [])
        found = iter(
            torch.autograd.grad(
                [result for result, _ in results],
                [x for x, is_needed in zip(own, needed, strict=True) if x is not None and is_needed],
                [gradient for _, gradient in results],
                create_graph=True,
                allow_unused=True,
            )
        )
    return [next(found) if is_needed else None for is_needed in needed]


def _composed(
    gates: torch.Tensor, hx: torch.Tensor, cx: Optional, weight: torch.Tensor, bias: Optional, cell: str, reverse: bool
) -> tuple[torch.Tensor, Optional]:
    outputs = []
    for x in reversed(gates.unbind()) if reverse else gates.unbind():
        h = torch.nn.functional.linear(hx, weight, bias)
        if cx is not None:
            i, f, g, o = (x + h).chunk(4, -1)
            cx = f.sigmoid() * cx + i.sigmoid() * g.tanh()
            hx = o.sigmoid() * cx.tanh()
        elif cell == "gru":
            (xr, xz, xn), (hr, hz, hn) = x.chunk(3, -1), h.chunk(3, -1)
            z, n = (xz + hz).sigmoid(), (xn + (xr + hr).sigmoid() * hn).tanh()
            hx = n + z * (hx - n)
        else:
            hx = (x + h).tanh() if cell == "rnn_tanh" else (x + h).relu()
        outputs.append(hx)
    return torch.stack(outputs[::-1] if reverse else outputs), cx


torch.library.register_autograd("torchgraft::recurrent", _gradients, setup_context=_save)


# ---- torch's ops ----


def _fits(
    cell: str, input: torch.Tensor, states: Sequence[torch.Tensor], params: Sequence[torch.Tensor], has_biases: bool,
    layers: int, directions: int, batch_first: bool,
) -> bool:  # fmt: skip
    """Whether a call is as simple as it is for users of the modules. What is odd, or wrong, is torch's to treat."""
    if len(states) != 1 + CELLS[cell].has_c:
        return False
    tensors = [input, *states, *params]
    first = tensors[0]
    if not first.is_floating_point() or first.device.type == "meta":
        return False
    if any(type(t) not in (torch.Tensor, torch.nn.Parameter) for t in tensors):
        return False
    if any(t.dtype != first.dtype or t.device != first.device for t in tensors):
        return False
    if input.dim() != 3 or input.numel() == 0 or len(params) != layers * directions * _parameters_each(has_biases):
        return False
    if torch.is_autocast_enabled(first.device.type) or torch._C._are_functorch_transforms_active():
        return False
    if forward_ad._current_level >= 0:
        return False
    gates = CELLS[cell].gates
    return (
        all(s.dim() == 3 and s.size(0) == layers * directions for s in states)
        and all(_weights_fit(weights, gates, states) for weights in _by_layer(params, has_biases))
        and (_library_serves(cell, input, states, params, directions, batch_first) or _kernels_serve(cell, states))
    )


def _kernels_serve(cell: str, states: Sequence[torch.Tensor]) -> bool:
    first = states[0]
    traits = device_traits(first.device.index)
    if not traits.has_compiler or first.dtype not in (torch.float32, torch.float64):
        return False
    _, batch, size = first.shape
    small = batch * CELLS[cell].gates * size * size <= _LARGE_STEP
    return small and kernel_form(first.device.index) == "cpu"


def _library_serves(
    cell: str, input: torch.Tensor, states: Sequence[torch.Tensor], params: Sequence[torch.Tensor], directions: int,
    batch_first: bool,
) -> bool:  # fmt: skip
    first = states[0]
    if not device_traits(first.device.index).has_programs or any(type(n) is not int for n in input.shape):
        return False
    keep = torch.is_grad_enabled() and any(t.requires_grad for t in (input, *states, *params))
    sizes = (input.size(1 if batch_first else 0), first.size(1), first.size(2))
    return all(has_layer(first.device.index, cell, first.dtype, sizes, way == 1, keep) for way in range(directions))


def _parameters_each(has_biases: bool) -> int:
    """Of a layer in one direction."""
    return 4 if has_biases else 2


def _by_layer(params: Sequence[torch.Tensor], has_biases: bool) -> list[Sequence[torch.Tensor]]:
    each = _parameters_each(has_biases)
    return [params[first : first + each] for first in range(0, len(params), each)]


def _weights_fit(weights: Sequence[torch.Tensor], gates: int, states: Sequence[torch.Tensor]) -> bool:
    w_ih, w_hh, *biases = weights
    size = states[0].size(2)
    return (
        size > 0
        and all(s.shape == states[0].shape for s in states)
        and w_ih.dim() == 2
        and w_ih.size(0) == gates * size
        and w_hh.shape == (gates * size, size)
        and all(b.shape == (gates * size,) for b in biases)
    )


def _run(
    cell: str,
    input: torch.Tensor,
    states: Sequence[torch.Tensor],
    params: Sequence[torch.Tensor],
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    directions: int,
    batch_first: bool,
) -> tuple[torch.Tensor, list[torch.Tensor], list[torch.Tensor]]:
    """All layers: what the last one gives, and the last states of each layer and direction."""
    weights = _by_layer(params, has_biases)
    x, hs, cs = input.transpose(0, 1) if batch_first else input, [], []
    for layer in range(layers):
        outputs = []
        for direction in range(directions):
            number = layer * directions + direction
            w_ih, w_hh, *biases = weights[number]
            hx, cx = states[0][number], states[1][number] if CELLS[cell].has_c else None
            output, cy = _layer(cell, x, hx, cx, w_ih, w_hh, biases, direction == 1)
            outputs.append(output)
            hs.append(output[0 if direction else -1])
            cs.append(cy)
        x = outputs[0] if directions == 1 else torch.cat(outputs, -1)
        if dropout and train and layer < layers - 1:
            x = torch.nn.functional.dropout(x, dropout)
    return x.transpose(0, 1) if batch_first else x, hs, cs


def _layer(
    cell: str, x: torch.Tensor, hx: torch.Tensor, cx: Optional, w_ih: torch.Tensor, w_hh: torch.Tensor,
    biases: Sequence[torch.Tensor], reverse: bool,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    b_ih, b_hh = biases or (None, None)
    if b_ih is not None and b_hh is not None and not CELLS[cell].hidden_gradients:
        b_ih, b_hh = b_ih + b_hh, None  # both are added to the same
    gates = torch.nn.functional.linear(x, w_ih, b_ih)
    keep = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (gates, hx, cx, w_hh, b_hh))
    output, cy, _ = torch.ops.torchgraft.recurrent(gates, hx, cx, w_hh, b_hh, cell, reverse, keep)
    return output, cy


def _torchs(op: Any, *arguments: Any) -> Results:
    """torch's composition. Not `op.decompose`, which is another in Python: no fused cells, and no dropout."""
    results: Results = op._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *arguments)
    return results


def _network(name: str) -> Callable[..., Results]:
    """A network of layers of one cell."""
    op = getattr(torch.ops.aten, name).input
    has_c = CELLS[name].has_c

    def network(
        input: torch.Tensor,
        hx: Any,
        params: Sequence[torch.Tensor],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> Results:
        about = (has_biases, num_layers, dropout, train)
        states = hx if has_c else [hx]
        if not _fits(name, input, states, params, has_biases, num_layers, 1 + bidirectional, batch_first):
            return _torchs(op, input, hx, params, *about, bidirectional, batch_first)
        output, hs, cs = _run(name, input, states, params, *about, 1 + bidirectional, batch_first)
        if has_c:
            return output, torch.stack(hs), torch.stack(cs)
        # The layer's own is kept for its gradient. What torch composes may be written, unlike an LSTM's on its CPU.
        return output.clone() if output.requires_grad else output, torch.stack(hs)

    return network


for _name in CELLS:
    recomposed(f"{_name}.input")(_network(_name))
