"""Each change of a library is still needed: without it, the library shows the fault. A test that fails here names a
function that can go from torchgraft/patches/libraries (for the versions of the library with the fault no longer)."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from libraries import library

from torchgraft.patches.libraries import PATCHES, lightning

pytestmark = pytest.mark.thorough  # importing all of them takes long


def unpatched(function: Any) -> Any:
    """The library's own function, which functools.wraps has kept."""
    return function.__wrapped__


@pytest.fixture
def name(device: str) -> str:
    return torch.device(device).type


def test_every_patch_is_tested_here() -> None:
    assert {f"test_{patch.__name__}" for patch in PATCHES} <= set(globals())
    libraries = ("accelerate ", "transformers ", "sentence-transformers ", "safetensors ", "lightning ")
    assert all(any(each in str(patch.__doc__) for each in libraries) for patch in PATCHES)


def test_nothing_is_imported_for_it(script: Any) -> None:
    script(
        """
        import sys, torch
        libraries = {"accelerate", "transformers", "sentence_transformers", "safetensors", "lightning"}
        assert not libraries & set(sys.modules)
        assert any(type(finder).__module__ == "torchgraft.patches.imports" for finder in sys.meta_path)
        """,
        autoload=True,
    )


@pytest.mark.parametrize(
    "first",
    [
        "import torch",
        "import transformers.training_args",  # imports torch in its middle
        "from transformers import Trainer",
        "from accelerate.state import PartialState",
        "import os; os.environ['TORCH_DEVICE_BACKEND_AUTOLOAD'] = '0'; import accelerate, transformers.training_args;"
        "from accelerate.utils import get_max_memory; import torchgraft.autoload; torchgraft.autoload.autoload();"
        "assert 0 in get_max_memory()",
    ],
)
def test_in_whatever_order_they_are_imported(script: Any, first: str) -> None:
    library("accelerate")
    library("transformers")
    script(
        f"""
        {first}
        import tempfile, torch, accelerate, transformers
        name = torch.accelerator.current_accelerator().type
        arguments = transformers.TrainingArguments(tempfile.mkdtemp(), report_to=[], bf16=True)
        assert arguments.device.type == accelerate.Accelerator().device.type == name
        arguments = transformers.TrainingArguments(tempfile.mkdtemp(), report_to=[], use_cpu=True)
        assert arguments.device.type == "cpu"
        """,
        autoload=True,
    )


def test_accelerate_takes_the_device(name: str) -> None:
    state = library("accelerate.state")
    choose = state.PartialState.default_device.fget
    assert (unpatched(choose)(None).type, choose(None).type) == ("cpu", name)


def test_accelerate_allows_float16(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    accelerate = library("accelerate")
    monkeypatch.setattr(accelerate.Accelerator, "__init__", unpatched(accelerate.Accelerator.__init__))
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    with pytest.raises(ValueError, match="fp16 mixed precision requires a"):
        accelerate.Accelerator(mixed_precision="fp16")
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.filterwarnings("ignore:.*CUDA is not available")
def test_accelerate_scales_gradients(name: str) -> None:
    make = library("accelerate.utils.modeling").get_grad_scaler
    assert not unpatched(make)().is_enabled()
    assert make().is_enabled()


def test_accelerate_knows_the_memory(name: str) -> None:
    ask = library("accelerate.utils.modeling").get_max_memory
    assert 0 not in unpatched(ask)() and 0 in ask()


def test_accelerate_frees_the_memory(name: str) -> None:
    clear, module = library("accelerate.utils.memory").clear_device_cache, getattr(torch, name)
    module.empty_cache()
    before = module.memory_reserved()
    torch.empty(2**24, device=name)
    unpatched(clear)()
    assert module.memory_reserved() > before
    clear()
    assert module.memory_reserved() <= before


def test_accelerate_keeps_random_numbers(name: str, tmp_path: Path) -> None:
    checkpointing = library("accelerate.checkpointing")
    save = checkpointing.save_accelerator_state
    arguments: Any = (str(tmp_path), [], [], [], [], 0, 0)
    library("accelerate").PartialState()  # its logger asks for it
    unpatched(save)(*arguments)
    (states,) = tmp_path.iterdir()
    assert name not in str(torch.load(states, weights_only=False).keys())
    save(*arguments)
    assert len(list(tmp_path.iterdir())) == 2


def test_trainer_takes_the_device(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library("accelerate")
    kind = library("transformers.training_args").TrainingArguments
    set_up = kind._setup_devices.func
    arguments = kind(str(tmp_path), report_to=[])
    assert (unpatched(set_up)(arguments).type, set_up(arguments).type) == ("cpu", name)


def test_transformers_computes_in_bfloat16(name: str) -> None:
    ask = library("transformers.utils.import_utils").is_torch_bf16_gpu_available
    assert (unpatched(ask)(), ask()) == (False, True)


def test_trainer_keeps_random_numbers(name: str, tmp_path: Path) -> None:
    trainer = library("transformers.trainer").Trainer
    settings = SimpleNamespace(args=SimpleNamespace(world_size=1, parallel_mode=None))
    unpatched(trainer._save_rng_state)(settings, str(tmp_path))
    (states,) = tmp_path.iterdir()
    assert name not in torch.load(states, weights_only=False)
    trainer._save_rng_state(settings, str(tmp_path))
    assert len(list(tmp_path.iterdir())) == 2


def test_pipelines_take_the_device(name: str) -> None:
    pipeline = library("transformers.pipelines.base").Pipeline
    model = torch.nn.Linear(1, 1)
    model.device, model.config = torch.device("cpu"), SimpleNamespace(task_specific_params=None)  # type: ignore[assignment]
    made = SimpleNamespace(_sanitize_parameters=lambda **_: ({}, {}, {}), _pipeline_calls_generate=False)
    for initialize, there in ((unpatched(pipeline.__init__), "cpu"), (pipeline.__init__, name)):
        initialize(made, model)
        assert made.device.type == there


def test_sentence_transformers_take_the_device(name: str) -> None:
    ask = library("sentence_transformers.util.environment").get_device_name
    assert (unpatched(ask)(), ask().partition(":")[0]) == ("cpu", name)


def test_safetensors_open_on_the_device(name: str, tmp_path: Path) -> None:
    safetensors = library("safetensors")
    library("safetensors.torch").save_file({"a": torch.ones(1)}, tmp_path / "a")
    with pytest.raises(safetensors.SafetensorError, match="is invalid"):
        unpatched(safetensors.safe_open)(tmp_path / "a", "pt", device=name)
    with safetensors.safe_open(tmp_path / "a", "pt", device=name) as opened:
        assert opened.keys() == ["a"]


def test_fabric_knows_the_device(name: str) -> None:
    accelerators = library("lightning.fabric.accelerators")
    assert issubclass(accelerators.ACCELERATOR_REGISTRY[name]["accelerator"], lightning._Devices)


def test_lightning_knows_the_device(name: str) -> None:
    accelerators = library("lightning.pytorch.accelerators")
    assert issubclass(accelerators.AcceleratorRegistry[name]["accelerator"], lightning._Devices)


def test_fabric_takes_the_device(name: str) -> None:
    kind = library("lightning.fabric.connector")._Connector
    _check_connector(kind(accelerator=name, precision="bf16-mixed"), "_precision_instance", name)


def test_lightning_takes_the_device(name: str) -> None:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    kind = library("lightning.pytorch.trainer.connectors.accelerator_connector")._AcceleratorConnector
    _check_connector(kind(accelerator=name, precision="bf16-mixed"), "_precision_plugin_flag", name)


def _check_connector(connector: Any, plugin: str, name: str) -> None:
    kind = type(connector)
    assert unpatched(kind._choose_auto_accelerator)() == "cpu"
    assert kind._choose_auto_accelerator() == name
    with pytest.raises(Exception, match=f'"{name}"'):
        kind._choose_gpu_accelerator_backend()
    assert unpatched(kind._choose_strategy)(connector).root_device.type == "cpu"
    assert kind._choose_strategy(connector).root_device.type == name
    assert kind._check_and_init_precision(connector).device == name
    setattr(connector, plugin, None)
    assert unpatched(kind._check_and_init_precision)(connector).device == "cuda"


def test_accelerate_joins_processes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    state = library("accelerate.state")
    owner, kinds = state.PartialState, state.DistributedType
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert unpatched(owner._prepare_backend)(None)[1] == kinds.NO
    assert owner._prepare_backend(None) == ("graft", kinds.MULTI_CPU)
    assert owner._prepare_backend(None, cpu=True)[0] == "gloo"
    monkeypatch.delenv("LOCAL_RANK")
    assert owner._prepare_backend(None)[1] == kinds.NO
    first, second = (
        SimpleNamespace(device=None, distributed_type=kinds.MULTI_CPU, _cpu=False, local_process_index=0)
        for _ in range(2)
    )
    unpatched(owner.set_device)(first)
    assert first.device.type == "cpu"
    owner.set_device(second)
    assert second.device == torch.device(name, 0)


def test_accelerate_launches_processes(device: str) -> None:
    launch = library("accelerate.commands.launch")
    for function, several in ((unpatched(launch._validate_launch_command), False), (None, True)):
        parsed = launch.launch_command_parser().parse_args(["--num_processes", "2", "program.py"])
        args, *_ = (function or launch._validate_launch_command)(parsed)
        assert args.multi_gpu is several
    parsed = launch.launch_command_parser().parse_args(["--cpu", "--num_processes", "2", "program.py"])
    assert launch._validate_launch_command(parsed)[0].multi_gpu is False


def test_fabric_parallelizes_on_the_device(name: str) -> None:
    _check_device_ids(library("lightning.fabric.strategies.ddp").DDPStrategy._determine_ddp_device_ids, name)


def test_lightning_parallelizes_on_the_device(name: str) -> None:
    _check_device_ids(library("lightning.pytorch.strategies.ddp").DDPStrategy.determine_ddp_device_ids, name)


def _check_device_ids(determine: Any, name: str) -> None:
    strategy = SimpleNamespace(root_device=torch.device(name, 0))
    assert unpatched(determine)(strategy) == [0]
    assert determine(strategy) is None
