"""Numbers, times and states in templates, formatted by parlab.charts.format."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django import template
from django.urls import reverse
from django.utils import timezone
from django.utils.html import escape, format_html
from django.utils.safestring import SafeString

from parlab.charts import format as numbers
from parlab.charts.format import Unit
from parlab.charts.points import Spread
from parlab.lab.forms import config_layout
from parlab.lab.models import Finding, Run
from parlab.lab.selectors import figures as figures_selectors
from runners.wire.protocol import RunState

register = template.Library()

STATE_LABELS: dict[str, str] = {RunState.OOM: "OOM", RunState.TIME_LIMIT: "time limit", Run.UNFINISHED: "log ends"}
STATE_TITLES = {
    Run.UNFINISHED: "The log does not state how the training ended",
    Run.SILENT: "The script has reported nothing for a minute or more",
}


@register.filter
def quantity(value: object, unit: str) -> SafeString:
    """Format with three digits, unit and SI prefix; all digits on hover: {{ run.step_time_s|quantity:"s" }}."""
    value = _given_number(value)
    return _with_all_digits(numbers.quantity(value, unit), value, unit)


@register.filter
def in_unit(value: object, unit: Unit) -> SafeString:
    """Format in the unit and with the digits of the column; all digits on hover."""
    value = _given_number(value)
    return _with_all_digits(numbers.in_column(value, unit), value, unit.base)


def with_unit(value: float, unit: Unit) -> SafeString:
    """Format a number of a column with its unit; all digits on hover."""
    text = numbers.in_column(value, unit)
    return _with_all_digits(f"{text}{numbers.SPACE}{unit.name}" if unit.name else text, value, unit.base)


_COLUMN_UNITS = {
    "GiB": Unit(2.0**30, "GiB", "B"),
    "%": Unit(0.01, "%", "of 1"),
    "s": Unit(1.0, "s", "s"),
    "as_is": Unit(1.0, "", ""),
}
"""Units that the heading of a column names; others get the prefix that suits their values."""


@register.filter
def column(rows: Sequence[object], of: str) -> Unit:
    """Return the unit and decimals of a column: {% with days=sizes|column:"budget.days d" %}.

    `of` is the place of the values in a row, and their unit.
    """
    path, _, unit = of.rpartition(" ")
    places = template.Variable(f"row.{path}")
    values = [_given_number(_resolved(places, row)) for row in rows]
    return numbers.for_column(_COLUMN_UNITS.get(unit) or numbers.unit_for(values, unit), ((at, False) for at in values))


def _resolved(place: template.Variable, row: object) -> object:
    try:
        return place.resolve(template.Context({"row": row}))
    except template.VariableDoesNotExist:
        return None


@register.filter
def printed(value: object, unit: str) -> SafeString:
    """Format a number of a file with the digits that it printed, unit and SI prefix; all digits on hover."""
    value = _given_number(value)
    return _with_all_digits(numbers.quantity(value, unit, numbers.printed_digits(value, unit)), value, unit)


@register.simple_tag
def measured(run: Run, value: object, unit: str) -> SafeString:
    """Format a number of a run; one of a file keeps its digits: {% measured run run.step_time_s "s" %}."""
    return printed(value, unit) if run.has_printed_numbers else quantity(value, unit)


@register.filter
def spread_text(spread: Spread) -> SafeString:
    """Format the range of a step time in the unit of its median: {{ row.step_time|spread_text }}."""
    unit = numbers.unit_for([spread.median], "s")
    low, high = (numbers.significant(None if at is None else at / unit.factor) for at in (spread.p10, spread.p90))
    note = f"{numbers.exact_quantity(spread.p10, 's')} to {numbers.exact_quantity(spread.p90, 's')}"
    return format_html('<span title="{}">{} to {}{}{}</span>', note, low, high, numbers.SPACE, unit.name)


@register.filter
def significant(value: object) -> SafeString:
    """Format a number without unit with three digits; all digits on hover."""
    number = _given_number(value)
    return _with_all_digits(numbers.significant(number), number, "")


@register.filter
def scaled(value: object, factor: str) -> SafeString:
    """Scale a number to the unit of its column, with three digits: {{ row.time_s|scaled:"1e6" }} for microseconds."""
    number = _given_number(value)
    return _with_all_digits(numbers.significant(None if number is None else number * float(factor)), number, "")


@register.filter
def digits(value: object) -> SafeString:
    """Format a number for comparison: six digits, integers in full, all digits on hover."""
    number = _given_number(value)
    if number is not None and number == int(number) and abs(number) < 1e15:
        return _with_all_digits(numbers.exact(number), number, "")
    return _with_all_digits(numbers.significant(number, 6), number, "")


@register.filter
def chance(value: object) -> str:
    """Write a probability: `> 99 %`, `96 %`."""
    number = _given_number(value)
    return numbers.DASH if number is None else numbers.probability(number)


@register.filter
def counted(value: object) -> SafeString:
    """Format a count in full, with grouped thousands: {{ run.gpus|counted }}."""
    number = _given_number(value)
    if number is None:
        return SafeString(f'<span class="none" title="unknown">{numbers.DASH}</span>')
    return SafeString(f"{number:,.0f}" if number == int(number) else numbers.exact(number))


@register.filter
def percent(value: object) -> SafeString:
    """Format a fraction as per cent with three digits; all digits on hover."""
    number = _given_number(value)
    return _with_all_digits(numbers.significant(None if number is None else 100 * number), number, "of 1")


def _given_number(value: object) -> float | None:
    """Return a number, or None for the empty text of a missing template variable."""
    return float(value) if isinstance(value, int | float) else None


NOT_MEASURED = SafeString(f'<span class="none" title="not measured">{numbers.DASH}</span>')


@register.filter
def quantity_apart(value: float, unit: str) -> SafeString:
    """Format as `quantity`, the unit smaller and apart, as large numbers have it."""
    number, _, name = numbers.quantity(value, unit).partition(numbers.SPACE)
    name = name.replace(numbers.SPACE, "\N{NO-BREAK SPACE}")  # a narrow one is hardly seen in small type
    return format_html(
        '<span title="{}">{} <small>{}</small></span>', numbers.exact_quantity(value, unit), number, name
    )


def _with_all_digits(text: str, value: float | None, unit: str) -> SafeString:
    if value is None or text == numbers.DASH:
        return NOT_MEASURED
    # Numbers have no special characters; the unit may come from a file.
    return SafeString(f'<span title="{escape(numbers.exact_quantity(value, unit))}">{escape(text)}</span>')


@register.filter
def duration(seconds: float | None) -> str:
    """Format a duration in seconds: {{ remaining|duration }}."""
    return numbers.duration(seconds)


@register.filter
def between(start: datetime | None, end: datetime | None) -> str:
    """Format the time from start to end, or to now: {{ attempt.started_at|between:attempt.ended_at }}."""
    if start is None:
        return numbers.DASH
    return numbers.duration(((end or timezone.now()) - start).total_seconds())


@register.filter
def ago(moment: datetime | None) -> SafeString:
    """Format the time since a moment; the moment on hover."""
    if moment is None:
        return SafeString('<span class="none">never</span>')
    seconds, local = (timezone.now() - moment).total_seconds(), timezone.localtime(moment)
    text = "just now" if seconds < 2 else f"{numbers.duration(seconds, coarse=True)} ago"
    if seconds > 2 * 86400:
        text = f"{local.day} {local:%b %Y}"
    # Lists have a hundred of these; Django's filter `date` takes ten times as long.
    exact = f"{local:%Y-%m-%d %H:%M:%S %Z}"
    return SafeString(f'<time datetime="{moment.isoformat()}" title="{exact}">{text}</time>')


@register.filter
def field_title(field: str) -> str:
    """`train.micro_batch_size` as a heading: `Micro batch size`."""
    return numbers.field_title(field)


@register.filter
def figure_title(name: str) -> str:
    """`gpu_mem_bytes` of a file's figures as a heading: `GPU memory`."""
    return figures_selectors.figure_title(name)


@register.filter
def shown_label(label: str) -> str:
    """`micro_batch_size 2` of a stored label as `micro batch size 2`."""
    return config_layout.shown_label(label)


@register.filter
def field_value(value: Any) -> str:
    """Format a configuration value."""
    return numbers.field_value(value)


@register.simple_tag
def doubt(findings: object, slug: str) -> SafeString:
    """Render a triangle that opens the findings about a number: {% doubt row.doubts.step_time experiment.slug %}."""
    listed = [finding for finding in findings if isinstance(finding, Finding)] if isinstance(findings, Sequence) else []
    if not listed:
        return SafeString("")
    open_findings = [finding for finding in listed if not finding.is_acknowledged]
    has_errors = any(finding.severity == Finding.Severity.ERROR for finding in open_findings)
    kind = "known" if not open_findings else "error" if has_errors else "warning"
    more = f" (and {len(listed) - 1} more)" if len(listed) > 1 else ""
    return format_html(
        '<a class="doubt doubt-{}" href="{}?id={}" data-doubt title="{}"><span class="unseen">Finding: {}</span></a>',
        kind,
        reverse("findings", args=[slug]),
        ",".join(str(finding.pk) for finding in listed),
        listed[0].message + more,
        listed[0].message,
    )


@register.filter
def size(count: int) -> str:
    """Format a number of bytes: {{ source.size|size }}."""
    return numbers.quantity(count, "B")


@register.simple_tag
def state(of: Run | str, count: int | None = None) -> SafeString:
    """Render a state as a coloured label: {% state run %}, with a mark of its loss; {% state "running" 3 %}.

    Of a run whose loss is NaN the label is not green, and of an imported log that does not say how it ended it is
    neither green nor called finished.
    """
    mark = of.loss_mark if isinstance(of, Run) else ""
    name = of.shown_state if isinstance(of, Run) else of
    label = STATE_LABELS.get(name, name)
    text = label if count is None else f"{count} {label}"
    kind = "doubted" if mark and name == RunState.FINISHED else name
    why = STATE_TITLES.get(name, "")
    title = f' title="{why}"' if why else ""
    tag = f' <span class="tag bad">{Run.LossMark(mark).label}</span>' if mark else ""
    kind = escape(kind)
    dot = f'<span class="dot {kind}" aria-hidden="true"></span>'
    return SafeString(f'<span class="state {kind} state-{kind}"{title}>{dot}{escape(text)}</span>{tag}')


def state_dot(run: Run) -> SafeString:
    """Return the state of a run as a dot with its word on hover, where a table has no room for the word."""
    kind = "doubted" if run.loss_mark and run.shown_state == RunState.FINISHED else run.shown_state
    name = STATE_LABELS.get(run.shown_state, run.shown_state)
    tag = f' <span class="tag bad">{Run.LossMark(run.loss_mark).label}</span>' if run.loss_mark else ""
    dot = f'<span class="dot {escape(kind)}" title="{escape(name)}"></span><span class="unseen">{escape(name)}</span>'
    return SafeString(dot + tag)


@register.filter
def state_label(name: str) -> str:
    """Return a state as pages write it: {{ run.state|state_label }}."""
    return STATE_LABELS.get(name, name)
