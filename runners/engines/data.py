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
