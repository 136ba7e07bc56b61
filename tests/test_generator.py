"""Random number generators: seeds, offsets, states."""

from __future__ import annotations

import pytest
import torch
from conftest import in_threads


@pytest.fixture
def generator(device: str) -> torch.Generator:
    return torch.Generator(device=device).manual_seed(7)


def test_a_new_generator_belongs_to_its_device(device: str, generator: torch.Generator) -> None:
    assert generator.device.type == torch.device(device).type
    assert generator.device.index == (torch.device(device).index or 0)
    assert generator.initial_seed() == 7
    assert generator.get_offset() == 0


def test_seeding_sets_the_offset_back(generator: torch.Generator) -> None:
    generator.set_offset(64)
    assert generator.get_offset() == 64
    generator.manual_seed(8)
    assert (generator.initial_seed(), generator.get_offset()) == (8, 0)


def test_seed_chooses_a_random_seed(generator: torch.Generator) -> None:
    first, second = generator.seed(), generator.seed()
    assert first != second
    assert generator.initial_seed() == second


@pytest.mark.parametrize("seed", [0, 1, -1, 2**63, 2**64 - 1])
def test_extreme_seeds(generator: torch.Generator, seed: int) -> None:
    assert generator.manual_seed(seed).initial_seed() == seed % 2**64


def test_the_state_is_seed_and_offset_in_16_bytes(device: str, generator: torch.Generator) -> None:
    generator.set_offset(12)
    state = generator.get_state()
    assert (state.dtype, state.device.type, state.numel()) == (torch.uint8, "cpu", 16)
    assert state.view(torch.int64).tolist() == [7, 12]
    other = torch.Generator(device=device)
    other.set_state(state)
    assert (other.initial_seed(), other.get_offset()) == (7, 12)


@pytest.mark.parametrize(
    "state",
    [torch.zeros(8, dtype=torch.uint8), torch.zeros(17, dtype=torch.uint8), torch.zeros(4, dtype=torch.int32)],
    ids=["too short", "too long", "not bytes"],
)
def test_a_wrong_state_is_refused(generator: torch.Generator, state: torch.Tensor) -> None:
    with pytest.raises((RuntimeError, TypeError)):
        generator.set_state(state)
    assert generator.initial_seed() == 7


def test_clone_state_is_a_copy(generator: torch.Generator) -> None:
    copy = generator.clone_state()
    copy.set_offset(40)
    assert generator.get_offset() == 0


def test_graphsafe_state_is_shared(device: str, generator: torch.Generator) -> None:
    shared = torch.Generator(device=device)
    shared.graphsafe_set_state(generator.graphsafe_get_state())
    shared.set_offset(40)
    assert generator.get_offset() == 40


def test_default_generators(device: str) -> None:
    module = getattr(torch, torch.device(device).type)
    generators = module.default_generators
    assert len(generators) == module.device_count()
    assert [each.device.index for each in generators] == list(range(len(generators)))
    assert module.default_generators[0] is generators[0]


def test_manual_seed_reaches_every_default_generator(device: str) -> None:
    torch.manual_seed(1234)
    module = getattr(torch, torch.device(device).type)
    assert [each.initial_seed() for each in module.default_generators] == [1234] * module.device_count()


def test_a_generator_of_another_device_is_refused(device: str) -> None:
    with pytest.raises(RuntimeError, match="generator"):
        torch.rand(4, device=device, generator=torch.Generator("cpu"))


def test_equal_states_give_equal_numbers(device: str, generator: torch.Generator) -> None:
    state = generator.get_state()
    first = torch.rand(1000, device=device, generator=generator)
    second = torch.rand(1000, device=device, generator=generator)
    generator.set_state(state)
    assert torch.equal(torch.rand(1000, device=device, generator=generator).cpu(), first.cpu())
    assert not torch.equal(first.cpu(), second.cpu())


def test_threads_never_draw_the_same_numbers(device: str) -> None:
    torch.manual_seed(5)
    drawn: list[torch.Tensor] = []

    def draw() -> None:
        drawn.extend(torch.rand(64, device=device).cpu() for _ in range(20))

    in_threads(*[draw] * 4)
    assert len({tuple(each.tolist()) for each in drawn}) == 80


def test_fork_rng_keeps_the_state(device: str) -> None:
    kind = torch.device(device).type
    torch.manual_seed(3)
    expected = torch.rand(8, device=device).cpu()
    torch.manual_seed(3)
    with torch.random.fork_rng(devices=[0], device_type=kind):
        torch.rand(100, device=device)
    assert torch.equal(torch.rand(8, device=device).cpu(), expected)
