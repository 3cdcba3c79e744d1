from __future__ import annotations

import pytest
import torch

from runners.config import ModelSection, RunConfig
from runners.engines.data import make_batch
from runners.models.gpt import GPTStage, num_parameters
from runners.models.seeds import generator
from runners.schedules import layers_of_stages

CPU = torch.device("cpu")
MODEL = ModelSection(num_layers=5, hidden_size=24, num_attention_heads=3, sequence_length=10, vocab_size=40)


def stages(count: int, seed: int = 1) -> list[GPTStage]:
    return [GPTStage(MODEL, layers, seed, CPU) for layers in layers_of_stages(MODEL.num_layers, count)]


def weights(parts: list[GPTStage]) -> dict[str, torch.Tensor]:
    return {name: tensor for part in parts for name, tensor in part.state_dict().items()}


@pytest.mark.parametrize("count", [2, 3, 5])
def test_every_split_has_the_same_weights(count: int) -> None:
    whole, split = weights(stages(1)), weights(stages(count))
    assert list(whole) == list(split)
    assert all(torch.equal(whole[name], split[name]) for name in whole)


def test_layers_and_seeds_differ() -> None:
    one, other = weights(stages(1)), weights(stages(1, seed=2))
    name = "blocks.{}.mlp.up.weight"
    assert not torch.equal(one[name.format(0)], one[name.format(1)])
    assert not torch.equal(one[name.format(0)], other[name.format(0)])
    assert 0.015 < one[name.format(0)].std() < 0.025
    assert torch.all(one["blocks.0.mlp_norm.weight"] == 1)
    assert torch.all(one["blocks.0.mlp.up.bias"] == 0)


@pytest.mark.parametrize("count", [1, 3])
def test_parameters_are_those_of_the_formula(count: int) -> None:
    counted = sum(parameter.numel() for stage in stages(count) for parameter in stage.parameters())
    assert counted == num_parameters(MODEL)


def test_a_token_sees_itself_and_the_past_only() -> None:
    body = stages(5)[:4]  # up to the activations before the head
    tokens = torch.randint(0, MODEL.vocab_size, (1, MODEL.sequence_length), generator=generator(0, "test"))
    changed = tokens.clone()
    changed[0, 6] = (changed[0, 6] + 1) % MODEL.vocab_size

    def activations(x: torch.Tensor) -> torch.Tensor:
        for stage in body:
            x = stage(x)
        return x

    difference = (activations(tokens) - activations(changed)).abs().amax(dim=-1)[0]
    assert torch.all(difference[:6] == 0)
    assert torch.all(difference[6:] > 0)


def test_a_fresh_network_guesses_evenly() -> None:
    tokens = torch.randint(0, MODEL.vocab_size, (64, MODEL.sequence_length + 1), generator=generator(0, "test"))
    loss = stages(1)[0](tokens[:, :-1], tokens[:, 1:])
    assert abs(float(loss.detach()) - torch.tensor(40.0).log()) < 0.05


def test_the_last_stage_asks_for_targets() -> None:
    with pytest.raises(ValueError, match="needs targets"):
        stages(1)[0](torch.zeros(1, 4, dtype=torch.long))


def test_seeds_that_differ_in_the_upper_half_draw_different_numbers() -> None:
    low, high = (torch.rand(4, generator=generator(seed, "tokens")) for seed in (7, 7 + 2**32))
    assert not torch.equal(low, high)


def test_batches_depend_on_seed_and_step_alone() -> None:
    config = RunConfig(model=MODEL)
    batch, again, next_one = make_batch(config, 1), make_batch(config, 1), make_batch(config, 2)
    other_seed = make_batch(RunConfig.model_validate({"model": MODEL.model_dump(), "train": {"seed": 5}}), 1)
    assert torch.equal(batch.tokens, again.tokens)
    assert not torch.equal(batch.tokens, next_one.tokens)
    assert not torch.equal(batch.tokens, other_seed.tokens)
    assert torch.equal(batch.tokens[:, 1:], batch.targets[:, :-1])
    assert batch.tokens.shape == (16, MODEL.sequence_length)
    assert batch.tokens.min() >= 0
    assert batch.tokens.max() < MODEL.vocab_size
