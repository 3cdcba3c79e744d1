"""What the tabs of an experiment show beside its charts: table, time, configuration, reports."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from django.core.paginator import Paginator
from django.http import QueryDict

from parlab.charts.panels.catalogue import PANELS
from parlab.charts.svg import sparkline
from parlab.charts.sweeps import device_map
from parlab.charts.sweeps.device_map import DeviceMap
from parlab.fleet import services as fleet
from parlab.lab.models import Comment, Experiment, Report, Run
from parlab.lab.selectors.analysis.sweep import METRICS, metrics_of
from parlab.lab.selectors.device_grids import device_grid
from parlab.lab.selectors.findings import Doubts
from parlab.lab.selectors.lists import experiment_tags
from parlab.lab.services.pages.panel_layouts import Placed
from parlab.pages.forms.choices import FIGURE_KEYS, PIVOT_KEYS, Pivot, kept_query, pivot_asked, pivot_of, pivot_selects
from parlab.pages.reads.evidence import evidence_of, side_by_side
from parlab.pages.reads.experiment_page import ExperimentPage
from parlab.pages.reads.experiment_panels import Grid, PanelView
from parlab.pages.reads.experiment_runs import ListedRun
from parlab.pages.reads.experiment_series import METRICS as METRICS_OF_SERIES
from parlab.pages.reads.notes import notes_html
from parlab.pages.rows.findings import finding_rows
from parlab.pages.rows.runs import Shown, run_table
from parlab.pages.rows.sources import source_views
from parlab.pages.rows.sweep import sweep_tables
from parlab.publishing.figures import compared_curves as curves

RUNS_PER_PAGE = 200
LOSS_POINTS = 40
FINDINGS_ON_PAGE = 10
MAX_MAPS = 3
CELLS_ON_PAGE = 3_000
"""Cells of tables of imported documents on a page; further files have their own pages."""


def table_context(
    page: ExperimentPage, query: QueryDict, decided: Mapping[str, bool], stated: Collection[str] | None = None
) -> dict[str, Any]:
    """Return the table of runs, the tables of the sweep, and what the engine measured beside them.

    `decided` says which columns a person shows or hides; those that an address has `stated` come first.
    """
    part = Paginator(page.listed.rows, RUNS_PER_PAGE).get_page(query.get("page"))
    rows = list(part.object_list)
    listed = [row.run for row in rows]
    waiting = fleet.waiting_reasons(listed)
    table, problem = _pivot(query, page.runs, page.doubts)
    has_results = any(run.is_final or run.summary for run in page.runs)
    return {
        "page": part,
        "table": run_table(
            listed,
            waiting=waiting,
            doubts=page.doubts,
            surroundings=page.surroundings,
            shown=_shown(rows),
            has_best=not page.answer.is_lead_unsure,
            decided=decided,
            stated=stated,
        ),
        "columns_query": f"columns={','.join(stated)}&" if stated else "",
        "sweep": sweep_tables(page.runs, page.plan.points, _metric(query, page.runs), page.doubts),
        "metrics": [(name, measure.title) for name, measure in metrics_of(page.runs).items()],
        "pivot": table,
        "pivot_problem": problem,
        "pivot_selects": pivot_selects(query, page.runs) if has_results and len(page.runs) > 1 else None,
        "has_results": has_results,
        "kept": kept_query(query, (*PIVOT_KEYS, *FIGURE_KEYS)),
        "evidence": evidence_of(page.experiment, page.runs),
    }


def _shown(rows: Sequence[ListedRun]) -> dict[int, Shown]:
    """Return how the table shows runs: as the list does, with their loss as a line."""
    losses = _losses([row.run for row in rows])
    return {
        row.run.pk: Shown(row.key, row.shown.name, row.whisker, _loss_line(losses.get(row.run.pk, []), row))
        for row in rows
    }


def _losses(runs: Sequence[Run]) -> dict[int, list[float]]:
    """Read the loss of each run in few points."""
    read = curves.slowest_ranks(runs, METRICS_OF_SERIES["loss"].names, LOSS_POINTS)
    return {runs[place].pk: columns.thinned(LOSS_POINTS).values.tolist() for place, columns in read.items()}


def _loss_line(values: Sequence[float], row: ListedRun) -> str:
    if len(values) < 2:
        return ""
    look = row.shown.look._replace(dash=0)
    return sparkline(values, "Loss", width=64, height=18, look=look, is_filled=False)


def _metric(query: QueryDict, runs: Sequence[Run]) -> str:
    """Return the metric of the sweep that the address names, else the first that a run has."""
    asked = query.get("metric", "")
    if asked in METRICS:
        return asked
    measured = (name for name, metric in METRICS.items() if any(metric.value(run) is not None for run in runs))
    return next(measured, "step_time")


def _pivot(query: QueryDict, runs: list[Run], doubts: Mapping[int, Doubts]) -> tuple[Pivot | None, str]:
    """Return the pivot table that the address describes, or the problem with it."""
    if not pivot_asked(query):
        return None, ""
    try:
        return pivot_of(query, runs, doubts), ""
    except ValueError as error:
        return None, f"Invalid table: {error}."


def time_context(page: ExperimentPage) -> dict[str, Any]:
    """Return where the time of steps goes: phases of each run, maps of devices, further pages."""
    return {
        "sizes": side_by_side(page.experiment, page.runs, page.points),
        "device_maps": device_maps(page.runs),
        "panels": _time_panels(page),
    }


def _time_panels(page: ExperimentPage) -> list[PanelView]:
    """Return the panels about time that the runs have data for, side by side."""
    grid = Grid(page.experiment, page.runs, page.listed, page.query, page.points)
    names = ("phases", "steps")
    height = max(PANELS[name].height(grid.data) for name in names)
    placed = [Placed(name, 6, height) for name in names]
    return [view for panel in placed if (view := grid.view(panel)) is not None]


def device_maps(runs: Sequence[Run]) -> list[tuple[Run, DeviceMap]]:
    """Draw the stages and shards of the first runs that have different maps."""
    maps: dict[str, tuple[Run, DeviceMap]] = {}
    for run in runs:
        grid = device_grid(run)
        drawn = device_map.draw(grid) if grid and repr(grid) not in maps else None
        if drawn is not None:
            maps[repr(grid)] = (run, drawn)
        if len(maps) == MAX_MAPS:
            break
    return list(maps.values())


class Documents(NamedTuple):
    """The imported files of an experiment, and those whose tables its page shows."""

    sources: Sequence[Any]
    shown: Sequence[Any]


def documents_of(page: ExperimentPage) -> Documents:
    sources, shown, cells = source_views(page.experiment, page.findings), [], 0
    for source in sources:
        cells += source.cells
        if source.has_content and cells <= CELLS_ON_PAGE:
            shown.append(source)
    return Documents(sources, shown)


def configuration_context(page: ExperimentPage) -> dict[str, Any]:
    """Return what an experiment is made of: versions, points, files, findings."""
    documents = documents_of(page)
    archived = Run.everything.filter(experiment=page.experiment, hidden_at__isnull=False)
    return {
        "sources": documents.sources,
        "documents": documents.shown,
        "findings": page.findings,
        "rows": finding_rows(page.findings[:FINDINGS_ON_PAGE]),
        "tags": experiment_tags([page.experiment.pk]).get(page.experiment.pk, []),
        "archived_count": archived.count(),
    }


def report_context(experiment: Experiment) -> dict[str, Any]:
    """Return what people wrote about an experiment: reports, notes, comments."""
    return {
        "reports": list(Report.objects.filter(experiment=experiment).select_related("owner").defer("text")),
        "notes": notes_html(experiment.notes),
        "comments": list(Comment.objects.with_people().filter(experiment=experiment)),
    }
