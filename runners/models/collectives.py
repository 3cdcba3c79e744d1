"""Single-tensor collectives under the names of the installed torch version.

torch 2.13 renamed all_gather_into_tensor and reduce_scatter_tensor and deprecated the old names; nodes may have an
older torch, which has only the old names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

gather: Callable[..., Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""gather(whole, part, group=...): concatenate every rank's `part` into `whole`."""
scatter_sum: Callable[..., Any] = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
"""scatter_sum(part, whole, group=...): sum every rank's `whole` and store this rank's part of the sum in `part`."""
