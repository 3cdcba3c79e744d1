"""The evidence of one item of the inbox: its picture, and the place in the log."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any, NamedTuple

from parlab.ingest.summaries import logs
from parlab.lab.models import Attempt, Event, Finding, InboxItem, Run, Source
from parlab.lab.selectors.sources import source_lines
from parlab.pages.rows.inbox import KINDS, change_unit, large_pictures
from parlab.series.log_search import ERROR

MAX_LINES = 12
_AROUND = 2


_MEMORY = re.compile(rb"(?i)out of memory|OutOfMemory|allocate memory")
_WRAPPER = re.compile(r"ChildFailedError|^\s*runners\.")
"""Lines of launchers that only pass on that a rank has failed."""


class LogLine(NamedTuple):
    number: int
    text: str
    is_hit: bool


class LogPlace(NamedTuple):
    """The lines that an item is about."""

    title: str
    lines: list[LogLine]


_TITLES: dict[str, str] = {
    Event.Kind.WATCH_ALERT: "Before and after",
    Event.Kind.RUN_NAN: "Values of the loss",
    Event.Kind.RUN_DIVERGED: "Loss",
    Event.Kind.RUN_SPIKE: "Loss",
    Event.Kind.RUN_OOM: "At the moment of the failure",
    Event.Kind.FINDING_NEW: "What contradicts",
    Event.Kind.NODE_LOST: "Heartbeat",
}


def evidence_of(item: InboxItem) -> dict[str, Any]:
    """Return what the page of an item shows beside its line."""
    return {
        "kind": KINDS[item.kind],
        "pictures": large_pictures(item) if item.kind in _TITLES else None,
        "picture_title": _TITLES.get(item.kind, ""),
        "picture_unit": change_unit(item).name,
        "sentence": _sentence(item),
        "place_in_log": _place_in_log(item),
    }


def _sentence(item: InboxItem) -> str:
    """Return what a rule or an error says in words."""
    data = item.data
    if item.kind == Event.Kind.RUN_DIVERGED:
        return (
            f"The median of each of the last blocks is above {data.get('threshold', 0):.3g}. The lowest level was"
            f" {data.get('level', 0):.3g}."
        )
    if item.kind == Event.Kind.RUN_SPIKE:
        return f"{data.get('sigmas', 0):.0f} robust standard deviations above {data.get('level', 0):.3g}."
    if item.kind == Event.Kind.LAUNCH_ASKED:
        count = int(data.get("runs") or 0)
        return f"{count} run{'' if count == 1 else 's'}, each counted with its time limit (launcher.timeout_s)."
    if item.kind == Event.Kind.NODE_LOST:
        last = datetime.fromisoformat(data["last_heartbeat_at"])
        runs = int(data.get("runs") or 0)
        return f"Last heartbeat {last:%Y-%m-%d %H:%M:%S} UTC. {runs} run{'' if runs == 1 else 's'} stopped with it."
    if item.kind == Event.Kind.NODE_EXCLUDED and data.get("until"):
        until = datetime.fromisoformat(data["until"])
        return f"{data['reason']}. It gets runs again at {until:%Y-%m-%d %H:%M} UTC, or when you put it back."
    return str(data.get("message") or data.get("reason") or "")


def _place_in_log(item: InboxItem) -> LogPlace | None:
    run = item.run
    if item.kind == Event.Kind.FINDING_NEW:
        return _of_finding(item)
    if run is None or item.kind == Event.Kind.WATCH_ALERT:
        return None
    line = item.data.get("line")
    if run.source is not None and line:
        return LogPlace(f"{run.source.name}, line {line}", _of_source(run.source, line, line))
    return _of_attempt(item, run) if item.kind in _FAILED else None


_FAILED = {Event.Kind.RUN_OOM, Event.Kind.RUN_FAILED, Event.Kind.RUN_LOST}


def _of_finding(item: InboxItem) -> LogPlace | None:
    findings = Finding.objects.open().filter(experiment=item.experiment, rule=item.data.get("rule", ""))
    finding = findings.exclude(source=None).select_related("source").order_by("pk").first()
    if finding is None or finding.source is None or not finding.lines:
        return None
    first, last = min(finding.lines), min(max(finding.lines), min(finding.lines) + MAX_LINES)
    return LogPlace(f"{finding.source.name}, line {first}", _of_source(finding.source, first, last))


def _of_source(source: Source, first: int, last: int) -> list[LogLine]:
    lines = source_lines(source, first, last, around=_AROUND)
    return [LogLine(line.number, line.text, line.is_requested) for line in lines][: MAX_LINES + 2 * _AROUND]


def _of_attempt(item: InboxItem, run: Run) -> LogPlace | None:
    """Return the last line of a log that looks like an error, with those before it."""
    attempt = Attempt.objects.filter(run=run, number=item.data.get("attempt") or run.attempt_number).first()
    if attempt is None:
        return None
    hits = logs.find(attempt, logs.LogPart(), _MEMORY if item.kind == Event.Kind.RUN_OOM else ERROR).lines
    hits = [hit for hit in hits if not _WRAPPER.search(hit.text)] or hits
    if not hits:
        tail = logs.tail(attempt, logs.LogPart(), MAX_LINES)
        return LogPlace("last lines", [LogLine(0, text, False) for text in tail]) if tail else None
    number = hits[-1].number
    around = logs.around(attempt, logs.LogPart(), number)
    shown = [row for row in around if abs(row.number - number) <= MAX_LINES // 2]
    return LogPlace(f"line {number}", [LogLine(row.number, row.text, row.number == number) for row in shown])
