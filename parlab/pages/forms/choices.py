"""What a person chose to see of an experiment, from the address: the shape of its table, the axes of its figures."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from django.http import QueryDict

from parlab.charts.axes import GPUS, RUN, axis_title
from parlab.charts.fields import field_heading
from parlab.charts.format import field_title
from parlab.charts.measures import DEFAULT, MEASURES, SCALES, Options, Scale, measured
from parlab.charts.points import RunPoint, is_number, varied
from parlab.lab.models import Run
from parlab.lab.selectors.figures import figure_title
from parlab.lab.selectors.findings import Doubts
from parlab.lab.selectors.records import run_records, varied_fields
from parlab.reports.pivot import AGGREGATES, Table, pivot, with_best

FIGURE_KEYS = ("y", "x", "by", "x_scale", "y_scale", "time")
PIVOT_KEYS = ("rows", "columns", "value", "of")
MAX_AXES = 3
_OFFERED_AXES = 60
_NOT_AXES = frozenset({"state", "reason", "origin", "doubts", "run", "label"})


class Choice(NamedTuple):
    """An entry of a list to choose from."""

    value: str
    title: str
    is_chosen: bool


def kept_query(query: QueryDict, keys: Sequence[str]) -> str:
    """Return the part of an address with these keys."""
    part = QueryDict(mutable=True)
    for key in keys:
        if values := [value for value in query.getlist(key) if value][:MAX_AXES]:
            part.setlist(key, values)
    return part.urlencode()


def figure_options(query: QueryDict) -> Options:
    """Read what the figures show; invalid values become the default, unknown axes are left to the figure."""

    def scale(name: str) -> Scale:
        return next((scale for scale in SCALES if scale == query.get(name)), "auto")

    y = query.get("y", "")
    return Options(
        y=y if y in MEASURES else DEFAULT,
        x=query.get("x", ""),
        by=[axis for axis in query.getlist("by") if axis][:MAX_AXES],
        x_scale=scale("x_scale"),
        y_scale=scale("y_scale"),
        as_share=query.get("time") == "share",
    )


class Select(NamedTuple):
    """A field that chooses one entry of a list."""

    name: str
    label: str
    choices: list[Choice]


def figure_query(query: QueryDict) -> str:
    """Return the part of an address that chooses what the figures show."""
    return kept_query(query, FIGURE_KEYS)


def figure_selects(query: QueryDict, points: Sequence[RunPoint], fields: Collection[str]) -> list[Select]:
    """Return the selects for these fields of Options, with the measures and axes of the points."""
    options = figure_options(query)
    axes = varied(points)
    gpus = [GPUS] if len({point.gpus for point in points}) > 1 else []
    selects = {
        "y": Select("y", "Show", [Choice(n, m.heading, n == options.y) for n, m in measured(points).items()]),
        "x": Select("x", "against", _axis_choices([*gpus, *axes, RUN], [options.x], points)),
        "by": Select("by", "lines by", _axis_choices(axes, options.by, points)),
        "x_scale": Select("x_scale", "x axis", _scale_choices(options.x_scale)),
        "y_scale": Select("y_scale", "y axis", _scale_choices(options.y_scale)),
        "as_share": Select(
            "time",
            "phases in",
            [Choice("", "seconds", not options.as_share), Choice("share", "per cent", options.as_share)],
        ),
    }
    return [select for field, select in selects.items() if field in fields and select.choices]


def _axis_choices(axes: Sequence[str], chosen: Sequence[str], points: Sequence[RunPoint]) -> list[Choice]:
    choices = [Choice(axis, _axis_text(axis, points), axis in chosen) for axis in axes]
    return [Choice("", "Automatic", not any(choice.is_chosen for choice in choices)), *choices]


def _axis_text(axis: str, points: Sequence[RunPoint]) -> str:
    """Return an axis as an option, which templates escape."""
    return axis_title(axis, points) if axis in (GPUS, RUN) else field_heading(axis)


def _scale_choices(chosen: Scale) -> list[Choice]:
    return [Choice(scale, field_title(scale), scale == chosen) for scale in SCALES]


class PivotRow(NamedTuple):
    headings: list[str]
    cells: list[PivotCell]


class PivotCell(NamedTuple):
    """A cell of a pivot table, with its run where it shows a single run."""

    text: str
    kind: str
    note: str
    is_best: bool
    run: Run | None
    doubts: Sequence[Any]


class Pivot(NamedTuple):
    """The table that the address describes."""

    table: Table
    rows: list[PivotRow]
    left_out: int

    @property
    def title(self) -> str:
        return _title(self.table.value)


def pivot_asked(query: QueryDict) -> bool:
    """Whether the address describes a pivot table."""
    return any(query.getlist("rows")) or any(query.getlist("columns"))


def pivot_of(query: QueryDict, runs: Sequence[Run], doubts: Mapping[int, Doubts]) -> Pivot:
    """Arrange the runs as `?rows=...&columns=...&value=...` describes.

    Raises ValueError for an unknown field, with the names of the fields.
    """
    rows, columns = _named(query, "rows"), _named(query, "columns")
    records = run_records(runs, doubts)
    value = query.get("value") or next(iter(_values(varied_fields(records))), "step_time_s")
    table = with_best(pivot(records, rows, columns, value, query.get("of") or "median"))
    return Pivot(table, _rows(table, runs), len(table.left_out))


def pivot_selects(query: QueryDict, runs: Sequence[Run]) -> list[Select]:
    """Return the selects that shape a table of these runs: the fields on which they differ, and their numbers."""
    fields = varied_fields(run_records(runs))
    rows, columns, value = _named(query, "rows"), _named(query, "columns"), query.get("value", "")
    axes = [name for name in fields if name not in _NOT_AXES and not _is_measured(name)][:_OFFERED_AXES]
    axes += [name for name in (*rows, *columns) if name not in axes]

    values = [*_values(fields), *([value] if value else [])]
    selects = [
        Select("rows", "Rows", _field_choices(axes, rows[:1], "as swept")),
        Select("rows", "then", _field_choices(axes, rows[1:2], "none")),
        Select("columns", "columns", _field_choices(axes, columns[:1], "none")),
        Select("value", "value", _field_choices(values, [value])),
        Select("of", "aggregate", [Choice(name, name, name == query.get("of", "median")) for name in AGGREGATES]),
    ]
    return [select for select in selects if select.choices]


def _field_choices(names: Sequence[str], chosen: Sequence[str], none: str = "") -> list[Choice]:
    """Return one choice per field, after `none` (the choice of no field) where there is such a choice."""
    choices = [Choice(name, _title(name), name in chosen) for name in dict.fromkeys(names)]
    return [Choice("", none, not any(choice.is_chosen for choice in choices)), *choices] if none else choices


def _named(query: QueryDict, key: str) -> list[str]:
    return [name for name in query.getlist(key) if name][:MAX_AXES]


def _values(fields: Sequence[str]) -> list[str]:
    measured = [name for name in fields if _is_measured(name)]
    # Main measures first, since there are many timers and figures of files.
    return sorted(measured, key=lambda name: name.startswith(("timer.", "figure.")))


def _is_measured(name: str) -> bool:
    """Whether a field of a record is a measurement, not a setting."""
    if name.startswith(("timer.", "figure.", "loss_")):
        return True
    return "." not in name and name.endswith(("_s", "_bytes", "_pct", "_per_sample", "_per_gpu", "_per_iteration"))


def _title(name: str) -> str:
    if name.startswith(("timer.", "figure.", "argument.")):
        kind, _, rest = name.partition(".")
        return f"{rest} ({kind})"
    return figure_title(name) if _is_measured(name) else field_heading(name)


def _rows(table: Table, runs: Sequence[Run]) -> list[PivotRow]:
    rows = []
    for headings, cells in zip(table.row_texts, table.cells, strict=True):
        pivot_cells = [
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
        rows.append(PivotRow(headings, pivot_cells))
    return rows


def _note(note: str, low: float | None, high: float | None, table: Table) -> str:
    if low is None or high is None or not (is_number(low) and is_number(high)):
        return note
    factor = table.unit.factor
    return f"{note}, from {low / factor:.6g} to {high / factor:.6g} {table.unit.name}".strip()
