"""Made-up text: the same tokens in every layout, on every device."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from runners.config import RunConfig
from runners.models.seeds import generator


class Batch(NamedTuple):
    """One global batch; the target of a token is the token after it."""

    tokens: Tensor
    """(global batch, sequence), token ids."""
    targets: Tensor
    """(global batch, sequence), token ids."""


def make_batch(config: RunConfig, step: int) -> Batch:
    """Draw the global batch of a step (counted from 1) on the CPU, from the seed and the step alone.

    Small token ids are much more frequent than large ones, as in real text, so that there is something to learn and
    a loss that falls.
    """
    model, train = config.model, config.train
    shape = (train.global_batch_size, model.sequence_length + 1)
    uniform = torch.rand(shape, generator=generator(train.seed, "tokens", step), dtype=torch.float64)
    tokens = (uniform.square().square() * model.vocab_size).long()
    return Batch(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())


CLS, SEP, MASK, FIRST_WORD = range(4)
"""Token ids of a BERT that are no words, and the first one that is."""
MASKED = 0.15
"""Share of the tokens that a BERT guesses, as in Devlin et al. 2019, section 3.1."""


class SentencePairs(NamedTuple):
    """One global batch for a BERT."""

    tokens: Tensor
    """(global batch, sequence), token ids, masked."""
    segments: Tensor
    """(global batch, sequence), 0 or 1."""
    positions: Tensor
    """(global batch, masked), where tokens are to be guessed; as many in every sequence."""
    targets: Tensor
    """(global batch, masked), token ids at these positions."""
    next_sentence: Tensor
    """(global batch,), 1 where the second sentence does not follow the first one."""


def make_sentence_pairs(config: RunConfig, step: int) -> SentencePairs:
    """Draw the global batch of a step for a BERT on the CPU, from the seed and the step alone.

    [CLS] sentence [SEP] sentence [SEP], of equal halves. Of the tokens to be guessed 80 % are masked, 10 % are other
    words, 10 % stay, as in Devlin et al. 2019. A sentence that does not follow has rare words as often as frequent
    ones, so that there is something to learn.
    """
    model, train = config.model, config.train
    batch, length = train.global_batch_size, model.sequence_length
    words = model.vocab_size - FIRST_WORD
    numbers = generator(train.seed, "sentence pairs", step)
    uniform = torch.rand((batch, length), generator=numbers, dtype=torch.float64)
    is_random = torch.rand(batch, generator=numbers) < 0.5
    second = torch.arange(length) >= (length + 1) // 2
    skewed = torch.where(is_random[:, None] & second, uniform, uniform.square().square())
    tokens = FIRST_WORD + (skewed * words).long()
    tokens[:, 0] = CLS
    tokens[:, (length - 1) // 2] = SEP
    tokens[:, -1] = SEP
    order = torch.rand((batch, length), generator=numbers)
    order[:, [0, (length - 1) // 2, -1]] = 2.0  # last: these are not guessed
    positions = order.argsort(1)[:, : max(1, round(MASKED * length))].sort(1).values
    targets = tokens.gather(1, positions)
    chance = torch.rand(positions.shape, generator=numbers)
    others = FIRST_WORD + (torch.rand(positions.shape, generator=numbers, dtype=torch.float64) * words).long()
    shown = torch.where(chance < 0.8, torch.full_like(targets, MASK), torch.where(chance < 0.9, others, targets))
    return SentencePairs(
        tokens.scatter(1, positions, shown),
        second.long().expand(batch, -1).contiguous(),
        positions,
        targets,
        is_random.long(),
    )


def make_arguments(config: RunConfig, step: int) -> tuple[Tensor, ...]:
    """Draw the global batch of a step as what a whole network takes, in order.

    (tokens, targets) for a GPT, (tokens, targets, segments, positions, next_sentence) for a BERT; each has the global
    batch as its first dimension.
    """
    if config.model.kind == "gpt":
        return make_batch(config, step)
    pairs = make_sentence_pairs(config, step)
    return pairs.tokens, pairs.targets, pairs.segments, pairs.positions, pairs.next_sentence
