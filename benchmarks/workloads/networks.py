"""Layers of networks that everybody knows, each a workload with the network as its class."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from harness.case import Call, Case, Make, computing, randn, with_gradients

from workloads import attention, convolution, matmul


def _convolutions(network: str, *layers: convolution.Convolution) -> Iterator[Case]:
    for layer in layers:
        name = f"{layer.kernel}x{layer.kernel} {layer.inputs}-{layer.outputs} {'x'.join(map(str, layer.size))}"
        half = dataclasses.replace(layer, dtype=torch.bfloat16)
        for case in (layer.case(name, gradients=True), half.case(f"{name} bfloat16")):
            yield _of(network, case)


def _linears(network: str, rows: int, *sizes: tuple[int, int]) -> Iterator[Case]:
    for inputs, outputs in sizes:
        yield _of(network, matmul.linear(rows, inputs, outputs, gradients=True))
        yield _of(network, matmul.linear(rows, inputs, outputs, torch.bfloat16))
        yield _of(network, matmul.linear(1, inputs, outputs))


def _of(network: str, case: Case) -> Case:
    return dataclasses.replace(case, name=f"{network}/{case.name.partition('/')[2]}")


def _attention(network: str, *shape: int, causal: bool = False) -> Iterator[Case]:
    name = f"{network}/attention {'x'.join(map(str, shape))}"
    yield computing(name, attention.attention(*shape, causal=causal, gradients=True), 0, 0)
    yield computing(f"{name} bfloat16", attention.attention(*shape, causal=causal, dtype=torch.bfloat16), 0, 0)


def _normed(network: str, *shape: int) -> Iterator[Case]:
    def norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.layer_norm(x, shape[-1:], weight, bias)

    yield computing(
        f"{network}/layer norm {'x'.join(map(str, shape))}", with_gradients(norm, shape, shape[-1:], shape[-1:]), 0, 0
    )


def _resnet50() -> Iterator[Case]:
    """Of pictures of 224 by 224 (He and others, 2015, table 1), four of them."""
    Layer = convolution.Convolution
    layers = [Layer(4, 3, (224, 224), 64, 7, 2)]
    inputs = 64
    for width, side in ((64, 56), (128, 28), (256, 14), (512, 7)):
        before = side if width == 64 else 2 * side
        layers += [
            Layer(4, inputs, (before, before), width, 1),
            Layer(4, width, (before, before), width, 3, before // side),
        ]
        layers += [
            Layer(4, width, (side, side), 4 * width, 1),
            Layer(4, inputs, (before, before), 4 * width, 1, before // side),
        ]
        layers += [Layer(4, 4 * width, (side, side), width, 1), Layer(4, width, (side, side), width, 3)]
        inputs = 4 * width
    yield from _convolutions("ResNet-50", *layers)
    yield from _linears("ResNet-50", 4, (2048, 1000))


def _mobilenet() -> Iterator[Case]:
    """The second one (Sandler and others, 2018, table 2), a picture at a time."""
    Layer = convolution.Convolution
    layers = [Layer(1, 3, (224, 224), 32, 3, 2)]
    for inputs, outputs, side, stride in (
        (32, 16, 112, 1),
        (96, 24, 112, 2),
        (144, 32, 56, 2),
        (192, 64, 28, 2),
        (384, 96, 14, 1),
        (576, 160, 14, 2),
        (960, 320, 7, 1),
    ):
        layers += [Layer(1, inputs, (side, side), inputs, 3, stride, groups=inputs)]
        layers += [Layer(1, inputs, (side // stride, side // stride), outputs, 1)]
        layers += [Layer(1, outputs, (side // stride, side // stride), 6 * outputs, 1)]
    yield from _convolutions("MobileNet", *layers)


def _unet() -> Iterator[Case]:
    """Down and up again from 64 by 64, with the second network's ways up: an image made larger, and transposed."""
    Layer = convolution.Convolution
    layers = [Layer(2, 4, (64, 64), 64, 3), Layer(2, 64, (64, 64), 4, 3)]
    for width, side in ((64, 64), (128, 32), (256, 16)):
        layers += [Layer(2, width, (side, side), width, 3), Layer(2, width, (side, side), 2 * width, 3, 2)]
        layers += [Layer(2, 2 * width, (side, side), width, 3), Layer(2, 3 * width, (side, side), width, 3)]
        layers += [Layer(2, 2 * width, (side // 2, side // 2), width, 2, 2, transposed=True, padding=0)]
    yield from _convolutions("U-Net", *layers)
    yield from _attention("U-Net", 2, 8, 256, 32)


def _bert() -> Iterator[Case]:
    yield from _linears("BERT", 512, (768, 768), (768, 3072), (3072, 768), (768, 30522))
    yield from _attention("BERT", 4, 12, 128, 64)
    yield from _normed("BERT", 4, 128, 768)


def _gpt2() -> Iterator[Case]:
    yield from _linears("GPT-2", 512, (768, 2304), (768, 768), (768, 3072), (3072, 768), (768, 50257))
    yield from _attention("GPT-2", 2, 12, 256, 64, causal=True)
    yield from _normed("GPT-2", 2, 256, 768)


def _recurrent() -> Iterator[Case]:
    def cell(function: Any, gates: int, states: int) -> Make:
        def make(device: str) -> Call:
            weights = [randn(device, gates * 64, 64) for _ in range(2)] + [randn(device, gates * 64) for _ in range(2)]
            for weight in weights:
                weight.requires_grad_()
            x, state = randn(device, 16, 64), [randn(device, 16, 64) for _ in range(states)]

            def call() -> Any:
                out = function(x, state if states > 1 else state[0], *weights)
                return torch.autograd.grad((out[0] if states > 1 else out).sum(), weights)

            return call

        return make

    yield computing("cells/LSTM cell", cell(torch.lstm_cell, 4, 2), 0, 0)
    yield computing("cells/GRU cell", cell(torch.gru_cell, 3, 1), 0, 0)
    yield computing("cells/RNN cell", cell(torch.rnn_tanh_cell, 1, 1), 0, 0)


def layers() -> Iterator[Case]:
    for network in (_resnet50, _mobilenet, _unet, _bert, _gpt2, _recurrent):
        yield from network()
