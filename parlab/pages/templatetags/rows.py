"""Rows of the lists of runs and experiments and of the builder, rendered without a template: a page has hundreds."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import starmap
from typing import Any
from urllib.parse import quote

from django import template
from django.utils.html import escape
from django.utils.safestring import SafeString

from parlab.charts.format import DASH, Unit
from parlab.lab.models import Run
from parlab.lab.selectors.lists import ExperimentRow
from parlab.pages.builder.page import FieldRow
from parlab.pages.reads.evidence import Size, Sizes
from parlab.pages.reads.experiment_runs import ListedRun
from parlab.pages.reads.home.cards import Card
from parlab.pages.requests.addresses import address
from parlab.pages.templatetags import numbers
from parlab.pages.templatetags.frame import icon
from runners.wire.protocol import RunState

register = template.Library()


@register.simple_tag
def options(choices: Iterable[tuple[object, str]], chosen: str) -> SafeString:
    """Render the options of a long list: {% options configs entered.config %}."""
    return SafeString(
        "".join(
            f'<option value="{escape(value)}"{" selected" if str(value) == chosen else ""}>{escape(title)}</option>'
            for value, title in choices
        )
    )


@register.simple_tag
def listed_runs(rows: Sequence[ListedRun], slug: str) -> SafeString:
    """Render the runs beside the panels of their experiment: {% listed_runs listed.rows experiment.slug %}."""
    eye = icon("eye", "sm")
    return SafeString("\n".join(_listed_run(row, slug, eye) for row in rows))


def _listed_run(row: ListedRun, slug: str, eye: str) -> str:
    run, state = row.run, row.run.shown_state
    doubt = numbers.doubt(row.doubts, slug) if row.doubts else ""
    told = f"{numbers.state_label(state)}: {run.reason}" if run.reason else numbers.state_label(state)
    return (
        f'<li class="rl" data-run="{run.number}" data-state="{run.state}"><button type="button" class="eye"'
        f' aria-pressed="true" aria-label="Show #{run.number}" title="Hide (h); Alt-click shows only this run">'
        f'{eye}</button>{row.key}<a class="grow ell t" href="{address("run", slug, run.number)}"'
        f' title="{escape(f"#{run.number} {run.shown_label}")}">{escape(row.shown.name)}</a>{doubt}{row.whisker}'
        f'<b class="v" title="{escape(row.note)}">{escape(row.text)}</b>'
        f'<span class="dot {state}" title="{escape(told)}"></span></li>'
    )


@register.simple_tag
def size_rows(sizes: Sizes, speeds: Unit, times: Unit) -> SafeString:
    """Render runs side by side: {% size_rows sizes speeds times %}."""
    shows = (sizes.has_settings, sizes.has_sample_times, sizes.has_memory, sizes.has_utilisation)
    return SafeString("\n".join(_size_row(row, sizes, speeds, times, *shows) for row in sizes.rows))


def _size_row(
    row: Size, sizes: Sizes, speeds: Unit, times: Unit, settings: bool, samples: bool, memory: bool, busy: bool
) -> str:
    run, point = row.run, row.point
    is_out = run.state == RunState.OOM
    muted = f' <span class="muted">{escape(row.setting)}</span>' if settings else ""
    cells = ["OOM" if is_out else numbers.in_unit(row.speed, speeds)]
    cells += [numbers.in_unit(row.ms_per_sample, times)] if samples else []
    cells += [_memory(point.memory_min, point.memory_max, sizes.memory)] if memory else []
    cells += [escape(row.utilisation or DASH)] if busy else []
    cells += [numbers.in_unit(value, sizes.time) for value in row.timers]
    return (
        f'<tr><th scope="row"><a href="{address("run", run.experiment.slug, run.number)}">#{run.number}</a>'
        f' <span class="narrow-number" aria-hidden="true">{_speed(row, sizes.speed, is_out=is_out)}</span>{muted}</th>'
        + "".join(f'<td class="number">{cell}</td>' for cell in cells)
        + f'<td>{escape(row.layout)}</td><td class="number">{point.gpus or "unknown"}</td></tr>'
    )


def _speed(row: Size, unit: str, *, is_out: bool) -> str:
    """Return the number of a run that stands beside its name on a phone."""
    run: Run = row.run
    if is_out:
        return "OOM"
    for rate, of in ((run.tokens_per_s, "tokens/s"), (run.samples_per_s, "samples/s")):
        if rate:
            return numbers.quantity(rate, of)
    return f"{numbers.significant(row.speed)} {escape(unit)}" if row.speed else ""


def _memory(least: float | None, most: float | None, unit: Unit) -> str:
    return numbers.in_unit(least, unit) + (f" to {numbers.in_unit(most, unit)}" if most else "")


@register.simple_tag(takes_context=True)
def experiment_rows(
    context: template.Context, rows: Sequence[tuple[ExperimentRow, Card]], starred: Collection[int]
) -> SafeString:
    """Render experiments: {% experiment_rows group.rows starred %}."""
    sent = (
        f'<input type="hidden" name="csrfmiddlewaretoken" value="{context["csrf_token"]}">'
        f'<input type="hidden" name="next" value="{escape(context["next"])}">'
    )
    star = icon("star", "sm")
    parts = []
    for row, card in rows:
        form = _star(row, sent, star, is_starred=row.experiment.pk in starred)
        parts.append(f'<div class="er" data-row>{_tick(row)}{form}{_experiment(row, card)}</div>')
    return SafeString("\n".join(parts))


def _tick(row: ExperimentRow) -> str:
    return (
        f'<label class="tick"><input type="checkbox" form="bulk" name="experiment" value="{row.experiment.pk}"'
        f' aria-label="Select {escape(row.experiment.name)}"></label>'
    )


def _star(row: ExperimentRow, sent: str, star: str, *, is_starred: bool) -> str:
    what, title = ("Starred", "Remove the star") if is_starred else ("Star", "Star: first in your list")
    return (
        f'<form class="st" method="post" action="{address("experiment-star", row.experiment.slug)}" data-once>{sent}'
        f'<button type="submit" class="btn ghost icon star s" aria-pressed="{"true" if is_starred else "false"}"'
        f' aria-label="{what} {escape(row.experiment.name)}" title="{title}">{star}</button></form>'
    )


def _experiment(row: ExperimentRow, card: Card) -> str:
    experiment, at = row.experiment, row.last_activity_at
    tags = "".join(f'<a class="tag" href="?q=tag:{quote(tag)}">{escape(tag)}</a>' for tag in row.tags[:3])
    tags = f'<span class="tgs">{tags}</span>' if tags else ""
    archived = '<span class="tag">archived</span> ' if experiment.archived_at else ""
    number = '<span class="muted">' + DASH + "</span>"
    if card.number:
        number = f'<b>{escape(card.number)}</b> <span class="muted">{escape(card.unit)}</span>'
    states = "".join(
        f'<span title="{state.number} {numbers.state_label(state.state)}"><span class="dot {state.state}"></span>'
        f" {state.number}</span>"
        for state in row.states
    )
    return (
        f'<span class="nm"><span class="row"><a class="ell" href="{address("experiment", experiment.slug)}"'
        f' title="{escape(experiment.question)}"><b>{escape(experiment.name)}</b></a>'
        f"{tags}</span>"
        f'<span class="two ell">{archived}{escape(str(card.answer.short))}</span></span>'
        f'<span class="tg">{_attention(row, card)}</span><span class="pc">{card.strip}</span>'
        f'<span class="kn" title="{escape(f"{card.number} {card.unit}")}">{number}</span>'
        f'<span class="rn">{states}</span><span class="ag muted">{numbers.ago(at)}</span>'
    )


def _attention(row: ExperimentRow, card: Card) -> str:
    """Return what needs attention: findings, a loss that is wrong, noise, memory."""
    if row.findings:
        url, several = address("findings", row.experiment.slug), "" if row.findings == 1 else "s"
        return f'<a class="tag bad" href="{url}">{row.findings} finding{several}</a>'
    if card.mark:
        return f'<span class="tag bad">{escape(card.mark)}</span>'
    if card.answer.noise:
        return f'<span class="tag" title="{escape(card.answer.noise)}">within noise</span>'
    return '<span class="tag warn">OOM</span>' if card.answer.key == "OOM" else ""


@register.simple_tag
def builder_rows(rows: Sequence[FieldRow]) -> SafeString:
    """Render the fields of a section of the builder, each with its help: {% builder_rows section.rows %}."""
    # The engine stands at the head of the form.
    return SafeString("\n".join(_builder_row(row) for row in rows if row.field.path != "parallel.engine"))


def _builder_row(row: FieldRow) -> str:
    field, path, label = row.field, row.field.path, escape(row.field.label)
    searched = escape(f"{field.label.lower()} {path} {field.help.lower()}")
    marks = f"{'' if row.is_used else ' data-unused'}{' data-wrong' if row.errors else ''}"
    unit = f'<span class="unit">{escape(field.unit)}</span>' if field.unit else ""
    vary = (
        ""
        if row.is_varied
        else (
            f'<button type="submit" class="vary" name="act" value="vary:{path}" aria-label="Vary {label}"'
            ' title="Run with several values (Alt+V in the field)">Vary</button>'
        )
    )
    default = f" Default {escape(field.default_text)}." if field.default_text else ""
    return (
        f'<div class="builder-field" data-field="{path}" data-search="{searched}"{marks}>'
        f'<label for="{field.html_id}">{label}</label><span class="input">{_input(row)}{unit}</span>{vary}'
        f'<p class="hint" id="help-{path}">{escape(field.help)} <span class="not-used">Not used by this engine.</span>'
        f' <code class="path">{path}</code>{default}</p>'
        f'<p class="field-error" id="error-{path}">{escape("; ".join(row.errors))}</p></div>'
    )


def _input(row: FieldRow) -> str:
    field, text = row.field, escape(row.text)
    name = f'id="{field.html_id}" name="{field.path}"'
    told = f' aria-describedby="error-{field.path} help-{field.path}"{_INVALID if row.errors else ""}'
    if row.is_varied:
        goes = f"a-{field.html_id[2:]}"
        return (
            f'<input type="hidden" name="{field.path}" value="{text}"><a class="varies" id="{field.html_id}"'
            f' href="#{goes}" data-goes="{goes}">varies, see Sweep</a>'
        )
    if field.choices:
        empty = '<option value=""></option>' if field.is_optional else ""
        options = "".join(starmap(_option, ((choice, choice == row.text) for choice in row.options)))
        return f"<select {name}{told}>{empty}{options}</select>"
    if field.is_tree:
        return f'<textarea {name} class="code" rows="2" spellcheck="false"{told}>{text}</textarea>'
    decimal = ' inputmode="decimal"' if field.is_number else ""
    return f'<input {name} value="{text}" spellcheck="false"{decimal}{told}>'


_INVALID = ' aria-invalid="true"'


def _option(choice: Any, is_chosen: bool) -> str:
    name = escape(choice)
    return f'<option value="{name}"{" selected" if is_chosen else ""}>{name}</option>'
