"""Saving and loading: tensors, storages, modules and optimizers, on the device, from and to the CPU, in processes that
have the backend and in one that has not; and the fields of one's own that travel with tensors."""

from __future__ import annotations

import copy
import io
import itertools
import pickle
import unittest.mock
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import safetensors
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from conftest import Script

from torchgraft.serialization import KEY, backend_meta, set_backend_meta

pytestmark = pytest.mark.filterwarnings("ignore:.* runs on the CPU", "ignore:TypedStorage is deprecated")

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e5m2,
    torch.complex64,
    torch.int64,
    torch.int8,
    torch.uint8,
    torch.uint16,
    torch.bool,
]
FIELDS = {"layout": "nz", "version": 3, "conj": True, "blocks": [16, None, 2.5], "of": {"a": "b"}}


def reload(value: Any, legacy: bool = False, **options: Any) -> Any:
    """What `torch.load` makes of what `torch.save` writes."""
    file = io.BytesIO()
    torch.save(value, file, _use_new_zipfile_serialization=not legacy)
    file.seek(0)
    return torch.load(file, **options)


def same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.dtype == expected.dtype and actual.stride() == expected.stride()
    left, right = (each.cpu().contiguous().view(-1).view(torch.uint8) for each in (actual, expected))
    assert torch.equal(left, right)


def first_device(device: str) -> torch.device:
    return torch.device(torch.device(device).type, 0)


@pytest.fixture
def second_device(device: str) -> torch.device:
    if torch.accelerator.device_count() < 2:
        pytest.skip("one device here; the NumPy driver, for which this file runs too, has two")
    return torch.device(torch.device(device).type, 1)


# ---- tensors ----


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
@pytest.mark.parametrize("weights_only", [True, False])
def test_a_tensor(device: str, dtype: torch.dtype, legacy: bool, weights_only: bool) -> None:
    if legacy and dtype in torch.storage._new_dtypes():
        with pytest.raises(AttributeError):  # the old format has no place for them, whatever the device
            reload(torch.ones(2, dtype=dtype), legacy)
        return
    tensor = torch.arange(24).view(4, 6).to(dtype).to(device)
    for each in (tensor, tensor[1:, ::2], tensor.t(), tensor[:0], tensor[2, 3]):
        loaded = reload(each, legacy, weights_only=weights_only)
        assert loaded.device == tensor.device
        same(loaded, each)
        assert loaded.storage_offset() == each.storage_offset()


def test_what_is_not_in_the_bytes(device: str) -> None:
    weight = torch.ones(3, device=device, requires_grad=True)
    assert reload(weight).requires_grad and not reload(weight.detach()).requires_grad
    parameter = reload(torch.nn.Parameter(weight), weights_only=True)
    assert type(parameter) is torch.nn.Parameter and parameter.is_leaf
    conjugate = torch.tensor([1 + 2j], device=device).conj()
    assert reload(conjugate).is_conj() and reload(conjugate).item() == 1 - 2j
    negative = conjugate.imag
    assert reload(negative).is_neg() == negative.is_neg() and reload(negative).item() == -2


@pytest.mark.parametrize(
    "location",
    [
        lambda source, to: to,
        lambda source, to: str(to),
        lambda source, to: {str(source): str(to)},
        lambda source, to: lambda storage, tag: storage.to(device=to),
    ],
    ids=["torch.device", "str", "dict", "callable"],
)
@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_map_location(device: str, location: Callable[[torch.device, torch.device], Any], legacy: bool) -> None:
    here, there, values = torch.device("cpu"), first_device(device), torch.arange(6.0).view(2, 3)
    for source, target in itertools.permutations((here, there)):
        loaded = reload(values.to(source), legacy, map_location=location(source, target))
        assert loaded.device == target and torch.equal(loaded.cpu(), values)


def test_a_name_without_a_number_is_the_current_device(device: str) -> None:
    kind = torch.device(device).type
    assert reload(torch.ones(2), map_location=kind).device.index == torch.accelerator.current_device_index()


def test_to_meta(device: str) -> None:
    assert reload(torch.ones(2, 3, device=device), map_location="meta").device.type == "meta"


def test_between_devices(second_device: torch.device) -> None:
    first = torch.device(second_device.type, 0)
    values = torch.randn(5)
    there = reload(values.to(first), map_location=second_device)
    assert there.device == second_device and torch.equal(there.cpu(), values)
    assert reload(there).device == second_device
    back = reload(there, map_location={str(second_device): str(first)})
    assert back.device == first and torch.equal(back.cpu(), values)
    set_backend_meta(there, FIELDS)
    assert backend_meta(reload(there, map_location=first)) == FIELDS == backend_meta(there.to(first))


def test_places_that_do_not_exist(device: str) -> None:
    kind, count = torch.device(device).type, torch.accelerator.device_count()
    with pytest.raises(RuntimeError, match=rf"torch\.{kind}\.device_count\(\) is {count}"):
        reload(torch.ones(2), map_location=f"{kind}:{count}")
    with pytest.raises(RuntimeError, match="CUDA"):
        reload(torch.ones(2, device=device), map_location="cuda")
    with pytest.raises(RuntimeError, match="tagged with nowhere"):
        reload(torch.ones(2, device=device), map_location="nowhere")
    with pytest.raises(RuntimeError, match=f"there is no {kind}:{count}"):
        reload(torch.ones(2), map_location=lambda storage, tag: storage.to(device=torch.device(kind, count)))


@pytest.mark.parametrize("to_cpu", [False, True])
@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_what_shared_memory_shares_it_again(device: str, to_cpu: bool, legacy: bool) -> None:
    base = torch.arange(12.0, device=device).view(3, 4)
    views = {"base": base, "row": base[1], "transposed": base.t(), "alone": torch.ones(4, device=device)}
    loaded = reload(views, legacy, map_location="cpu" if to_cpu else None)
    loaded["row"].fill_(-1)
    assert torch.equal(loaded["base"][1].cpu(), torch.full((4,), -1.0))
    assert torch.equal(loaded["transposed"].cpu(), loaded["base"].cpu().t())
    storages = {each.untyped_storage().data_ptr() for each in loaded.values()}
    assert len(storages) == 2


def test_memory_mapped_files(device: str, tmp_path: Path) -> None:
    base = torch.arange(1000.0, device=device)
    torch.save({"base": base, "view": base[10:20]}, tmp_path / "file.pt")
    for place in (None, "cpu", device):
        loaded = torch.load(tmp_path / "file.pt", mmap=True, map_location=place)
        assert torch.equal(loaded["base"].cpu(), base.cpu())
        loaded["view"].zero_()
        assert not loaded["base"][10:20].any().item()
    assert torch.equal(torch.load(tmp_path / "file.pt", mmap=True)["base"].cpu(), base.cpu())  # the file is as it was


def test_skipped_data(device: str) -> None:
    """A file of the right size without the values: read, it is a tensor of the device with any values."""
    with torch.serialization.skip_data():
        assert reload(torch.ones(3, 4, device=device)).shape == (3, 4)


# ---- copies and pickles ----


def test_pickle_and_deepcopy(device: str) -> None:
    base = torch.arange(6.0, device=device)
    both = {"base": base, "view": base[2:]}
    copied = copy.deepcopy(both)
    copied["view"].fill_(7)
    assert torch.equal(copied["base"].cpu(), torch.tensor([0.0, 1, 7, 7, 7, 7]))
    assert torch.equal(base.cpu(), torch.arange(6.0))
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        loaded = pickle.loads(pickle.dumps(base[1:].requires_grad_(), protocol))
        assert loaded.requires_grad and loaded.device == base.device
        assert torch.equal(loaded.detach().cpu(), base[1:].detach().cpu())
    with pytest.raises(RuntimeError, match="deepcopy protocol"):
        copy.deepcopy(base.detach().requires_grad_() * 2)


def test_a_module_with_tied_weights_and_hooks_of_its_own(device: str) -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 4)).to(device)
    module[2].weight = module[0].weight
    x = torch.randn(8, 4, device=device)
    module(x).sum().backward()
    module.eval()
    expected = module(x)
    for other in (copy.deepcopy(module), reload(module, weights_only=False), pickle.loads(pickle.dumps(module))):
        assert other[2].weight is other[0].weight and other[0].weight is not module[0].weight
        torch.testing.assert_close(other(x), expected)
    assert torch.equal(copy.deepcopy(module[0].bias).cpu(), module[0].bias.cpu())
    elsewhere = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 4))
    elsewhere.load_state_dict(reload(module.state_dict(), weights_only=True, map_location="cpu"))
    torch.testing.assert_close(elsewhere.eval()(x.cpu()), expected.cpu())


# ---- training that goes on ----


def trainer(place: str, kind: str) -> tuple[torch.nn.Module, torch.optim.Optimizer, Callable[[int], list[float]]]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3)).to(place)
    x, y = torch.randn(32, 6).to(place), torch.randint(3, (32,)).to(place)
    make = {
        "SGD": lambda parameters: torch.optim.SGD(parameters, lr=1e-2, momentum=0.9),
        "Adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-2),
        "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, amsgrad=True),
    }[kind]
    optimizer: torch.optim.Optimizer = make(model.parameters())

    def steps(count: int) -> list[float]:
        losses = []
        for _ in range(count):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    return model, optimizer, steps


@pytest.mark.parametrize("kind", ["SGD", "AdamW", "Adam"])
@pytest.mark.parametrize("through_cpu", [False, True])
def test_a_resumed_training_is_the_same_training(device: str, tmp_path: Path, kind: str, through_cpu: bool) -> None:
    model, optimizer, steps = trainer(device, kind)
    steps(3)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "checkpoint.pt")
    expected = steps(4)
    resumed_model, resumed_optimizer, resumed_steps = trainer(device, kind)
    saved = torch.load(tmp_path / "checkpoint.pt", weights_only=True, map_location="cpu" if through_cpu else None)
    resumed_model.load_state_dict(saved["model"])
    resumed_optimizer.load_state_dict(saved["optimizer"])
    assert resumed_steps(4) == expected and expected[-1] < expected[0]
    kinds = {
        value.device.type
        for state in resumed_optimizer.state.values()
        for name, value in state.items()
        if isinstance(value, torch.Tensor) and name != "step"
    }
    assert kinds == {torch.device(device).type}


def test_a_pickled_optimizer(device: str) -> None:
    model, optimizer, steps = trainer(device, "AdamW")
    steps(1)
    loaded = reload({"model": model, "optimizer": optimizer}, weights_only=False)
    assert loaded["optimizer"].param_groups[0]["params"][0] is loaded["model"][0].weight


def test_distributed_checkpoints_in_one_process(device: str, tmp_path: Path) -> None:
    model, optimizer, steps = trainer(device, "AdamW")
    steps(2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "no process group": it saves and loads without
        dcp.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, checkpoint_id=tmp_path / "dcp")
        expected = steps(2)
        resumed, resumed_optimizer, resumed_steps = trainer(device, "AdamW")
        resumed_steps(1)  # so that there is a state to load into
        state = {"model": resumed.state_dict(), "optimizer": resumed_optimizer.state_dict()}
        dcp.load(state, checkpoint_id=tmp_path / "dcp")
    resumed.load_state_dict(state["model"])
    resumed_optimizer.load_state_dict(state["optimizer"])
    assert resumed_steps(2) == expected


# ---- storages ----


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_storages(device: str, legacy: bool) -> None:
    tensor = torch.arange(6, dtype=torch.int16, device=device)
    typed = reload(tensor.storage(), legacy, weights_only=False)
    assert typed.dtype == torch.int16 and typed.tolist() == list(range(6)) and typed.device == tensor.device
    assert reload(tensor.storage(), legacy, weights_only=False, map_location="cpu").device.type == "cpu"
    if not legacy:  # which never could
        untyped = reload(tensor.untyped_storage(), weights_only=False)
        assert untyped.device == tensor.device and untyped.tolist() == tensor.untyped_storage().tolist()


def test_where_a_storage_belongs(device: str) -> None:
    there = first_device(device)
    assert torch.serialization.location_tag(torch.UntypedStorage(4, device=there)) == str(there)
    restored = torch.serialization.default_restore_location(torch.UntypedStorage(4), str(there))
    assert restored.device == there and getattr(restored, f"is_{there.type}")
    assert torch.serialization.location_tag(restored.cpu()) == "cpu"


def test_a_storage_changes_its_size(device: str) -> None:
    tensor = torch.arange(8, dtype=torch.uint8, device=device)
    storage = tensor.untyped_storage()
    storage.resize_(4)
    assert storage.nbytes() == 4 and storage.tolist() == [0, 1, 2, 3]
    storage.resize_(100)
    assert storage.nbytes() == 100 and storage[:4].tolist() == [0, 1, 2, 3]
    storage.resize_(0)
    assert storage.nbytes() == 0 == storage.data_ptr()


def test_a_storage_copied_and_cast(device: str) -> None:
    storage = torch.tensor([1, 2, 3], dtype=torch.uint8, device=device).untyped_storage()
    for other in (storage.clone(), copy.copy(storage), copy.deepcopy(storage), storage.cpu().to(device=storage.device)):
        assert other.device == storage.device and other.data_ptr() != storage.data_ptr()
        assert other.tolist() == [1, 2, 3]
    assert storage.float().tolist() == [1, 2, 3] and storage.float().device == storage.device
    with pytest.raises(TypeError, match="only CPU memory can be pinned"):
        storage.pin_memory()


def test_part_of_a_pinned_storage(device: str) -> None:
    pinned = torch.randn(10).pin_memory()
    part = torch.tensor(()).set_(pinned.untyped_storage()[8:], storage_offset=0, size=(5,), stride=(1,))
    assert part.is_pinned() and torch.equal(part, pinned[2:7])


def test_share_memory_changes_nothing(device: str) -> None:
    """As with CUDA: only CPU storages move to shared memory (see test_multiprocessing.py)."""
    tensor = torch.arange(3, device=device)
    address = tensor.data_ptr()
    assert tensor.share_memory_() is tensor and tensor.data_ptr() == address and tensor.tolist() == [0, 1, 2]


# ---- old ways of writing tensors, which files may hold ----


def test_tensors_written_as_arrays_or_by_way_of_the_cpu(device: str) -> None:
    there = str(first_device(device))
    array = numpy.arange(6, dtype=numpy.float32).reshape(2, 3)
    from_array = torch._utils._rebuild_device_tensor_from_numpy(array, torch.float32, there, True)
    assert str(from_array.device) == there and from_array.requires_grad
    assert torch.equal(from_array.detach().cpu(), torch.from_numpy(array))

    tensor = torch.randn(2, 3)
    with unittest.mock.patch.object(torch._C, "_has_storage", return_value=False):
        written = tensor.to(there)
        assert written._reduce_ex_internal(2)[0] is torch._utils._rebuild_device_tensor_from_cpu_tensor
        loaded, on_cpu = reload(written), reload(written, map_location="cpu")
    assert str(loaded.device) == there and torch.equal(loaded.cpu(), tensor)
    assert on_cpu.device.type == "cpu" and torch.equal(on_cpu, tensor)


# ---- safetensors ----


def test_safetensors(device: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    tensors = {"a": torch.randn(2, 3, device=device), "b": torch.arange(4, device=device).to(torch.bfloat16)}
    safetensors.torch.save_file(tensors, path)
    current = torch.accelerator.current_device_index()
    # A number means the accelerator, whatever it is; names of devices are tested in ecosystem/test_libraries.py.
    for loaded in (safetensors.torch.load_file(path, device=current), safetensors.torch.load_file(path)):
        for name, tensor in tensors.items():
            same(loaded[name], tensor)
    assert safetensors.torch.load_file(path, device=current)["a"].device == tensors["a"].device
    with safetensors.safe_open(path, framework="pt", device=current) as file:
        assert torch.equal(file.get_slice("a")[:, 1:].cpu(), tensors["a"][:, 1:].cpu())


def test_safetensors_of_a_model(device: str, tmp_path: Path) -> None:
    model, other = torch.nn.Linear(3, 2).to(device), torch.nn.Linear(3, 2).to(device)
    safetensors.torch.save_model(model, str(tmp_path / "model.safetensors"))
    assert safetensors.torch.load_model(other, tmp_path / "model.safetensors") == (set(), [])
    assert torch.equal(other.weight.cpu(), model.weight.cpu()) and other.weight.device == model.weight.device


# ---- fields ----


@pytest.fixture
def tensor(device: str) -> torch.Tensor:
    tensor = torch.arange(6.0, device=device).view(2, 3)
    set_backend_meta(tensor, FIELDS)
    return tensor


def test_fields_are_read_as_they_were_given(tensor: torch.Tensor) -> None:
    assert backend_meta(tensor) == FIELDS
    backend_meta(tensor)["layout"] = "another"  # a copy
    assert backend_meta(tensor) == FIELDS
    set_backend_meta(tensor, {"layout": "nd"})
    assert backend_meta(tensor) == {"layout": "nd"}
    set_backend_meta(tensor, None)
    assert backend_meta(tensor) == {} == torch._utils.get_tensor_metadata(tensor)
    assert backend_meta(torch.empty(2, device=tensor.device)) == {}


CARRIERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "detach": lambda x: x.detach(),
    "data": lambda x: x.data,
    "Parameter": lambda x: torch.nn.Parameter(x),
    "clone": lambda x: x.clone(),
    "clone to another format": lambda x: x.clone(memory_format=torch.contiguous_format),
    "to here": lambda x: x.to(x.device, copy=True),
    "deepcopy": copy.deepcopy,
    "deepcopy of a parameter": lambda x: copy.deepcopy(torch.nn.Parameter(x)),
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
    "save": lambda x: reload(x, weights_only=False),
    "weights only": lambda x: reload(x, weights_only=True),
    "legacy": lambda x: reload(x, legacy=True),
    "in a module": lambda x: reload({"w": torch.nn.Parameter(x)})["w"],
    "changed in place": lambda x: x.add_(1),
}
LOSERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "another dtype": lambda x: x.to(torch.float16),
    "sum": lambda x: x + 1,
    "view": lambda x: x.view(6),
    "slice": lambda x: x[:1],
    "like": torch.empty_like,
    "new": lambda x: x.new_empty(2, 3),
}


@pytest.mark.parametrize("way", CARRIERS)
def test_what_carries_fields(tensor: torch.Tensor, way: str) -> None:
    assert backend_meta(CARRIERS[way](tensor)) == FIELDS


@pytest.mark.parametrize("way", LOSERS)
def test_what_does_not(tensor: torch.Tensor, way: str) -> None:
    assert backend_meta(LOSERS[way](tensor)) == {}
    assert backend_meta(tensor) == FIELDS


def test_a_copy_has_fields_of_its_own(tensor: torch.Tensor) -> None:
    other = tensor.clone()
    set_backend_meta(other, {"layout": "nd"})
    assert backend_meta(tensor) == FIELDS


def test_gradients_pass_through_copies_that_carry(device: str) -> None:
    x = torch.ones(3, device=device, requires_grad=True)
    (x.clone() * x.to(device, copy=True) * x.to(torch.float64).to(torch.float32)).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [3, 3, 3]


def test_fields_beside_the_conjugate_bit(device: str) -> None:
    tensor = torch.tensor([1 + 2j], device=device).conj()
    set_backend_meta(tensor, FIELDS)
    for each in (tensor, reload(tensor), copy.deepcopy(tensor)):
        assert backend_meta(each) == FIELDS and each.item() == 1 - 2j
    set_backend_meta(tensor, {})
    assert tensor.is_conj() and backend_meta(tensor) == {}


def test_flags_set_by_torch_are_fields(device: str) -> None:
    flags = {"version_number": True, "format_number": False}
    tensor = torch.empty(3, 3, device=device)
    torch._utils.set_tensor_metadata(tensor, flags)
    assert torch._utils.get_tensor_metadata(tensor) == flags == backend_meta(tensor)
    assert torch._utils.get_tensor_metadata(reload(tensor)) == flags
    assert torch._utils.get_tensor_metadata(reload(tensor, map_location="cpu")) == {}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"a": (1, 2)}, "lists for tuples"),
        ({"a": {1: 2}}, "strings as keys"),
        ({1: 2}, "strings as keys"),
        ({"a": float("nan")}, "JSON"),
        ({"a": b"bytes"}, "bytes"),
        ({"a": torch.float32}, "dtype"),
    ],
    ids=repr,
)
def test_values_that_cannot_be_written(tensor: torch.Tensor, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        set_backend_meta(tensor, fields)
    assert backend_meta(tensor) == FIELDS


def test_other_bad_arguments(tensor: torch.Tensor) -> None:
    with pytest.raises(TypeError, match="mapping"):
        set_backend_meta(tensor, ["layout"])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="only tensors on the device"):
        set_backend_meta(torch.ones(2), FIELDS)
    with pytest.raises(ValueError, match="on 'cpu'"):
        backend_meta(torch.ones(2))


@pytest.mark.parametrize("text", ["{", "[1]", "3"])
def test_damaged_fields(tensor: torch.Tensor, text: str) -> None:
    torch._utils.set_tensor_metadata(tensor, {KEY + text: True})
    loaded = reload(tensor)
    with pytest.raises(ValueError, match="damaged"):
        backend_meta(loaded)


# ---- a process without the backend ----


@pytest.mark.quick(legacy=False)
@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_a_checkpoint_read_where_there_is_no_backend(
    device: str, script: Script, tmp_path: Path, tensor: torch.Tensor, legacy: bool
) -> None:
    path, kind = tmp_path / "file.pt", torch.device(device).type
    weight = torch.nn.Parameter(torch.ones(2, device=device))
    torch.save({"fields": tensor, "view": tensor[1], "weight": weight}, path, _use_new_zipfile_serialization=not legacy)
    script(f"""
        import torch

        assert torch._C._get_privateuse1_backend_name() == "privateuseone"
        for weights_only in (True, False):
            loaded = torch.load({str(path)!r}, map_location="cpu", weights_only=weights_only)
            assert loaded["fields"].tolist() == [[0, 1, 2], [3, 4, 5]]
            assert loaded["view"].data_ptr() == loaded["fields"].data_ptr() + 3 * 4
            assert loaded["weight"].requires_grad and loaded["weight"].device.type == "cpu"
            assert torch._utils.get_tensor_metadata(loaded["fields"]) == {{}}
        try:
            torch.load({str(path)!r})
        except RuntimeError as error:
            assert "tagged with {kind}" in str(error), error
        else:
            raise AssertionError("loaded to a device that does not exist")
    """)


@pytest.mark.thorough
def test_a_checkpoint_read_by_another_backend(
    device: str, tmp_path: Path, tensor: torch.Tensor, script: Script
) -> None:
    """The device's name is another: map_location says where it goes, and the fields come along."""
    path, kind = tmp_path / "file.pt", torch.device(device).type
    torch.save(tensor, path)
    script(f"""
        import torch, torchgraft
        from numpy_driver import NumpyDriver
        from torchgraft.serialization import backend_meta

        torchgraft.register("elsewhere", [NumpyDriver()])
        loaded = torch.load({str(path)!r}, map_location={{"{kind}:{tensor.device.index}": "elsewhere:1"}})
        assert str(loaded.device) == "elsewhere:1" and loaded.tolist() == [[0, 1, 2], [3, 4, 5]]
        assert backend_meta(loaded) == {FIELDS!r}
    """)
