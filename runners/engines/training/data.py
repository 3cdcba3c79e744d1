"""Synthetic text: the same tokens for every layout and device."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from runners.config import RunConfig
from runners.models.seeds import generator


class Batch(NamedTuple):
    """One global batch for a GPT; the target of a token is the next token."""

    tokens: Tensor
    """(global batch, sequence), token ids."""
    targets: Tensor
    """(global batch, sequence), token ids."""


def make_batch(config: RunConfig, step: int) -> Batch:
    """Draw the global batch of a step (counted from 1) on the CPU; it depends on train.seed and the step only.

    Small token ids are much more frequent than large ones, as in real text, so that the loss falls during training.
    """
    model, train = config.model, config.train
    shape = (train.global_batch_size, model.sequence_length + 1)
    uniform = torch.rand(shape, generator=generator(train.seed, "tokens", step), dtype=torch.float64)
    tokens = (uniform.square().square() * model.vocab_size).long()
    return Batch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())


CLS, SEP, MASK, FIRST_WORD = range(4)
"""Special token ids of a BERT, and the first id of an ordinary token."""
MASKED = 0.15
"""Share of the tokens that a BERT predicts. Source: Devlin et al. 2019, section 3.1."""


class SentencePairs(NamedTuple):
    """One global batch for a BERT."""

    tokens: Tensor
    """(global batch, sequence), token ids after masking."""
    segments: Tensor
    """(global batch, sequence), 0 or 1."""
    positions: Tensor
    """(global batch, masked), positions of the tokens to predict; the same number in every sequence."""
    targets: Tensor
    """(global batch, masked), token ids at these positions."""
    next_sentence: Tensor
    """(global batch,), 1 if the second sentence does not follow the first, else 0."""


def make_sentence_pairs(config: RunConfig, step: int) -> SentencePairs:
    """Draw the global batch of a step (counted from 1) for a BERT on the CPU; it depends on train.seed and the step.

    Each sequence is [CLS] sentence [SEP] sentence [SEP], with halves of equal length. Of the tokens to predict, 80 %
    are masked, 10 % are replaced by random tokens and 10 % stay unchanged (Devlin et al. 2019, section 3.1). The tokens
    of a second sentence that does not follow are drawn uniformly, so that the next-sentence loss can fall.
    """
    model, train = config.model, config.train
    batch, length = train.global_batch_size, model.sequence_length
    vocabulary = model.vocab_size - FIRST_WORD
    numbers = generator(train.seed, "sentence pairs", step)
    uniform = torch.rand((batch, length), generator=numbers, dtype=torch.float64)
    is_random = torch.rand(batch, generator=numbers) < 0.5
    second = torch.arange(length) >= (length + 1) // 2
    skewed = torch.where(is_random[:, None] & second, uniform, uniform.square().square())
    tokens = FIRST_WORD + (skewed * vocabulary).long()
    tokens[:, 0] = CLS
    tokens[:, (length - 1) // 2] = SEP
    tokens[:, -1] = SEP
    order = torch.rand((batch, length), generator=numbers)
    order[:, [0, (length - 1) // 2, -1]] = 2.0  # sorts special tokens last, so that none is predicted
    positions = order.argsort(1)[:, : max(1, round(MASKED * length))].sort(1).values
    targets = tokens.gather(1, positions)
    chance = torch.rand(positions.shape, generator=numbers)
    replacements = (
        FIRST_WORD + (torch.rand(positions.shape, generator=numbers, dtype=torch.float64) * vocabulary).long()
    )
    inputs = torch.where(chance < 0.8, torch.full_like(targets, MASK), torch.where(chance < 0.9, replacements, targets))
    return SentencePairs(
        tokens.scatter(1, positions, inputs),
        second.long().expand(batch, -1).contiguous(),
        positions,
        targets,
        is_random.long(),
    )


def make_arguments(config: RunConfig, step: int) -> tuple[Tensor, ...]:
    """Draw the global batch of a step (counted from 1) as the arguments of a whole network.

    The result is (tokens, targets) for a GPT and (tokens, targets, segments, positions, next_sentence) for a BERT, with
    the shapes of Batch and SentencePairs.
    """
    if config.model.kind == "gpt":
        return make_batch(config, step)
    pairs = make_sentence_pairs(config, step)
    return pairs.tokens, pairs.targets, pairs.segments, pairs.positions, pairs.next_sentence
