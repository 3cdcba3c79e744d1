"""Rows of tables of runs, rendered without a template: a page has hundreds of rows of up to twenty columns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from django import template
from django.utils.html import escape, format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.text import Truncator

from parlab.charts.format import DASH, Unit, for_column, unit_for
from parlab.lab.models import Run
from parlab.lab.selectors.findings import RUN
from parlab.lab.selectors.lists import RunLine, RunMarks
from parlab.lab.services.pages.list_columns import Column
from parlab.pages.requests.addresses import address
from parlab.pages.rows.runs import RunTable, TableRow, headline
from parlab.pages.templatetags import numbers
from runners.wire.protocol import RunState

register = template.Library()


def _text(value: str) -> str:
    return f"<td>{escape(value) if value else DASH}</td>"


def _number_cell(value: str) -> str:
    return f'<td class="number">{value}</td>'


def _experiment(row: RunLine) -> str:
    experiment = row.run.experiment
    url = address("experiment", experiment.slug)
    return f'<td class="wide"><span class="one-line"><a href="{url}">{escape(experiment.name)}</a></span></td>'


def _state(row: RunLine) -> str:
    run = row.run
    label = numbers.state(run)
    if not run.reason:
        return f"<td>{label}</td>"
    reason = ""
    if run.state != RunState.FINISHED:
        reason = f' <span class="asks one-line">{escape(Truncator(run.reason).chars(160))}</span>'
    return f'<td class="wide why" title="{escape(run.reason)}">{label}{reason}</td>'


def _gpus(row: RunLine) -> str:
    if row.run.gpus:
        return _number_cell(numbers.counted(row.run.gpus))
    return _number_cell(
        '<span class="none" title="The source of the run does not state its number of GPUs">unknown</span>'
    )


def _findings(row: RunLine) -> str:
    if not row.findings:
        return _number_cell('<span class="none" title="none open">0</span>')
    url = address("run", row.run.experiment.slug, row.run.number)
    return _number_cell(f'<a href="{url}#findings">{row.findings}</a>')


def _tags(row: RunLine) -> str:
    links = format_html_join(
        "", '<a class="tag" href="?show=runs&amp;q=tag:{}">{}</a> ', ((tag, tag) for tag in row.marks.tags)
    )
    return f'<td class="tags">{links}</td>'


def _note(row: RunLine) -> str:
    note = row.marks.note
    return f'<td class="wide" title="{escape(note)}">{escape(Truncator(note).chars(90))}</td>'


def _ended(row: RunLine) -> str:
    if row.run.ended_at is None:
        return f'<td><span class="none" title="not ended">{DASH}</span></td>'
    return f"<td>{numbers.ago(row.run.ended_at)}</td>"


CELLS: dict[str, Callable[[RunLine], str]] = {
    "experiment": _experiment,
    "label": lambda row: f'<td class="wide point"><span class="one-line">{escape(row.run.shown_label)}</span></td>',
    "state": _state,
    "engine": lambda row: _text(row.run.engine),
    "schedule": lambda row: _text(row.run.schedule),
    "precision": lambda row: _text(row.run.precision),
    "gpus": _gpus,
    "tp": lambda row: _number_cell(numbers.counted(row.run.tensor_parallel_size)),
    "pp": lambda row: _number_cell(numbers.counted(row.run.pipeline_parallel_size)),
    "dp": lambda row: _number_cell(numbers.counted(row.run.data_parallel_size)),
    "micro_batch": lambda row: _number_cell(numbers.counted(row.run.micro_batch_size)),
    "global_batch": lambda row: _number_cell(numbers.counted(row.run.global_batch_size)),
    "findings": _findings,
    "tags": _tags,
    "note": _note,
    "ended": _ended,
}
"""Column of the list of runs -> its cell, for columns that are no measured numbers."""
MEASURED = {
    "step_time": ("step_time_s", "s"),
    "samples_per_s": ("samples_per_s", "samples/s"),
    "tokens_per_s": ("tokens_per_s", "tokens/s"),
    "ms_per_sample": ("ms_per_sample", ""),
    "memory": ("memory_max_bytes", "B"),
    "mfu": ("mfu", "%"),
}
"""Column of measured numbers -> field of a run, and its unit."""
_MFU = Unit(0.01, "", "of 1")
"""The heading of the column has the per cent."""


def _measured_column(rows: Sequence[RunLine], name: str) -> Callable[[RunLine], str]:
    """Return the cells of a column of numbers: in one unit and with one number of decimals for one experiment.

    Runs of several experiments, and numbers too far apart, have each their own.
    """
    field, base = MEASURED[name]
    is_mixed = len({row.run.experiment_id for row in rows}) > 1
    values = [getattr(row.run, field) for row in rows]
    of_column = _MFU if base == "%" else unit_for(values, base)
    unit = for_column(of_column, zip(values, (row.run.prints(field) for row in rows), strict=True))

    def cell(row: RunLine) -> str:
        value = getattr(row.run, field)
        if name == "step_time" and row.run.state == RunState.OOM:
            return _number_cell("OOM")
        if name == "samples_per_s" and value is None and row.run.tokens_per_s is not None:
            return _number_cell(numbers.quantity(row.run.tokens_per_s, "tokens/s"))
        if is_mixed and base != "%":
            return _number_cell(numbers.quantity(value, base))
        if unit.decimals is None or value is None:
            return _number_cell(numbers.percent(value) if base == "%" else numbers.measured(row.run, value, base))
        return _number_cell(numbers.with_unit(value, unit))

    return cell


@register.simple_tag
def run_rows(rows: Sequence[RunLine], columns: Sequence[Column], shown: Collection[str]) -> SafeString:
    """Render the rows of the list of runs with the shown columns: {% run_rows list.rows columns shown %}."""
    cells = [
        _measured_column(rows, column.name) if column.name in MEASURED else CELLS[column.name]
        for column in columns
        if column.name in shown
    ]
    return SafeString("".join(_row_head(row) + "".join(cell(row) for cell in cells) + "</tr>" for row in rows))


def _row_head(row: RunLine) -> str:
    run = row.run
    experiment = run.experiment
    name = f'<a href="{address("run", experiment.slug, run.number)}">#{run.number}</a>'
    if run.hidden_at:
        name = f'#{run.number} <span class="tag" title="Restore the run to see its page">archived</span>'
    return (
        f'<tr data-run="{run.pk}" data-state="{run.state}"><td class="choice"><input type="checkbox" name="run" '
        f'value="{run.pk}" form="bulk" aria-label="Select run {run.number} of {escape(experiment.name)}"></td>'
        f'<th scope="row">{name} <span class="narrow-number">{escape(headline(run))}</span>{_starred(row.marks)}</th>'
    )


def _starred(marks: RunMarks) -> str:
    if not marks.stars:
        return ""
    names = escape(", ".join(marks.stars))
    return (
        f' <span class="starred" title="Starred by {names}"><span aria-hidden="true">★</span>'
        f'<span class="unseen">starred by {names}</span></span>'
    )


@register.simple_tag
def table_rows(table: RunTable, slug: str) -> SafeString:
    """Render the rows of the runs of an experiment: {% table_rows table experiment.slug %}."""
    return SafeString("".join(_table_row(line, slug, table.has_reasons) for line in table.rows))


def _table_row(line: TableRow, slug: str, has_reasons: bool) -> str:
    run = line.row.run
    reason = ""
    if has_reasons:
        text = escape(line.row.reason)
        shown = escape(Truncator(line.row.reason).chars(2000))
        reason = f'<td class="wide reason" title="{text}"><span class="two-lines">{shown}</span></td>'
    return (
        f'<tr data-run="{run.number}" data-state="{run.state}"><td class="choice"><input type="checkbox" name="run" '
        f'value="{run.pk}" form="bulk" aria-label="Select run {run.number}"></td>'
        f"{_run_heading(line, slug)}{_state_cell(line)}{_measured_cells(line, slug)}{reason}</tr>"
    )


def _run_heading(line: TableRow, slug: str) -> str:
    """Return the number of a run with its marks and where it comes from."""
    run, marks = line.row.run, line.marks
    url = address("run", slug, run.number)
    name, label = escape(line.name or f"#{run.number}"), escape(f"#{run.number} {run.shown_label}".strip())
    parts = [
        f'<th scope="row" class="nowrap">{line.key}<a id="run-{run.number}" href="{url}" title="{label}">{name}</a>'
    ]
    if line.headline:
        parts.append(f' <span class="narrow-number">{escape(line.headline)}</span>')
    if doubts := line.row.doubts.get(RUN):
        parts.append(numbers.doubt(doubts, slug))
    if run.origin != Run.Origin.MEASURED:
        parts.append(_origin(run.origin, run.get_origin_display()))
    parts.append(_starred(marks))
    tag_url = address("experiments")
    parts += [format_html(' <a class="tag" href="{}?show=runs&amp;q=tag:{}">{}</a>', tag_url, t, t) for t in marks.tags]
    if marks.note:
        parts.append(_origin("note", marks.note))
    if run.is_emulated:
        parts.append(_origin("emulated", "Stages waited for configured times instead of computing"))
    if learnt := run.summary.get("learnt"):
        parts.append(_origin("learnt", f"Read with the log format {learnt}, learnt from a file"))
    return "".join([*parts, "</th>"])


def _origin(text: str, title: str) -> str:
    return f' <span class="origin" title="{escape(title)}">{escape(text)}</span>'


def _state_cell(line: TableRow) -> str:
    """Return the state of a run, and its step while it is running."""
    run, step = line.row.run, line.row.step
    parts: list[str] = [numbers.state_dot(run)]
    if run.state == RunState.RUNNING and step and run.iterations:
        parts.append(f' <span class="muted">{step}/{run.iterations}</span>')
    elif run.state == RunState.RUNNING and step:
        parts.append(f' <span class="muted">step {step}</span>')
    if run.attempt_number > 1:
        parts.append(f' <span class="muted">attempt {run.attempt_number}</span>')
    return f'<td class="nowrap">{"".join(parts)}</td>'


def _measured_cells(line: TableRow, slug: str) -> str:
    """Return the numbers of a run, with marks of findings."""
    cells = []
    for column, cell in line.cells:
        text: str = numbers.NOT_MEASURED
        note = f' title="{escape(cell.note)}"' if cell.note else ""
        if cell.drawing:
            text = f"<span{note}>{cell.drawing}</span>"
        elif cell.text:
            shown = f"<b>{escape(cell.text)}</b>" if column.title in line.best else escape(cell.text)
            text = f"<span{note}>{shown}</span>"
        mark = numbers.doubt(cell.doubts, slug) if cell.doubts else ""
        cells.append(f'<td class="{column.css}">{text}{mark}</td>')
    return "".join(cells)
