"""The advice for the number of nodes on runs over slow links, beside the same training on that number of nodes.

Two daemons in network namespaces, between which parlab's forwarder carries packets at a rate; see bench.nodes.
PARLAB_LINK_GBPS=0.02 measures only that rate.
"""

from __future__ import annotations

import os
import sys
from statistics import median
from typing import Any, NamedTuple

from parlab.advice.nodes import FEWER
from parlab.lab.models import Run
from parlab.lab.selectors.analysis.advice import run_advice
from runners.config import with_values
from runners.links.ability import try_here
from tests.bench.nodes import POOL, Nodes, nodes_of
from tests.bench.result import Result, Scale, Unavailable

RATES_GBPS = "0.02,0.05"
"""Of the links between the nodes: so slow that a busy machine does not turn the sign."""
DATA: dict[str, Any] = {
    "model": {
        "num_layers": 4, "hidden_size": 256, "num_attention_heads": 4, "sequence_length": 64, "vocab_size": 1024,
    },
    "train": {"iterations": 3, "warmup_steps": 1, "global_batch_size": 16, "micro_batch_size": 4},
    "parallel": {"engine": "megatron", "pipeline_parallel_size": 1, "data_parallel_size": 2},
    "cluster": {"pool": POOL, "nodes": 2, "device": "cpu"},
}  # fmt: skip
ONE_NODE = {"cluster.nodes": 1, "parallel.data_parallel_size": 1}
REPEATS = 1
"""Pairs at each rate: one node saves more than half of the step time, far more than the noise."""


class Compared(NamedTuple):
    """A run on two nodes, and the same on one."""

    gbps: float
    two_s: float
    one_s: float
    advised: float | None
    """Predicted gain of one node; None: not advised."""
    text: str

    @property
    def gain(self) -> float:
        """Share of the step time that one node saves; negative: a step takes longer."""
        return 1 - self.one_s / self.two_s

    @property
    def is_right(self) -> bool:
        """One node is advised, with the sign of the measured gain."""
        return self.advised is not None and (self.advised > 0) == (self.gain > 0)


def advice_links_right(scale: Scale) -> Result:
    """Count the rates of links at which one node instead of two is advised, with the sign of the measured gain."""
    if why_not := try_here().why_not:
        raise Unavailable(f"no network namespaces: {why_not}")
    rows = []
    rates = os.environ.get("PARLAB_LINK_GBPS", RATES_GBPS).split(",")
    for gbps in map(float, rates[:1] if scale.is_quick else rates):
        with nodes_of(2, bandwidth_gbps=gbps) as nodes:
            rows.append(_compared(nodes, gbps, scale.repeats(REPEATS)))
        sys.stderr.write(f"{rows[-1]}\n")
    right = sum(row.is_right for row in rows)
    against = "; ".join(
        f"{row.gbps:g} Gbit/s: {'-' if row.advised is None else f'{row.advised:+.2f}'}, measured {row.gain:+.2f}"
        for row in rows
    )
    return Result(right, against, scale.repeats(REPEATS))


def _compared(nodes: Nodes, gbps: float, repeats: int) -> Compared:
    """Run on two nodes and on one, alternating."""
    one = with_values(DATA, ONE_NODE)
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        two = nodes.run(DATA)
        times[0].extend(two.step_times_s())
        times[1].extend(nodes.run(one).step_times_s())
    answer = run_advice(Run.objects.get(pk=two.attempt.run_id))
    rows = [row for row in answer.advice if row.kind == FEWER]
    text = f"{rows[0].part}: {rows[0].evidence}; {rows[0].cost}" if rows else answer.reason
    return Compared(gbps, median(times[0]), median(times[1]), rows[0].gain if rows else None, text)
