"""Findings, and the numbers of runs and documents that they doubt."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from django.db.models import Q

from parlab.lab.models import Experiment, Finding, Run

RUN = "run"
"""Column of doubts about a run that no single number of it carries."""

# What a finding names -> the number of a run that a table shows for it (names of METRICS).
_COLUMNS = {
    "step_time_s": "step_time",
    "ms_per_sample": "step_time",
    "timers_s": "step_time",
    "samples_per_s": "samples",
    "tokens_per_s": "tokens",
    "gpu_mem_max_bytes": "memory",
    "memory_max_bytes": "memory",
    "memory_peak_bytes": "memory",
    "memory_bytes": "memory",
    "mfu": "mfu",
    "hfu": "mfu",
}

Doubts = Mapping[str, Sequence[Finding]]
"""Of one run: column -> findings, RUN for those of the run itself."""


def experiment_findings(experiment: Experiment) -> list[Finding]:
    """Read all findings of an experiment with what lists show of their run and source; open and grave ones first."""
    found = experiment.findings.select_related("run", "source", "acknowledged_by").defer(
        "run__resolved", "run__summary", "run__launch", "source__document"
    )
    return sorted(found, key=_rank)


def run_findings(run: Run) -> list[Finding]:
    """Read the findings of a run, those of its part of a document included."""
    mine = Q(run=run) | Q(run=None, source=None)
    if run.source_id is not None:
        mine |= Q(run=None, source=run.source_id)
    found = run.experiment.findings.filter(mine).select_related("run", "source", "acknowledged_by")
    found = found.defer("run__resolved", "run__summary", "run__launch", "source__document")
    places = _places([run])
    return sorted((finding for finding in found if run.pk in _runs_of(finding, places)), key=_rank)


def _rank(finding: Finding) -> tuple[bool, int, int]:
    return finding.is_acknowledged, list(Finding.Severity).index(Finding.Severity(finding.severity)), finding.pk


def run_doubts(findings: Iterable[Finding], runs: Iterable[Run]) -> dict[int, Doubts]:
    """Sort findings to the numbers of runs: id of the run -> column -> findings."""
    places = _places(runs)
    doubts: defaultdict[int, defaultdict[str, list[Finding]]] = defaultdict(lambda: defaultdict(list))
    for finding in findings:
        column = _COLUMNS.get(str(finding.where.get("figure")), RUN)
        for run in _runs_of(finding, places):
            doubts[run][column].append(finding)
    return {run: dict(columns) for run, columns in doubts.items()}


class _Places(NamedTuple):
    numbers: dict[int, int]
    """Number of a run -> its id."""
    parts: dict[tuple[int | None, str], list[int]]
    """Source and part of it -> the runs that were made of this part."""
    known: set[int]


def _places(runs: Iterable[Run]) -> _Places:
    places = _Places({}, {}, set())
    for run in runs:
        places.known.add(run.pk)
        places.numbers[run.number] = run.pk
        for part in _parts(run.place):
            places.parts.setdefault((run.source_id, part), []).append(run.pk)
    return places


def _parts(place: Mapping[str, Any]) -> list[str]:
    """Name the part of a document that a run was made of: its launch, its cell, or its row of a table."""
    if "segment" in place:
        return [f"segment {place['segment']}"]
    if "table" not in place or "row" not in place:
        return []
    row = f"table {place['table']} row {place['row']}"
    return [f"{row} column {place['column']}"] if "column" in place else [row]


def _runs_of(finding: Finding, places: _Places) -> list[int]:
    """Name the runs that a finding is about, among those of `places`."""
    if finding.run_id is not None:
        return [finding.run_id] if finding.run_id in places.known else []
    where = finding.where
    if finding.source_id is None:
        return [places.numbers[where["run"]]] if where.get("run") in places.numbers else []
    parts = _parts(where)
    if "column" in where and "row" in where:
        parts.append(f"table {where.get('table')} row {where['row']}")
    return [run for part in parts for run in places.parts.get((finding.source_id, part), [])]


class TableDoubts(NamedTuple):
    """Findings about the cells of one table of a document."""

    cells: dict[tuple[int, int], list[Finding]]
    columns: dict[int, list[Finding]]
    """Those about a whole column stand in its heading."""
    whole: list[Finding]


def table_doubts(findings: Iterable[Finding], source_id: int) -> dict[int, TableDoubts]:
    """Sort findings to the cells of a source's tables: index of the table -> its doubts."""
    doubts: dict[int, TableDoubts] = {}
    for finding in findings:
        where = finding.where
        if finding.source_id != source_id or "table" not in where:
            continue
        table = doubts.setdefault(where["table"], TableDoubts({}, {}, []))
        row, column = where.get("row"), where.get("column")
        if row is not None:
            table.cells.setdefault((row, column or 0), []).append(finding)
        elif column is not None:
            table.columns.setdefault(column, []).append(finding)
        else:
            table.whole.append(finding)
    return doubts


def figure_doubts(findings: Iterable[Finding], source_id: int) -> dict[tuple[str, str], list[Finding]]:
    """Sort findings to the figures that a document states: name and either "#index" or "line n" -> findings."""
    doubts: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        where = finding.where
        name = where.get("figure")
        if finding.source_id != source_id or not name or "table" in where:
            continue
        # Of a figure of a launch, the lines say which of the document's figures it is.
        is_numbered = "index" in where and "segment" not in where
        for place in [f"#{where['index']}"] if is_numbered else [f"line {line}" for line in finding.lines]:
            doubts.setdefault((name, place), []).append(finding)
    return doubts
