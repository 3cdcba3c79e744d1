"""Plain data parallel scripts: what their phases and samples say about the cause of slow steps."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from django.contrib.auth.models import User
from django.test import Client

from parlab.advice.growth import growth, growth_at
from parlab.advice.waterfalls.measured import Step, timers_of, waterfall_of
from parlab.ingest.summaries.attempt_summaries import attempt_summarise
from parlab.lab.models import Run, TrackedRun
from parlab.lab.selectors.analysis.advice import run_advice
from parlab.tracking.streams import Opening, StreamBatch, stream_open, streams_apply

from .test_waterfall import by_rank, ms

pytestmark = pytest.mark.django_db
STEPS = 20
HEALTHY = {"data-loading": 0.001, "forward-compute": 0.02, "backward-compute": 0.04, "optimizer": 0.002}


def test_communication_and_waiting_inside_the_backward_pass() -> None:
    timers = {"forward-compute": by_rank(0.02, 0.05), "backward-compute": by_rank(0.15, 0.12)}
    parts = ms(waterfall_of(Step("Run 1", 0.2, 2, timers_of(timers), reduces_in_backward=True)))
    assert parts == {"compute": 135.0, "data": 20.0, "straggler": 15.0, "unexplained": 30.0}
    # A shorter backward pass without longer work before it is that of a faster rank.
    timers["forward-compute"] = by_rank(0.02, 0.02)
    parts = ms(waterfall_of(Step("Run 1", 0.2, 2, timers_of(timers), reduces_in_backward=True)))
    assert "straggler" not in parts


@pytest.mark.parametrize(
    ("values", "every_s", "is_growing"),
    [
        (np.linspace(1e9, 3e9, 40), 15.0, True),
        (np.linspace(1e9, 3e9, 40), 1.0, False),  # a run of less than a minute
        (np.full(40, 1e9), 15.0, False),
        (np.where(np.arange(40) < 15, 1e9, 2e9), 15.0, False),  # a cache that is full
        (np.linspace(1e9, 1.01e9, 40), 15.0, False),
        (np.linspace(1e9, 3e9, 6), 100.0, False),
    ],
)
def test_only_memory_that_goes_on_growing_is_growth(values: Any, every_s: float, is_growing: bool) -> None:
    result = growth(every_s * np.arange(len(values), dtype=float), values)
    assert (result is not None) == is_growing
    if result is not None:
        assert result.bytes_per_s == pytest.approx(2e9 / (39 * every_s), rel=0.05)
        assert growth_at("node 0", result, 8e9).full_in_s == pytest.approx(5e9 / result.bytes_per_s)


def phases(cause: str, rank: int, step: int) -> dict[str, float]:
    """Return the phases of a step with a planted cause."""
    timers = dict(HEALTHY)
    if cause == "loading":
        timers["data-loading"] = 0.1
    if cause == "rank":
        timers["forward-compute" if rank else "backward-compute"] += 0.06
    if cause == "batch":
        timers |= {"forward-compute": 0.002, "backward-compute": 0.005, "optimizer": 0.02}
    if cause == "network":
        timers["backward-compute"] = 0.3
    if cause == "checkpoint" and step % 5 == 4 and rank == 0:
        timers["save-checkpoint"] = 0.2
    return timers


def report(cause: str, user: User) -> Run:
    """Report a run of two ranks on two nodes that is still running."""
    at = 1.7e9
    streams = [
        stream_open(
            run_id=cause, key=f"{cause}{rank}", user=user,
            opening=Opening(experiment="Plain", rank=rank, host=f"host-{rank}", environment={"memory_bytes": 16 << 30}),
        )
        for rank in (0, 1)
    ]  # fmt: skip
    for rank, stream in enumerate(streams):
        lines, now = [], at
        for step in range(STEPS):
            timers = phases(cause, rank, step)
            now += sum(phases(cause, 0, step).values())
            lines.append({"t": now, "rank": rank, "event": "step", "step": step, "timers_s": timers})
            lines.append({"t": now, "rank": rank, "event": "step", "step": step, "metrics": {"loss": 1.0}})
        if rank == 0:
            growing = [(2 + (0.2 * sample if cause == "memory" else 0)) * 2**30 for sample in range(40)]
            lines += [
                {"t": at + 15 * sample, "rank": -1, "event": "telemetry", "memory_bytes": int(value)}
                for sample, value in enumerate(growing)
            ]
        output = b"".join(json.dumps({"parlab": 1, **line}).encode() + b"\n" for line in lines)
        streams_apply(batches=[StreamBatch(cause, stream.key, 0, len(output), output, [])])
    run = TrackedRun.objects.select_related("run").get(uuid=cause).run
    attempt_summarise(attempt=run.attempts.get())
    return Run.objects.select_related("experiment", "config").get(pk=run.pk)


@pytest.mark.parametrize("cause", ["loading", "rank", "batch", "network", "checkpoint", "memory"])
def test_the_cause_is_the_first_advice_while_the_script_runs(cause: str, admin: User, page: Client) -> None:
    run = report(cause, admin)
    assert run.state == "running"
    first = run_advice(run).advice[0]
    assert first.kind == cause
    if cause == "rank":
        assert first.title == "Look at rank 1 on node host-1"
    if cause == "checkpoint":
        assert first.gain == pytest.approx(0.04 / (sum(HEALTHY.values()) + 0.04), abs=0.02)
        assert first.title.startswith("Save checkpoints less often: every")
    if cause == "memory":
        assert "is full in about" in first.title
    shown = page.get(f"{run.get_absolute_url()}time/").content.decode()
    assert first.title.partition(":")[0] in shown
    assert "Waterfall of a step" in shown
    assert "Try selected" not in shown


def test_a_healthy_script_gets_no_advice(admin: User) -> None:
    assert run_advice(report("nothing", admin)).advice == []
