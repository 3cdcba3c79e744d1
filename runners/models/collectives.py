"""Collectives of one tensor, by whichever name this torch has for them.

torch 2.13 renamed all_gather_into_tensor and reduce_scatter_tensor and warns of the old names; nodes may have an
older torch, which knows no others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

gather: Callable[..., Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""gather(whole, part, group=...): every rank's part, one after the other, in `whole`."""
scatter_sum: Callable[..., Any] = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
"""scatter_sum(part, whole, group=...): the sum of every rank's `whole`, of which this rank keeps its part."""
