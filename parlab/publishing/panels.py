"""The two panels of a run as pages of their own: what it was set to, and what came out."""

from __future__ import annotations

from typing import NamedTuple

from django.template.loader import render_to_string
from django.utils.safestring import SafeString

from parlab.lab import selectors
from parlab.lab.models import Run
from parlab.reports.shapes import run_block

from .exports import style

PANELS = ("configuration", "results")
WIDTH = 1000
MAX_ARGUMENTS = 200
_FACTS = ("numbers", "timers")


class Panel(NamedTuple):
    """A page that is about to become a picture."""

    name: str
    caption: str
    html: str


def _side_by_side(facts: list[tuple[str, str]]) -> list[list[tuple[str, str]]]:
    """Lay a long list out in two columns."""
    half = (len(facts) + 1) // 2 if len(facts) > 12 else len(facts)
    return [part for part in (facts[:half], facts[half:]) if part]


def panels(run: Run) -> list[Panel]:
    """Write both panels of a run, from what is stored of it."""
    findings = selectors.run_findings(run)
    doubts = selectors.run_doubts(findings, [run])
    (record,) = selectors.run_records([run], doubts)
    tables = []
    for what in _FACTS:
        try:
            block = run_block(record, {"what": what})
        except ValueError:
            continue  # it has none of these
        tables.append((what.capitalize(), [(row[0].text, row[1].text) for row in block.rows]))
    shared = {"run": run, "experiment": run.experiment, "style": SafeString(style())}
    context = {
        "configuration": {
            "sections": selectors.config_sections(run.resolved, run.point, run.config),
            "arguments": _side_by_side(selectors.flat(run.launch.get("arguments", {}))[:MAX_ARGUMENTS]),
        },
        "results": {"tables": tables, "figures": selectors.run_figures(run), "findings": findings},
    }
    return [
        Panel(
            name,
            f"{name.capitalize()} of run {run.number}{f' ({run.label})' if run.label else ''}",
            render_to_string(f"reports/panel_{name}.html", {**shared, **context[name]}),
        )
        for name in PANELS
    ]
