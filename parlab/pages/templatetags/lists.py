"""Cells of tables of runs, rendered without a template: a page has hundreds of rows of up to twenty columns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from django import template
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.text import Truncator

from parlab.charts.format import DASH
from parlab.lab.models import Run
from parlab.lab.selectors import RunLine, RunMarks
from parlab.lab.selectors.findings import RUN
from parlab.pages.columns import Column
from parlab.pages.rows.runs import TableRow
from parlab.pages.templatetags import numbers
from runners.protocol import RunState

register = template.Library()

_OPEN_NUMBER, _CLOSE = SafeString('<td class="number">'), SafeString("</td>")


def _text(value: object) -> SafeString:
    return format_html("<td>{}</td>", value or DASH)


def _number(value: SafeString) -> SafeString:
    return _OPEN_NUMBER + value + _CLOSE


def _experiment(row: RunLine) -> SafeString:
    experiment = row.run.experiment
    return format_html('<td class="wide"><a href="{}">{}</a></td>', experiment.get_absolute_url(), experiment.name)


def _state(row: RunLine) -> SafeString:
    run = row.run
    label = numbers.state(run.state)
    if not run.reason:
        return format_html("<td>{}</td>", label)
    reason = SafeString("")
    if run.state != RunState.FINISHED:
        reason = format_html('<span class="asks">{}</span>', Truncator(run.reason).chars(160))
    return format_html('<td class="wide" title="{}">{}{}</td>', run.reason, label, reason)


def _gpus(row: RunLine) -> SafeString:
    if row.run.gpus:
        return _number(numbers.counted(row.run.gpus))
    return SafeString(
        '<td class="number"><span class="none" title="The source of the run does not state its number of GPUs">'
        "unknown</span></td>"
    )


def _step_time(row: RunLine) -> SafeString:
    run = row.run
    return _number(SafeString("OOM") if run.state == RunState.OOM else numbers.measured(run, run.step_time_s, "s"))


def _findings(row: RunLine) -> SafeString:
    if not row.findings:
        return SafeString('<td class="number"><span class="none" title="none open">0</span></td>')
    url = reverse("run", args=[row.run.experiment.slug, row.run.number])
    return format_html('<td class="number"><a href="{}#findings">{}</a></td>', url, row.findings)


def _tags(row: RunLine) -> SafeString:
    links = format_html_join(
        "", '<a class="tag" href="?show=runs&amp;q=tag:{}">{}</a> ', ((tag, tag) for tag in row.marks.tags)
    )
    return format_html('<td class="tags">{}</td>', links)


def _note(row: RunLine) -> SafeString:
    note = row.marks.note
    return format_html('<td class="wide" title="{}">{}</td>', note, Truncator(note).chars(90))


def _ended(row: RunLine) -> SafeString:
    if row.run.ended_at is None:
        return SafeString(f'<td><span class="none" title="not ended">{DASH}</span></td>')
    return format_html("<td>{}</td>", numbers.ago(row.run.ended_at))


CELLS: dict[str, Callable[[RunLine], SafeString]] = {
    "experiment": _experiment,
    "label": lambda row: format_html(
        '<td class="wide point"><span class="clamped">{}</span></td>', row.run.shown_label
    ),
    "state": _state,
    "engine": lambda row: _text(row.run.engine),
    "schedule": lambda row: _text(row.run.schedule),
    "precision": lambda row: _text(row.run.precision),
    "gpus": _gpus,
    "tp": lambda row: _number(numbers.counted(row.run.tensor_parallel_size)),
    "pp": lambda row: _number(numbers.counted(row.run.pipeline_parallel_size)),
    "dp": lambda row: _number(numbers.counted(row.run.data_parallel_size)),
    "micro_batch": lambda row: _number(numbers.counted(row.run.micro_batch_size)),
    "global_batch": lambda row: _number(numbers.counted(row.run.global_batch_size)),
    "step_time": _step_time,
    "samples_per_s": lambda row: _number(numbers.measured(row.run, row.run.samples_per_s, "samples/s")),
    "tokens_per_s": lambda row: _number(numbers.measured(row.run, row.run.tokens_per_s, "tokens/s")),
    "ms_per_sample": lambda row: _number(numbers.measured(row.run, row.run.ms_per_sample, "")),
    "memory": lambda row: _number(numbers.measured(row.run, row.run.memory_max_bytes, "B")),
    "mfu": lambda row: _number(numbers.percent(row.run.mfu)),
    "findings": _findings,
    "tags": _tags,
    "note": _note,
    "ended": _ended,
}
"""Column of the list of runs -> its cell."""


@register.simple_tag
def run_cells(row: RunLine, columns: Sequence[Column], shown: Collection[str]) -> SafeString:
    """Render the shown cells of a run: {% run_cells row columns shown %}."""
    return SafeString("".join(CELLS[column.name](row) for column in columns if column.name in shown))


_NOT_MEASURED = SafeString('<span class="none" title="not measured">' + DASH + "</span>")


def _starred(marks: RunMarks) -> SafeString:
    if not marks.stars:
        return SafeString("")
    names = ", ".join(marks.stars)
    return format_html(
        ' <span class="starred" title="Starred by {}"><span aria-hidden="true">★</span>'
        '<span class="unseen">starred by {}</span></span>',
        names,
        names,
    )


def _origin(text: str, title: str) -> SafeString:
    return format_html(' <span class="origin" title="{}">{}</span>', title, text)


@register.simple_tag
def run_heading(line: TableRow, slug: str) -> SafeString:
    """Render the number of a run with its marks and where it comes from: {% run_heading line experiment.slug %}."""
    run, marks = line.row.run, line.marks
    url = reverse("run", args=[slug, run.number])
    parts = [
        format_html('<th scope="row" class="nowrap"><a id="run-{}" href="{}">#{}</a>', run.number, url, run.number)
    ]
    if line.headline:
        parts.append(format_html(' <span class="narrow-number">{}</span>', line.headline))
    if doubts := line.row.doubts.get(RUN):
        parts.append(numbers.doubt(doubts, slug))
    if run.origin != Run.Origin.MEASURED:
        parts.append(_origin(run.origin, run.get_origin_display()))
    if run.origin == Run.Origin.REPORTED and run.label:
        label = Truncator(run.shown_label).chars(40)
        parts.append(format_html(' <span class="muted" title="{}">{}</span>', run.shown_label, label))
    parts.append(_starred(marks))
    tag_url = reverse("experiments")
    parts += [format_html(' <a class="tag" href="{}?show=runs&amp;q=tag:{}">{}</a>', tag_url, t, t) for t in marks.tags]
    if marks.note:
        parts.append(_origin("note", marks.note))
    if run.is_emulated:
        parts.append(_origin("emulated", "Stages waited for configured times instead of computing"))
    if learnt := run.summary.get("learnt"):
        parts.append(_origin("learnt", f"Read with the log format {learnt}, learnt from a file"))
    return SafeString("".join([*parts, "</th>"]))


@register.simple_tag
def state_cell(line: TableRow) -> SafeString:
    """Render the state of a run, and its step while it is running: {% state_cell line %}."""
    run, step = line.row.run, line.row.step
    parts = [numbers.state(run.state)]
    if run.state == RunState.RUNNING and step and run.iterations:
        parts.append(
            format_html(
                ' <progress max="{}" value="{}" aria-label="Step {} of {}"></progress>'
                ' <span class="muted">{}/{}</span>',
                *(run.iterations, step, step, run.iterations, step, run.iterations),
            )
        )
    elif run.state == RunState.RUNNING and step:
        parts.append(format_html(' <span class="muted">step {}</span>', step))
    if run.attempt_number > 1:
        parts.append(format_html(' <span class="muted">attempt {}</span>', run.attempt_number))
    return format_html('<td class="nowrap">{}</td>', SafeString("".join(parts)))


@register.simple_tag
def axis_cells(line: TableRow) -> SafeString:
    """Render the position of a run in its sweep: {% axis_cells line %}."""
    return format_html_join(
        "", '<td class="axis-value" title="{}">{}</td>', ((text, text or DASH) for text in line.values)
    )


@register.simple_tag
def measured_cells(line: TableRow, slug: str) -> SafeString:
    """Render the numbers of a run, with marks of findings: {% measured_cells line experiment.slug %}."""
    cells = []
    for column, cell in line.cells:
        text: SafeString = _NOT_MEASURED
        if cell.text and cell.note:
            text = format_html('<span title="{}">{}</span>', cell.note, cell.text)
        elif cell.text:
            text = format_html("<span>{}</span>", cell.text)
        mark = numbers.doubt(cell.doubts, slug) if cell.doubts else ""
        cells.append(format_html('<td class="{}">{}{}</td>', column.css, text, mark))
    return SafeString("".join(cells))
