"""All-reduce of the replicas' gradients, overlapped with the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch.distributed as dist
from torch import Tensor

from runners.engines.training.flat import FlatParameters

BUCKET_BYTES = 4 * 2**20
"""Size of an all-reduce: small enough to overlap with the backward pass, large enough to make latency negligible."""


class _Bucket(NamedTuple):
    gradient: Tensor
    parameters: list[int]


class Replicas:
    """Sums a rank's flat gradient over its replicas: call begin_step(), run the passes, then call finish()."""

    def __init__(self, flat: FlatParameters, group: dist.ProcessGroup | None, passes: int) -> None:
        """Register hooks on the parameters; a gradient is complete after `passes` backward passes."""
        self._group = group
        self._passes = passes
        self._buckets = _buckets(flat)
        self._bucket_of = {index: b for b, bucket in enumerate(self._buckets) for index in bucket.parameters}
        self._pending: list[int] = []
        self._next = 0
        self._works: list[dist.Work] = []
        for index, parameter in enumerate(flat.parameters):
            # Registered after the hooks of FlatParameters, which run first and update the flat gradient.
            parameter.register_post_accumulate_grad_hook(self._count(index))  # type: ignore[no-untyped-call]

    def begin_step(self) -> None:
        """Reset the counters of pending gradients."""
        self._pending = [self._passes * len(bucket.parameters) for bucket in self._buckets]
        self._next = 0

    def finish(self) -> None:
        """Wait until all gradients are sums over the replicas."""
        while self._next < len(self._buckets):
            self._start()
        for work in self._works:
            work.wait()
        self._works.clear()

    def _count(self, index: int) -> Callable[[Tensor], None]:
        bucket = self._bucket_of[index]

        def accumulated(_parameter: Tensor) -> None:
            self._pending[bucket] -= 1
            # Always in bucket order, whatever the order of the passes, because replicas must issue matching transfers.
            while self._next < len(self._buckets) and self._pending[self._next] == 0:
                self._start()

        return accumulated

    def _start(self) -> None:
        work = dist.all_reduce(self._buckets[self._next].gradient, group=self._group, async_op=True)
        assert work is not None
        self._works.append(work)
        self._next += 1


def _buckets(flat: FlatParameters) -> list[_Bucket]:
    """Split the flat gradient into buckets, from its end as in the backward pass; replicated parameters come last."""
    ends = [0]
    for parameter in flat.parameters:
        ends.append(ends[-1] + parameter.numel())
    small = [index for index, begin in enumerate(ends[:-1]) if begin >= flat.shared.numel()]
    large = list(range(len(flat.parameters) - len(small)))
    buckets, open_at = [], len(large)
    for index in reversed(large):
        if 4 * (ends[open_at] - ends[index]) >= BUCKET_BYTES or index == 0:
            buckets.append(_Bucket(flat.gradient[ends[index] : ends[open_at]], list(range(index, open_at))))
            open_at = index
    if small:
        buckets.append(_Bucket(flat.gradient[ends[small[0]] :], small))
    return buckets
