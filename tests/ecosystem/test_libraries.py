"""Libraries that take the device from their user work on it as they are."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from libraries import library
from torch import nn

pytestmark = pytest.mark.no_fallback


def test_safetensors(device: str, tmp_path: Path) -> None:
    """By name, number or as a device."""
    files = library("safetensors.torch")
    file = tmp_path / "tensors.safetensors"
    files.save_file({"a": torch.arange(4.0, device=device)}, file)
    name = torch.device(device).type
    for given in (name, f"{name}:0", torch.device(device), 0):
        loaded = files.load_file(file, device=given)["a"]
        assert loaded.device.type == name and loaded.tolist() == [0, 1, 2, 3]
    with library("safetensors").safe_open(file, "pt", device=name) as opened:
        assert opened.get_slice("a")[2:].device.type == name
    with pytest.raises(library("safetensors").SafetensorError, match="nonsense"):
        files.load_file(file, device="nonsense")


@pytest.mark.thorough
def test_torchmetrics(device: str) -> None:
    metrics = library("torchmetrics")
    scores, classes = torch.rand(50, 5), torch.randint(0, 5, (50,))
    for kind in (metrics.Accuracy, metrics.F1Score, metrics.AUROC, metrics.ConfusionMatrix):
        metric = kind("multiclass", num_classes=5)
        expected = metric.clone()(scores, classes)
        got = metric.to(device)(scores.to(device), classes.to(device))
        assert got.device.type == torch.device(device).type
        torch.testing.assert_close(got.cpu(), expected, rtol=1e-5, atol=1e-5)


def _same(device: str, module: nn.Module, *inputs: torch.Tensor) -> None:
    with torch.no_grad():
        expected = module(*inputs)
        got = copy.deepcopy(module).to(device)(*(each.to(device) for each in inputs))
    torch.testing.assert_close(got.cpu(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.thorough
def test_timm(device: str) -> None:
    timm = library("timm")
    for name, options in (("resnet18", {}), ("vit_tiny_patch16_224", {"img_size": 32, "patch_size": 8})):
        _same(device, timm.create_model(name, num_classes=4, **options).eval(), torch.randn(2, 3, 32, 32))


@pytest.mark.thorough
def test_diffusers(device: str) -> None:
    diffusers = library("diffusers")
    network = diffusers.UNet2DModel(
        sample_size=8,
        block_out_channels=(32, 64),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        norm_num_groups=8,
    ).eval()

    def image(where: str) -> Any:
        pipeline = diffusers.DDPMPipeline(copy.deepcopy(network), diffusers.DDPMScheduler(num_train_timesteps=10))
        pipeline.to(where).set_progress_bar_config(disable=True)
        assert pipeline.device.type == torch.device(where).type
        generator = torch.Generator().manual_seed(0)
        return pipeline(num_inference_steps=2, output_type="np", generator=generator).images

    assert abs(image(device) - image("cpu")).max() < 1e-4


@pytest.mark.thorough
def test_torchao(device: str) -> None:
    quantization = library("torchao.quantization")
    network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32))
    inputs = torch.randn(4, 64)
    for config in (
        quantization.Int8WeightOnlyConfig(),
        quantization.Int8DynamicActivationInt8WeightConfig(),
        quantization.IntxWeightOnlyConfig(weight_dtype=torch.int4),
    ):
        expected, got = copy.deepcopy(network), copy.deepcopy(network).to(device)
        quantization.quantize_(expected, config)
        quantization.quantize_(got, config)
        torch.testing.assert_close(got(inputs.to(device)).cpu(), expected(inputs), rtol=1e-4, atol=1e-5)


@pytest.mark.thorough
def test_datasets(device: str) -> None:
    datasets = library("datasets")
    rows = datasets.Dataset.from_dict({"x": [[1.0, 2.0], [3.0, 4.0]]}).with_format("torch", device=device)
    (batch,) = torch.utils.data.DataLoader(rows, batch_size=2)
    assert batch["x"].device.type == torch.device(device).type
    assert batch["x"].tolist() == [[1, 2], [3, 4]]


@pytest.mark.thorough
def test_torchvision(device: str) -> None:
    """Its modules and transforms."""
    torchvision = library("torchvision")
    _same(device, torchvision.models.resnet18(num_classes=4).eval(), torch.randn(1, 3, 64, 64))
    transforms = library("torchvision.transforms.v2")
    steps = [transforms.Resize(20), transforms.CenterCrop(12), transforms.RandomHorizontalFlip(1.0)]
    _same(device, nn.Sequential(*steps), torch.rand(3, 24, 24))
