"""Three daemons whose links the forwarder shapes, beside the emulation of one supervisor, over both published tables.

PARLAB_BENCH_CELLS=1 measures so many of the 24 cells. All of them are written to build/three_nodes.json.
"""

from __future__ import annotations

import json
import os
import sys
from statistics import median
from typing import Any

from parlab.demo.networks import LINKS, network_sweeps
from runners.config import RunConfig, expand
from tests.bench import ROOT
from tests.bench.campaigns.networks import emulation
from tests.bench.nodes import POOL, Nodes, nodes_of
from tests.bench.result import Result, Scale

CELLS = 24


def three_nodes_deviation_pct(scale: Scale) -> Result:
    """Measure how far three daemons deviate from the emulation of one supervisor, over both published tables."""
    chosen = _cells(1 if scale.is_quick else int(os.environ.get("PARLAB_BENCH_CELLS", CELLS)))
    cells = []
    for delay_ms, rate in LINKS:
        here = [config for config in chosen if config.network.delay_ms == delay_ms]
        if not here:
            continue
        with nodes_of(3, float(delay_ms or 0.0), rate) as nodes:
            for config in here:
                cells.append(_measured(nodes, config, scale))
                sys.stderr.write(f"{cells[-1]}\n")
    path = ROOT / "build" / "three_nodes.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(cells, indent=1) + "\n")
    worst = max(cells, key=lambda cell: abs(cell["deviation_pct"]))
    deviation = abs(worst["deviation_pct"])
    against = (
        f"one supervisor: {worst['one_supervisor_s']} s, daemons {worst['three_daemons_s']} s ({worst['schedule']},"
        f" micro batch {worst['micro_batch_size']}, {worst['delay_ms']} ms), worst of {len(cells)} cells"
    )
    return Result(deviation, against, 1)


def _measured(nodes: Nodes, config: RunConfig, scale: Scale) -> dict[str, Any]:
    """Run a cell on the daemons and by one supervisor."""
    data = config.resolved()
    data["train"] |= {"iterations": 2, "global_batch_size": 12} if scale.is_quick else {"iterations": 3}
    bare = {**data, "network": {"apply": "none"}, "cluster": {**data["cluster"], "pool": POOL}}
    # At the same time: the ranks mostly wait, and a busy machine slows down both.
    with emulation(data) as emulated_steps:
        over_nodes, emulated = median(nodes.run(bare).step_times_s()), median(emulated_steps())
    return {
        "schedule": config.parallel.schedule,
        "micro_batch_size": config.train.micro_batch_size,
        "delay_ms": config.network.delay_ms,
        "bandwidth_gbps": config.network.bandwidth_gbps,
        "three_daemons_s": round(over_nodes, 3),
        "one_supervisor_s": round(emulated, 3),
        "deviation_pct": round(100 * (over_nodes / emulated - 1), 2),
    }


def _cells(count: int) -> list[RunConfig]:
    """Return so many cells of both tables: those with small micro batches and long delays first."""
    sweep = network_sweeps()[1]
    points = [point.config for point in expand(sweep.data, sweep.sweep) if point.config]
    tables = [config for config in points if config.parallel.warmup_slope == 1]
    return sorted(tables, key=_dependence)[:count]


def _dependence(config: RunConfig) -> tuple[int, float, str]:
    return config.train.micro_batch_size, -config.network.delay_ms, config.parallel.schedule
