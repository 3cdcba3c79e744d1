"""Attention: causal or both ways by torch's scaled dot product, with a prefix also by FlexAttention."""

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
    """Return (sequence, sequence), True where the row's position looks at the column's.

    The prefix looks at all of itself; what comes after it at the prefix and at its own past. Source: Raffel et al.
    2020, T5, section 3.2.1 ("causal with prefix"), there also the loss on what follows the prefix only.
    """
    position = torch.arange(sequence, device=device)
    return (position[None, :] <= position[:, None]) | (position[None, :] < prefix_length)


@lru_cache(maxsize=4)
def _blocks(sequence: int, prefix_length: int, device: torch.device) -> BlockMask:
    """Return the same mask as blocks of which FlexAttention skips those that are hidden as a whole."""

    def looks_at(_batch: Tensor, _head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        return (column <= row) | (column < prefix_length)

    return create_block_mask(looks_at, None, None, sequence, sequence, device=str(device))


@lru_cache(maxsize=1)
def _fused() -> Callable[..., Any]:
    return torch.compile(flex_attention, dynamic=False)


def attend(
    query: Tensor, key: Tensor, value: Tensor, *, is_causal: bool, prefix_length: int = 0, backend: Backend = "sdpa"
) -> Tensor:
    """Mix values (batch, heads, sequence, head size), with a prefix of some length or without one (0).

    FlexAttention is compiled on a GPU, which needs Triton there. On a CPU it computes the whole matrix, and torch has
    no backward pass for it: it does not train there.
    """
    if not prefix_length:
        return functional.scaled_dot_product_attention(query, key, value, is_causal=is_causal)
    sequence, device = query.shape[2], query.device
    if backend == "sdpa":
        mask = prefix_mask(sequence, prefix_length, device)
        return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    flex = _fused() if device.type == "cuda" else cast(Callable[..., Any], flex_attention)
    return cast(Tensor, flex(query, key, value, block_mask=_blocks(sequence, prefix_length, device)))
