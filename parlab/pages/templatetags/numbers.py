"""Numbers, times and states in templates; the rules are those of parlab.charts.format."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django import template
from django.template.defaultfilters import date
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from parlab.charts import format as numbers
from parlab.charts.format import Unit
from parlab.lab import selectors
from parlab.lab.models import Finding
from parlab.lab.selectors import Lead
from runners.protocol import RunState

register = template.Library()

STATE_WORDS: dict[str, str] = {RunState.OOM: "OOM"}


@register.filter
def quantity(value: object, unit: str) -> SafeString:
    """Three digits with unit and SI prefix; all digits on hover: {{ run.step_time_s|quantity:"s" }}."""
    value = _number(value)
    return _with_all_digits(numbers.quantity(value, unit), value, unit)


@register.filter
def in_unit(value: object, unit: Unit) -> SafeString:
    """Three digits in the unit of the column; all digits on hover."""
    value = _number(value)
    return _with_all_digits(numbers.significant(None if value is None else value / unit.factor), value, unit.base)


@register.filter
def significant(value: object) -> SafeString:
    """Three digits of a number without a unit; all digits on hover."""
    number = _number(value)
    return _with_all_digits(numbers.significant(number), number, "")


@register.filter
def scaled(value: object, factor: str) -> SafeString:
    """Three digits of a number in the unit of its column: {{ row.time_s|scaled:"1e6" }} for microseconds."""
    number = _number(value)
    return _with_all_digits(numbers.significant(None if number is None else number * float(factor)), number, "")


@register.filter
def digits(value: object) -> SafeString:
    """A number that is compared with another one: six digits, whole numbers in full, all of them on hover."""
    number = _number(value)
    if number is not None and number == int(number) and abs(number) < 1e15:
        return _with_all_digits(numbers.exact(number), number, "")
    return _with_all_digits(numbers.significant(number, 6), number, "")


@register.filter
def counted(value: object) -> SafeString:
    """A count, in full: {{ run.gpus|counted }}."""
    number = _number(value)
    if number is None:
        return format_html('<span class="none" title="not known">{}</span>', numbers.DASH)
    return format_html("{}", numbers.exact(number))


@register.filter
def percent(value: object) -> SafeString:
    """A share of one as per cent, three digits; all digits on hover."""
    number = _number(value)
    return _with_all_digits(numbers.significant(None if number is None else 100 * number), number, "of 1")


@register.simple_tag
def ahead(lead: Lead | None) -> SafeString:
    """How far the fastest run is ahead of the next: {% ahead row.lead %}."""
    if lead is None or lead.ahead is None or lead.second is None:
        return format_html('<span class="none" title="nothing to compare with">{}</span>', numbers.DASH)
    title = f"than #{lead.second.number}, {lead.second.label}"
    if lead.ahead >= 2:
        return format_html('<span title="{}">{}\N{MULTIPLICATION SIGN}</span>', title, numbers.significant(lead.ahead))
    return format_html('<span title="{}">{} %</span>', title, numbers.significant(lead.percent))


@register.simple_tag
def how_sure(lead: Lead | None) -> SafeString | str:
    """What to know before one believes a lead: {% how_sure row.lead %}; nothing where nothing is known."""
    if lead is None or lead.second is None:
        return ""
    if lead.differs:
        return format_html('<span class="sure">{}</span>', lead.differs)
    if lead.noise is None:
        return ""
    vary = f"±{numbers.significant(lead.noise)} %"
    title = f"half the range from p10 to p90 of the steps of the run that varies more is {vary} of its median"
    if lead.is_within_noise:
        return format_html('<span class="sure unsure" title="{}">less than its steps vary: {}</span>', title, vary)
    return format_html('<span class="sure" title="{}">its steps vary {}</span>', title, vary)


def _number(value: object) -> float | None:
    """Take what a template found: where a summary lacks a part, that is an empty text."""
    return float(value) if isinstance(value, int | float) else None


def _with_all_digits(text: str, value: float | None, unit: str) -> SafeString:
    if value is None or text == numbers.DASH:
        return format_html('<span class="none" title="not measured">{}</span>', numbers.DASH)
    return format_html('<span title="{}">{}</span>', numbers.exact_quantity(value, unit), text)


@register.filter
def duration(seconds: float | None) -> str:
    """A length of time: {{ remaining|duration }}."""
    return numbers.duration(seconds)


@register.filter
def between(start: datetime | None, end: datetime | None) -> str:
    """The time from start to end, or to now: {{ attempt.started_at|between:attempt.ended_at }}."""
    if start is None:
        return numbers.DASH
    return numbers.duration(((end or timezone.now()) - start).total_seconds())


@register.filter
def ago(moment: datetime | None) -> SafeString:
    """How long ago, with the moment on hover."""
    if moment is None:
        return format_html('<span class="none">{}</span>', "never")
    seconds = (timezone.now() - moment).total_seconds()
    text = "just now" if seconds < 2 else f"{numbers.duration(seconds, coarse=True)} ago"
    if seconds > 2 * 86400:
        text = date(timezone.localtime(moment), "j M Y")
    return format_html(
        '<time datetime="{}" title="{}">{}</time>',
        moment.isoformat(),
        date(timezone.localtime(moment), "Y-m-d H:i:s T"),
        text,
    )


@register.filter
def field_title(field: str) -> str:
    """`train.micro_batch_size` as a heading: `Micro batch size`."""
    return numbers.field_title(field)


@register.filter
def figure_title(name: str) -> str:
    """`gpu_mem_bytes` of a file's figures as a heading: `GPU memory`."""
    return selectors.figure_title(name)


@register.filter
def field_value(value: Any) -> str:
    """A configuration value as text."""
    return numbers.field_value(value)


@register.simple_tag
def doubt(findings: object, slug: str) -> SafeString:
    """A small triangle that opens what the rules found: {% doubt row.doubts.step_time experiment.slug %}."""
    found = [finding for finding in findings if isinstance(finding, Finding)] if isinstance(findings, Sequence) else []
    if not found:
        return SafeString("")
    unknown = [finding for finding in found if not finding.is_acknowledged]
    grave = any(finding.severity == Finding.Severity.ERROR for finding in unknown)
    kind = "known" if not unknown else "error" if grave else "warning"
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return format_html(
        '<a class="doubt doubt-{}" href="{}?id={}" data-doubt title="{}"><span class="unseen">Doubted: {}</span></a>',
        kind,
        reverse("findings", args=[slug]),
        ",".join(str(finding.pk) for finding in found),
        found[0].message + more,
        found[0].message,
    )


@register.filter
def size(count: int) -> str:
    """A number of bytes: {{ source.size|size }}."""
    return numbers.quantity(count, "B")


@register.simple_tag
def state(name: str, count: int | None = None) -> SafeString:
    """A dot, a word and a colour: {% state run.state %}; with a number: {% state "running" 3 %}."""
    word = STATE_WORDS.get(name, name)
    if count is None:
        return format_html('<span class="state state-{}">{}</span>', name, word)
    return format_html('<span class="state state-{}">{} {}</span>', name, count, word)
