"""The two panels of a run as HTML pages: configuration and results."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from django.template.loader import render_to_string
from django.utils.safestring import SafeString

from parlab.charts.format import SPACE
from parlab.charts.runs import curves
from parlab.charts.runs.curves import Curve
from parlab.charts.sweeps import device_map
from parlab.lab.models import Run
from parlab.lab.selectors.device_grids import device_grid
from parlab.lab.selectors.findings import run_doubts, run_findings
from parlab.lab.selectors.records import run_records
from parlab.lab.selectors.runs import config_sections, flat, run_figures, sections_in_use
from parlab.reports.facts import HEADLINES, Fact, numbers_of, timers_of
from parlab.reports.pivot import Record
from parlab.series import store

from .exports import data_url, style

PANELS = ("configuration", "results")
WIDTH = 1000
MAX_ARGUMENTS = 200
MAX_POINTS = 1_000
_UTILISATION = "GPU util"
"""Name of the GPU utilisation in imported files."""
BAR = 120
"""Length of the longest timer bar in pixels."""


class Panel(NamedTuple):
    """A page to be drawn as a picture."""

    name: str
    caption: str
    html: str


class Timer(NamedTuple):
    name: str
    text: str
    """Time in ms."""
    bar: int
    """Length in pixels."""


def step_figure(run: Run) -> Mapping[str, Any] | None:
    """Return the step time figure of a run as Plotly JSON, or None for a run without steps."""
    attempt = run.attempts.filter(number=run.attempt_number).first()
    if attempt is None:
        return None
    columns_by_rank = store.read_ranks(attempt.pk, "step_time_s", max_points=MAX_POINTS)
    drawing = curves.step_time(
        {
            rank: Curve(columns.steps.tolist(), columns.times.tolist(), columns.values.tolist())
            for rank, columns in columns_by_rank.items()
        },
        warmup_steps=int(run.resolved.get("train", {}).get("warmup_steps", 0)),
        iterations=run.iterations,
    )
    return None if drawing.figure is None else dict(json.loads(drawing.figure.to_json()))


def panels(run: Run, *, curve: bytes = b"") -> list[Panel]:
    """Return both panels of a run; `curve` is its step time figure as SVG."""
    findings = run_findings(run)
    (record,) = run_records([run], run_doubts(findings, [run]))
    shared = {"run": run, "experiment": run.experiment, "style": SafeString(style()), "width": WIDTH}
    results = _results(run, record) | {"findings": findings, "curve": data_url(curve, "image/svg+xml") if curve else ""}
    context = {"configuration": _configuration(run), "results": results}
    return [
        Panel(
            name,
            f"{name.capitalize()} of run {run.number}{f' ({run.shown_label})' if run.label else ''}",
            render_to_string(f"reports/panel_{name}.html", {**shared, **context[name]}),
        )
        for name in PANELS
    ]


def _configuration(run: Run) -> dict[str, Any]:
    """Return what applies to the run: no fields that its engine ignores, no placements that the map shows."""
    drawn = device_map.draw(device_grid(run))
    arguments = flat(run.launch.get("arguments", {}))
    visible_rows = [row for row in arguments if drawn is None or not row[0].startswith("device_mapping.")]
    return {
        "map": drawn,
        "sections": sections_in_use(run, config_sections(run.resolved, run.point, run.config))[0],
        "arguments": _side_by_side(visible_rows[:MAX_ARGUMENTS]),
        "left_out": max(0, len(visible_rows) - MAX_ARGUMENTS),
    }


def _results(run: Run, record: Record) -> dict[str, Any]:
    numbers = numbers_of(record)
    facts_drawn = {(fact.name, fact.text) for fact in numbers}
    fields = {fact.field for fact in numbers}
    return {
        "headlines": [(fact.name, *fact.text.partition(SPACE)) for fact in numbers if fact.field in HEADLINES],
        "numbers": [fact for fact in numbers if fact.field not in HEADLINES],
        "timers": _bars(timers_of(record)),
        # Figures of the file that are already among the numbers are not repeated.
        "figures": [
            (name, text)
            for name, text in run_figures(run)
            if (name, text) not in facts_drawn and not (name == _UTILISATION and "gpu_util_pct" in fields)
        ],
    }


def _bars(timers: Sequence[Fact]) -> list[Timer]:
    longest = max((timer.value for timer in timers), default=0) or 1
    return [Timer(timer.name, timer.text, round(BAR * timer.value / longest)) for timer in timers]


def _side_by_side(facts: list[tuple[str, str]]) -> list[list[tuple[str, str]]]:
    """Split a long list into two columns."""
    half = (len(facts) + 1) // 2 if len(facts) > 12 else len(facts)
    return [part for part in (facts[:half], facts[half:]) if part]
