"""Links that were measured before a run: from what the node prints to the summary."""

from __future__ import annotations

from typing import Any

import pytest

from parlab.ingest.batches.events import Limits, parse
from parlab.ingest.summaries.summary import summary_of
from parlab.series.columns import Columns

from .output import event, training


def link(source: Any = 0, target: Any = 1, **more: Any) -> bytes:
    numbers = {"round_trip_s": 0.0201, "measured_bits_per_s": 9.9e8, "delay_s": 0.01, "bits_per_s": 1e9}
    return event("link", rank=-1, source=source, target=target, by="forwarder", **{**numbers, **more})


def links(output: bytes) -> Any:
    series: dict[str, dict[int, Columns]] = {}
    for (metric, rank), columns in parse(output, limits=Limits(3)).series.items():
        series.setdefault(metric, {})[rank] = columns
    return summary_of(series, {}).get("links")


def test_measured_links_are_part_of_the_summary_and_steps_are_as_they_were() -> None:
    output = link(1, 2, measured_bits_per_s=None) + link() + training(4)
    assert links(output) == [
        {"source": 0, "target": 1, "round_trip_s": 0.0201, "bits_per_s": 9.9e8},
        {"source": 1, "target": 2, "round_trip_s": 0.0201},
    ]
    parsed, plain = parse(output, limits=Limits(3)), parse(training(4), limits=Limits(3))
    assert parsed.last_step == plain.last_step
    assert parsed.series["step_time_s", 0].steps.tolist() == plain.series["step_time_s", 0].steps.tolist()


@pytest.mark.parametrize(
    "line",
    [
        link(source=3),
        link(source=-1),
        link(target="1"),
        link(target=None),
        link(target=True),
        link(round_trip_s="fast", measured_bits_per_s=[1]),
        link(round_trip_s=-1.0, measured_bits_per_s=1e300),
        event("link", rank=-1),
    ],
)
def test_invalid_links_are_ignored(line: bytes) -> None:
    assert links(line + training(2)) is None
