"""Attention: causal, bidirectional or with a prefix, by torch's scaled dot product or, with a prefix, FlexAttention."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal, cast

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

Backend = Literal["sdpa", "flex"]


@lru_cache(maxsize=4)  # all layers share one
def prefix_mask(sequence: int, prefix_length: int, device: torch.device) -> Tensor:
    """Return a boolean mask (sequence, sequence), True where the row's position attends to the column's.

    Positions of the prefix attend to the whole prefix; later positions attend to the prefix and to their own past.
    Source: Raffel et al. 2020, T5, section 3.2.1 ("causal with prefix"), which also restricts the loss to the tokens
    after the prefix.
    """
    position = torch.arange(sequence, device=device)
    return (position[None, :] <= position[:, None]) | (position[None, :] < prefix_length)


@lru_cache(maxsize=4)
def _blocks(sequence: int, prefix_length: int, device: torch.device) -> BlockMask:
    """Return the same mask as blocks, so that FlexAttention skips fully masked blocks."""

    def looks_at(_batch: Tensor, _head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        return (column <= row) | (column < prefix_length)

    return create_block_mask(looks_at, None, None, sequence, sequence, device=str(device))


@lru_cache(maxsize=1)
def _fused() -> Callable[..., Any]:
    return torch.compile(flex_attention, dynamic=False)


def attend(
    query: Tensor, key: Tensor, value: Tensor, *, is_causal: bool, prefix_length: int = 0, backend: Backend = "sdpa"
) -> Tensor:
    """Return the attention output; all tensors are (batch, heads, sequence, head size).

    With a `prefix_length` above 0, `is_causal` is ignored and the mask is that of prefix_mask; `backend` applies only
    then. FlexAttention is compiled on a GPU, which requires Triton. On a CPU it computes the whole matrix and cannot
    train, because torch has no backward pass for it.
    """
    if not prefix_length:
        return functional.scaled_dot_product_attention(query, key, value, is_causal=is_causal)
    sequence, device = query.shape[2], query.device
    if backend == "sdpa":
        mask = prefix_mask(sequence, prefix_length, device)
        return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    flex = _fused() if device.type == "cuda" else cast(Callable[..., Any], flex_attention)
    return cast(Tensor, flex(query, key, value, block_mask=_blocks(sequence, prefix_length, device)))
