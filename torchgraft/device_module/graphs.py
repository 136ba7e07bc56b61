"""Graphs: work that is recorded once and replayed by one loop in C++, with `torch.cuda`'s names and meanings.

    graph = torch.ocl.Graph()
    with torch.ocl.graph(graph):
        y = model(x)  # nothing is computed yet
    x.copy_(batch)
    graph.replay()    # y is now the result for the batch

A graph reads and writes the memory that it was captured with: what it is to compute with is copied into the tensors
that it saw, and its results lie in the same tensors after each replay. csrc/graphs/graph.cpp has the rest.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils import _pytree as pytree

from torchgraft import backend
from torchgraft._core import _C
from torchgraft.device_module.streams import DEVICE_TYPE, Stream
from torchgraft.device_module.streams import stream as on_stream

__all__ = ["Graph", "graph", "graph_pool_handle", "is_current_stream_capturing", "make_graphed_callables"]

Pool: TypeAlias = tuple[int, int]

_MODES = ("default", "global", "thread_local", "relaxed")


def is_current_stream_capturing() -> bool:
    """Whether what the current stream is given is recorded in a graph. False where no device is open."""
    return _C.is_current_stream_capturing()


def graph_pool_handle() -> Pool:
    """A pool of memory for several graphs to share: they must be replayed in the order in which they were captured, and
    none while another runs."""
    return _C.new_graph_pool()


class Graph(_C.Graph):
    """What a stream was given, to be given again: launches, copies and fills with their arguments.

    Args:
        keep_graph: what a replay needs is made by `instantiate` or by the first replay, and not by `capture_end`.
    """

    def __init__(self, keep_graph: bool = False) -> None:
        backend.open_devices()
        super().__init__(keep_graph)

    def capture_begin(self, pool: Pool | None = None, capture_error_mode: str = "global") -> None:
        """Records what the current stream is given from now on, in place of running it. `graph` does it more safely.

        Streams that wait for an event of the capture join it. Memory comes from the graph's own pool.

        Args:
            pool: another graph's `pool()`, or a `graph_pool_handle()`, to share memory with.
            capture_error_mode: what other threads may do meanwhile. A capture here disturbs none, so that "global",
                "thread_local", "relaxed" and "default" are the same.

        Raises:
            RuntimeError: the stream is being captured, or this graph has been captured and was not reset.
            ValueError: there is no such mode.
        """
        if capture_error_mode not in _MODES:
            raise ValueError(f"capture_error_mode is one of {', '.join(map(repr, _MODES))}, not {capture_error_mode!r}")
        super().capture_begin((0, 0) if pool is None else pool)

    def capture_end(self) -> None:
        """Ends the capture.

        Raises:
            RuntimeError: something was asked for that cannot be captured (a tensor's value, a wait of the host, a copy
                of memory that is not pinned, an op that runs on the CPU), or a stream joined the capture and was not
                waited for. The capture is over then, and the graph empty. Also if this is not the stream on which the
                capture began; then it goes on.
        """
        super().capture_end()

    def instantiate(self) -> None:
        """Makes what a replay needs."""
        super().instantiate()

    def replay(self) -> None:
        """Gives the current stream what was captured; returns at once.

        Random numbers are drawn anew, from the generators' present states. What kernels find (an index out of range) is
        raised by the next wait for the stream, with the op and the line that was captured.

        Raises:
            RuntimeError: there is nothing to replay, or the current stream is being captured.
        """
        super().replay()

    def reset(self) -> None:
        """Forgets what was captured, and gives the memory back that no tensor uses."""
        super().reset()

    def pool(self) -> Pool:
        """The pool in which the graph's memory lies."""
        return super().pool()

    def enable_debug_mode(self) -> None:
        """Does nothing: `debug_dump` works in any case."""

    def debug_dump(self, debug_path: str | Path) -> None:
        """Writes the graph as a picture in Graphviz' language: `dot -Tsvg graph.dot > graph.svg`."""
        Path(debug_path).write_text(_C.graph_as_dot(self.nodes()), encoding="utf-8")

    def __repr__(self) -> str:
        counts = Counter(node.kind for node in self.nodes())
        kinds = ", ".join(f"{kind}: {count}" for kind, count in counts.most_common())
        return f"<{type(self).__name__} of {counts.total()} nodes ({kinds or 'not captured'})>"

    def __str__(self) -> str:
        lines = [f"{self!r}, replayed {self.replays()} times"]
        for number, node in enumerate(self.nodes()):
            what = f"{node.kind} {node.name}" if node.name else node.kind
            columns = [f"{number:5}", f"{what:40}", f"{node.op:32}", _size(node)]
            if node.branch:
                columns.append(f"on stream {node.branch} of the capture")
            lines.append("  ".join(columns).rstrip())
        return "\n".join(lines)


def _size(node: _C.GraphNode) -> str:
    if node.kind == "launch":
        groups, local = (" x ".join(map(str, _short(sizes))) for sizes in (node.groups, node.local))
        return f"{groups} groups of {local}" + (f", {node.nbytes:,} bytes" if node.nbytes else "")
    return f"{node.nbytes:,} bytes" if node.nbytes else ""


def _short(sizes: tuple[int, int, int]) -> tuple[int, ...]:
    used = max((place for place, size in enumerate(sizes) if size != 1), default=0)
    return sizes[: used + 1]


def _default_stream() -> Stream:
    backend.open_devices()
    return Stream(stream_id=_C.CAPTURE_STREAM, device_index=_C.current_device(), device_type=DEVICE_TYPE)


class graph:
    """`with torch.<name>.graph(torch.<name>.Graph()):` records the lines below in the graph.

    Args:
        graph: what is captured.
        pool: memory to share, see `Graph.capture_begin`.
        stream: the stream to capture on; by default one that is kept for captures, and is never handed out.
        capture_error_mode: see `Graph.capture_begin`.
    """

    def __init__(
        self,
        graph: Graph,
        pool: Pool | None = None,
        stream: torch.Stream | None = None,
        capture_error_mode: str = "global",
    ) -> None:
        self._graph = graph
        self._pool = pool
        self._mode = capture_error_mode
        self._stream = on_stream(_default_stream() if stream is None else stream)

    def __enter__(self) -> None:
        _C.synchronize(_C.current_device())
        if torch.compiler.config.force_cudagraph_gc:
            gc.collect()
        torch._C._accelerator_emptyCache()
        self._stream.__enter__()
        try:
            self._graph.capture_begin(self._pool, self._mode)
        except BaseException:
            self._stream.__exit__(None, None, None)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._graph.capture_end()
            else:
                self._graph.reset()  # half of a graph is of no use
        finally:
            self._stream.__exit__(kind, error, trace)


# ---- functions as graphs ----


@dataclass(frozen=True)
class _Graphed:
    """A function's forward and backward pass as graphs, and the tensors with which they compute."""

    forward: Graph
    backward: Graph | None  # None: no result has a gradient
    inputs: tuple[torch.Tensor, ...]  # the sample arguments, and a module's parameters
    arguments: int  # so many of the inputs are given by the caller
    outputs: tuple[torch.Tensor, ...]
    structure: pytree.TreeSpec  # of the outputs
    output_gradients: tuple[torch.Tensor | None, ...]
    input_gradients: tuple[torch.Tensor | None, ...]

    def __call__(self, *arguments: Any) -> Any:
        given = pytree.arg_tree_leaves(*arguments)
        if len(given) != self.arguments:
            raise TypeError(f"a graphed callable takes the {self.arguments} tensors of its sample, not {len(given)}")
        results = _Replay.apply(self, *given, *self.inputs[self.arguments :])  # type: ignore[no-untyped-call]
        return pytree.tree_unflatten(results, self.structure)


class _Replay(torch.autograd.Function):
    """Both passes of a graphed function, as one node of autograd's graph."""

    @staticmethod
    def forward(context: Any, graphed: _Graphed, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        context.graphed = graphed
        for number, (kept, given) in enumerate(zip(graphed.inputs, inputs, strict=True)):
            if number < graphed.arguments:
                _put(kept, given, f"argument {number}")
        graphed.forward.replay()
        return tuple(output.detach() for output in graphed.outputs)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        graphed: _Graphed = context.graphed
        for kept, given in zip(graphed.output_gradients, gradients, strict=True):
            if kept is not None:
                _put(kept, given, "the gradient of a result")
        if graphed.backward is not None:
            graphed.backward.replay()
        return None, *(None if each is None else each.detach() for each in graphed.input_gradients)


def _put(kept: torch.Tensor, given: torch.Tensor, what: str) -> None:
    """Copies what is given to where the graph reads it, unless it lies there."""
    if kept.shape != given.shape:
        raise RuntimeError(
            f"{what} of a graphed callable has the shape {tuple(given.shape)}, and the graph was captured for "
            f"{tuple(kept.shape)}"
        )
    if kept.data_ptr() != given.data_ptr() or kept.stride() != given.stride():
        kept.detach().copy_(given)


_Callable: TypeAlias = "torch.nn.Module | Callable[..., Any]"


def make_graphed_callables(
    callables: _Callable | tuple[_Callable, ...],
    sample_args: tuple[Any, ...],
    num_warmup_iters: int = 3,
    allow_unused_input: bool = False,
    pool: Pool | None = None,
) -> _Callable | tuple[_Callable, ...]:
    """Functions or modules whose forward and backward pass are a graph each, and one node for autograd.

    They take the place of the originals in a loop of training. A module's `forward` is replaced, and used while the
    module is in the mode (training or not) in which it was captured.

    Args:
        callables: one, or a tuple of several that will be called in this order, which then share memory.
        sample_args: a tuple of tensors, of the shapes, dtypes and `requires_grad` of the real ones, whose memory the
            graphs use; for several callables a tuple of such tuples.
        num_warmup_iters: how often each is run before it is captured, so that plans and kernels are there.
        allow_unused_input: whether inputs may have no part in the results.
        pool: see `graph_pool_handle`.

    Raises:
        RuntimeError: autocast is on, and keeps casts of weights: use `cache_enabled=False`.
        TypeError: a sample holds something else than tensors.
        ValueError: a module has hooks, which would run once only, or a buffer that wants a gradient.
    """
    if torch.is_autocast_enabled(backend.name()) and torch.is_autocast_cache_enabled():
        raise RuntimeError("make_graphed_callables does not work with autocast's cache: set cache_enabled=False")
    several = isinstance(callables, tuple)
    functions: tuple[_Callable, ...] = callables if isinstance(callables, tuple) else (callables,)
    samples: tuple[tuple[Any, ...], ...] = sample_args if several else (sample_args,)
    inputs = [_inputs(function, sample) for function, sample in zip(functions, samples, strict=True)]
    _warm_up(functions, samples, inputs, num_warmup_iters, allow_unused_input)
    shared = graph_pool_handle() if pool is None else pool
    # In the order in which they will run: results of the first are still needed when the last one runs.
    forwards = [_capture_forward(f, sample, shared) for f, sample in zip(functions, samples, strict=True)]
    backwards = [
        _capture_backward(forward[1], given, shared, allow_unused_input)
        for forward, given in reversed(list(zip(forwards, inputs, strict=True)))
    ][::-1]
    made = tuple(
        _replacement(
            function,
            _Graphed(
                forward,
                backward,
                given,
                len(given) - _parameters(function),
                # Without autograd's graph of the capture, whose nodes would be told apart by their stream.
                tuple(output.detach() for output in outputs),
                structure,
                *gradients,
            ),
        )
        for function, given, (forward, outputs, structure), (backward, *gradients) in zip(
            functions, inputs, forwards, backwards, strict=True
        )
    )
    del forwards
    return made if several else made[0]


def _parameters(function: _Callable) -> int:
    return len(list(function.parameters())) if isinstance(function, torch.nn.Module) else 0


def _inputs(function: _Callable, sample: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
    leaves = pytree.arg_tree_leaves(*sample)
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor):
            raise TypeError(f"sample_args holds tensors only, not {type(leaf).__name__}")
    if not isinstance(function, torch.nn.Module):
        return tuple(leaves)
    if function._backward_hooks or function._forward_hooks or function._forward_pre_hooks:
        raise ValueError("a module that is to be captured has no hooks; register them on what is returned")
    if any(buffer.requires_grad for buffer in function.buffers()):
        raise ValueError("only parameters of a module that is to be captured may want a gradient, not its buffers")
    return (*leaves, *function.parameters())


def _wanting(tensors: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(each for each in tensors if each.requires_grad)


def _gradients(
    outputs: tuple[torch.Tensor, ...],
    gradients: tuple[torch.Tensor, ...],
    inputs: tuple[torch.Tensor, ...],
    allow_unused: bool,
) -> tuple[torch.Tensor | None, ...]:
    """With a place for each of the inputs."""
    found = iter(
        torch.autograd.grad(_wanting(outputs), _wanting(inputs), gradients, only_inputs=True, allow_unused=allow_unused)
    )
    return tuple(next(found) if each.requires_grad else None for each in inputs)


def _warm_up(
    functions: tuple[_Callable, ...],
    samples: tuple[tuple[Any, ...], ...],
    inputs: list[tuple[torch.Tensor, ...]],
    rounds: int,
    allow_unused: bool,
) -> None:
    device = _C.current_device()
    _C.synchronize(device)
    with on_stream(Stream()):
        for function, sample, given in zip(functions, samples, inputs, strict=True):
            for _ in range(rounds):
                outputs = tuple(pytree.tree_leaves(function(*sample)))
                if (wanting := _wanting(outputs)) and _wanting(given):
                    _gradients(outputs, tuple(map(torch.zeros_like, wanting)), given, allow_unused)
    _C.synchronize(device)


def _capture_forward(
    function: _Callable, sample: tuple[Any, ...], pool: Pool
) -> tuple[Graph, tuple[torch.Tensor, ...], pytree.TreeSpec]:
    forward = Graph()
    with graph(forward, pool):
        results = function(*sample)
    outputs, structure = pytree.tree_flatten(results)
    return forward, tuple(outputs), structure


def _capture_backward(
    outputs: tuple[torch.Tensor, ...], inputs: tuple[torch.Tensor, ...], pool: Pool, allow_unused: bool
) -> tuple[Graph | None, tuple[torch.Tensor | None, ...], tuple[torch.Tensor | None, ...]]:
    if not _wanting(outputs) or not _wanting(inputs):
        return None, (None,) * len(outputs), (None,) * len(inputs)
    gradients = tuple(torch.empty_like(each) if each.requires_grad else None for each in outputs)
    backward = Graph()
    with graph(backward, pool):
        found = _gradients(outputs, tuple(each for each in gradients if each is not None), inputs, allow_unused)
    return backward, gradients, found


def _replacement(function: _Callable, graphed: _Graphed) -> _Callable:
    if not isinstance(function, torch.nn.Module):
        return graphed
    captured_in_training, plain = function.training, function.forward

    def forward(*arguments: Any, **options: Any) -> Any:
        if function.training != captured_in_training:
            return plain(*arguments, **options)
        return graphed(*arguments, **options)

    function.forward = forward
    return function


# ---- optimisers ----


def _refuse_uncapturable(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """An optimiser that counts its steps on the host would repeat the captured step for ever."""
    # A compiler counts on the device whatever the optimiser says, and would split its program at the question.
    if torch.compiler.is_compiling() or not _C.is_current_stream_capturing():
        return
    if any(group.get("capturable") is False for group in optimizer.param_groups):
        raise RuntimeError(
            f"{type(optimizer).__name__}.step() is captured into a graph, but the optimizer counts its steps on the "
            "CPU: make it with capturable=True"
        )


def install() -> None:
    """Makes `torch.accelerator.Graph` work, and optimisers say what they cannot. Called once, after the renaming."""
    _C.register_graphs()
    register_optimizer_step_pre_hook(_refuse_uncapturable)
