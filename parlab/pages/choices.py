"""What a person chose to see of an experiment: the shape of its table and the axes of its figures, from the address."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from django.http import QueryDict

from parlab.charts.axes import GPUS, RUN
from parlab.charts.format import field_title
from parlab.charts.measures import DEFAULT, MEASURES, SCALES, Options, Scale, measured
from parlab.charts.points import RunPoint, is_number, varied
from parlab.lab import selectors
from parlab.lab.models import Run
from parlab.lab.selectors.findings import Doubts
from parlab.reports.pivot import AGGREGATES, Table, pivot, with_best

FIGURE_KEYS = ("y", "x", "by", "x_scale", "y_scale", "time")
PIVOT_KEYS = ("rows", "columns", "value", "of")
MAX_AXES = 3
_OFFERED_AXES = 60
_NOT_AXES = frozenset({"state", "reason", "origin", "doubts", "run", "label"})


class Choice(NamedTuple):
    """One entry of a list to choose from."""

    value: str
    title: str
    is_chosen: bool


def kept_query(query: QueryDict, keys: Sequence[str]) -> str:
    """Keep the parts of an address that say what was chosen."""
    kept = QueryDict(mutable=True)
    for key in keys:
        if values := [value for value in query.getlist(key) if value][:MAX_AXES]:
            kept.setlist(key, values)
    return kept.urlencode()


def figure_options(query: QueryDict) -> Options:
    """Read what the figures shall show; what makes no sense is left to the figure."""

    def scale(name: str) -> Scale:
        return next((known for known in SCALES if known == query.get(name)), "auto")

    y = query.get("y", "")
    return Options(
        y=y if y in MEASURES else DEFAULT,
        x=query.get("x", ""),
        by=[axis for axis in query.getlist("by") if axis][:MAX_AXES],
        x_scale=scale("x_scale"),
        y_scale=scale("y_scale"),
        as_share=query.get("time") == "share",
    )


class FigureChoices(NamedTuple):
    """The lists beside the figures, with what is chosen."""

    y: list[Choice]
    x: list[Choice]
    by: list[Choice]
    x_scale: list[Choice]
    y_scale: list[Choice]
    time: list[Choice]
    query: str
    has_gpus: bool
    """Whether efficiency can be drawn."""
    has_per_sample: bool
    """Whether time per sample is worth a figure of its own."""
    has_map: bool
    """Whether two axes can."""
    has_roof: bool


def figure_choices(query: QueryDict, points: Sequence[RunPoint]) -> FigureChoices:
    """Offer the measures and axes that these runs have."""
    options = figure_options(query)
    axes = varied(points)
    more = [GPUS] if len({point.gpus for point in points}) > 1 else []

    def titled(names: Sequence[str], chosen: Sequence[str], automatic: str = "") -> list[Choice]:
        offered = [
            Choice(name, field_title(name) if name not in (GPUS, RUN) else name, name in chosen) for name in names
        ]
        return [*([Choice("", automatic, not any(o.is_chosen for o in offered))] if automatic else []), *offered]

    return FigureChoices(
        y=[Choice(name, measure.title, name == options.y) for name, measure in measured(points).items()],
        x=titled([*more, *axes, RUN], [options.x], "Automatic"),
        by=titled(axes, options.by, "Automatic"),
        x_scale=titled(SCALES, [options.x_scale]),
        y_scale=titled(SCALES, [options.y_scale]),
        time=[Choice("", "seconds", not options.as_share), Choice("share", "per cent", options.as_share)],
        query=kept_query(query, FIGURE_KEYS),
        has_gpus=bool(more),
        has_per_sample=bool(more) and options.y != "ms_per_sample" and "ms_per_sample" in measured(points),
        has_map=len(axes) > 1 or bool(axes and more),
        has_roof=any(point.roof and point.flops_per_gpu for point in points),
    )


class PivotRow(NamedTuple):
    headings: list[str]
    cells: list[PivotCell]


class PivotCell(NamedTuple):
    """A cell of a pivot with the run that it came from, if that is one."""

    text: str
    kind: str
    note: str
    is_best: bool
    run: Run | None
    doubts: Sequence[Any]


class Pivot(NamedTuple):
    """The table that a person shaped, or what was wrong with the wish."""

    table: Table
    rows: list[PivotRow]
    left_out: int

    @property
    def title(self) -> str:
        return _title(self.table.value)


class PivotChoices(NamedTuple):
    """What a table can be shaped of."""

    rows: list[Choice]
    then: list[Choice]
    columns: list[Choice]
    values: list[Choice]
    of: list[Choice]


def pivot_asked(query: QueryDict) -> bool:
    """Say whether the address asks for a table of its own shape."""
    return any(query.getlist("rows")) or any(query.getlist("columns"))


def pivot_of(query: QueryDict, runs: Sequence[Run], doubts: Mapping[int, Doubts]) -> Pivot:
    """Shape the runs as `?rows=...&columns=...&value=...` says.

    Raises ValueError for a field that nobody has, with those that there are.
    """
    rows, columns = _named(query, "rows"), _named(query, "columns")
    records = selectors.run_records(runs, doubts)
    value = query.get("value") or next(iter(_values(selectors.varied_fields(records))), "step_time_s")
    table = with_best(pivot(records, rows, columns, value, query.get("of") or "median"))
    return Pivot(table, _rows(table, runs), len(table.left_out))


def pivot_choices(query: QueryDict, runs: Sequence[Run]) -> PivotChoices:
    """Offer the fields on which these runs differ."""
    fields = selectors.varied_fields(selectors.run_records(runs))
    rows, columns, value = _named(query, "rows"), _named(query, "columns"), query.get("value", "")
    axes = [name for name in fields if name not in _NOT_AXES and not _is_measured(name)][:_OFFERED_AXES]
    axes += [name for name in (*rows, *columns) if name not in axes]

    def choices(names: Sequence[str], chosen: Sequence[str], none: str = "") -> list[Choice]:
        listed = [Choice(name, _title(name), name in chosen) for name in dict.fromkeys(names)]
        return [Choice("", none, not any(one.is_chosen for one in listed)), *listed] if none else listed

    return PivotChoices(
        choices(axes, rows[:1], "as the sweep is"),
        choices(axes, rows[1:2], "nothing more"),
        choices(axes, columns[:1], "nothing"),
        choices([*_values(fields), *([value] if value else [])], [value]),
        [Choice(name, name, name == query.get("of", "median")) for name in AGGREGATES],
    )


def _named(query: QueryDict, key: str) -> list[str]:
    return [name for name in query.getlist(key) if name][:MAX_AXES]


def _values(fields: Sequence[str]) -> list[str]:
    measured = [name for name in fields if _is_measured(name)]
    # Headlines first: timers and figures of files are many.
    return sorted(measured, key=lambda name: name.startswith(("timer.", "figure.")))


def _is_measured(name: str) -> bool:
    """Whether a field of a record was measured, not set."""
    if name.startswith(("timer.", "figure.", "loss_")):
        return True
    return "." not in name and name.endswith(("_s", "_bytes", "_pct", "_per_sample", "_per_gpu", "_per_iteration"))


def _title(name: str) -> str:
    if name.startswith(("timer.", "figure.", "argument.")):
        kind, _, rest = name.partition(".")
        return f"{rest} ({kind})"
    return selectors.figure_title(name) if _is_measured(name) else field_title(name)


def _rows(table: Table, runs: Sequence[Run]) -> list[PivotRow]:
    found = []
    for headings, cells in zip(table.row_texts, table.cells, strict=True):
        shown = [
            PivotCell(
                cell.text,
                cell.state,
                _note(cell.note, cell.low, cell.high, table),
                cell.is_best,
                runs[cell.records[0]] if len(cell.records) == 1 else None,
                cell.doubts,
            )
            for cell in cells
        ]
        found.append(PivotRow(headings, shown))
    return found


def _note(note: str, low: float | None, high: float | None, table: Table) -> str:
    if low is None or high is None or not (is_number(low) and is_number(high)):
        return note
    factor = table.unit.factor
    return f"{note}, from {low / factor:.6g} to {high / factor:.6g} {table.unit.name}".strip()
