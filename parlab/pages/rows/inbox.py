"""The kinds of items of the inbox, and their lines: one row of KINDS for each."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple

from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from parlab.charts import evidence
from parlab.charts.evidence import LARGE, PHONE, SMALL, Size
from parlab.charts.format import Unit, duration, quantity, signed_percent, significant, unit_for
from parlab.charts.svg import Svg
from parlab.findings import RULES
from parlab.fleet.trials import smaller_batch
from parlab.formats.grammar.memory_errors import memory_in
from parlab.lab.models import Event, InboxItem
from parlab.lab.selectors.figures import figure_title

from .findings import number_text

RUNS, WATCH, CLUSTER, PEOPLE = GROUPS = ("Runs", "Watch", "Cluster", "People")
_COMMIT = 7
_REASON = 90


class Action(NamedTuple):
    """The one thing to do about an item."""

    label: str
    url: str
    is_try: bool = False
    """Whether a run is launched: on the page of the item, not by a link."""
    value: int = 0
    """The micro batch to try."""
    approval: int = 0
    """The launch to approve or refuse, on the page of the item."""


class Kind(NamedTuple):
    title: str
    icon: str
    """A drawing of Lucide."""
    tone: str
    """bad, warn or nothing."""
    group: str
    sentence: Callable[[InboxItem], SafeString]
    """What has happened, its number marked as bad or warn."""
    action: Callable[[InboxItem], Action]
    picture: Callable[[InboxItem, Size], Svg]
    """The evidence."""


class Row(NamedTuple):
    """An item as a line of a list."""

    item: InboxItem
    kind: Kind
    headline: SafeString
    source: str
    """Where it happened, and how often."""
    age: str
    picture: Svg
    action: Action
    is_read: bool

    @property
    def icon(self) -> str:
        return self.kind.icon

    @property
    def tone(self) -> str:
        return self.kind.tone

    @property
    def place(self) -> str:
        """The source without what must not be cut: the number of the run, and how often."""
        return self.source.removesuffix(self.mark).rstrip()

    @property
    def mark(self) -> str:
        """The end of the source that stays where its name is cut: `#2`, `#2 · 5 times`."""
        return self.source[at:] if (at := self.source.rfind("#")) > 0 else ""

    @property
    def shows_state(self) -> bool:
        """Whether the state of the run belongs to what has happened."""
        return self.item.kind not in (Event.Kind.FINDING_NEW, Event.Kind.WATCH_ALERT, Event.Kind.LAUNCH_ASKED)

    @property
    def url(self) -> str:
        return self.item.get_absolute_url()


def inbox_row(item: InboxItem, *, is_read: bool = False) -> Row:
    """Return an item as a line; its experiment, run and node are fetched with it."""
    kind = KINDS[item.kind]
    return Row(
        item=item,
        kind=kind,
        headline=kind.sentence(item),
        source=source_of(item),
        age=age_of(item.last_at),
        picture=kind.picture(item, SMALL),
        action=kind.action(item),
        is_read=is_read,
    )


def large_pictures(item: InboxItem) -> tuple[Svg, Svg]:
    """Return the evidence for the page of an item, and for phones."""
    draw = KINDS[item.kind].picture
    return draw(item, LARGE), draw(item, PHONE)


def source_of(item: InboxItem) -> str:
    """Return where an item comes from: run and experiment, watch or pool; and its count."""
    if item.run is not None:
        place = f"{item.run.experiment.name} #{item.run.number}"
    elif item.experiment is not None:
        place = item.experiment.name
    else:
        place = str(item.data.get("pool") or "")
    if item.kind == Event.Kind.WATCH_ALERT:
        place = str(item.data.get("watch", place))
    times = f"{item.count} times" if item.count > 1 and item.kind not in _COUNTED_OTHERWISE else ""
    return " · ".join(part for part in (place, times) if part)


_COUNTED_OTHERWISE = {Event.Kind.FINDING_NEW}


def age_of(moment: datetime) -> str:
    seconds = max(0.0, (timezone.now() - moment).total_seconds())
    return "now" if seconds < 60 else duration(seconds, coarse=True)


# --- sentences -------------------------------------------------------------------------------------------------------


def _regression(item: InboxItem) -> SafeString:
    data, place = item.data, ""
    size = signed_percent(float(data.get("size") or 0.0))
    if data.get("commit"):
        place = format_html(' since <span class="mono">{}</span>', str(data["commit"])[:_COMMIT])
    elif data.get("node"):
        place = format_html(' on <span class="mono">{}</span>', data["node"])
    return format_html('{} <b class="bad">{}</b>{}', data.get("measure", "Result"), size, place)


def _nan(item: InboxItem) -> SafeString:
    data = item.data
    step, count = data.get("first_not_finite"), int(data.get("not_finite") or 1)
    if data.get("last") is not None:
        where = "" if step is None else f" from step {step}"
        return format_html('Loss was <b class="bad">NaN</b> {} {}{}', count, "time" if count == 1 else "times", where)
    return format_html('Loss is <b class="bad">NaN</b>{}', "" if step is None else f" from step {step}")


def _diverged(item: InboxItem) -> SafeString:
    data = item.data
    rise = f"{significant(data.get('level'))} → {significant(data.get('reached'))}"
    return format_html('Loss diverged: <b class="bad">{}</b> since step {}', rise, data.get("step"))


def _spike(item: InboxItem) -> SafeString:
    data, count = item.data, int(item.data.get("count") or 1)
    what = "Loss spike" if count == 1 else f"{count} loss spikes"
    more = "" if count == 1 else ", highest"
    return format_html(
        '{}{} to <b class="warn">{}</b> at step {}', what, more, significant(data.get("value")), data.get("step")
    )


def _oom(item: InboxItem) -> SafeString:
    memory = memory_in(str(item.data.get("reason") or ""))
    if "asked" not in memory:
        return format_html('<b class="warn">OOM</b>{}', _because(item))
    free = f", {quantity(memory['free'], 'B')} free" if "free" in memory else ""
    return format_html('<b class="warn">OOM</b>: {} asked{}', quantity(memory["asked"], "B"), free)


def _failed(item: InboxItem) -> SafeString:
    return format_html('<b class="bad">Failed</b>{}', _because(item))


def _lost(item: InboxItem) -> SafeString:
    return format_html('<b class="bad">Lost</b>{}', _because(item))


def _alert(item: InboxItem) -> SafeString:
    return format_html('<b class="warn">{}</b>{}', _short(str(item.data.get("title") or "Alert")), _because(item))


def _because(item: InboxItem) -> str:
    first = (str(item.data.get("reason") or "").strip().splitlines() or [""])[0]
    return f": {_short(first)}" if first else ""


def _short(text: str) -> str:
    return text if len(text) <= _REASON else f"{text[: _REASON - 1]}…"


def _asked(item: InboxItem) -> SafeString:
    data, hours = item.data, item.data.get("gpu_hours")
    amount = "a chain without time limit" if hours is None else f"{significant(hours)} GPU h"
    text = '{} asks for <b class="warn">{}</b>, budget {}'
    return format_html(text, data.get("user"), amount, significant(data.get("budget")))


def _silent(item: InboxItem) -> SafeString:
    since = datetime.fromisoformat(item.data["last_heartbeat_at"])
    end = item.done_at or timezone.now()
    silence = duration((end - since).total_seconds(), coarse=True)
    name = item.node.name if item.node else "node"
    return format_html('<span class="mono">{}</span> silent for <b class="warn">{}</b>', name, silence)


def _excluded(item: InboxItem) -> SafeString:
    return format_html(
        '<span class="mono">{}</span> <b class="bad">excluded</b>{}', item.data.get("place"), _because(item)
    )


def _finding(item: InboxItem) -> SafeString:
    numbers = item.data.get("numbers") or {}
    pair, factor = _pair(numbers), _factor(numbers)
    count = int(item.data.get("findings") or 1)
    more = f", {count} times" if count > 1 else ""
    if pair and factor:
        return format_html('{} off by <b class="warn">{} ×</b>{}', figure_title(pair[0]), factor, more)
    rule = RULES.get(item.data.get("rule", ""))
    return format_html("{}{}", rule.title if rule else _short(str(item.data.get("message", ""))), more)


def _factor(numbers: dict[str, float]) -> str:
    """Return by how much the stated number is off."""
    pair = _pair(numbers)
    if pair is None or not numbers[pair[0]] or not numbers[pair[1]]:
        return ""
    ratio = numbers[pair[0]] / numbers[pair[1]]
    return significant(max(ratio, 1 / ratio)).removesuffix(".00").removesuffix(".0") if ratio > 0 else ""


def _pair(numbers: dict[str, float]) -> tuple[str, str] | None:
    """Return the names of the stated number and of the one that contradicts it."""
    for name in numbers:
        if name.startswith("expected_") and name.removeprefix("expected_") in numbers:
            return name.removeprefix("expected_"), name
    return None


# --- actions ---------------------------------------------------------------------------------------------------------


def _open_alert(item: InboxItem) -> Action:
    return Action("Commit" if item.data.get("is_one_commit") else "Open", item.path)


def _open_line(item: InboxItem) -> Action:
    run, line = item.run, item.data.get("line")
    if run is not None and run.source_id and line:
        place = [run.experiment.slug, run.source_id, line, line]
        return Action("Open line", f"{reverse('source-lines', args=place)}?find=nan")
    return Action("Open run", item.path)


def _open_run(item: InboxItem) -> Action:
    return Action("Open run", item.path)


def _try_smaller(item: InboxItem) -> Action:
    size = smaller_batch(item.run) if item.run is not None else None
    return Action(f"Try {size}", item.get_absolute_url(), True, size) if size else Action("Open run", item.path)


def _decide(item: InboxItem) -> Action:
    return Action("Decide", item.get_absolute_url(), approval=int(item.data.get("approval") or 0))


def _open_node(item: InboxItem) -> Action:
    return Action("See node", reverse("node", args=[item.node.name]) if item.node else item.path)


def _judge(item: InboxItem) -> Action:
    return Action("Judge", item.path)


# --- pictures --------------------------------------------------------------------------------------------------------


def _of_change(item: InboxItem, size: Size) -> Svg:
    factor = change_unit(item).factor
    values = [value / factor for value in item.data.get("values") or []]
    return evidence.change(values, int(item.data.get("change_at") or 0), "Results before and after the change", size)


def change_unit(item: InboxItem) -> Unit:
    """Return the unit of the picture of a change: that of its measure, with the prefix that suits the values."""
    unit = str(item.data.get("unit") or "")
    return unit_for(item.data.get("values") or [], unit) if unit else Unit(1.0, "", "")


def _of_nan(item: InboxItem, size: Size) -> Svg:
    data = item.data
    count = int(data.get("not_finite") or 1)
    label = f"{count} values of the loss are not finite"
    return evidence.cells(data.get("before") or [], count, label, first_step=data.get("first_not_finite"), size=size)


def _of_curve(item: InboxItem, size: Size) -> Svg:
    points = [(step, value) for step, value in item.data.get("curve") or [] if value is not None]
    return evidence.curve(points, "Loss by step", bad_from=float(item.data.get("step") or 0), size=size)


def _of_memory(item: InboxItem, size: Size) -> Svg:
    memory = memory_in(str(item.data.get("reason") or ""))
    label = "Memory in use, and what was asked beyond it"
    return evidence.overflow(memory.get("asked"), memory.get("free"), memory.get("capacity"), label, size)


def _of_end(_item: InboxItem, size: Size) -> Svg:
    return evidence.stopped("The run ended before its time", size)


def _of_alert(item: InboxItem, size: Size) -> Svg:
    # Somebody says something: there is nothing to draw.
    return evidence.curve([], str(item.data.get("title", "")), bad_from=0.0, size=size)


def _of_silence(_item: InboxItem, size: Size) -> Svg:
    return evidence.heartbeat("Heartbeats end", size)


def _of_numbers(item: InboxItem, size: Size) -> Svg:
    numbers: dict[str, Any] = item.data.get("numbers") or {}
    message = str(item.data.get("message", ""))
    pair = _pair(numbers)
    names = (pair[1], pair[0]) if pair else tuple(numbers)[:2]
    words = ("computed", "stated") if pair else tuple(figure_title(name).lower() for name in names)
    texts = [
        (_grouped(number_text(name, numbers[name], message)), word) for name, word in zip(names, words, strict=True)
    ]
    first, second = (*texts, ("", ""), ("", ""))[:2]
    return evidence.two_numbers(first, second, message, size)


def _grouped(text: str) -> str:
    return f"{int(text):,}" if text.isdecimal() else text


KINDS: dict[str, Kind] = {
    Event.Kind.WATCH_ALERT: Kind("Regression", "trending-up", "bad", WATCH, _regression, _open_alert, _of_change),
    Event.Kind.RUN_NAN: Kind("NaN or infinite loss", "x", "bad", RUNS, _nan, _open_line, _of_nan),
    Event.Kind.RUN_DIVERGED: Kind("Diverging loss", "trending-up", "bad", RUNS, _diverged, _open_run, _of_curve),
    Event.Kind.RUN_SPIKE: Kind("Loss spike", "activity", "warn", RUNS, _spike, _open_run, _of_curve),
    Event.Kind.RUN_OOM: Kind("Out of memory", "triangle-alert", "warn", RUNS, _oom, _try_smaller, _of_memory),
    Event.Kind.RUN_FAILED: Kind("Failed run", "circle-x", "bad", RUNS, _failed, _open_run, _of_end),
    Event.Kind.RUN_LOST: Kind("Lost run", "server-off", "bad", RUNS, _lost, _open_run, _of_end),
    Event.Kind.RUN_ALERT: Kind("Alert of a script", "triangle-alert", "warn", RUNS, _alert, _open_run, _of_alert),
    Event.Kind.NODE_LOST: Kind("Node lost", "server", "warn", CLUSTER, _silent, _open_node, _of_silence),
    Event.Kind.NODE_EXCLUDED: Kind("Node excluded", "server-off", "bad", CLUSTER, _excluded, _open_node, _of_end),
    Event.Kind.LAUNCH_ASKED: Kind("Launch beyond the budget", "play", "warn", PEOPLE, _asked, _decide, _of_alert),
    Event.Kind.FINDING_NEW: Kind("Finding", "lightbulb", "", RUNS, _finding, _judge, _of_numbers),
}
"""A later kind is one row more."""
