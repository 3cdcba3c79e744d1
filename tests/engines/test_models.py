from __future__ import annotations

import math
from typing import Literal

import pytest
import torch

from runners.config import ModelSection, ParallelSection, RunConfig, TrainSection
from runners.engines.training.data import CLS, FIRST_WORD, MASK, SEP, make_batch, make_sentence_pairs
from runners.models.attention import attend
from runners.models.gpt import GPTStage, num_parameters
from runners.models.linear import accumulate, defer_weight_gradients
from runners.models.megatron import Inputs, MegatronStage
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
    first, other = weights(stages(1)), weights(stages(1, seed=2))
    name = "blocks.{}.mlp.up.weight"
    assert not torch.equal(first[name.format(0)], first[name.format(1)])
    assert not torch.equal(first[name.format(0)], other[name.format(0)])
    assert 0.015 < first[name.format(0)].std() < 0.025
    assert torch.all(first["blocks.0.mlp_norm.weight"] == 1)
    assert torch.all(first["blocks.0.mlp.up.bias"] == 0)


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


PREFIX = MODEL.model_copy(update={"attention_mask": "prefix", "prefix_length": 4})


def plain_prefix_loss(model: GPTStage, tokens: torch.Tensor, targets: torch.Tensor, prefix: int) -> torch.Tensor:
    """Compute the loss of one sequence head by head and row by row, from the weights and the definition alone."""
    w = dict(model.named_parameters())

    def linear(name: str, x: torch.Tensor) -> torch.Tensor:
        y = x @ w[f"{name}.weight"].t()
        return y + w[f"{name}.bias"] if f"{name}.bias" in w else y

    def norm(name: str, x: torch.Tensor) -> torch.Tensor:
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return scaled * w[f"{name}.weight"] + w[f"{name}.bias"]

    x = w["embeddings.token.weight"][tokens] + w["embeddings.position.weight"][: len(tokens)]
    heads, size = MODEL.num_attention_heads, MODEL.hidden_size // MODEL.num_attention_heads
    for layer in range(MODEL.num_layers):
        query, key, value = linear(f"blocks.{layer}.attention.qkv", norm(f"blocks.{layer}.attention_norm", x)).chunk(
            3, -1
        )
        rows = []
        for i in range(len(tokens)):
            seen = max(i + 1, prefix)  # a prefix token attends to the whole prefix, a later token to its past
            parts = []
            for head in range(heads):
                part = slice(head * size, (head + 1) * size)
                scores = key[:seen, part] @ query[i, part] / size**0.5
                parts.append(scores.softmax(0) @ value[:seen, part])
            rows.append(torch.cat(parts))
        x = x + linear(f"blocks.{layer}.attention.output", torch.stack(rows))
        inner = linear(f"blocks.{layer}.mlp.up", norm(f"blocks.{layer}.mlp_norm", x))
        x = x + linear(f"blocks.{layer}.mlp.output", inner * (1 + (inner / 2**0.5).erf()) / 2)
    logits = linear("head.vocabulary", norm("head.norm", x))
    chosen = [logits[i].log_softmax(0)[targets[i]] for i in range(prefix - 1, len(tokens))]
    return -torch.stack(chosen).mean()


@pytest.mark.parametrize("backend", ["sdpa", "flex"])
@pytest.mark.parametrize("prefix", [1, 4, 9])
def test_attention_with_a_prefix_equals_a_plain_softmax(prefix: int, backend: Literal["sdpa", "flex"]) -> None:
    numbers = torch.Generator().manual_seed(3)
    query, key, value = torch.randn(3, 2, 2, 10, 16, generator=numbers).unbind(0)
    scores = query @ key.transpose(-1, -2) / 4
    for row in range(10):
        scores[..., row, max(row + 1, prefix) :] = -math.inf
    expected = scores.softmax(-1) @ value
    output = attend(query, key, value, is_causal=True, prefix_length=prefix, backend=backend)
    assert torch.allclose(output, expected, atol=1e-6)


@pytest.mark.parametrize("prefix", [1, 4, 9])
def test_a_prefix_looks_both_ways_and_has_no_loss(prefix: int) -> None:
    config = PREFIX.model_copy(update={"prefix_length": prefix})
    model = GPTStage(config, range(config.num_layers), 1, CPU)
    with torch.no_grad():
        for parameter in model.parameters():  # initial weights would make every attention nearly uniform
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator(0, "test")))
    text = torch.randint(0, MODEL.vocab_size, (1, MODEL.sequence_length + 1), generator=generator(0, "test"))
    loss = model(text[:, :-1], text[:, 1:])
    expected = plain_prefix_loss(model, text[0, :-1], text[0, 1:], prefix)
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), abs=1e-5)
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    expected_gradients = torch.autograd.grad(expected, list(model.parameters()))
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(gradients, expected_gradients, strict=True))


def test_deferred_weight_gradients_equal_immediate_ones() -> None:
    text = torch.randint(0, MODEL.vocab_size, (2, MODEL.sequence_length + 1), generator=generator(0, "test"))
    immediate, deferred = (stages(1)[0] for _ in range(2))
    collector = defer_weight_gradients(deferred)
    for model in (immediate, deferred):
        for _ in range(2):  # gradients accumulate
            model(text[:, :-1], text[:, 1:]).backward()
    missing = {name for name, parameter in deferred.named_parameters() if parameter.grad is None}
    linear = {name for name, _ in deferred.named_parameters() if ".mlp." in name or "attention." in name}
    assert missing == linear | {"head.vocabulary.weight"}
    products = collector.collect()
    assert len(products) == 2 * (4 * MODEL.num_layers + 1)
    accumulate(products)
    assert products == collector.collect() == []
    for parameter, other in zip(immediate.parameters(), deferred.parameters(), strict=True):
        assert parameter.grad is not None
        assert other.grad is not None
        assert torch.allclose(parameter.grad, other.grad, atol=1e-6)


def test_an_untrained_network_predicts_uniformly() -> None:
    tokens = torch.randint(0, MODEL.vocab_size, (64, MODEL.sequence_length + 1), generator=generator(0, "test"))
    loss = stages(1)[0](tokens[:, :-1], tokens[:, 1:])
    assert abs(float(loss.detach()) - torch.tensor(40.0).log()) < 0.05


def test_the_last_stage_requires_targets() -> None:
    with pytest.raises(ValueError, match="needs targets"):
        stages(1)[0](torch.zeros(1, 4, dtype=torch.long))


BERT = ModelSection(
    kind="bert",
    num_layers=2,
    hidden_size=24,
    num_attention_heads=3,
    sequence_length=20,
    vocab_size=50,
    attention_mask="bidirectional",
)
MEGATRON = ParallelSection(engine="megatron")


def test_sentence_pairs_mask_the_same_share_of_tokens_in_every_sequence() -> None:
    config = RunConfig(model=BERT, train=TrainSection(global_batch_size=400), parallel=MEGATRON)
    pairs, again, other = (make_sentence_pairs(config, step) for step in (1, 1, 2))
    assert torch.equal(pairs.tokens, again.tokens)
    assert not torch.equal(pairs.tokens, other.tokens)
    assert pairs.positions.shape == pairs.targets.shape == (400, 3)
    specials = torch.tensor([0, 9, 19])
    assert torch.equal(pairs.tokens[:, specials], torch.tensor([CLS, SEP, SEP]).expand(400, -1))
    assert not torch.isin(pairs.positions, specials).any()
    assert pairs.targets.min() >= FIRST_WORD
    assert max(pairs.targets.max(), pairs.tokens.max()) < 50
    inputs = pairs.tokens.gather(1, pairs.positions)
    assert (inputs == MASK).float().mean() == pytest.approx(0.8, abs=0.05)
    assert (inputs == pairs.targets).float().mean() == pytest.approx(0.1, abs=0.04)
    assert (pairs.tokens == MASK).sum() == (inputs == MASK).sum()
    assert torch.equal(pairs.segments[0], torch.tensor([0] * 10 + [1] * 10))
    rare = (pairs.tokens[:, 10:19] > 25).float().mean(1)
    assert rare[pairs.next_sentence == 1].mean() > rare[pairs.next_sentence == 0].mean() + 0.15


def test_a_bert_has_the_losses_of_its_definition() -> None:
    model = MegatronStage(BERT, range(2), 1, CPU)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator(0, "test")))
    pairs = make_sentence_pairs(RunConfig(model=BERT, parallel=MEGATRON), 1)
    losses = model(None, Inputs(pairs.tokens, pairs.targets, pairs.segments, pairs.positions, pairs.next_sentence))
    w = dict(model.named_parameters())

    def linear(name: str, x: torch.Tensor) -> torch.Tensor:
        return x @ w[f"{name}.weight"].t() + w[f"{name}.bias"]

    def norm(name: str, x: torch.Tensor) -> torch.Tensor:
        return torch.layer_norm(x, (24,), w[f"{name}.weight"], w[f"{name}.bias"])

    x = w["embeddings.token.weight"][pairs.tokens] + w["embeddings.position.weight"]
    x = x + w["embeddings.segment.weight"][pairs.segments]
    for layer in range(2):
        qkv = linear(f"blocks.{layer}.attention.qkv", norm(f"blocks.{layer}.attention_norm", x))
        query, key, value = (part.view(*part.shape[:2], 3, 8).transpose(1, 2) for part in qkv.chunk(3, -1))
        mixed = (query @ key.transpose(-1, -2) / 8**0.5).softmax(-1) @ value  # every token sees every token
        x = x + linear(f"blocks.{layer}.attention.output", mixed.transpose(1, 2).flatten(2))
        inner = torch.nn.functional.gelu(linear(f"blocks.{layer}.mlp.up", norm(f"blocks.{layer}.mlp_norm", x)))
        x = x + linear(f"blocks.{layer}.mlp.output", inner)
    x = norm("head.norm", x)
    decision = linear("head.next_sentence", torch.tanh(linear("head.pooler", x[:, 0])))
    transformed = norm("head.transform_norm", torch.nn.functional.gelu(linear("head.transform", x)))
    log_p = linear("head.vocabulary", transformed).log_softmax(-1)
    log_p = log_p.gather(1, pairs.positions[..., None].expand(-1, -1, 50)).gather(2, pairs.targets[..., None])
    assert float(losses.lm.detach()) == pytest.approx(-float(log_p.mean().detach()), abs=1e-5)
    chosen = decision.log_softmax(-1)[torch.arange(len(decision)), pairs.next_sentence]
    assert float(losses.sop.detach()) == pytest.approx(-float(chosen.mean().detach()), abs=1e-5)


def test_seeds_that_differ_in_the_upper_half_draw_different_numbers() -> None:
    low, high = (torch.rand(4, generator=generator(seed, "tokens")) for seed in (7, 7 + 2**32))
    assert not torch.equal(low, high)


def test_batches_depend_on_seed_and_step_only() -> None:
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
