"""Findings, sorted to the numbers of runs and documents that they concern."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from django.db.models import Q, QuerySet

from parlab.lab.models import Experiment, Finding, Run, Source

RUN = "run"
"""Column of findings about a run as a whole."""

# Figure of a finding -> column in tables of runs (names of METRICS).
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
"""Findings of one run by column; RUN for those of the run as a whole."""


def experiment_findings(experiment: Experiment) -> list[Finding]:
    """Return all findings of an experiment with their run and source; open findings and errors first."""
    return sorted(_with_what_is_shown(experiment.findings.all()), key=_rank)


def run_findings(run: Run) -> list[Finding]:
    """Return the findings of a run, including those of its part of a document."""
    candidates = Q(run=run) | Q(run=None, source=None)
    if run.source_id is not None:
        candidates |= Q(run=None, source=run.source_id)
    findings = _with_what_is_shown(run.experiment.findings.filter(candidates))
    places = _places([run])
    return sorted((finding for finding in findings if run.pk in _runs_of(finding, places)), key=_rank)


def _with_what_is_shown(findings: QuerySet[Finding]) -> QuerySet[Finding]:
    """Read findings with the number of their run, their source without its document, and who acknowledged them."""
    own = [field.name for field in Finding._meta.concrete_fields]
    of_source = [f"source__{field.name}" for field in Source._meta.concrete_fields if field.name != "document"]
    related = findings.select_related("run", "source", "acknowledged_by")
    return related.only(*own, *of_source, "run__number", "acknowledged_by__username")


def _rank(finding: Finding) -> tuple[bool, int, int]:
    return finding.is_acknowledged, list(Finding.Severity).index(Finding.Severity(finding.severity)), finding.pk


def run_doubts(findings: Iterable[Finding], runs: Iterable[Run]) -> dict[int, Doubts]:
    """Assign findings to columns of runs: run id -> column -> findings."""
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
    """Source and part of it -> ids of the runs created from this part."""
    ids: set[int]


def _places(runs: Iterable[Run]) -> _Places:
    places = _Places({}, {}, set())
    for run in runs:
        places.ids.add(run.pk)
        places.numbers[run.number] = run.pk
        for part in _parts(run.place):
            places.parts.setdefault((run.source_id, part), []).append(run.pk)
    return places


def _parts(place: Mapping[str, Any]) -> list[str]:
    """Name the part of a document that a run was created from: a segment, or a cell or row of a table."""
    if "segment" in place:
        return [f"segment {place['segment']}"]
    if "table" not in place or "row" not in place:
        return []
    row = f"table {place['table']} row {place['row']}"
    return [f"{row} column {place['column']}"] if "column" in place else [row]


def _runs_of(finding: Finding, places: _Places) -> list[int]:
    """Return the ids of the runs that a finding concerns, among those in `places`."""
    if finding.run_id is not None:
        return [finding.run_id] if finding.run_id in places.ids else []
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
    """Findings about a whole column, shown in its heading."""
    whole: list[Finding]


def table_doubts(findings: Iterable[Finding], source_id: int) -> dict[int, TableDoubts]:
    """Assign findings to the cells of the tables of a source: index of the table -> findings."""
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
    """Assign findings to the figures in a document: (name, "#index" or "line n") -> findings."""
    doubts: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        where = finding.where
        name = where.get("figure")
        if finding.source_id != source_id or not name or "table" in where:
            continue
        # Figures of a segment are identified by their lines.
        is_numbered = "index" in where and "segment" not in where
        for place in [f"#{where['index']}"] if is_numbered else [f"line {line}" for line in finding.lines]:
            doubts.setdefault((name, place), []).append(finding)
    return doubts
