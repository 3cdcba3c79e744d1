"""What pages show of interruptions: each as a bar with its parts, and what would shorten the longest ones."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from django.utils import timezone

from parlab.advice.recovery import MEANINGS, SHORTER, TITLES, Interruption, totals
from parlab.charts.format import duration, quantity, significant
from parlab.charts.runs.recovery import hours_figure, recovery_bar
from parlab.charts.svg import Svg, progress_bar
from parlab.ingest.summaries.recovery import run_recovery
from parlab.lab.models import Run

SHOWN = 50


class Row(NamedTuple):
    name: str
    reason: str
    ranks: str
    seconds: str
    bar: Svg
    parts: list[tuple[str, str, str]]
    """Key of its colour, title and time."""
    repeated: int
    advice: str


class Total(NamedTuple):
    """A part over all interruptions."""

    key: str
    title: str
    meaning: str
    seconds: str
    share: str
    advice: str
    bar: Svg
    """Its share."""


class Shown(NamedTuple):
    """The interruptions of a run or of all runs."""

    rows: list[Row]
    totals: list[Total]
    seconds: str
    more: int
    hours: Svg | str


def recovery_of(run: Run) -> Shown:
    """Return the interruptions of a run and its goodput by hour."""
    found = run_recovery(run)
    hours = [
        (timezone.localtime(datetime.fromtimestamp(hour.begin_s, UTC)), hour.share)
        for hour in found.hours
        if hour.begin_s > 0
    ]
    return _shown(found.interruptions, hours_figure(hours) if len(hours) > 1 else "")


def _shown(interruptions: Sequence[Interruption], hours: Svg | str = "") -> Shown:
    latest = list(interruptions)[-SHOWN:]
    longest = max((each.seconds for each in latest), default=0.0)
    whole = sum(each.seconds for each in interruptions)
    return Shown(
        [_row(each, longest) for each in reversed(latest)],
        total_rows(interruptions),
        time_text(whole),
        len(interruptions) - len(latest),
        hours,
    )


def total_rows(interruptions: Sequence[Interruption]) -> list[Total]:
    """Return the parts over several interruptions, with what would shorten them."""
    whole = sum(each.seconds for each in interruptions) or 1.0
    return [
        Total(
            key,
            TITLES[key],
            MEANINGS[key],
            time_text(value),
            f"{significant(100 * value / whole)} %",
            SHORTER[key],
            progress_bar(value / whole, TITLES[key]),
        )
        for key, value in totals(interruptions).items()
    ]


def _row(each: Interruption, longest: float) -> Row:
    seconds = {part.key: part.seconds for part in each.parts}
    titles = {part.key: part.title for part in each.parts}
    ranks = "" if each.ranks is None or each.ranks[0] == each.ranks[1] else f"{each.ranks[0]} → {each.ranks[1]} ranks"
    return Row(
        each.name,
        each.reason,
        ranks,
        time_text(each.seconds),
        recovery_bar(seconds, titles, f"{each.name}: {time_text(each.seconds)}", longest),
        [(part.key, part.title, time_text(part.seconds)) for part in each.parts if part.seconds > 0],
        each.repeated_steps,
        each.advice,
    )


def time_text(seconds: float) -> str:
    """Return a time with its parts of a second, where it is short."""
    return duration(seconds) if seconds >= 60 else quantity(seconds, "s")
