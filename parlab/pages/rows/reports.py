"""An experiment as a downloadable report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from parlab.charts.format import DASH, quantity
from parlab.lab.models import Experiment, Finding, Run
from parlab.lab.selectors.analysis.utilisation import measured_pct
from parlab.lab.selectors.findings import RUN, experiment_findings, run_doubts
from parlab.reports.markdown import Cell, Doubt, Report
from runners.wire.protocol import RunState

_NUMBERS = {
    "step_time": ("Step time", "step_time_s", "s"),
    "samples": ("Throughput", "samples_per_s", "samples/s"),
    "tokens": ("Token throughput", "tokens_per_s", "tokens/s"),
    "memory": ("Peak memory", "memory_max_bytes", "B"),
}
_SHARES = {"mfu": ("MFU", "mfu"), "utilisation": ("GPU utilisation", "gpu_util")}
"""Columns that appear only if a run has a value."""


def experiment_report(experiment: Experiment) -> Report:
    """Return the runs of an experiment with their results and the findings about them."""
    runs = list(experiment.runs.order_by("number"))
    findings = experiment_findings(experiment)
    numbers = {finding.pk: number for number, finding in enumerate(findings, 1)}
    doubts = run_doubts(findings, runs)
    shares = {
        column: (title, name)
        for column, (title, name) in _SHARES.items()
        if any(measured_pct(run.summary, name) is not None for run in runs)
    }
    return Report(
        title=experiment.name,
        question=experiment.question,
        source=experiment.source,
        columns=[
            *("Run", "Point", "State"),
            *(title for title, _, _ in _NUMBERS.values()),
            *(title for title, _ in shares.values()),
            "Reason",
        ],
        rows=[_run_cells(run, doubts.get(run.pk, {}), numbers, shares) for run in runs],
        doubts=[_doubt_of(finding) for finding in findings],
    )


def _run_cells(
    run: Run,
    doubts: Mapping[str, Sequence[Finding]],
    numbers: Mapping[int, int],
    shares: Mapping[str, tuple[str, str]],
) -> list[Cell]:
    def marks(column: str) -> list[int]:
        return [numbers[finding.pk] for finding in doubts.get(column, ())]

    state = "OOM" if run.state == RunState.OOM else run.state
    measured = [
        Cell(quantity(getattr(run, field), unit) if getattr(run, field) is not None else DASH, marks(column))
        for column, (_, field, unit) in _NUMBERS.items()
    ]
    return [
        Cell(f"#{run.number}", marks(RUN)),
        Cell(run.shown_label or DASH),
        Cell(", ".join([state, *run.marks])),
        *measured,
        *(Cell(quantity(measured_pct(run.summary, name), "%"), marks(column)) for column, (_, name) in shares.items()),
        Cell(run.reason or DASH),
    ]


def _doubt_of(finding: Finding) -> Doubt:
    reason = finding.acknowledged_reason if finding.is_acknowledged else ""
    return Doubt(finding.severity, finding.message, finding.rule, reason)
